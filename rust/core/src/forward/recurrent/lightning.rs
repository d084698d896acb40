//! Lightning attention with the decays that a file stores. They are rounded, so they are not powers of one decay: they
//! are for blocks of positions, in which every pair of a query and a key has its own decay, and the state has what was
//! learned before the block and in it (transformers, `MiniMaxLightningAttention.forward`).

use super::conv::{Rows, activate};
use super::heads::{Job, jobs};
use super::linear::{Parts, sizes};
use crate::config::LinearAttention;
use crate::forward::state::{Pass, Run};
use crate::parts::RecurrentWeights;
use ropechat_kernels::kernel::{Kernels, LANES};

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

/// Updates every head's state by every row, and reads it.  // projected [rows, in_width], out [run][heads, rows, value_dim]
pub(super) fn attend(
    pass: Pass<'_>,
    linear: &LinearAttention,
    weights: &RecurrentWeights,
    runs: &mut [Run<'_>],
    projected: Rows<'_>,
    mixed: &mut Vec<f32>,
    out: &mut Vec<f32>,
) {
    let (Some(block), channels) = (linear.stored_block(), linear.conv_width()) else { return };
    activate(pass, weights, runs, (projected, channels, block - 1), linear.conv_activation, mixed);
    let mixed = Rows { values: mixed, stride: channels };
    let mut jobs = jobs(weights, runs, sizes(linear), out);
    pass.pool.for_each(&mut jobs, |job| {
        job.start();
        let decays = Decays::of(&weights.decay_rate, [linear.num_value_heads, block, job.head]);
        run(job, linear, &decays, mixed, pass.kernels);
    });
}

fn run(job: &mut Job<'_>, linear: &LinearAttention, decays: &Decays<'_>, mixed: Rows<'_>, kernels: Kernels) {
    let (dim, width, block) = (linear.key_dim, linear.value_dim, decays.queries.len());
    let stride = width.next_multiple_of(LANES);
    let (before, inside) = job.state.split_at_mut(dim * stride);
    let channels = linear.conv_width();
    let (mut early_key, mut early_value) = (vec![0.0; dim], vec![0.0; width]);
    for (row, out) in job.rows.clone().zip(job.out.chunks_exact_mut(width)) {
        let place = (job.position + row - job.rows.start) % block;
        let Parts { query, key, value } = Parts::of(linear, job.head, mixed.row(row));
        out.fill(0.0);
        for (state, query) in before.chunks_exact(stride).zip(query) {
            kernels.axpby(out, &state[..width], 1.0, query * decays.queries[place]);
        }
        for back in (0..=place).rev() {
            let decay = decays.pairs[place * block + place - back];
            let mut add = |parts: Parts<'_>| {
                let product: f32 = query.iter().zip(parts.key).map(|(q, k)| q * k).sum();
                kernels.axpby(out, parts.value, 1.0, decay * product);
            };
            match ((row - job.rows.start).checked_sub(back), job.window) {
                (Some(_), _) => add(Parts::of(linear, job.head, mixed.row(row - back))),
                (None, Some(window)) => {
                    // The window ends with the input before the first row.
                    let missing = back - (row - job.rows.start);
                    let from =
                        Parts::of(linear, job.head, &window[(block - 1 - missing) * channels..][..channels]);
                    kernels.activate(linear.conv_activation, from.key, &mut early_key);
                    kernels.activate(linear.conv_activation, from.value, &mut early_value);
                    add(Parts { query, key: &early_key, value: &early_value });
                }
                (None, None) => {}
            }
        }
        for (state, key) in inside.chunks_exact_mut(stride).zip(key) {
            kernels.axpby(&mut state[..width], value, 1.0, key * decays.keys[place]);
        }
        if place + 1 == block {
            kernels.scale(before, decays.whole);
            kernels.add(before, inside);
            inside.fill(0.0);
        }
    }
}
