//! The parts of mechanisms in a layer, and outside the layers.

use super::leaf::parts;
use crate::mechanisms::mechanisms;

macro_rules! all_parts {
    ($($name:ident: $facts:ident,)+) => {
        parts! {
            /// What a layer has of each mechanism.
            pub struct LayerMechanisms {
                $(
                    #[allow(missing_docs)] // the name of its folder
                    pub $name: Option<Box<crate::mechanisms::$name::parts::InLayer<L>>>,
                )+
            }

            /// What is outside the layers of each mechanism.
            pub struct OutsideMechanisms {
                $(
                    #[allow(missing_docs)] // the name of its folder
                    pub $name: Option<Box<crate::mechanisms::$name::parts::Outside<L>>>,
                )+
            }
        }

        impl OutsideMechanisms {
            /// Nothing of any.
            pub fn none() -> Self {
                Self { $( $name: None, )+ }
            }
        }
    };
}
mechanisms!(all_parts);
