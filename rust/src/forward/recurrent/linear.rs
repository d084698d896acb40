//! Linear attention with decay: Gated DeltaNet and Mamba-2. What differs between them is prepared here per row and head;
//! the state's step is one kernel.

use super::conv::Rows;
use crate::config::{GatedOutput, LinearAttention, LinearRule};
use crate::forward::state::{Pass, Run};
use crate::kernel::{Activation, Kernels, LANES, LinearSteps};
use crate::model::RecurrentWeights;
use std::cell::RefCell;
use std::ops::Range;

/// Rows whose keys are prepared together: they stay in the second cache.
const ROWS: usize = 32;
/// Added to the square of the length of q and k before the root (flash-linear-attention).
const L2_EPS: f32 = 1e-6;

/// One head of one run.
struct Job<'a> {
    head: usize,
    /// Rows among those of all runs.
    rows: Range<usize>,
    /// The committed state; None: zeros.
    before: Option<&'a [f32]>,
    /// The state to write.  // [panels, key_dim, 16]
    state: &'a mut [f32],
    out: &'a mut [f32], // [rows, value_dim]
}

/// Updates every head's state by every row, and reads it.  // mixed [rows, conv_width], out [run][heads, rows, value_dim]
pub(super) fn attend(
    pass: Pass<'_>,
    linear: &LinearAttention,
    weights: &RecurrentWeights,
    runs: &mut [Run<'_>],
    projected: Rows<'_>,
    mixed: &[f32],
    out: &mut Vec<f32>,
) {
    let rows: usize = runs.iter().map(|run| run.ids.len()).sum();
    out.resize(rows * linear.values_width(), 0.0);
    let window = weights.conv.len() - linear.conv_width();
    let matrix = linear.key_dim * linear.value_dim.next_multiple_of(LANES);
    let (mut jobs, mut out, mut first) = (Vec::new(), &mut out[..], 0);
    for run in runs {
        let rows = first..first + run.ids.len();
        let (before, next) = run.cache.recurrent_layer(weights.state_layer);
        for (head, state) in next[window..].chunks_exact_mut(matrix).enumerate() {
            let before = before.map(|state| &state[window + head * matrix..][..matrix]);
            let (own, others) = std::mem::take(&mut out).split_at_mut(rows.len() * linear.value_dim);
            jobs.push(Job { head, rows: rows.clone(), before, state, out: own });
            out = others;
        }
        first = rows.end;
    }
    let mixed = Rows { values: mixed, stride: linear.conv_width() };
    pass.pool.for_each(&mut jobs, |job| {
        SCRATCH.with_borrow_mut(|scratch| job.run(linear, weights, projected, mixed, scratch, pass.kernels));
    });
}

/// What one head needs of some rows.
#[derive(Default)]
struct Scratch {
    queries: Vec<f32>,      // [rows, key_dim]
    keys: Vec<f32>,         // [rows, key_dim]
    decay: Vec<f32>,        // [rows, key_dim]
    decayed_keys: Vec<f32>, // [rows, key_dim]
    beta: Vec<f32>,         // [rows]
    values: Vec<f32>,       // [rows, value_dim up to whole panels]
    lengths: Vec<f32>,      // [key_dim]
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
    /// One row of all heads, gated.
    static ROW: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

impl Job<'_> {
    fn run(
        &mut self,
        linear: &LinearAttention,
        weights: &RecurrentWeights,
        projected: Rows<'_>,
        mixed: Rows<'_>,
        scratch: &mut Scratch,
        kernels: Kernels,
    ) {
        match self.before {
            Some(before) => self.state.copy_from_slice(before),
            None => self.state.fill(0.0),
        }
        let (dim, width) = (linear.key_dim, linear.value_dim);
        let padded = width.next_multiple_of(LANES);
        for first in self.rows.clone().step_by(ROWS) {
            let rows = first..(first + ROWS).min(self.rows.end);
            let count = rows.len();
            let Scratch { queries, keys, decay, decayed_keys, values, beta, lengths } = scratch;
            for list in [&mut *queries, keys, decay, decayed_keys] {
                list.resize(count * dim, 0.0);
            }
            values.resize(count * padded, 0.0);
            beta.resize(count, 0.0);
            lengths.resize(dim, 0.0);
            for (index, row) in rows.clone().enumerate() {
                let at = index * dim..(index + 1) * dim;
                let (query, key) = (&mut queries[at.clone()], &mut keys[at.clone()]);
                let value = &mut values[index * padded..][..padded];
                let parts = Parts::of(linear, self.head, mixed.row(row));
                let scalars = &projected.row(row)[linear.conv_width() + linear.values_width()..];
                let factor = match linear.rule {
                    LinearRule::GatedDelta { beta: most } => {
                        let [b, a] = [0, 1].map(|list| scalars[list * linear.num_value_heads + self.head]);
                        beta[index] = most / (1.0 + (-b).exp());
                        let root = (dim as f32).sqrt();
                        lengths.fill(1.0 / root);
                        let eps = L2_EPS / dim as f32;
                        kernels.rms_norm(parts.key, lengths, eps, key);
                        lengths.fill(1.0 / dim as f32);
                        kernels.rms_norm(parts.query, lengths, eps, query);
                        (weights.decay_rate[self.head] * softplus(a + weights.dt_bias[self.head])).exp()
                    }
                    LinearRule::Mamba2 { time_step_limit: [least, most], multipliers } => {
                        let step = scalars[self.head] * multipliers[4] + weights.dt_bias[self.head];
                        // Written so that NaN stays NaN.
                        let step = softplus(step);
                        let step = if step < least {
                            least
                        } else if step > most {
                            most
                        } else {
                            step
                        };
                        beta[index] = step;
                        key.copy_from_slice(parts.key);
                        query.copy_from_slice(parts.query);
                        (weights.decay_rate[self.head] * step).exp()
                    }
                };
                value[..width].copy_from_slice(parts.value);
                decay[at.clone()].fill(factor);
                let decayed = &mut decayed_keys[at];
                decayed.copy_from_slice(key);
                kernels.scale(decayed, factor);
            }
            kernels.linear_attention(LinearSteps {
                keys: dim,
                is_delta: matches!(linear.rule, LinearRule::GatedDelta { .. }),
                state: self.state,
                queries,
                learned: keys,
                decay,
                decayed_keys,
                beta,
                values,
            });
            let out = &mut self.out[(first - self.rows.start) * width..][..count * width];
            for (index, out) in out.chunks_exact_mut(width).enumerate() {
                out.copy_from_slice(&values[index * padded..][..width]);
                if let Some(&d) = weights.d.get(self.head) {
                    kernels.axpby(out, Parts::of(linear, self.head, mixed.row(first + index)).value, 1.0, d);
                }
            }
        }
    }
}

/// What a value head reads of a row behind the convolution.
struct Parts<'a> {
    query: &'a [f32], // [key_dim]
    key: &'a [f32],   // [key_dim]
    value: &'a [f32], // [value_dim]
}

impl<'a> Parts<'a> {
    /// DeltaNet's rows hold q, k, v; Mamba-2's x, B, C, which are value, key and query.
    fn of(linear: &LinearAttention, head: usize, row: &'a [f32]) -> Self {
        let (keys, values) = (linear.keys_width(), linear.values_width());
        let (query_at, key_at, value_at) = match linear.rule {
            LinearRule::GatedDelta { .. } => (0, keys, 2 * keys),
            LinearRule::Mamba2 { .. } => (values + keys, values, 0),
        };
        let dim = linear.key_dim;
        let key_head = head / (linear.num_value_heads / linear.num_key_heads);
        Self {
            query: &row[query_at + key_head * dim..][..dim],
            key: &row[key_at + key_head * dim..][..dim],
            value: &row[value_at + head * linear.value_dim..][..linear.value_dim],
        }
    }
}

/// ln(1 + e^x).
fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}

/// Where a row's outputs are: the first row of its run, the rows of the run, and its place among them.
pub(super) fn places(runs: &[Run<'_>]) -> Vec<[usize; 3]> {
    let (mut places, mut first) = (Vec::new(), 0);
    for run in runs {
        let rows = run.ids.len();
        places.extend((0..rows).map(|row| [first, rows, row]));
        first += rows;
    }
    places
}

/// Gathers the heads of a row, gates and norms them.  // projected [in_width], into [heads * value_dim]
pub(super) fn gated_output(
    pass: Pass<'_>,
    linear: &LinearAttention,
    weights: &RecurrentWeights,
    [first, rows, row]: [usize; 3],
    out: &[f32],
    projected: &[f32],
    into: &mut [f32],
) {
    let (width, kernels) = (linear.value_dim, pass.kernels);
    let run = &out[first * linear.values_width()..][..rows * linear.values_width()];
    for (head, into) in into.chunks_exact_mut(width).enumerate() {
        into.copy_from_slice(&run[(head * rows + row) * width..][..width]);
    }
    let z = &projected[linear.conv_width()..][..linear.values_width()];
    ROW.with_borrow_mut(|scratch| {
        scratch.clear();
        match linear.rule {
            LinearRule::Mamba2 { multipliers: [factor, ..], .. } if factor != 1.0 => {
                scratch.extend(z.iter().map(|z| z * factor));
            }
            _ => scratch.extend_from_slice(z),
        }
        kernels.activate_in_place(Activation::Silu, scratch);
        let norm = |from: &[f32], into: &mut [f32], eps, group| {
            let Some(norm) = &weights.norm else { return into.copy_from_slice(from) };
            let groups = from.chunks_exact(group).zip(norm.weight.chunks_exact(group));
            for ((from, weight), into) in groups.zip(into.chunks_exact_mut(group)) {
                kernels.rms_norm(from, weight, eps, into);
            }
        };
        match linear.output {
            GatedOutput::Gate => kernels.mul(into, scratch),
            GatedOutput::GateThenNorm { eps, group } => {
                kernels.mul(scratch, into);
                norm(scratch, into, eps, group);
            }
            GatedOutput::NormThenGate { eps, group, .. } => {
                let gate = scratch.split_off(0);
                scratch.extend_from_slice(into);
                norm(scratch, into, eps, group);
                kernels.mul(into, &gate);
            }
        }
    });
}
