//! Which token comes next: a chain of steps over the candidates, then one draw that can be explained.

mod candidates;
pub mod compare;
pub mod philox;
pub mod readout;
pub mod top_k;

use candidates::Candidates;
pub use candidates::Stage;

use crate::sampling::readout::Logprobs;
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
/// Bias and penalty come first in any order: the other steps never change which candidate is more probable.
pub const SAMPLER_CHAIN: [ChainStep; 6] = [
    ChainStep::LogitBias,
    ChainStep::RepetitionPenalty,
    ChainStep::Temperature,
    ChainStep::TopK,
    ChainStep::TopP,
    ChainStep::MinP,
];

impl ChainStep {
    /// The name of its field in [`Sampling`].
    pub fn name(self) -> &'static str {
        match self {
            ChainStep::LogitBias => "logit_bias",
            ChainStep::RepetitionPenalty => "repetition_penalty",
            ChainStep::Temperature => "temperature",
            ChainStep::TopK => "top_k",
            ChainStep::TopP => "top_p",
            ChainStep::MinP => "min_p",
        }
    }

    fn is_on(self, sampling: &Sampling) -> bool {
        match self {
            ChainStep::LogitBias => !sampling.logit_bias.is_empty(),
            ChainStep::RepetitionPenalty => sampling.repetition_penalty != 1.0,
            ChainStep::Temperature => sampling.temperature != 1.0,
            ChainStep::TopK => sampling.top_k != 0,
            ChainStep::TopP => sampling.top_p != 1.0,
            ChainStep::MinP => sampling.min_p != 0.0,
        }
    }
}

/// A sampled token and how it was chosen.
#[derive(Debug, Clone, PartialEq)]
pub struct Draw {
    /// The token.
    pub id: u32,
    /// One per stage that is switched on, in order; empty for greedy and when no trace was asked for.
    pub stages: Vec<Stage>,
    /// The uniform draw in [0, 1); `None` for greedy.
    pub u: Option<f64>,
}

/// Draws tokens; holds only the buffers of one draw.
#[derive(Debug, Default)]
pub struct Sampler {
    /// Biased and penalized logits.  // [vocab_size]
    row: Vec<f32>,
    candidates: Candidates,
}

impl Sampler {
    /// A sampler; memory grows with the first draw.
    pub fn new() -> Sampler {
        Sampler::default()
    }

    /// Draws the token at `position`.  // logits: [vocab_size], history: [tokens before position]
    ///
    /// The draw is a function of the arguments alone: u of (seed, stream, position), then the first candidate, in order
    /// of probability with ties by lower id, whose cumulative probability exceeds u. `trace` is the read-out of these
    /// `logits`; with it the stages are recorded (up to one pass over the row each), the token is the same.
    ///
    /// Errors: [`Error::NonFinite`] for NaN, +inf or nothing but -inf; [`Error::Request`] for a field out of its range, an
    /// empty row, or an id outside the vocabulary: of the bias, or, with a repetition penalty, of the history.
    pub fn sample(
        &mut self,
        logits: &[f32],
        history: &[u32],
        position: u64,
        sampling: &Sampling,
        trace: Option<&Logprobs>,
    ) -> Result<Draw> {
        sampling.validate()?;
        let row = if ChainStep::LogitBias.is_on(sampling) || ChainStep::RepetitionPenalty.is_on(sampling) {
            adjust(&mut self.row, logits, history, sampling)?;
            &self.row
        } else {
            logits
        };
        let candidates = &mut self.candidates;
        let max = candidates.start(row, usize::try_from(position).unwrap_or(usize::MAX))?;
        if sampling.temperature == 0.0 {
            let id = row.iter().position(|&x| x == max).unwrap_or(0) as u32;
            return Ok(Draw { id, stages: Vec::new(), u: None });
        }
        let mut stages = Vec::new();
        for step in SAMPLER_CHAIN.into_iter().filter(|step| step.is_on(sampling)) {
            match step {
                ChainStep::LogitBias | ChainStep::RepetitionPenalty => {} // already in `row`
                ChainStep::Temperature => candidates.set_temperature(sampling.temperature),
                ChainStep::TopK => candidates.keep_top(row, sampling.top_k),
                ChainStep::TopP => candidates.keep_mass(row, f64::from(sampling.top_p)),
                ChainStep::MinP => candidates.keep_ratio(row, f64::from(sampling.min_p)),
            }
            if let Some(raw) = trace {
                stages.push(candidates.stage(step.name(), row, logits, raw));
            }
        }
        let u = philox::uniform(sampling.seed, sampling.stream, position);
        Ok(Draw { id: candidates.draw(row, u)?, stages, u: Some(u) })
    }
}

/// The logit with its bias; a finite one stays finite.
fn biased(logit: f32, id: u32, biases: &[(u32, f32)]) -> f32 {
    let bias = biases.iter().filter(|(other, _)| *other == id).map(|(_, bias)| bias).sum::<f32>();
    if logit.is_finite() { (logit + bias).clamp(f32::MIN, f32::MAX) } else { logit }
}

/// Copy the logits, add the biases, and penalize each id of the history once; finite logits stay finite.
fn adjust(row: &mut Vec<f32>, logits: &[f32], history: &[u32], sampling: &Sampling) -> Result<()> {
    let at = |field: &str, id: u32| {
        let refused = || Error::Request(format!("{field}: ids must be below {} (got {id})", logits.len()));
        logits.get(id as usize).copied().ok_or_else(refused)
    };
    row.clear();
    row.extend_from_slice(logits);
    for &(id, _) in &sampling.logit_bias {
        row[id as usize] = biased(at("logit_bias", id)?, id, &sampling.logit_bias);
    }
    if !ChainStep::RepetitionPenalty.is_on(sampling) {
        return Ok(());
    }
    for &id in history {
        let logit = biased(at("history", id)?, id, &sampling.logit_bias);
        if logit.is_finite() {
            let penalty = sampling.repetition_penalty;
            let penalized = if logit < 0.0 { logit * penalty } else { logit / penalty };
            row[id as usize] = penalized.clamp(f32::MIN, f32::MAX);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
