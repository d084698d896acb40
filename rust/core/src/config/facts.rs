//! What the rest of the engine asks of a mechanism's facts, whichever mechanism it is.

use crate::checkpoint::Checkpoint;

/// The facts of a mechanism.
pub trait Facts {
    /// Takes the names of tensors in GGUF files.
    fn use_gguf_names(&mut self) {}

    /// Takes the names of the tensors that the file has.
    fn use_names_of(&mut self, _checkpoint: &Checkpoint) {}

    /// Values that are cached beside every key of a layer, for so many key/value heads.
    fn index_dim(&self, _layer: usize, _num_kv_heads: usize) -> usize {
        0
    }

    /// Heads of a layer whose keys are cached behind its own.
    fn further_heads(&self, _layer: usize) -> usize {
        0
    }

    /// Values of a layer's row behind queries, keys, values and gates.
    fn columns(&self, _layer: usize) -> usize {
        0
    }

    /// Whether it adds to the scores of attention, or hides keys by what they are.
    fn depends_on_scores(&self) -> bool {
        false
    }

    /// States behind those of the mixers: how many, and the values of each.
    fn further_states(&self) -> Option<[usize; 2]> {
        None
    }

    /// The first layer whose tensors a layer's part has, where layers share a part.
    fn shares_tensors_of(&self, _layer: usize) -> Option<usize> {
        None
    }

    /// Tensors that follow from the config, by the ends of their names; a file may have them, and they are not read.
    fn buffers(&self) -> &'static [&'static str] {
        &[]
    }
}

/// What the rest of the engine asks of a recurrent mixer's facts.
pub trait MixerFacts {
    /// Values per position that are kept, and how many positions.
    fn window(&self) -> (usize, usize);

    /// Heads with a matrix, and its sizes: keys and values. Channels by themselves are heads of 16.
    fn matrices(&self) -> (usize, usize, usize) {
        (0, 0, 0)
    }

    /// Takes what the shapes of the file's tensors decide; they are named below the path of the first layer with the mixer.
    fn use_shapes_of(&mut self, _shape_of: &dyn Fn(&str) -> Option<Vec<usize>>) {}

    /// As [`Facts::buffers`].
    fn buffers(&self) -> &'static [&'static str] {
        &[]
    }
}
