//! Which token comes next: a chain of steps over the candidates, then one draw that can be explained.

mod candidates;
pub mod channels;
pub mod compare;
pub mod constraint;
#[cfg(feature = "grammar")]
pub mod grammar;
#[cfg(not(feature = "grammar"))]
#[path = "no_grammar.rs"]
pub mod grammar;
mod mask;
pub mod philox;
pub mod readout;
mod settings;
mod stages;
pub mod top_k;

use candidates::Candidates;
pub use candidates::Stage;
pub use mask::Mask;
use settings::biased;
pub use settings::{ChainStep, SAMPLER_CHAIN, Sampling};
use stages::Recorder;
pub use stages::{Candidate, Draw};

use crate::sampling::readout::Logprobs;
use crate::{Error, Result};

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
        self.sample_within(None, logits, history, position, sampling, trace)
    }

    /// As [`Sampler::sample`], among the ids that `allowed` allows; `trace` is the read-out of all ids.
    ///
    /// Errors: as [`Sampler::sample`]; [`Error::NonFinite`] when the logits of all allowed ids are -inf.
    pub fn sample_within(
        &mut self,
        allowed: Option<&Mask>,
        logits: &[f32],
        history: &[u32],
        position: u64,
        sampling: &Sampling,
        trace: Option<&Logprobs>,
    ) -> Result<Draw> {
        let Self { adjusted, candidates } = self;
        let mut recorder = trace.map(|raw| Recorder::new(logits, history, sampling, raw));
        let given = Given { allowed, logits, history, position, sampling };
        let row = filter(adjusted, candidates, given, recorder.as_mut())?;
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
        let given = Given { allowed: None, logits, history, position, sampling };
        let row = filter(adjusted, candidates, given, Some(&mut recorder))?;
        Ok(recorder.finish(candidates, row, id, None))
    }
}

/// What a token is drawn from.
#[derive(Clone, Copy)]
struct Given<'a> {
    allowed: Option<&'a Mask>,
    logits: &'a [f32],
    history: &'a [u32],
    position: u64,
    sampling: &'a Sampling,
}

/// Applies the stages that are switched on; returns the biased and penalized row, whose survivors are in `candidates`.
fn filter<'a>(
    adjusted: &'a mut Vec<f32>,
    candidates: &mut Candidates,
    given: Given<'a>,
    mut recorder: Option<&mut Recorder<'_>>,
) -> Result<&'a [f32]> {
    let Given { allowed, logits, history, position, sampling } = given;
    sampling.validate()?;
    let position = usize::try_from(position).unwrap_or(usize::MAX);
    let adjusts = [ChainStep::LogitBias, ChainStep::RepetitionPenalty].map(|step| step.is_on(sampling));
    candidates.set_mass(logits, None);
    if let Some(mask) = allowed {
        mask.copy(logits, adjusted);
        if let Some(recorder) = &mut recorder {
            candidates.start(adjusted, position)?;
            candidates.set_mass(adjusted, Some(recorder.raw));
            recorder.record(mask.step, candidates, adjusted);
        }
    } else if adjusts.contains(&true) {
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
    let row: &[f32] = if allowed.is_some() || adjusts.contains(&true) { adjusted } else { logits };
    candidates.start(row, position)?;
    if sampling.temperature == 0.0 && recorder.is_none() {
        return Ok(row); // greedy takes the largest logit, which is known already
    }
    for step in SAMPLER_CHAIN.into_iter().filter(|step| step.is_on(sampling)) {
        match step {
            ChainStep::Forced | ChainStep::Grammar | ChainStep::LogitBias | ChainStep::RepetitionPenalty => {
                continue;
            } // in `row`
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

fn logit_of(field: &str, id: u32, logits: &[f32]) -> Result<f32> {
    let refused = || Error::Request(format!("{field}: ids must be below {} (got {id})", logits.len()));
    logits.get(id as usize).copied().ok_or_else(refused)
}

/// Add the biases to `row`, a copy of the logits; finite logits stay finite.
fn add_biases(row: &mut [f32], logits: &[f32], sampling: &Sampling) -> Result<()> {
    for &(id, _) in &sampling.logit_bias {
        let logit = biased(logit_of("logit_bias", id, logits)?, id, &sampling.logit_bias);
        if row[id as usize] > f32::NEG_INFINITY {
            row[id as usize] = logit;
        }
    }
    Ok(())
}

/// Penalize each id of the history once in `row`, the biased logits; finite logits stay finite.
fn penalize(row: &mut [f32], logits: &[f32], history: &[u32], sampling: &Sampling) -> Result<()> {
    for &id in history {
        let logit = biased(logit_of("history", id, logits)?, id, &sampling.logit_bias);
        if logit.is_finite() && row[id as usize] > f32::NEG_INFINITY {
            let penalty = sampling.repetition_penalty;
            let penalized = if logit < 0.0 { logit * penalty } else { logit / penalty };
            row[id as usize] = penalized.clamp(f32::MIN, f32::MAX);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
