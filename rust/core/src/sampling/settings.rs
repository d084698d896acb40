//! The settings of the sampler, and the order of its steps.

use crate::{Error, Result};

/// What happens between the raw logits and the draw. A field at its "off" value adds no stage.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampling {
    /// Added to the logits of these ids, before anything else; finite. -100 practically bans an id.
    pub logit_bias: Vec<(u32, f32)>,
    /// Divides the logits; finite, >= 0. 1 is off; 0 is greedy (the largest logit, ties to the lowest id).
    pub temperature: f32,
    /// Keep the k most probable candidates. 0 is off.
    pub top_k: usize,
    /// Keep the smallest set with at least this probability; [0, 1]. 1 is off.
    pub top_p: f32,
    /// Keep candidates at least this many times as probable as the best; [0, 1]. 0 is off.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of ids in the history; finite, > 0. 1 is off.
    pub repetition_penalty: f32,
    /// Key of the random numbers.
    pub seed: u64,
    /// Separates sequences that share a seed (the row number of a batch).
    pub stream: u64,
}

impl Sampling {
    /// Refuses values without a meaning. Errors: [`Error::Request`] with the field, what it must be and its value.
    pub fn validate(&self) -> Result<()> {
        let refuse = |field: &str, value: f32, allowed: &str| {
            Err(Error::Request(format!("{field}: must be {allowed} (got {value}); change {field}")))
        };
        if !(self.temperature.is_finite() && self.temperature >= 0.0) {
            return refuse("temperature", self.temperature, "a finite number >= 0 (0 is greedy, 1 is off)");
        }
        if !(0.0..=1.0).contains(&self.top_p) {
            return refuse("top_p", self.top_p, "a number from 0 to 1 (1 is off)");
        }
        if !(0.0..=1.0).contains(&self.min_p) {
            return refuse("min_p", self.min_p, "a number from 0 to 1 (0 is off)");
        }
        if !(self.repetition_penalty.is_finite() && self.repetition_penalty > 0.0) {
            return refuse("repetition_penalty", self.repetition_penalty, "a finite number > 0 (1 is off)");
        }
        if let Some(&(_, bias)) = self.logit_bias.iter().find(|(_, bias)| !bias.is_finite()) {
            return refuse("logit_bias", bias, "a finite number");
        }
        Ok(())
    }
}

/// A step of the sampler chain; each works on the renormalized survivors of the one before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChainStep {
    /// The one id that closes a thought whose budget is spent; not a setting, see [`super::Sampler::sample_within`].
    Forced,
    /// Only ids that a grammar allows at this place; not a setting, as `Forced`.
    Grammar,
    /// x + bias of the id (OpenAI's API, `logit_bias`).
    LogitBias,
    /// Keskar et al. 2019 (CTRL), section 4.1, with transformers' rule for negative logits: x < 0 ? x * p : x / p, once
    /// per id of the history (prompt and answer).
    RepetitionPenalty,
    /// x / T.
    Temperature,
    /// The k best, exactly k: ties by lower id (transformers keeps every tie of the k-th).
    TopK,
    /// Nucleus, Holtzman et al. 2020: the smallest set with mass >= top_p, at least one.
    TopP,
    /// Nguyen et al. 2024: p >= min_p * p_max.
    MinP,
}

/// Hugging Face's order: logits processors, then warpers (transformers, generation/utils.py, `_get_logits_processor`).
/// The grammar's mask, bias and penalty come first in any order: the other steps never change which candidate is more probable.
pub const SAMPLER_CHAIN: [ChainStep; 8] = [
    ChainStep::Forced,
    ChainStep::Grammar,
    ChainStep::LogitBias,
    ChainStep::RepetitionPenalty,
    ChainStep::Temperature,
    ChainStep::TopK,
    ChainStep::TopP,
    ChainStep::MinP,
];

impl ChainStep {
    /// The name of its field in `Sampling` of Python.
    pub fn name(self) -> &'static str {
        match self {
            ChainStep::Forced => "forced",
            ChainStep::Grammar => "grammar",
            ChainStep::LogitBias => "logit_bias",
            ChainStep::RepetitionPenalty => "repetition_penalty",
            ChainStep::Temperature => "temperature",
            ChainStep::TopK => "top_k",
            ChainStep::TopP => "top_p",
            ChainStep::MinP => "min_p",
        }
    }

    /// Whether the settings switch it on.
    pub(super) fn is_on(self, sampling: &Sampling) -> bool {
        match self {
            ChainStep::Forced | ChainStep::Grammar => false, // not settings
            ChainStep::LogitBias => !sampling.logit_bias.is_empty(),
            ChainStep::RepetitionPenalty => sampling.repetition_penalty != 1.0,
            ChainStep::Temperature => sampling.temperature != 1.0,
            ChainStep::TopK => sampling.top_k != 0,
            ChainStep::TopP => sampling.top_p != 1.0,
            ChainStep::MinP => sampling.min_p != 0.0,
        }
    }
}

/// The logit with its bias; a finite one stays finite.
pub(super) fn biased(logit: f32, id: u32, biases: &[(u32, f32)]) -> f32 {
    let bias = biases.iter().filter(|(other, _)| *other == id).map(|(_, bias)| bias).sum::<f32>();
    if logit.is_finite() { (logit + bias).clamp(f32::MIN, f32::MAX) } else { logit }
}
