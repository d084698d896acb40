//! The specs of all mechanisms that a model has.

use super::build::{Build, BuildMixer, OwnAttention};
use super::prefix::Prefix;
use crate::config::{Config, Recurrent};
use crate::mechanisms::{mechanisms, mixers};
use crate::parts::{LayerMechanisms, MatrixSpec, NormSpec, OutsideMechanisms, RecurrentWeights, Spec};

macro_rules! all_specs {
    ($($name:ident: $facts:ident,)+) => {
        /// What the layer at a path has of each.
        pub(super) fn in_layer(at: &Prefix<'_>) -> LayerMechanisms<Spec> {
            let all = &at.config.mechanisms;
            LayerMechanisms { $( $name: all.$name.as_ref().and_then(|facts| facts.in_layer(at)).map(Box::new), )+ }
        }

        /// What is outside the layers of each.
        pub(super) fn outside(at: &Prefix<'_>) -> OutsideMechanisms<Spec> {
            let all = &at.config.mechanisms;
            OutsideMechanisms { $( $name: all.$name.as_ref().and_then(|facts| facts.outside(at)).map(Box::new), )+ }
        }

        /// [`Build::attention`] of the mechanism that has the layer's.
        pub(super) fn attention(at: &Prefix<'_>) -> Option<OwnAttention> {
            let all = &at.config.mechanisms;
            None$( .or_else(|| all.$name.as_ref()?.attention(at)) )+
        }

        /// [`Build::stack_on`] of each.
        pub(super) fn stack_on(at: &Prefix<'_>, matrix: &mut MatrixSpec) {
            let all = &at.config.mechanisms;
            $( all.$name.iter().for_each(|facts| facts.stack_on(at, matrix)); )+
        }

        /// [`Build::numbered`] of the mechanism that numbers the layers.
        pub(super) fn numbered(config: &Config, layer: usize) -> Option<(&'static str, usize)> {
            let all = &config.mechanisms;
            [$( all.$name.as_ref().and_then(|facts| facts.numbered(layer)), )+].into_iter().flatten().next()
        }

        /// [`Build::attention_elsewhere`] of the mechanism that has the layer's attention.
        pub(super) fn attention_elsewhere<'a>(at: &mut Prefix<'a>) -> Option<(Prefix<'a>, NormSpec)> {
            let all = &at.config.mechanisms;
            $(
                if let Some(elsewhere) = all.$name.as_ref().and_then(|facts| facts.attention_elsewhere(at)) {
                    return Some(elsewhere);
                }
            )+
            None
        }
    };
}
mechanisms!(all_specs);

macro_rules! all_mixers {
    ($($name:ident: $facts:ident,)+) => {
        /// A recurrent mixer that is in a folder.
        pub(super) fn mixer(recurrent: &Recurrent, at: &Prefix<'_>) -> Option<RecurrentWeights<Spec>> {
            match recurrent {
                $( Recurrent::$facts(facts) => Some(facts.specs(at)), )+
                Recurrent::Linear(_) | Recurrent::Window(_) => None,
            }
        }
    };
}
mixers!(all_mixers);
