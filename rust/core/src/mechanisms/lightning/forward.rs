//! Lightning attention. Where a file stores the decays, they are rounded, so they are not powers of one decay: they are for blocks
//! of positions, in which every pair of a query and a key has its own decay, and the state has what was learned before the
//! block and in it (transformers, `MiniMaxLightningAttention.forward`).

use super::config::Lightning;
use crate::config::{Activation, GatedOutput, MixerFacts};
use crate::forward::recurrent::conv::{Convolution, Rows, keep_inputs};
use crate::forward::recurrent::heads::{HeadSizes, Job, jobs};
use crate::forward::recurrent::linear::{OutputGate, run_steps};
use crate::forward::recurrent::mixer::{MixBuffers, MixRows, MixedRows};
use crate::forward::state::{Pass, Run};
use crate::parts::RecurrentWeights;
use ropechat_kernels::compute::activations::{Activations, by_rows};
use ropechat_kernels::kernel::{Kernels, LANES};

/// Epsilon of the output's norm (transformers).
const EPS: f32 = 1e-6;

impl MixRows for Lightning {
    fn sizes(&self) -> HeadSizes {
        let (count, keys, width) = self.matrices();
        HeadSizes { count, state: keys * width.next_multiple_of(LANES), width }
    }

    fn mix(
        &self,
        pass: Pass<'_>,
        weights: &RecurrentWeights,
        runs: &mut [Run<'_>],
        projected: Rows<'_>,
        _: &mut Activations,
        MixBuffers { mixed, out, .. }: &mut MixBuffers,
    ) {
        let (channels, positions) = self.window();
        keep_inputs(Convolution::from(weights).window, runs, projected, channels, positions);
        let places = runs.iter().flat_map(|run| run.cache.len()..run.cache.len() + run.ids.len());
        let places: Vec<usize> = places.collect();
        mixed.resize(places.len() * channels, 0.0);
        by_rows(pass.pool, mixed, channels, |row, out| {
            pass.kernels.activate(self.activation, &projected.row(row)[..channels], out);
        });
        let mixed = Rows { values: mixed, stride: channels };
        let mut jobs = jobs(weights, runs, self.sizes(), out);
        pass.pool.for_each(&mut jobs, |job| match self.stored_block {
            Some(block) => {
                let decays = Decays::of(&weights.decay_rate, [self.num_heads, block, job.head]);
                run_blocks(job, self, &decays, (mixed, &places), pass.kernels);
            }
            None => {
                let (head, decay) = (job.head, weights.decay_rate[job.head].exp());
                run_steps(job, [self.head_dim; 2], false, pass.kernels, |row, step| {
                    let [query, key, value] = self.parts(head, mixed.row(row));
                    step.query.copy_from_slice(query);
                    step.key.copy_from_slice(key);
                    step.value.copy_from_slice(value);
                    step.decay.fill(decay);
                    *step.beta = 1.0;
                });
            }
        });
    }

    fn width(&self) -> usize {
        self.width()
    }

    fn write_output(&self, of: &MixedRows<'_>, row: usize, into: &mut [f32]) {
        let (group, norm) = (self.width(), of.weights.norm.as_ref());
        let output = GatedOutput::NormThenGate { eps: EPS, group, shared_weight: false };
        let gate = OutputGate { activation: Activation::Sigmoid, factor: 1.0, output, norm };
        of.outputs.gather(row, into);
        gate.apply(&of.projected.row(row)[3 * group..], into, of.pass.kernels);
    }
}

impl Lightning {
    /// A head's query, key and value in a row.
    fn parts<'a>(&self, head: usize, row: &'a [f32]) -> [&'a [f32]; 3] {
        [0, 1, 2].map(|part| &row[part * self.width() + head * self.head_dim..][..self.head_dim])
    }
}

/// The stored decays of a head.
struct Decays<'a> {
    /// Of the state, over a block.
    whole: f32,
    /// Of the state before the block, for a query.  // [block]
    queries: &'a [f32],
    /// Of a key, to the end of the block.  // [block]
    keys: &'a [f32],
    /// Of a key for a query.  // [block, block]
    pairs: &'a [f32],
}

impl<'a> Decays<'a> {
    /// Those of a head in [`RecurrentWeights::decay_rate`].
    fn of(all: &'a [f32], [heads, block, head]: [usize; 3]) -> Self {
        let (slopes, rest) = all.split_at(heads);
        let (queries, rest) = rest.split_at(heads * block);
        let (keys, pairs) = rest.split_at(heads * block);
        Self {
            whole: (-slopes[head] * block as f32).exp(),
            queries: &queries[head * block..][..block],
            keys: &keys[head * block..][..block],
            pairs: &pairs[head * block * block..][..block * block],
        }
    }
}

/// Updates a head's state by its rows, and reads it, with stored decays.
fn run_blocks(
    job: &mut Job<'_>,
    lightning: &Lightning,
    decays: &Decays<'_>,
    (mixed, places): (Rows<'_>, &[usize]),
    kernels: Kernels,
) {
    let (dim, block, channels) = (lightning.head_dim, decays.queries.len(), mixed.stride);
    let stride = dim.next_multiple_of(LANES);
    job.start();
    let (before, inside) = job.state.split_at_mut(dim * stride);
    let (mut early_key, mut early_value) = (vec![0.0; dim], vec![0.0; dim]);
    for (row, out) in job.rows.clone().zip(job.out.chunks_exact_mut(dim)) {
        let place = places[row] % block;
        let [query, key, value] = lightning.parts(job.head, mixed.row(row));
        out.fill(0.0);
        for (state, query) in before.chunks_exact(stride).zip(query) {
            kernels.axpby(out, &state[..dim], 1.0, query * decays.queries[place]);
        }
        for back in (0..=place).rev() {
            let decay = decays.pairs[place * block + place - back];
            let mut add = |key: &[f32], value: &[f32]| {
                let product: f32 = query.iter().zip(key).map(|(q, k)| q * k).sum();
                kernels.axpby(out, value, 1.0, decay * product);
            };
            match ((row - job.rows.start).checked_sub(back), job.before) {
                (Some(_), _) => {
                    let [_, key, value] = lightning.parts(job.head, mixed.row(row - back));
                    add(key, value);
                }
                (None, Some(window)) => {
                    // The window ends with the input before the first row.
                    let missing = back - (row - job.rows.start);
                    let input = &window[(block - 1 - missing) * channels..][..channels];
                    let [_, key, value] = lightning.parts(job.head, input);
                    kernels.activate(lightning.activation, key, &mut early_key);
                    kernels.activate(lightning.activation, value, &mut early_value);
                    add(&early_key, &early_value);
                }
                (None, None) => {}
            }
        }
        for (state, key) in inside.chunks_exact_mut(stride).zip(key) {
            kernels.axpby(&mut state[..dim], value, 1.0, key * decays.keys[place]);
        }
        if place + 1 == block {
            kernels.scale(before, decays.whole);
            kernels.add(before, inside);
            inside.fill(0.0);
        }
    }
}
