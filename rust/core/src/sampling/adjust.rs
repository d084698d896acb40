//! Bias and penalties: the steps that change the logits of single ids, before all that works on probabilities.

use super::dry;
use super::settings::{ChainStep, Sampling};
use crate::{Error, Result};

/// Scratch memory of these steps.
#[derive(Debug, Default)]
pub(super) struct Adjustments {
    /// How often each id occurs; 0 between steps.  // [vocab_size]
    counts: Vec<u32>,
    /// The ids that the last step applied to, each once.
    pub touched: Vec<u32>,
}

impl Adjustments {
    /// Apply a step to `row`, the logits after the steps before it; finite logits stay finite.
    pub fn apply(
        &mut self,
        step: ChainStep,
        row: &mut [f32],
        history: &[u32],
        sampling: &Sampling,
    ) -> Result<()> {
        self.touched.clear();
        let answer = history.get(sampling.answer_start..).unwrap_or_default();
        match step {
            ChainStep::LogitBias => {
                for &(id, _) in &sampling.logit_bias {
                    in_row("logit_bias", id, row)?;
                }
                self.touched.extend(sampling.logit_bias.iter().map(|&(id, _)| id));
                self.touched.sort_unstable();
                self.touched.dedup();
                for &id in &self.touched {
                    let own = sampling.logit_bias.iter().filter(|(other, _)| *other == id);
                    let bias = own.map(|(_, bias)| bias).sum::<f32>();
                    change(row, id, |x| x + bias);
                }
            }
            ChainStep::RepetitionPenalty => {
                let penalty = sampling.repetition_penalty;
                let penalized = |x: f32| if x < 0.0 { x * penalty } else { x / penalty };
                self.change_each(history, row, |x, _| penalized(x))?;
            }
            ChainStep::PresencePenalty => {
                self.change_each(answer, row, |x, _| x - sampling.presence_penalty)?;
            }
            ChainStep::FrequencyPenalty => {
                self.change_each(answer, row, |x, count| x - count as f32 * sampling.frequency_penalty)?;
            }
            ChainStep::Dry => {
                let last = sampling.dry_penalty_last_n.unwrap_or(usize::MAX);
                let text = &history[history.len().saturating_sub(last)..];
                let allowed_length = sampling.dry_allowed_length;
                for (id, length) in dry::repetitions(text, allowed_length, &sampling.dry_breakers) {
                    in_row("history", id, row)?;
                    let less =
                        dry::penalty(sampling.dry_multiplier, sampling.dry_base, length, allowed_length);
                    change(row, id, |x| (f64::from(x) - less) as f32);
                    self.touched.push(id);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Change each id of a text once; `changed` gets its logit and how often the text has it.
    fn change_each(
        &mut self,
        text: &[u32],
        row: &mut [f32],
        changed: impl Fn(f32, u32) -> f32,
    ) -> Result<()> {
        for &id in text {
            in_row("history", id, row)?;
        }
        self.counts.resize(row.len().max(self.counts.len()), 0);
        for &id in text {
            let count = &mut self.counts[id as usize];
            *count += 1;
            if *count == 1 {
                self.touched.push(id);
            }
        }
        for &id in &self.touched {
            let count = std::mem::take(&mut self.counts[id as usize]);
            change(row, id, |x| changed(x, count));
        }
        Ok(())
    }
}

/// Change a logit; a finite one stays finite, and -inf stays.
fn change(row: &mut [f32], id: u32, changed: impl Fn(f32) -> f32) {
    let x = &mut row[id as usize];
    if x.is_finite() {
        *x = changed(*x).clamp(f32::MIN, f32::MAX);
    }
}

/// Errors: [`Error::Request`] for an id outside the row.
pub(super) fn in_row(field: &str, id: u32, row: &[f32]) -> Result<()> {
    match (id as usize) < row.len() {
        true => Ok(()),
        false => Err(Error::Request(format!("{field}: ids must be below {} (got {id})", row.len()))),
    }
}
