//! Which mechanisms a model has.

use super::facts::Facts;
use crate::checkpoint::Checkpoint;
use crate::mechanisms::mechanisms;

macro_rules! all_facts {
    ($($name:ident: $facts:ident,)+) => {
        /// The facts of each mechanism that the model has.
        #[derive(Debug, Clone, PartialEq, Default)]
        #[allow(missing_docs)] // fields with the names of their folders
        pub struct Mechanisms {
            $( pub $name: Option<crate::mechanisms::$name::config::$facts>, )+
        }

        impl Mechanisms {
            fn all(&self) -> impl Iterator<Item = &dyn Facts> {
                [$( self.$name.as_ref().map(|facts| facts as &dyn Facts), )+].into_iter().flatten()
            }

            fn all_mut(&mut self) -> impl Iterator<Item = &mut dyn Facts> {
                [$( self.$name.as_mut().map(|facts| facts as &mut dyn Facts), )+].into_iter().flatten()
            }
        }
    };
}
mechanisms!(all_facts);

impl Mechanisms {
    /// Takes the names of tensors in GGUF files.
    pub fn use_gguf_names(&mut self) {
        self.all_mut().for_each(Facts::use_gguf_names);
    }

    /// Takes the names of the tensors that the file has.
    pub fn use_names_of(&mut self, checkpoint: &Checkpoint) {
        self.all_mut().for_each(|facts| facts.use_names_of(checkpoint));
    }

    /// [`Facts::index_dim`] of all. A layer has one kind of such values at most, and so with heads and columns.
    pub fn index_dim(&self, layer: usize, num_kv_heads: usize) -> usize {
        self.all().map(|facts| facts.index_dim(layer, num_kv_heads)).sum()
    }

    /// [`Facts::further_heads`] of all.
    pub fn further_heads(&self, layer: usize) -> usize {
        self.all().map(|facts| facts.further_heads(layer)).sum()
    }

    /// [`Facts::columns`] of all.
    pub fn columns(&self, layer: usize) -> usize {
        self.all().map(|facts| facts.columns(layer)).sum()
    }

    /// Whether one adds to the scores of attention, or hides keys by what they are.
    pub fn depend_on_scores(&self) -> bool {
        self.all().any(Facts::depends_on_scores)
    }

    /// States behind those of the mixers: how many, and the values of each. A model has one kind of them at most.
    pub fn further_states(&self) -> [usize; 2] {
        self.all().find_map(Facts::further_states).unwrap_or_default()
    }

    /// [`Facts::buffers`] of all.
    pub fn buffers(&self) -> impl Iterator<Item = &'static str> {
        self.all().flat_map(Facts::buffers).copied()
    }

    /// The first layer whose tensors a layer's part has, where layers share a part.
    pub fn shares_tensors_of(&self, layer: usize) -> Option<usize> {
        self.all().find_map(|facts| facts.shares_tensors_of(layer))
    }
}
