//! Which token comes next: a chain of steps over the candidates, then one draw that can be explained.

mod candidates;
pub mod compare;
pub mod philox;
pub mod readout;
mod stages;
pub mod top_k;

use candidates::Candidates;
pub use candidates::Stage;
use stages::Recorder;
pub use stages::{Candidate, Draw};

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

/// Draws tokens; holds only the buffers of one draw.
#[derive(Debug, Default)]
pub struct Sampler {
    /// Biased and penalized logits.  // [vocab_size]
    adjusted: Vec<f32>,
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
        let Self { adjusted, candidates } = self;
        let mut recorder = trace.map(|raw| Recorder::new(logits, history, sampling, raw));
        let row = filter(adjusted, candidates, logits, history, position, sampling, recorder.as_mut())?;
        let (id, u) = if sampling.temperature == 0.0 {
            let max = candidates.max();
            (row.iter().position(|&x| x == max).unwrap_or(0) as u32, None)
        } else {
            let u = philox::uniform(sampling.seed, sampling.stream, position);
            (candidates.draw(row, u)?, Some(u))
        };
        Ok(match recorder {
            Some(recorder) => recorder.finish(candidates, row, id, u),
            None => Draw { id, stages: Vec::new(), candidates: Vec::new(), interval: None, u },
        })
    }

    /// What the settings do to the given token `id` at `position`: as [`Sampler::sample`] with a trace, but nothing is
    /// drawn.
    ///
    /// Errors: as [`Sampler::sample`]; [`Error::Request`] for an id outside the row.
    pub fn explain(
        &mut self,
        logits: &[f32],
        history: &[u32],
        position: u64,
        sampling: &Sampling,
        trace: &Logprobs,
        id: u32,
    ) -> Result<Draw> {
        logit_of("id", id, logits)?;
        let Self { adjusted, candidates } = self;
        let mut recorder = Recorder::new(logits, history, sampling, trace);
        let row = filter(adjusted, candidates, logits, history, position, sampling, Some(&mut recorder))?;
        Ok(recorder.finish(candidates, row, id, None))
    }
}

/// Applies the stages that are switched on; returns the biased and penalized row, whose survivors are in `candidates`.
fn filter<'a>(
    adjusted: &'a mut Vec<f32>,
    candidates: &mut Candidates,
    logits: &'a [f32],
    history: &[u32],
    position: u64,
    sampling: &Sampling,
    mut recorder: Option<&mut Recorder<'_>>,
) -> Result<&'a [f32]> {
    sampling.validate()?;
    let position = usize::try_from(position).unwrap_or(usize::MAX);
    let adjusts = [ChainStep::LogitBias, ChainStep::RepetitionPenalty].map(|step| step.is_on(sampling));
    if adjusts.contains(&true) {
        adjusted.clear();
        adjusted.extend_from_slice(logits);
    }
    if adjusts[0] {
        add_biases(adjusted, logits, sampling)?;
        if let Some(recorder) = &mut recorder {
            candidates.start(adjusted, position)?;
            recorder.record(ChainStep::LogitBias, candidates, adjusted);
        }
    }
    if adjusts[1] {
        penalize(adjusted, logits, history, sampling)?;
        if let Some(recorder) = &mut recorder {
            candidates.start(adjusted, position)?;
            recorder.record(ChainStep::RepetitionPenalty, candidates, adjusted);
        }
    }
    let row: &[f32] = if adjusts.contains(&true) { adjusted } else { logits };
    candidates.start(row, position)?;
    if sampling.temperature == 0.0 && recorder.is_none() {
        return Ok(row); // greedy takes the largest logit, which is known already
    }
    for step in SAMPLER_CHAIN.into_iter().filter(|step| step.is_on(sampling)) {
        match step {
            ChainStep::LogitBias | ChainStep::RepetitionPenalty => continue, // in `row`
            ChainStep::Temperature if sampling.temperature == 0.0 => candidates.keep_top(row, 1),
            ChainStep::Temperature => candidates.set_temperature(sampling.temperature),
            ChainStep::TopK => candidates.keep_top(row, sampling.top_k),
            ChainStep::TopP => candidates.keep_mass(row, f64::from(sampling.top_p)),
            ChainStep::MinP => candidates.keep_ratio(row, f64::from(sampling.min_p)),
        }
        if let Some(recorder) = &mut recorder {
            recorder.record(step, candidates, row);
        }
        if step == ChainStep::Temperature && sampling.temperature == 0.0 {
            break; // one candidate is left
        }
    }
    Ok(row)
}

/// The logit with its bias; a finite one stays finite.
fn biased(logit: f32, id: u32, biases: &[(u32, f32)]) -> f32 {
    let bias = biases.iter().filter(|(other, _)| *other == id).map(|(_, bias)| bias).sum::<f32>();
    if logit.is_finite() { (logit + bias).clamp(f32::MIN, f32::MAX) } else { logit }
}

fn logit_of(field: &str, id: u32, logits: &[f32]) -> Result<f32> {
    let refused = || Error::Request(format!("{field}: ids must be below {} (got {id})", logits.len()));
    logits.get(id as usize).copied().ok_or_else(refused)
}

/// Add the biases to `row`, a copy of the logits; finite logits stay finite.
fn add_biases(row: &mut [f32], logits: &[f32], sampling: &Sampling) -> Result<()> {
    for &(id, _) in &sampling.logit_bias {
        row[id as usize] = biased(logit_of("logit_bias", id, logits)?, id, &sampling.logit_bias);
    }
    Ok(())
}

/// Penalize each id of the history once in `row`, the biased logits; finite logits stay finite.
fn penalize(row: &mut [f32], logits: &[f32], history: &[u32], sampling: &Sampling) -> Result<()> {
    for &id in history {
        let logit = biased(logit_of("history", id, logits)?, id, &sampling.logit_bias);
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
