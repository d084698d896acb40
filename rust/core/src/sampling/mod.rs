//! Which token comes next: a chain of steps over the candidates, then one draw that can be explained.

mod adjust;
mod candidates;
pub mod channels;
pub mod compare;
pub mod constraint;
pub mod dry;
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

use adjust::{Adjustments, in_row};
use candidates::Candidates;
pub use candidates::Stage;
pub use mask::Mask;
pub use settings::{ChainStep, SAMPLER_CHAIN, Sampling};
use stages::Recorder;
pub use stages::{Candidate, Draw};

use crate::Result;
use crate::sampling::readout::Logprobs;

/// Draws tokens; holds only the buffers of one draw.
#[derive(Debug, Default)]
pub struct Sampler {
    /// Biased and penalized logits.  // [vocab_size]
    adjusted: Vec<f32>,
    adjustments: Adjustments,
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
    /// of probability with ties by lower id, whose cumulative probability exceeds u. XTC has a number of its own of the same
    /// three. `trace` is the read-out of these
    /// `logits`; with it the stages are recorded (up to one pass over the row each), the token is the same.
    ///
    /// Errors: [`Error::NonFinite`] for NaN, +inf or nothing but -inf; [`Error::Request`] for a field out of its range, an
    /// empty row, or an id outside the vocabulary: of the bias, or, with a penalty, of the history.
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
        let mut recorder = trace.map(|raw| Recorder::new(logits, raw));
        let drawn =
            (sampling.temperature != 0.0).then(|| philox::uniforms(sampling.seed, sampling.stream, position));
        let given =
            Given { allowed, logits, history, position, sampling, xtc_u: drawn.map(|[_, xtc_u]| xtc_u) };
        let (candidates, row) = self.filter(given, recorder.as_mut())?;
        let (id, u) = match drawn {
            None => {
                let max = candidates.max();
                (row.iter().position(|&x| x == max).unwrap_or(0) as u32, None)
            }
            Some([u, _]) => (candidates.draw(row, u)?, Some(u)),
        };
        Ok(match recorder {
            Some(recorder) => recorder.finish(candidates, row, id, u),
            None => Draw { id, stages: Vec::new(), candidates: Vec::new(), interval: None, u },
        })
    }

    /// What the settings do to the given token `id` at `position`: as [`Sampler::sample`] with a trace, but nothing is
    /// drawn. Of XTC, which draws too, the record has the mean of both cases.
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
        in_row("id", id, logits)?;
        let mut recorder = Recorder::new(logits, trace);
        let given = Given { allowed: None, logits, history, position, sampling, xtc_u: None };
        let (candidates, row) = self.filter(given, Some(&mut recorder))?;
        Ok(recorder.finish(candidates, row, id, None))
    }

    /// Applies the stages that are switched on; returns the survivors, and the biased and penalized row that they are of.
    fn filter<'a>(
        &'a mut self,
        given: Given<'a>,
        mut recorder: Option<&mut Recorder<'_>>,
    ) -> Result<(&'a mut Candidates, &'a [f32])> {
        let Self { adjusted, adjustments, candidates } = self;
        let Given { allowed, logits, history, position, sampling, xtc_u } = given;
        sampling.validate()?;
        let position = usize::try_from(position).unwrap_or(usize::MAX);
        let steps = || SAMPLER_CHAIN.into_iter().filter(|step| step.is_on(sampling));
        let is_adjusted = allowed.is_some() || steps().any(ChainStep::adjusts);
        candidates.set_mass(logits, None);
        if let Some(mask) = allowed {
            mask.copy(logits, adjusted);
            if let Some(recorder) = &mut recorder {
                candidates.start(adjusted, position)?;
                candidates.set_mass(adjusted, Some(recorder.raw));
                recorder.record(mask.step, candidates, adjusted, &[], None);
            }
        } else if is_adjusted {
            adjusted.clear();
            adjusted.extend_from_slice(logits);
        }
        for step in steps().filter(|step| step.adjusts()) {
            adjustments.apply(step, adjusted, history, sampling)?;
            if let Some(recorder) = &mut recorder {
                candidates.start(adjusted, position)?;
                recorder.record(step, candidates, adjusted, &adjustments.touched, None);
            }
        }
        let row: &[f32] = if is_adjusted { adjusted } else { logits };
        candidates.start(row, position)?;
        if sampling.temperature == 0.0 && recorder.is_none() {
            return Ok((candidates, row)); // greedy takes the largest logit, which is known already
        }
        for step in steps().filter(|step| !step.adjusts()) {
            let mut value = None;
            match step {
                ChainStep::Temperature if sampling.temperature == 0.0 => candidates.keep_top(row, 1),
                ChainStep::Temperature => candidates.set_temperature(sampling.temperature),
                ChainStep::TopNSigma => {
                    value = Some(candidates.keep_sigma(row, f64::from(sampling.top_n_sigma)));
                }
                ChainStep::TopK => candidates.keep_top(row, sampling.top_k),
                ChainStep::TopP => candidates.keep_mass(row, f64::from(sampling.top_p)),
                ChainStep::MinP => candidates.keep_ratio(row, f64::from(sampling.min_p)),
                ChainStep::Xtc => {
                    value = xtc_u;
                    let probability = f64::from(sampling.xtc_probability);
                    let chance = xtc_u.map_or(probability, |u| f64::from(u < probability));
                    if chance > 0.0 {
                        candidates.exclude_best(row, f64::from(sampling.xtc_threshold), chance);
                    }
                }
                _ => {} // in `row`
            }
            if let Some(recorder) = &mut recorder {
                recorder.record(step, candidates, row, &[], value);
            }
            if step == ChainStep::Temperature && sampling.temperature == 0.0 {
                break; // one candidate is left
            }
        }
        Ok((candidates, row))
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
    /// The number in [0, 1) that XTC compares with its probability; `None` where nothing is drawn.
    xtc_u: Option<f64>,
}

#[cfg(test)]
mod tests;
