//! Whole logit rows of a text for readers that want all of them: in blocks, so that at most [`READOUT_ROWS`] of a text
//! exist at a time (law 2), and with two engines side by side.

use super::Engine;
use super::event::Goal;
use super::row_reader::RowReader;
use super::schedule::READOUT_ROWS;
use super::sequence::unknown;
use crate::forward::{Compute, Run, forward, lm_head};
use crate::kv_cache::KvSequence;
use crate::sampling::compare::{RowPair, compare_rows};
use ropechat_kernels::compute::cancel::CancelToken;
use ropechat_platform::error::{Error, Result};

impl Engine {
    /// Begins to read the logit rows of `ids` from row `first` on; nothing is computed yet.
    ///
    /// # Errors
    /// As [`Engine::add`]; Request: `first` is not a row of the text.
    pub fn open_rows(&mut self, ids: &[u32], first: usize) -> Result<u64> {
        self.validate(ids, &Goal::score(0))?;
        if first >= ids.len() {
            let count = ids.len();
            return Err(Error::Request(format!("first row: must be below {count} (got {first})")));
        }
        let number = self.next_number;
        self.next_number += 1;
        let reader = RowReader {
            ids: ids.to_vec(),
            cache: KvSequence::default(),
            rope_variant: self.model.config.rope_variant(ids.len()),
            next: first,
            residual: Vec::new(),
        };
        self.readers.insert(number, reader);
        Ok(number)
    }

    /// The next block of raw logit rows: [`READOUT_ROWS`] of them, fewer at the end, none behind it.  // [rows, vocab_size]
    ///
    /// # Errors
    /// As [`Engine::step`]; the same block can then be asked for again.
    pub fn next_rows(&mut self, number: u64, cancel: &CancelToken) -> Result<Vec<f32>> {
        let rope_variant = self.readers.get(&number).ok_or_else(|| unknown(number))?.rope_variant;
        self.revive_pool();
        let frequencies = self.frequencies(rope_variant);
        let compute = Compute { kernels: self.kernels, pool: &self.pool, cancel, progress: None };
        let Some(reader) = self.readers.get_mut(&number) else { return Err(unknown(number)) };
        self.cache.kv.rollback(&mut reader.cache); // what a call that failed had reserved
        let RowReader { ids, cache, next, residual, .. } = reader;
        while *next < ids.len() && *next >= cache.len() {
            let wanted = rows_at_once(self.pace.rows(), *next - cache.len());
            let chunk = &ids[cache.len()..(cache.len() + wanted).min(ids.len())];
            self.cache.reserve(cache, chunk.len())?;
            let mut runs =
                [Run { ids: chunk, cache, frequencies: &frequencies, hidden: &[], start_position: 0 }];
            forward(&self.model, &mut runs, &mut self.work, compute)?;
            self.work.save_rows(residual);
            cache.commit(chunk.len());
        }
        cancel.check()?;
        let (left, vocab_size) = (cache.len() - *next, self.model.config.vocab_size);
        let rows = left.min(READOUT_ROWS);
        let mut block = Vec::new();
        block.try_reserve_exact(rows * vocab_size).map_err(|_| Error::Memory {
            what: format!("{rows} rows of {vocab_size} logits do not fit; close other programs"),
        })?;
        if rows > 0 {
            let hidden_size = self.model.config.hidden_size;
            let start = residual.len() - left * hidden_size;
            self.work.load_rows(&residual[start..start + rows * hidden_size]);
            lm_head(&self.model, &(0..rows).collect::<Vec<_>>(), &mut self.work, &mut self.logits, compute);
            for row in self.logits.chunks_exact(self.model.padded_vocab()).take(rows) {
                block.extend_from_slice(&row[..vocab_size]);
            }
        }
        *next += rows;
        Ok(block)
    }

    /// Ends the reading of a text.
    pub(super) fn close_rows(&mut self, number: u64) {
        if let Some(mut reader) = self.readers.remove(&number) {
            self.cache.kv.rollback(&mut reader.cache);
            self.cache.kv.release(reader.cache);
        }
    }

    /// Compares blocks of rows of two models, on this engine's threads; row i is followed by `next[i]`.
    ///
    /// position: of the first row, for errors.  // a, b: [next.len(), a.len() / next.len()]
    ///
    /// # Errors
    /// NonFinite that names the side; Request: the blocks differ in shape, an id is outside the vocabulary.
    pub fn compare_rows(
        &mut self,
        a: &[f32],
        b: &[f32],
        next: &[u32],
        top_k: usize,
        position: usize,
    ) -> Result<Vec<RowPair>> {
        if next.is_empty() || a.len() != b.len() || !a.len().is_multiple_of(next.len()) || a.is_empty() {
            return Err(Error::Request(format!(
                "rows: two blocks of {} rows must have the same size (got {} and {} logits)",
                next.len(),
                a.len(),
                b.len()
            )));
        }
        self.revive_pool();
        let vocab_size = a.len() / next.len();
        let mut jobs: Vec<_> = a
            .chunks_exact(vocab_size)
            .zip(b.chunks_exact(vocab_size))
            .zip(next)
            .enumerate()
            .map(|(i, ((a, b), &next))| (i, a, b, next, None))
            .collect();
        self.pool.for_each(&mut jobs, |(i, a, b, next, pair)| {
            *pair = Some(compare_rows(a, b, *next, top_k, position + *i));
        });
        jobs.into_iter().filter_map(|(.., pair)| pair).collect()
    }
}

/// Rows of the next forward pass when `before` rows come before the first that is read: those alone, or else a multiple
/// of the block, so that blocks are full.
fn rows_at_once(rows_per_step: usize, before: usize) -> usize {
    if before > 0 {
        return before.min(rows_per_step);
    }
    if rows_per_step < READOUT_ROWS { rows_per_step } else { rows_per_step - rows_per_step % READOUT_ROWS }
}
