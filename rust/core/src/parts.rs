//! Parts of a model that are declared once: a struct, and a visit of the tensors or weights in it.

use std::boxed::Box;

/// What consists of `Leaf`s: the tensors that a part is made of, or its packed weights.
pub trait Visit<Leaf> {
    /// Calls `each` with every leaf.
    fn visit<'a>(&'a self, each: &mut dyn FnMut(&'a Leaf));
}

impl<Leaf, T: Visit<Leaf>> Visit<Leaf> for Option<T> {
    fn visit<'a>(&'a self, each: &mut dyn FnMut(&'a Leaf)) {
        self.iter().for_each(|part| part.visit(each));
    }
}

impl<Leaf, T: Visit<Leaf>> Visit<Leaf> for Vec<T> {
    fn visit<'a>(&'a self, each: &mut dyn FnMut(&'a Leaf)) {
        self.iter().for_each(|part| part.visit(each));
    }
}

impl<Leaf, T: Visit<Leaf>, const N: usize> Visit<Leaf> for [T; N] {
    fn visit<'a>(&'a self, each: &mut dyn FnMut(&'a Leaf)) {
        self.iter().for_each(|part| part.visit(each));
    }
}

impl<Leaf, T: Visit<Leaf> + ?Sized> Visit<Leaf> for Box<T> {
    fn visit<'a>(&'a self, each: &mut dyn FnMut(&'a Leaf)) {
        (**self).visit(each);
    }
}

impl<Leaf, A: Visit<Leaf>, B: Visit<Leaf>> Visit<Leaf> for (A, B) {
    fn visit<'a>(&'a self, each: &mut dyn FnMut(&'a Leaf)) {
        self.0.visit(each);
        self.1.visit(each);
    }
}

impl<Leaf, A: Visit<Leaf>, B: Visit<Leaf>, C: Visit<Leaf>> Visit<Leaf> for (A, B, C) {
    fn visit<'a>(&'a self, each: &mut dyn FnMut(&'a Leaf)) {
        self.0.visit(each);
        self.1.visit(each);
        self.2.visit(each);
    }
}

/// Declares structs whose fields are parts, with a visit of all their leaves.
///
/// Fields behind `;` are facts without leaves.
macro_rules! parts {
    ($leaf:ty; $(
        $(#[$meta:meta])*
        pub struct $name:ident {
            $( $(#[$of_part:meta])* pub $part:ident: $part_type:ty, )*
            $( ; $( $(#[$of_fact:meta])* pub $fact:ident: $fact_type:ty, )+ )?
        }
    )+) => { $(
        $(#[$meta])*
        pub struct $name {
            $( $(#[$of_part])* pub $part: $part_type, )*
            $( $( $(#[$of_fact])* pub $fact: $fact_type, )+ )?
        }

        impl $crate::parts::Visit<$leaf> for $name {
            #[allow(unused_variables)]
            fn visit<'a>(&'a self, each: &mut dyn FnMut(&'a $leaf)) {
                $( $crate::parts::Visit::<$leaf>::visit(&self.$part, each); )*
            }
        }
    )+ };
}
pub(crate) use parts;
