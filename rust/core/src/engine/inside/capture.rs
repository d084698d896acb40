//! Queries and keys before rotation, attention scores and weights, of some heads of some layers.

use super::arguments::{known, room};
use crate::engine::Engine;
use crate::forward::{ObservedHeads, Observer};
use ropechat_kernels::compute::cancel::CancelToken;
use ropechat_platform::error::Result;

/// What is wanted.
#[derive(Debug, Clone, Default)]
pub struct Capture {
    /// Layers.
    pub layers: Vec<usize>,
    /// Query heads.
    pub heads: Vec<usize>,
    /// Tokens whose scores and weights are wanted.
    pub rows: Vec<usize>,
    /// Queries before rotation.
    pub q_pre: bool,
    /// Keys before rotation.
    pub k_pre: bool,
    /// Attention scores.
    pub scores: bool,
    /// Attention weights.
    pub weights: bool,
}

/// What was found; arrays that were not asked for are empty. Layers, heads and rows are each once and in order.
#[derive(Debug, Default)]
pub struct Captured {
    /// Layers.
    pub layers: Vec<usize>,
    /// Query heads.
    pub heads: Vec<usize>,
    /// Tokens whose scores and weights these are.
    pub rows: Vec<usize>,
    /// Queries after their norm, before rotation.  // [layers, heads, tokens, head_dim]
    pub q_pre: Vec<f32>,
    /// The keys that these heads read, after their norm, before rotation.  // [layers, heads, tokens, head_dim]
    pub k_pre: Vec<f32>,
    /// Scores before a softcap; -inf where a row does not see the key.  // [layers, heads, rows, tokens]
    pub scores: Vec<f32>,
    /// Attention weights; a row's sum is 1 less the sink's weight.  // [layers, heads, rows, tokens]
    pub weights: Vec<f32>,
}

impl Engine {
    /// Reads `ids`, the first one at `start_position`, and keeps what is wanted.
    ///
    /// # Errors
    /// As [`Engine::read`] and [`Engine::step`]; Request: layers, heads or rows that are not there; Memory.
    pub fn capture(
        &mut self,
        ids: &[u32],
        start_position: usize,
        wanted: &Capture,
        cancel: &CancelToken,
    ) -> Result<Captured> {
        let mut reading = self.read(ids, start_position)?;
        let layers = self.known_attention_layers(&wanted.layers)?;
        let heads = known(&wanted.heads, self.model.config.most_attention_heads(), "heads")?;
        let rows = known(&wanted.rows, ids.len(), "rows")?;
        let (lists, dim) = (layers.len() * heads.len(), self.model.config.widest_head_dim());
        let numbers = |wanted: bool, width: usize, fill: f32| -> Result<Vec<f32>> {
            let count = if wanted { lists.saturating_mul(width) } else { 0 };
            let mut all = room(count, || format!("heads of {} tokens", ids.len()))?;
            all.resize(count, fill);
            Ok(all)
        };
        let (of_tokens, of_rows) = (ids.len() * dim, rows.len().saturating_mul(ids.len()));
        let mut capturing = Capturing {
            tokens: ids.len(),
            dim,
            found: Captured {
                q_pre: numbers(wanted.q_pre, of_tokens, 0.0)?,
                k_pre: numbers(wanted.k_pre, of_tokens, 0.0)?,
                scores: numbers(wanted.scores, of_rows, f32::NEG_INFINITY)?,
                weights: numbers(wanted.weights, of_rows, 0.0)?,
                layers,
                heads,
                rows,
            },
        };
        self.read_all(&mut reading, Some(&mut capturing), cancel, |_, _| ())?;
        Ok(capturing.found)
    }
}

struct Capturing {
    tokens: usize,
    dim: usize,
    found: Captured,
}

/// Where the numbers of one head go; empty where they are not wanted.
struct Job<'a> {
    head: usize,
    q_pre: &'a mut [f32],
    k_pre: &'a mut [f32],
    scores: &'a mut [f32],
    weights: &'a mut [f32],
}

impl Observer for Capturing {
    fn wants_heads(&self, layer: usize) -> bool {
        self.found.layers.contains(&layer)
    }

    fn after_layer(&mut self, _: usize, _: &[f32]) {}

    fn heads(&mut self, heads: &ObservedHeads<'_>) {
        let Self { tokens, dim, found } = self;
        let Some(layer) = found.layers.iter().position(|&layer| layer == heads.layer()) else { return };
        let (layers, count, rows) = (found.layers.len(), found.heads.len(), &found.rows);
        let mut parts =
            [&mut found.q_pre, &mut found.k_pre, &mut found.scores, &mut found.weights].map(|all| {
                let width = all.len() / layers;
                (&mut all[layer * width..][..width], width / count)
            });
        let mut jobs: Vec<Job<'_>> = Vec::with_capacity(count);
        for &head in &found.heads {
            let [q_pre, k_pre, scores, weights] = parts.each_mut().map(|(rest, width)| {
                let (part, later) = std::mem::take(rest).split_at_mut(*width);
                *rest = later;
                part
            });
            jobs.push(Job { head, q_pre, k_pre, scores, weights });
        }
        heads.pool().for_each(&mut jobs, |job| job.fill(heads, rows, *tokens, *dim));
    }
}

impl Job<'_> {
    fn fill(&mut self, heads: &ObservedHeads<'_>, rows: &[usize], tokens: usize, dim: usize) {
        let places = heads.places();
        if self.head >= heads.count() {
            return; // other layers have more heads
        }
        for (row, place) in places.clone().enumerate() {
            if !self.q_pre.is_empty() {
                let query = heads.query(row, self.head);
                self.q_pre[place * dim..][..query.len()].copy_from_slice(query);
            }
            if !self.k_pre.is_empty() {
                let key = heads.key(row, self.head);
                self.k_pre[place * dim..][..key.len()].copy_from_slice(key);
            }
        }
        if self.scores.is_empty() && self.weights.is_empty() {
            return;
        }
        let mut scores = Vec::new();
        let here = rows.iter().enumerate().filter(|(_, place)| places.contains(place));
        for (index, &place) in here {
            let row = place - places.start;
            heads.scores(self.head, row..row + 1, &mut scores);
            if !self.scores.is_empty() {
                self.scores[index * tokens..][..=place].copy_from_slice(&scores[..=place]);
            }
            if !self.weights.is_empty() {
                heads.weights(self.head, row, &mut scores);
                self.weights[index * tokens..][..=place].copy_from_slice(&scores[..=place]);
            }
        }
    }
}
