//! Where attention goes, as a function of the distance, summed up while the text is read: no tokens x tokens array.

use super::arguments::room;
use crate::engine::Engine;
use crate::forward::{ObservedHeads, Observer};
use ropechat_kernels::compute::cancel::CancelToken;
use ropechat_platform::error::Result;

/// Scores that one head has in memory at a time.
const SCORES: usize = 1 << 18;
/// Rows whose scores are computed together.
const ROWS: usize = 32;

/// Means over the tokens of a text, per layer and query head.  // each [layers, heads], in f64
#[derive(Debug, Default)]
pub struct AttentionByDistance {
    /// Layers.
    pub layers: Vec<usize>,
    /// Weight at each distance, over the tokens that have so many before them.  // [layers, heads, distances]
    pub mean: Vec<f64>,
    /// Weight of the first token, over the tokens after it; NaN for a text of one token.
    pub first: Vec<f64>,
    /// Weight of the token before, over the tokens after the first; NaN for a text of one token.
    pub previous: Vec<f64>,
    /// Distance, weighted, over all tokens.
    pub distance: Vec<f64>,
    /// Weight of the learned sink, over all tokens; 0 where the model has none.
    pub sink: Vec<f64>,
}

impl Engine {
    /// Reads `ids` and sums the attention weights of `layers` up by distance, up to `distances` - 1.
    ///
    /// # Errors
    /// As [`Engine::read`] and [`Engine::step`]; Request: layers that the model does not have; Memory.
    pub fn attention_by_distance(
        &mut self,
        ids: &[u32],
        layers: &[usize],
        distances: usize,
        cancel: &CancelToken,
    ) -> Result<AttentionByDistance> {
        let mut reading = self.read(ids, 0)?;
        let layers = self.known_attention_layers(layers)?;
        let heads = self.model.config.most_attention_heads();
        let (count, distances) = (layers.len() * heads, distances.min(ids.len()));
        let mut at = room(count * distances, || format!("attention at {distances} distances"))?;
        at.resize(count * distances, 0.0);
        let mut sums = Sums { layers, heads, distances, at, of_heads: vec![HeadSums::default(); count] };
        self.read_all(&mut reading, Some(&mut sums), cancel, |_, _| ())?;
        Ok(sums.means(ids.len()))
    }
}

/// Sums over the rows so far.
struct Sums {
    layers: Vec<usize>,
    heads: usize,
    distances: usize,
    at: Vec<f64>, // [layers, heads, distances]
    of_heads: Vec<HeadSums>,
}

#[derive(Debug, Clone, Default)]
struct HeadSums {
    first: f64,
    previous: f64,
    distance: f64,
    sink: f64,
}

impl Observer for Sums {
    fn wants_heads(&self, layer: usize) -> bool {
        self.layers.contains(&layer)
    }

    fn after_layer(&mut self, _: usize, _: &[f32]) {}

    fn heads(&mut self, heads: &ObservedHeads<'_>) {
        let Some(layer) = self.layers.iter().position(|&layer| layer == heads.layer()) else { return };
        let width = self.heads * self.distances;
        let at = self.at[layer * width..][..width].chunks_exact_mut(self.distances);
        let sums = &mut self.of_heads[layer * self.heads..][..self.heads];
        let mut jobs: Vec<_> = at.zip(sums).enumerate().collect();
        // A head's rows are added in their order, whichever thread does it.
        heads.pool().for_each(&mut jobs, |(head, (at, sums))| sums.add(heads, *head, at));
    }
}

impl HeadSums {
    /// Adds the weights of a head in all rows of the chunk.  // at [distances]
    fn add(&mut self, heads: &ObservedHeads<'_>, head: usize, at: &mut [f64]) {
        let (places, mut scores) = (heads.places(), Vec::new());
        if head >= heads.count() {
            return; // other layers have more heads
        }
        let block = (SCORES / places.end).clamp(1, ROWS);
        for first in (0..places.len()).step_by(block) {
            let rows = first..(first + block).min(places.len());
            let stride = heads.scores(head, rows.clone(), &mut scores);
            for (row, scores) in rows.zip(scores.chunks_exact_mut(stride)) {
                let place = places.start + row;
                self.sink += f64::from(heads.weights(head, row, scores));
                let weights = &scores[..=place];
                if place > 0 {
                    self.first += f64::from(weights[0]);
                    self.previous += f64::from(weights[place - 1]);
                }
                let (mut weighted, mut total) = (0.0, 0.0);
                for (distance, &weight) in weights.iter().rev().enumerate() {
                    let weight = f64::from(weight);
                    (weighted, total) = (weighted + weight * distance as f64, total + weight);
                }
                self.distance += weighted / total;
                for (sum, &weight) in at.iter_mut().zip(weights.iter().rev()) {
                    *sum += f64::from(weight);
                }
            }
        }
    }
}

impl Sums {
    fn means(self, tokens: usize) -> AttentionByDistance {
        let Self { layers, distances, mut at, of_heads, .. } = self;
        for of_head in at.chunks_exact_mut(distances) {
            for (distance, sum) in of_head.iter_mut().enumerate() {
                *sum /= (tokens - distance) as f64;
            }
        }
        let means = |of: fn(&HeadSums) -> f64, count: usize| {
            of_heads.iter().map(|sums| of(sums) / count as f64).collect::<Vec<f64>>()
        };
        AttentionByDistance {
            layers,
            mean: at,
            first: means(|sums| sums.first, tokens - 1),
            previous: means(|sums| sums.previous, tokens - 1),
            distance: means(|sums| sums.distance, tokens),
            sink: means(|sums| sums.sink, tokens),
        }
    }
}
