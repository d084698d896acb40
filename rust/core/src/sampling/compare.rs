//! Two models' logit rows at the same place of a text: how far apart they are, and what each says of the token there.

use crate::sampling::readout::{Logprobs, logprob_and_rank, read_logprobs};
use crate::{Error, Result};
use ropechat_kernels::kernel::{Divergence, divergence};

/// What one of two models says at a place of a text.
#[derive(Debug, Clone, PartialEq)]
pub struct RowOfOne {
    /// The raw distribution of the next token.
    pub readout: Logprobs,
    /// Raw log probability of the token that follows, in nats.
    pub logprob: f64,
    /// Its rank, from 1.
    pub rank: usize,
}

/// Two rows over the same ids.
#[derive(Debug, Clone, PartialEq)]
pub struct RowPair {
    /// From `a` to `b`: `kl` is KL(a || b), `kl_back` is KL(b || a).
    pub divergence: Divergence,
    /// The first model.
    pub a: RowOfOne,
    /// The second model.
    pub b: RowOfOne,
}

/// Compares two logit rows that are followed by the token `next`.  // a, b: [vocab_size]
///
/// # Errors
/// [`Error::NonFinite`] that names the side, as [`read_logprobs`]; [`Error::Request`] for an id outside the rows.
pub fn compare_rows(a: &[f32], b: &[f32], next: u32, top_k: usize, position: usize) -> Result<RowPair> {
    if a.len() != b.len() || next as usize >= a.len() {
        return Err(Error::Request(format!(
            "rows: must be over the same ids, {next} among them (got {} and {})",
            a.len(),
            b.len()
        )));
    }
    let read = |logits: &[f32], side: &str| -> Result<RowOfOne> {
        let readout = read_logprobs(logits, top_k, position).map_err(|error| match error {
            Error::NonFinite { position, what } => {
                Error::NonFinite { position, what: format!("{side} model: {what}") }
            }
            other => other,
        })?;
        let (logprob, rank) = logprob_and_rank(&readout, logits, next);
        Ok(RowOfOne { readout, logprob, rank })
    };
    let (first, second) = (read(a, "first")?, read(b, "second")?);
    let divergence = divergence(a, b, first.readout.logsumexp, second.readout.logsumexp);
    Ok(RowPair { divergence, a: first, b: second })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_side_is_read_as_alone() {
        let (a, b) = ([0.5, 2.0, -1.0, 2.0], [1.0, 0.0, f32::NEG_INFINITY, 3.0]);
        let pair = compare_rows(&a, &b, 1, 2, 7).unwrap();
        for (side, row) in [(&pair.a, &a), (&pair.b, &b)] {
            let readout = read_logprobs(row, 2, 7).unwrap();
            assert_eq!((side.logprob, side.rank), logprob_and_rank(&readout, row, 1));
            assert_eq!(side.readout, readout);
        }
        assert_eq!((pair.a.rank, pair.b.rank), (1, 3));
        assert_eq!(pair.divergence.kl, f64::INFINITY);
        assert!(pair.divergence.kl_back.is_finite());
    }

    #[test]
    fn numbers_that_are_none_are_errors_that_name_the_side() {
        let sound = [0.0, 1.0];
        for (a, b, side) in [([f32::NAN, 0.0], sound, "first"), (sound, [0.0, f32::INFINITY], "second")] {
            let error = compare_rows(&a, &b, 0, 1, 3).unwrap_err().to_string();
            assert!(error.contains(side) && error.contains('3'), "{error}");
        }
        assert!(matches!(compare_rows(&sound, &[0.0], 0, 1, 0), Err(Error::Request(_))));
        assert!(matches!(compare_rows(&sound, &sound, 2, 1, 0), Err(Error::Request(_))));
    }
}
