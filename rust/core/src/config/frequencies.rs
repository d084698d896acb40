//! The inverse frequencies of rotary position embeddings, and the angles at a position.
//!
//! Pair `i` of a head is rotated by `position * inv_freq[i]`, with `inv_freq[i] = theta^(-2i / rotary_dim)`
//! (Su et al. 2021, RoFormer, <https://arxiv.org/abs/2104.09864>, equation 15). Scaling types change `inv_freq` so that a
//! model reads longer texts than it was trained on. All of it is computed in f64 and rounded once, at the end.

use std::f64::consts::TAU;

use super::rope::{Rope, RopeScaling};

/// Which inverse frequencies a sequence uses: sequences of one variant share them.
///
/// Most scaling types have one variant. Under dynamic NTK the base is a function of the sequence's whole length, and
/// longrope has one set of divisors within the trained length and one beyond it. Keys that were cached under another
/// variant are not what the model would compute now: when a sequence's variant changes, the engine evaluates it again.
///
/// The number is the shortest length of the variant, or 0 within the trained length: so one number serves several ropes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RopeVariant(usize);

/// The inverse frequencies of one rope in one variant.
#[derive(Debug, Clone, PartialEq)]
pub struct RopeFrequencies {
    /// Radians per position. // [rotary_dim / 2]
    inv_freq: Vec<f64>,
    /// The factor of cos and sin.
    attention_factor: f64,
}

impl Rope {
    /// The variant of a sequence of `sequence_len` tokens (all tokens of the sequence, not only those of this call).
    pub fn variant(&self, sequence_len: usize) -> RopeVariant {
        match self.scaling {
            RopeScaling::Dynamic { original_max_position_embeddings: trained, .. }
                if sequence_len > trained =>
            {
                RopeVariant(sequence_len)
            }
            RopeScaling::LongRope { original_max_position_embeddings: trained, .. }
                if sequence_len > trained =>
            {
                RopeVariant(trained + 1)
            }
            _ => RopeVariant(0),
        }
    }

    /// The frequencies of a variant of this rope, or of all ropes of a model.
    pub fn frequencies(&self, variant: RopeVariant) -> RopeFrequencies {
        let variant = self.variant(variant.0);
        let inv_freq = self.inverse_frequencies(variant);
        RopeFrequencies { inv_freq, attention_factor: self.attention_factor(variant) }
    }

    fn inverse_frequencies(&self, variant: RopeVariant) -> Vec<f64> {
        let Rope { theta, rotary_dim, ref scaling, .. } = *self;
        let plain = |theta| inverse_frequencies(theta, rotary_dim);
        match *scaling {
            RopeScaling::LongRope { ref short_factor, ref long_factor, .. } => {
                let factors = if variant.0 == 0 { short_factor } else { long_factor };
                plain(theta).zip(factors).map(|(frequency, factor)| frequency / factor).collect()
            }
            RopeScaling::None => plain(theta).collect(),
            RopeScaling::Divided { ref factors } => {
                plain(theta).zip(factors).map(|(frequency, factor)| frequency / factor).collect()
            }
            // Chen et al. 2023, position interpolation, <https://arxiv.org/abs/2306.15595>, equation 4.
            RopeScaling::Linear { factor } => plain(theta).map(|frequency| frequency / factor).collect(),
            // Source: transformers 5.23, `modeling_rope_utils.py`.
            RopeScaling::Proportional { partial_rotary_factor, factor } => {
                let rotated = (partial_rotary_factor * rotary_dim as f64 / 2.0) as usize;
                let scaled = |(pair, frequency)| if pair < rotated { frequency / factor } else { 0.0 };
                plain(theta).enumerate().map(scaled).collect()
            }
            RopeScaling::Dynamic { factor, original_max_position_embeddings: trained } => {
                plain(dynamic_theta(theta, factor, trained, variant.0.max(trained), rotary_dim)).collect()
            }
            RopeScaling::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_max_position_embeddings,
            } => {
                let ramp = Llama3Ramp {
                    factor,
                    low_freq_factor,
                    high_freq_factor,
                    trained: original_max_position_embeddings as f64,
                };
                plain(theta).map(|frequency| ramp.scaled(frequency)).collect()
            }
            RopeScaling::Yarn {
                factor,
                original_max_position_embeddings,
                beta_fast,
                beta_slow,
                truncate,
                ..
            } => {
                let dimension = |rotations| {
                    dimension_of(rotations, theta, rotary_dim, original_max_position_embeddings as f64)
                };
                let ramp = yarn_ramp(dimension(beta_fast), dimension(beta_slow), rotary_dim, truncate);
                let blend = |(pair, frequency)| blended(frequency, factor, ramp_at(ramp, pair));
                plain(theta).enumerate().map(blend).collect()
            }
        }
    }

    /// The factor of cos and sin: 1 except for yarn and longrope, which sharpen the attention scores with it.
    fn attention_factor(&self, variant: RopeVariant) -> f64 {
        match self.scaling {
            RopeScaling::Yarn { attention_factor, .. } => attention_factor,
            RopeScaling::LongRope { attention_factors: [short, long], .. } => {
                if variant.0 == 0 {
                    short
                } else {
                    long
                }
            }
            _ => 1.0,
        }
    }
}

impl RopeFrequencies {
    /// Writes cos and sin of one position's angles, times the attention factor. // [rotary_dim / 2] each
    ///
    /// Computed when needed, row by row: a table for every position of a long context would cost more than the angles.
    ///
    /// Panics when the lengths differ.
    pub fn angles(&self, position: usize, cos: &mut [f32], sin: &mut [f32]) {
        let pairs = self.inv_freq.len();
        assert!(cos.len() == pairs && sin.len() == pairs, "one cos and sin per pair");
        for ((frequency, cos), sin) in self.inv_freq.iter().zip(cos).zip(sin) {
            let (sine, cosine) = (position as f64 * frequency).sin_cos();
            *cos = (cosine * self.attention_factor) as f32;
            *sin = (sine * self.attention_factor) as f32;
        }
    }

    /// Radians per position of each pair. // [rotary_dim / 2]
    pub fn inv_freq(&self) -> &[f64] {
        &self.inv_freq
    }

    /// The factor of cos and sin in [`RopeFrequencies::angles`].
    pub fn attention_factor(&self) -> f64 {
        self.attention_factor
    }
}

/// theta^(-2i / rotary_dim) for every pair i.
fn inverse_frequencies(theta: f64, rotary_dim: usize) -> impl Iterator<Item = f64> {
    (0..rotary_dim / 2).map(move |pair| theta.powf(-((2 * pair) as f64) / rotary_dim as f64))
}

/// Dynamic NTK: the base grows with the length, so that the slowest pair rotates as far as it did in training.
///
/// Source: transformers, `modeling_rope_utils.py`, after bloc97's and emozilla's posts; YaRN paper, appendix A.1.
fn dynamic_theta(theta: f64, factor: f64, trained: usize, len: usize, rotary_dim: usize) -> f64 {
    let stretch = factor * len as f64 / trained as f64 - (factor - 1.0);
    let dimensions = rotary_dim as f64;
    theta * stretch.powf(dimensions / (dimensions - 2.0))
}

/// Llama 3.1: pairs with long wavelengths are slowed by `factor`, short ones kept, a ramp between.
///
/// Source: Meta's llama-models, `apply_scaling`; transformers, `modeling_rope_utils.py`.
struct Llama3Ramp {
    factor: f64,
    low_freq_factor: f64,
    high_freq_factor: f64,
    trained: f64,
}

impl Llama3Ramp {
    fn scaled(&self, frequency: f64) -> f64 {
        let turns = self.trained * frequency / TAU; // full turns within the trained length
        let kept =
            ((turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)).clamp(0.0, 1.0);
        blended(frequency, self.factor, kept)
    }
}

/// `kept` of the frequency as it is, the rest slowed by `factor`.
fn blended(frequency: f64, factor: f64, kept: f64) -> f64 {
    frequency * kept + frequency / factor * (1.0 - kept)
}

/// YaRN: the (fractional) pair that makes `rotations` full turns within the trained length.
///
/// Peng et al. 2023, <https://arxiv.org/abs/2309.00071>, section 3.2; solved for the pair as in transformers.
fn dimension_of(rotations: f64, theta: f64, rotary_dim: usize, trained: f64) -> f64 {
    rotary_dim as f64 * (trained / (rotations * TAU)).ln() / (2.0 * theta.ln())
}

/// Ends of the ramp in pairs: kept below the first, slowed above the second.
fn yarn_ramp(fast: f64, slow: f64, rotary_dim: usize, truncate: bool) -> (f64, f64) {
    let (first, last) = if truncate { (fast.floor(), slow.ceil()) } else { (fast, slow) };
    let (first, last) = (first.max(0.0), last.min(rotary_dim as f64 - 1.0));
    // transformers' guard against a ramp of no width.
    if first == last { (first, last + 0.001) } else { (first, last) }
}

/// How much of pair `pair`'s frequency is kept.
fn ramp_at((first, last): (f64, f64), pair: usize) -> f64 {
    1.0 - ((pair as f64 - first) / (last - first)).clamp(0.0, 1.0)
}

#[cfg(test)]
mod tests {
    use super::yarn_ramp;
    use crate::config::{Rope, RopeLayout, RopeScaling};

    fn rope(scaling: RopeScaling) -> Rope {
        Rope { theta: 10_000.0, rotary_dim: 8, layout: RopeLayout::Neox, scaling }
    }

    #[test]
    fn only_dynamic_has_more_than_one_variant() {
        let constant = rope(RopeScaling::Linear { factor: 2.0 });
        assert_eq!(constant.variant(1), constant.variant(1 << 40));
        let dynamic = rope(RopeScaling::Dynamic { factor: 2.0, original_max_position_embeddings: 64 });
        assert_eq!(dynamic.variant(1), dynamic.variant(64));
        assert_ne!(dynamic.variant(64), dynamic.variant(65));
        let slowest = |len| dynamic.frequencies(dynamic.variant(len)).inv_freq()[3];
        assert_eq!(slowest(64), 10_000f64.powf(-0.75));
        assert!(slowest(65) < slowest(64));
    }

    #[test]
    fn angles_are_rounded_once() {
        let rope = rope(RopeScaling::None);
        let (mut cos, mut sin) = ([0.0; 4], [0.0; 4]);
        rope.frequencies(rope.variant(0)).angles(1_000_003, &mut cos, &mut sin);
        assert_eq!(cos[0], 1_000_003f64.cos() as f32);
        assert_eq!(sin[2], (1_000_003f64 * 10_000f64.powf(-0.5)).sin() as f32);
    }

    /// Numbers of a script that knows only the definition: 1e6^(-2i/16) for the first floor(0.25 * 16 / 2) pairs of 8,
    /// zero for the others, all of it / factor.
    #[test]
    fn proportional_turns_the_leading_pairs_at_the_whole_heads_speeds() {
        let frequencies = |partial_rotary_factor, factor| {
            let scaling = RopeScaling::Proportional { partial_rotary_factor, factor };
            let rope = Rope { theta: 1e6, rotary_dim: 16, ..rope(scaling) };
            assert_eq!(rope.variant(1), rope.variant(1 << 40));
            rope.frequencies(rope.variant(1)).inv_freq().to_vec()
        };
        let check = |found: Vec<f64>, expected: [f64; 8]| {
            for (found, expected) in found.iter().zip(expected) {
                assert!((found - expected).abs() <= 1e-15 * expected, "{found} is not {expected}");
            }
        };
        check(frequencies(0.25, 1.0), [1.0, 0.1778279410038923, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
        check(
            frequencies(0.45, 4.0),
            [0.25, 0.04445698525097307, 0.007905694150420948, 0.0, 0.0, 0.0, 0.0, 0.0],
        );
        check(
            frequencies(1.0, 1.0),
            [
                1.0,
                0.1778279410038923,
                0.03162277660168379,
                0.005623413251903491,
                0.001,
                0.00017782794100389227,
                3.1622776601683795e-05,
                5.623413251903491e-06,
            ],
        );
        check(frequencies(0.0, 1.0), [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
    }

    #[test]
    fn a_ramp_always_has_width() {
        assert_eq!(yarn_ramp(-3.0, 0.0, 8, true), (0.0, 0.001));
        assert_eq!(yarn_ramp(2.5, 4.5, 64, false), (2.5, 4.5));
        assert_eq!(yarn_ramp(2.5, 4.5, 64, true), (2.0, 5.0));
    }
}
