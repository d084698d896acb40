//! The settings of the sampler, and the order of its steps.

use super::dry::Breakers;
use crate::{Error, Result};
use std::sync::Arc;

/// What happens between the raw logits and the draw. A field at its "off" value adds no stage.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampling {
    /// Added to the logits of these ids, before anything else; finite. -100 practically bans an id.
    pub logit_bias: Vec<(u32, f32)>,
    /// Divides positive and multiplies negative logits of ids in the history; finite, > 0. 1 is off.
    pub repetition_penalty: f32,
    /// Subtracted from the logits of ids in the answer; -2 to 2. 0 is off.
    pub presence_penalty: f32,
    /// Subtracted from the logit of an id as often as the answer has it; -2 to 2. 0 is off.
    pub frequency_penalty: f32,
    /// Subtracted from the logit of an id that would continue a repetition of `dry_allowed_length` tokens; finite, >= 0.
    /// 0 is off.
    pub dry_multiplier: f32,
    /// The factor for each token by which the repetition is longer; finite, >= 1.
    pub dry_base: f32,
    /// The longest repetition without a penalty is shorter than this.
    pub dry_allowed_length: usize,
    /// How many of the last tokens are searched; `None`: all. 0 is off.
    pub dry_penalty_last_n: Option<usize>,
    /// Repetitions do not reach beyond these.
    pub dry_breakers: Arc<Breakers>,
    /// Divides the logits; finite, >= 0. 1 is off; 0 is greedy (the largest logit, ties to the lowest id).
    pub temperature: f32,
    /// Keep logits within so many standard deviations of the largest; finite, >= 0. 0 is off.
    pub top_n_sigma: f32,
    /// Keep the k most probable candidates. 0 is off.
    pub top_k: usize,
    /// Keep the smallest set with at least this probability; [0, 1]. 1 is off.
    pub top_p: f32,
    /// Keep candidates at least this many times as probable as the best; [0, 1]. 0 is off.
    pub min_p: f32,
    /// How often the best candidates are removed; [0, 1]. 0 is off.
    pub xtc_probability: f32,
    /// Of the candidates with at least this probability only the least probable one stays; [0, 1]. Above 0.5 is off: at
    /// most one candidate has more.
    pub xtc_threshold: f32,
    /// How many tokens of the history come before the answer.
    pub answer_start: usize,
    /// Key of the random numbers.
    pub seed: u64,
    /// Separates sequences that share a seed (the row number of a batch).
    pub stream: u64,
}

impl Default for Sampling {
    /// Every stage is off.
    fn default() -> Self {
        Sampling {
            logit_bias: Vec::new(),
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            dry_multiplier: 0.0,
            dry_base: 1.75,
            dry_allowed_length: 2,
            dry_penalty_last_n: None,
            dry_breakers: Arc::default(),
            temperature: 1.0,
            top_n_sigma: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            xtc_probability: 0.0,
            xtc_threshold: 0.1,
            answer_start: 0,
            seed: 0,
            stream: 0,
        }
    }
}

impl Sampling {
    /// Refuses values without a meaning. Errors: [`Error::Request`] with the field, what it must be and its value.
    pub fn validate(&self) -> Result<()> {
        let check = |is_allowed: bool, field: &str, value: f32, allowed: &str| match is_allowed {
            true => Ok(()),
            false => Err(Error::Request(format!("{field}: must be {allowed} (got {value}); change {field}"))),
        };
        let share = |field, value: f32, allowed| check((0.0..=1.0).contains(&value), field, value, allowed);
        let at_least = |lowest, field, value: f32, allowed| {
            check(value.is_finite() && value >= lowest, field, value, allowed)
        };
        let subtracted = |field, value: f32| {
            check((-2.0..=2.0).contains(&value), field, value, "a number from -2 to 2 (0 is off)")
        };
        at_least(0.0, "temperature", self.temperature, "a finite number >= 0 (0 is greedy, 1 is off)")?;
        share("top_p", self.top_p, "a number from 0 to 1 (1 is off)")?;
        share("min_p", self.min_p, "a number from 0 to 1 (0 is off)")?;
        share("xtc_probability", self.xtc_probability, "a number from 0 to 1 (0 is off)")?;
        share("xtc_threshold", self.xtc_threshold, "a number from 0 to 1 (above 0.5 is off)")?;
        at_least(0.0, "top_n_sigma", self.top_n_sigma, "a finite number >= 0 (0 is off)")?;
        let penalty = self.repetition_penalty;
        let is_allowed = penalty.is_finite() && penalty > 0.0;
        check(is_allowed, "repetition_penalty", penalty, "a finite number > 0 (1 is off)")?;
        subtracted("presence_penalty", self.presence_penalty)?;
        subtracted("frequency_penalty", self.frequency_penalty)?;
        at_least(0.0, "dry_multiplier", self.dry_multiplier, "a finite number >= 0 (0 is off)")?;
        at_least(1.0, "dry_base", self.dry_base, "a finite number >= 1")?;
        self.logit_bias
            .iter()
            .try_for_each(|&(_, bias)| check(bias.is_finite(), "logit_bias", bias, "a finite number"))
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
    /// x - p for each id of the answer (OpenAI's API, `presence_penalty`).
    PresencePenalty,
    /// x - p * n for an id that the answer has n times (OpenAI's API, `frequency_penalty`).
    FrequencyPenalty,
    /// "Don't repeat yourself", P. E. Weidmann 2024: see [`super::dry`].
    Dry,
    /// x / T.
    Temperature,
    /// Tang et al. 2024: x >= x_max - n * sigma, the standard deviation of the logits above -inf. The temperature cancels.
    TopNSigma,
    /// The k best, exactly k: ties by lower id (transformers keeps every tie of the k-th).
    TopK,
    /// Nucleus, Holtzman et al. 2020: the smallest set with mass >= top_p, at least one.
    TopP,
    /// Nguyen et al. 2024: p >= min_p * p_max.
    MinP,
    /// "Exclude top choices", P. E. Weidmann 2024: with a probability, all candidates with p >= threshold are removed but
    /// the least probable one of them.
    Xtc,
}

/// Hugging Face's order: logits processors, then warpers (transformers, generation/utils.py, `_get_logits_processor`). What
/// transformers does not have is where text-generation-webui, which DRY and XTC are from, has it.
/// The grammar's mask, bias and penalties come first: the other steps never change which candidate is more probable.
pub const SAMPLER_CHAIN: [ChainStep; 13] = [
    ChainStep::Forced,
    ChainStep::Grammar,
    ChainStep::LogitBias,
    ChainStep::RepetitionPenalty,
    ChainStep::PresencePenalty,
    ChainStep::FrequencyPenalty,
    ChainStep::Dry,
    ChainStep::Temperature,
    ChainStep::TopNSigma,
    ChainStep::TopK,
    ChainStep::TopP,
    ChainStep::MinP,
    ChainStep::Xtc,
];

impl ChainStep {
    /// The name of its field in `Sampling` of Python, without the part that names one of several.
    pub fn name(self) -> &'static str {
        match self {
            ChainStep::Forced => "forced",
            ChainStep::Grammar => "grammar",
            ChainStep::LogitBias => "logit_bias",
            ChainStep::RepetitionPenalty => "repetition_penalty",
            ChainStep::PresencePenalty => "presence_penalty",
            ChainStep::FrequencyPenalty => "frequency_penalty",
            ChainStep::Dry => "dry",
            ChainStep::Temperature => "temperature",
            ChainStep::TopNSigma => "top_n_sigma",
            ChainStep::TopK => "top_k",
            ChainStep::TopP => "top_p",
            ChainStep::MinP => "min_p",
            ChainStep::Xtc => "xtc",
        }
    }

    /// Whether the settings switch it on.
    pub(super) fn is_on(self, sampling: &Sampling) -> bool {
        match self {
            ChainStep::Forced | ChainStep::Grammar => false, // not settings
            ChainStep::LogitBias => !sampling.logit_bias.is_empty(),
            ChainStep::RepetitionPenalty => sampling.repetition_penalty != 1.0,
            ChainStep::PresencePenalty => sampling.presence_penalty != 0.0,
            ChainStep::FrequencyPenalty => sampling.frequency_penalty != 0.0,
            ChainStep::Dry => sampling.dry_multiplier != 0.0 && sampling.dry_penalty_last_n != Some(0),
            ChainStep::Temperature => sampling.temperature != 1.0,
            ChainStep::TopNSigma => sampling.top_n_sigma != 0.0,
            ChainStep::TopK => sampling.top_k != 0,
            ChainStep::TopP => sampling.top_p != 1.0,
            ChainStep::MinP => sampling.min_p != 0.0,
            ChainStep::Xtc => sampling.xtc_probability != 0.0 && sampling.xtc_threshold <= 0.5,
        }
    }

    /// Whether it changes logits of single ids, and with them the order of the candidates.
    pub(super) fn adjusts(self) -> bool {
        matches!(self, ChainStep::LogitBias) || self.is_penalty()
    }

    /// Whether it makes what was said less likely, or more.
    pub(super) fn is_penalty(self) -> bool {
        use ChainStep::{Dry, FrequencyPenalty, PresencePenalty, RepetitionPenalty};
        matches!(self, RepetitionPenalty | PresencePenalty | FrequencyPenalty | Dry)
    }
}
