//! One text looked at from inside: all its logits, the residual stream read out layer by layer (the logit lens, nostalgebraist
//! 2020), and queries, keys and attention weights. The forward pass is the one of every sequence, with an observer.

mod arguments;
mod capture;
mod distance;

pub use capture::{Capture, Captured};
pub use distance::AttentionByDistance;

use super::Engine;
use super::event::Goal;
use super::schedule::READOUT_ROWS;
use crate::forward::{Compute, ObservedHeads, Observer, Run, lm_head, observed_forward};
use crate::kv_cache::KvSequence;
use crate::sampling::readout::{Logprobs, logprob_and_rank, read_logprobs};
use arguments::{known, room};
use ropechat_kernels::compute::cancel::CancelToken;
use ropechat_platform::error::{Error, Result};

/// The last position that a text may be moved to: f64 holds its angles to 1e-6 and better.
const LAST_START: usize = 1 << 31;

/// A text that is read chunk by chunk, and what is cached of it.
pub struct Reading {
    ids: Vec<u32>,
    /// Position of the first token.
    start_position: usize,
    cache: KvSequence,
}

impl Reading {
    /// Tokens of the text.
    pub fn tokens(&self) -> usize {
        self.ids.len()
    }

    fn left(&self) -> usize {
        self.ids.len() - self.cache.len()
    }
}

/// What one layer would predict, were it the last one.
#[derive(Debug, Clone)]
pub struct LensRow {
    /// The token that is predicted; the text's length for the token after it.
    pub position: usize,
    /// The layer that the residual stream was read after.
    pub layer: usize,
    /// Log probability and rank of the text's token; None after the last one.
    pub token: Option<(f64, usize)>,
    /// The distribution.
    pub row: Logprobs,
    /// Log probability and rank of each id that was asked for.
    pub looked_up: Vec<(f64, usize)>,
}

impl Engine {
    /// A text to look into, whose first token is at `start_position`; nothing is computed yet.
    ///
    /// # Errors
    /// As [`Engine::add`] of a scored text; Request: positions that the model does not have.
    pub fn read(&self, ids: &[u32], start_position: usize) -> Result<Reading> {
        self.validate(ids, &Goal::score(0))?;
        let limit = self.model.config.position_limit();
        if start_position > LAST_START || start_position > limit.saturating_sub(ids.len()) {
            let last = LAST_START.min(limit.saturating_sub(ids.len()));
            return Err(Error::Request(format!(
                "start_position: must be 0 to {last} for {} tokens of this model (got {start_position})",
                ids.len()
            )));
        }
        Ok(Reading { ids: ids.to_vec(), start_position, cache: KvSequence::default() })
    }

    /// Raw logits at every position of `ids`.  // [ids.len(), vocab_size]
    ///
    /// # Errors
    /// As [`Engine::add`] and [`Engine::step`]; Memory for the result.
    pub fn logits(&mut self, ids: &[u32], cancel: &CancelToken) -> Result<Vec<f32>> {
        self.logits_at(ids, 0, cancel)
    }

    /// As [`Engine::logits`], of a text whose first token is at `start_position`.
    ///
    /// # Errors
    /// As [`Engine::logits`] and [`Engine::read`].
    pub fn logits_at(
        &mut self,
        ids: &[u32],
        start_position: usize,
        cancel: &CancelToken,
    ) -> Result<Vec<f32>> {
        let vocab_size = self.model.config.vocab_size;
        let mut reading = self.read(ids, start_position)?;
        let mut all = room(ids.len() * vocab_size, || format!("{} rows of logits", ids.len()))?;
        self.read_all(&mut reading, None, cancel, |engine, rows| {
            let compute = Compute { kernels: engine.kernels, pool: &engine.pool, cancel, progress: None };
            let rows: Vec<usize> = (0..rows).collect();
            for rows in rows.chunks(READOUT_ROWS) {
                lm_head(&engine.model, rows, &mut engine.work, &mut engine.logits, compute);
                for row in engine.logits.chunks_exact(engine.model.padded_vocab()) {
                    all.extend_from_slice(&row[..vocab_size]);
                }
            }
        })?;
        Ok(all)
    }

    /// What each of `layers` predicts in the next chunk of the text, ordered by position and layer; empty at its end.
    ///
    /// # Errors
    /// Request: layers or ids to look up that the model does not have. As [`Engine::step`]; the reading is then as it
    /// was.
    pub fn lens(
        &mut self,
        reading: &mut Reading,
        layers: &[usize],
        look_up: &[u32],
        top_k: usize,
        cancel: &CancelToken,
    ) -> Result<Vec<LensRow>> {
        let (first, rows) = (reading.cache.len(), reading.left().min(READOUT_ROWS));
        let layers = self.known_layers(layers)?;
        self.check_ids(look_up)?;
        if rows == 0 {
            return Ok(Vec::new());
        }
        let mut residuals = Residuals { layers: &layers, found: Vec::new() };
        self.read_chunk(reading, rows, Some(&mut residuals), cancel)?;
        let found = self.read_lens(reading, first, &residuals, look_up, top_k, cancel);
        match found {
            Ok(_) => reading.cache.commit(rows),
            Err(_) => self.cache.kv.rollback(&mut reading.cache),
        }
        found
    }

    fn read_lens(
        &mut self,
        reading: &Reading,
        first: usize,
        residuals: &Residuals<'_>,
        look_up: &[u32],
        top_k: usize,
        cancel: &CancelToken,
    ) -> Result<Vec<LensRow>> {
        let compute = Compute { kernels: self.kernels, pool: &self.pool, cancel, progress: None };
        let (vocab_size, padded) = (self.model.config.vocab_size, self.model.padded_vocab());
        let mut all = Vec::new();
        for (layer, x) in &residuals.found {
            cancel.check()?;
            self.work.load_rows(x);
            let rows: Vec<usize> = (0..x.len() / self.model.config.hidden_size).collect();
            lm_head(&self.model, &rows, &mut self.work, &mut self.logits, compute);
            let mut jobs: Vec<_> =
                (first..).zip(self.logits.chunks_exact(padded)).map(|job| (job, None)).collect();
            self.pool.for_each(&mut jobs, |((at, logits), found)| {
                let logits = &logits[..vocab_size];
                *found = Some(read_logprobs(logits, top_k, *at).map(|row| {
                    let token = reading.ids.get(*at + 1).map(|&id| logprob_and_rank(&row, logits, id));
                    let looked_up = look_up.iter().map(|&id| logprob_and_rank(&row, logits, id)).collect();
                    LensRow { position: *at + 1, layer: *layer, token, row, looked_up }
                }));
            });
            for (_, found) in jobs {
                all.extend(found.transpose()?);
            }
        }
        all.sort_by_key(|row| (row.position, row.layer));
        Ok(all)
    }

    /// `layers`, each once and in order.
    fn known_layers(&self, layers: &[usize]) -> Result<Vec<usize>> {
        known(layers, self.model.config.layers.len(), "layers")
    }

    /// `layers` that have attention, each once and in order.
    fn known_attention_layers(&self, layers: &[usize]) -> Result<Vec<usize>> {
        let layers = self.known_layers(layers)?;
        let without = layers.iter().find(|&&layer| !self.model.config.layers[layer].mixer.has_attention());
        match without {
            None => Ok(layers),
            Some(layer) => Err(Error::Request(format!(
                "layers: must have attention (got {layer}, which has none in this model); leave it out"
            ))),
        }
    }

    /// Reads the whole text; `after` is called with the rows of each chunk.
    fn read_all<'o>(
        &mut self,
        reading: &mut Reading,
        mut observer: Option<&mut (dyn Observer + 'o)>,
        cancel: &CancelToken,
        mut after: impl FnMut(&mut Self, usize),
    ) -> Result<()> {
        let mut result = Ok(());
        while result.is_ok() && reading.left() > 0 {
            let rows = reading.left().min(self.pace.rows());
            let observer = observer.as_mut().map(|observer| &mut **observer as &mut dyn Observer);
            result = self.read_chunk(reading, rows, observer, cancel);
            if result.is_ok() {
                after(self, rows);
                reading.cache.commit(rows);
            }
        }
        self.cache.kv.rollback(&mut reading.cache);
        self.cache.kv.release(std::mem::take(&mut reading.cache));
        result
    }

    /// The forward pass of the next rows, uncommitted.
    fn read_chunk(
        &mut self,
        reading: &mut Reading,
        rows: usize,
        observer: Option<&mut dyn Observer>,
        cancel: &CancelToken,
    ) -> Result<()> {
        self.revive_pool();
        let Reading { ids, start_position, cache } = reading;
        let last = start_position.saturating_add(ids.len());
        let frequencies = self.frequencies(self.model.config.rope_variant(last));
        self.cache.reserve(cache, rows)?;
        let ids = &ids[cache.len()..cache.len() + rows];
        let mut runs =
            [Run { ids, cache, frequencies: &frequencies, hidden: &[], start_position: *start_position }];
        let compute = Compute { kernels: self.kernels, pool: &self.pool, cancel, progress: None };
        let result = observed_forward(&self.model, &mut runs, &mut self.work, compute, observer);
        if result.is_err() {
            self.cache.kv.rollback(&mut reading.cache);
        }
        result
    }
}

/// Keeps the residual stream of a chunk after some layers.
struct Residuals<'a> {
    layers: &'a [usize],
    found: Vec<(usize, Vec<f32>)>, // each [rows, hidden_size]
}

impl Observer for Residuals<'_> {
    fn wants_heads(&self, _: usize) -> bool {
        false
    }

    fn after_layer(&mut self, layer: usize, x: &[f32]) {
        if self.layers.contains(&layer) {
            self.found.push((layer, x.to_vec()));
        }
    }

    fn heads(&mut self, _: &ObservedHeads<'_>) {}
}
