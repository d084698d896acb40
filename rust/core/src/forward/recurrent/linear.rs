//! Linear attention with decay: Gated DeltaNet, Kimi Delta Attention, lightning attention and Mamba-2. What differs
//! between them is prepared here per row and head; the state's step is one kernel.

use super::conv::Rows;
use super::heads::{HeadOutputs, HeadSizes, Job, jobs};
use crate::config::{GatedOutput, LinearAttention, LinearRule, MixerFacts};
use crate::forward::residual::matmul;
use crate::forward::state::{Pass, Run};
use crate::parts::RecurrentWeights;
use ropechat_kernels::compute::activations::{Activations, RowSource};
use ropechat_kernels::kernel::{Activation, Kernels, LANES, LinearSteps};
use std::cell::RefCell;

/// Added to the square of the length of q and k before the root (flash-linear-attention).
const L2_EPS: f32 = 1e-6;

/// The heads of values.
pub(super) fn sizes(linear: &LinearAttention) -> HeadSizes {
    let (_, keys, values) = linear.matrices();
    let state = keys * values.next_multiple_of(LANES);
    HeadSizes { count: linear.num_value_heads, state, width: linear.value_dim }
}

/// The places of a row's gate z and of the inputs of its steps.
#[derive(Clone, Copy)]
pub(super) struct Inputs<'a> {
    projected: Rows<'a>,
    /// The gates and the decays, where these have latents.
    expanded: Option<[Rows<'a>; 2]>,
    /// Columns of the convolution, and of the gate or its latent.
    widths: [usize; 2],
}

/// The input projection's columns, or what [`expand_latents`] made of them.
pub(super) fn inputs<'a>(
    linear: &LinearAttention,
    weights: &RecurrentWeights,
    projected: Rows<'a>,
    inner: &'a [Vec<f32>; 2],
) -> Inputs<'a> {
    let expanded = match &weights.inner_proj[..] {
        [gate, decay] => Some([
            Rows { values: &inner[0], stride: gate.padded_out() },
            Rows { values: &inner[1], stride: decay.padded_out() },
        ]),
        _ => None,
    };
    Inputs { projected, expanded, widths: [linear.conv_width(), linear.gate_width()] }
}

impl<'a> Inputs<'a> {
    /// z.
    pub fn gate(&self, row: usize) -> &'a [f32] {
        match &self.expanded {
            Some([gates, _]) => gates.row(row),
            None => &self.projected.row(row)[self.widths[0]..],
        }
    }

    /// Columns behind z: the scalars of all heads, one list after the other.
    fn scalars(&self, row: usize) -> &'a [f32] {
        &self.projected.row(row)[self.widths[0] + self.widths[1]..]
    }

    /// The inputs of the decays of all key channels.
    fn decays(&self, row: usize, heads: usize) -> &'a [f32] {
        match &self.expanded {
            Some([_, decays]) => decays.row(row),
            None => &self.scalars(row)[heads..],
        }
    }
}

/// inner = the gates and the decays out of their latents, where they have any.
pub(super) fn expand_latents(
    pass: Pass<'_>,
    linear: &LinearAttention,
    weights: &RecurrentWeights,
    projected: Rows<'_>,
    input: &mut Activations,
    inner: &mut [Vec<f32>; 2],
) {
    let (Some(rank), conv) = (linear.gate_rank, linear.conv_width()) else { return };
    let rows = projected.values.len() / projected.stride;
    let firsts = [conv, conv + rank + linear.num_value_heads];
    for ((weight, first), out) in weights.inner_proj.iter().zip(firsts).zip(inner) {
        let latent = |row: usize| &projected.row(row)[first..][..rank];
        input.quantize_rows(rows, rank, weight.dtype(), pass.kernels, pass.pool, RowSource::Stored(&latent));
        matmul(pass, weight, input, out);
    }
}

/// Updates every head's state by every row, and reads it.  // mixed [rows, conv_width], out [run][heads, rows, value_dim]
pub(super) fn attend(
    pass: Pass<'_>,
    linear: &LinearAttention,
    weights: &RecurrentWeights,
    runs: &mut [Run<'_>],
    inputs: Inputs<'_>,
    mixed: &[f32],
    out: &mut Vec<f32>,
) {
    let mixed = Rows { values: mixed, stride: linear.conv_width() };
    let mut jobs = jobs(weights, runs, sizes(linear), out);
    pass.pool.for_each(&mut jobs, |job| {
        SCRATCH.with_borrow_mut(|scratch| {
            job.start();
            run(job, linear, weights, inputs, mixed, scratch, pass.kernels);
        });
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

fn run(
    job: &mut Job<'_>,
    linear: &LinearAttention,
    weights: &RecurrentWeights,
    inputs: Inputs<'_>,
    mixed: Rows<'_>,
    scratch: &mut Scratch,
    kernels: Kernels,
) {
    let (dim, width) = (linear.key_dim, linear.value_dim);
    let padded = width.next_multiple_of(LANES);
    for rows in job.portions() {
        let count = rows.len();
        let Scratch { queries, keys, decay, decayed_keys, values, beta, lengths } = &mut *scratch;
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
            let parts = Parts::of(linear, job.head, mixed.row(row));
            let scalar = |list: usize| inputs.scalars(row)[list * linear.num_value_heads + job.head];
            let mut of_length_one = || {
                let root = (dim as f32).sqrt();
                lengths.fill(1.0 / root);
                let eps = L2_EPS / dim as f32;
                kernels.rms_norm(parts.key, lengths, eps, key);
                lengths.fill(1.0 / dim as f32);
                kernels.rms_norm(parts.query, lengths, eps, query);
            };
            value[..width].copy_from_slice(parts.value);
            let (decay, decayed) = (&mut decay[at.clone()], &mut decayed_keys[at]);
            let factor = match linear.rule {
                LinearRule::GatedDelta { beta: most } => {
                    of_length_one();
                    beta[index] = most * sigmoid(scalar(0));
                    (weights.decay_rate[job.head] * softplus(scalar(1) + weights.dt_bias[job.head])).exp()
                }
                LinearRule::KimiDelta { lower_bound } => {
                    of_length_one();
                    beta[index] = sigmoid(scalar(0));
                    let channels = job.head * dim..(job.head + 1) * dim;
                    decay.copy_from_slice(&inputs.decays(row, linear.num_value_heads)[channels.clone()]);
                    kernels.add(decay, &weights.dt_bias[channels]);
                    let rate = weights.decay_rate[job.head];
                    match lower_bound {
                        None => decay.iter_mut().for_each(|x| *x = rate * softplus(*x)),
                        Some(bound) => {
                            kernels.scale(decay, -rate);
                            kernels.activate_in_place(Activation::Sigmoid, decay);
                            kernels.scale(decay, bound);
                        }
                    }
                    kernels.exp(decay);
                    decayed.copy_from_slice(key);
                    kernels.mul(decayed, decay);
                    continue;
                }
                LinearRule::Lightning { .. } => {
                    beta[index] = 1.0;
                    key.copy_from_slice(parts.key);
                    query.copy_from_slice(parts.query);
                    weights.decay_rate[job.head].exp()
                }
                LinearRule::Mamba2 { time_step_limit: [least, most], multipliers } => {
                    let step = scalar(0) * multipliers[4] + weights.dt_bias[job.head];
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
                    (weights.decay_rate[job.head] * step).exp()
                }
            };
            decay.fill(factor);
            decayed.copy_from_slice(key);
            kernels.scale(decayed, factor);
        }
        kernels.linear_attention(LinearSteps {
            keys: dim,
            is_delta: matches!(linear.rule, LinearRule::GatedDelta { .. } | LinearRule::KimiDelta { .. }),
            state: job.state,
            queries,
            learned: keys,
            decay,
            decayed_keys,
            beta,
            values,
        });
        let out = &mut job.out[(rows.start - job.rows.start) * width..][..count * width];
        for (index, out) in out.chunks_exact_mut(width).enumerate() {
            out.copy_from_slice(&values[index * padded..][..width]);
            if let Some(&d) = weights.d.get(job.head) {
                let value = Parts::of(linear, job.head, mixed.row(rows.start + index)).value;
                kernels.axpby(out, value, 1.0, d);
            }
        }
    }
}

/// What a value head reads of a row behind the convolution.
pub(super) struct Parts<'a> {
    pub query: &'a [f32], // [key_dim]
    pub key: &'a [f32],   // [key_dim]
    pub value: &'a [f32], // [value_dim]
}

impl<'a> Parts<'a> {
    /// Rows have q, k, v; Mamba-2's x, B, C, which are value, key and query.
    pub fn of(linear: &LinearAttention, head: usize, row: &'a [f32]) -> Self {
        let (keys, values) = (linear.keys_width(), linear.values_width());
        let (query_at, key_at, value_at) = match linear.rule {
            LinearRule::Mamba2 { .. } => (values + keys, values, 0),
            _ => (0, keys, 2 * keys),
        };
        let dim = linear.key_dim;
        let key_head = linear.key_head(head);
        Self {
            query: &row[query_at + key_head * dim..][..dim],
            key: &row[key_at + key_head * dim..][..dim],
            value: &row[value_at + head * linear.value_dim..][..linear.value_dim],
        }
    }
}

/// ln(1 + e^x).
pub(crate) fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// Gathers the heads of a row, gates and norms them.  // z and into [heads * value_dim]
pub(super) fn gated_output(
    pass: Pass<'_>,
    linear: &LinearAttention,
    weights: &RecurrentWeights,
    outputs: &HeadOutputs<'_>,
    row: usize,
    z: &[f32],
    into: &mut [f32],
) {
    let kernels = pass.kernels;
    outputs.gather(row, into);
    let z = &z[..into.len()];
    ROW.with_borrow_mut(|scratch| {
        scratch.clear();
        match linear.rule {
            LinearRule::Mamba2 { multipliers: [factor, ..], .. } if factor != 1.0 => {
                scratch.extend(z.iter().map(|z| z * factor));
            }
            _ => scratch.extend_from_slice(z),
        }
        kernels.activate_in_place(linear.gate, scratch);
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
