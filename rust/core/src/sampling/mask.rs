//! Which ids are allowed as the next token.

use super::settings::ChainStep;

/// A set of allowed ids, a bit each; ids beyond it are not allowed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mask {
    /// Bit `id % 32` of word `id / 32`.
    words: Vec<u32>,
    /// What the mask is for: the name of its stage.
    pub(super) step: ChainStep,
}

impl Mask {
    /// The mask of these words: bit `id % 32` of word `id / 32` says whether `id` is allowed.
    pub fn new(words: Vec<u32>) -> Self {
        Self { words, step: ChainStep::Grammar }
    }

    /// The mask of these ids.
    pub(super) fn of(ids: &[u32]) -> Self {
        let mut mask = Self::new(Vec::new());
        ids.iter().for_each(|&id| mask.allow(id));
        mask
    }

    /// The mask of an id that is written in place of the model's choice.
    pub(super) fn forced(id: u32) -> Self {
        Self { step: ChainStep::Forced, ..Self::of(&[id]) }
    }

    /// Allows one more id.
    pub(super) fn allow(&mut self, id: u32) {
        let word = id as usize / 32;
        if word >= self.words.len() {
            self.words.resize(word + 1, 0);
        }
        self.words[word] |= 1 << (id % 32);
    }

    /// Whether `id` is allowed.
    pub fn allows(&self, id: u32) -> bool {
        self.words.get(id as usize / 32).is_some_and(|word| word >> (id % 32) & 1 == 1)
    }

    /// Copies the logits to `row`, with -inf for ids that are not allowed.  // logits: [vocab_size]
    pub(super) fn copy(&self, logits: &[f32], row: &mut Vec<f32>) {
        row.clear();
        row.resize(logits.len(), f32::NEG_INFINITY);
        for ((to, from), &word) in row.chunks_mut(32).zip(logits.chunks(32)).zip(&self.words) {
            match word {
                0 => {}
                u32::MAX => to.copy_from_slice(from),
                _ => {
                    for (bit, (to, &from)) in to.iter_mut().zip(from).enumerate() {
                        if word >> bit & 1 == 1 {
                            *to = from;
                        }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_allowed_is_masked_ids_beyond_the_mask_too() {
        let mut words = vec![0, u32::MAX, 0b101];
        let logits: Vec<f32> = (0..130).map(|i| i as f32).collect();
        for extra in 0..3 {
            let mask = Mask::new(words.clone());
            let mut row = vec![7.0; 3];
            mask.copy(&logits, &mut row);
            assert_eq!(row.len(), logits.len());
            for (id, &logit) in row.iter().enumerate() {
                let allowed = (32..64).contains(&id) || id == 64 || id == 66;
                assert_eq!(mask.allows(id as u32), allowed, "{id}");
                assert_eq!(logit, if allowed { id as f32 } else { f32::NEG_INFINITY }, "{id}, {extra}");
            }
            words.push(0); // more words than the row has ids
            words.push(0);
        }
    }
}
