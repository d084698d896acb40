//! Linear attention with decay: Gated DeltaNet, Kimi Delta Attention and Mamba-2. What differs between them is prepared here
//! per row and head; the state's step is one kernel.

use super::conv::Rows;
use super::heads::{HeadSizes, Job, jobs};
use crate::config::{GatedOutput, LinearAttention, LinearRule, MixerFacts};
use crate::forward::residual::matmul;
use crate::forward::state::{Pass, Run};
use crate::parts::{NormWeights, RecurrentWeights};
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
    let is_delta = matches!(linear.rule, LinearRule::GatedDelta { .. } | LinearRule::KimiDelta { .. });
    let mut jobs = jobs(weights, runs, sizes(linear), out);
    pass.pool.for_each(&mut jobs, |job| {
        let (head, widths) = (job.head, [linear.key_dim, linear.value_dim]);
        run_steps(job, widths, is_delta, pass.kernels, |row, step| {
            let parts = Parts::of(linear, head, mixed.row(row));
            step.value.copy_from_slice(parts.value);
            prepare(linear, weights, inputs, [row, head], parts, step, pass.kernels);
        });
        if let Some(&d) = weights.d.get(head) {
            for (row, out) in job.rows.clone().zip(job.out.chunks_exact_mut(linear.value_dim)) {
                pass.kernels.axpby(out, Parts::of(linear, head, mixed.row(row)).value, 1.0, d);
            }
        }
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

/// What a row does to a head's state.
pub(crate) struct RowStep<'a> {
    pub query: &'a mut [f32], // [key_dim]
    pub key: &'a mut [f32],   // [key_dim]
    pub value: &'a mut [f32], // [value_dim]
    /// What each key channel keeps of the state.  // [key_dim]
    pub decay: &'a mut [f32],
    /// Factor of what is learned.
    pub beta: &'a mut f32,
    lengths: &'a mut [f32], // [key_dim]
}

impl RowStep<'_> {
    /// Sets query and key to these of length one, the query divided by the root of its width.
    fn of_length_one(&mut self, query: &[f32], key: &[f32], kernels: Kernels) {
        let dim = key.len() as f32;
        let eps = L2_EPS / dim;
        self.lengths.fill(1.0 / dim.sqrt());
        kernels.rms_norm(key, self.lengths, eps, self.key);
        self.lengths.fill(1.0 / dim);
        kernels.rms_norm(query, self.lengths, eps, self.query);
    }
}

/// Updates a head's state by its rows, and reads it; `prepare` is given a row and its step, to be filled.
pub(crate) fn run_steps(
    job: &mut Job<'_>,
    [dim, width]: [usize; 2],
    is_delta: bool,
    kernels: Kernels,
    prepare: impl Fn(usize, &mut RowStep<'_>),
) {
    let padded = width.next_multiple_of(LANES);
    job.start();
    SCRATCH.with_borrow_mut(|Scratch { queries, keys, decay, decayed_keys, values, beta, lengths }| {
        for rows in job.portions() {
            let count = rows.len();
            for list in [&mut *queries, keys, decay] {
                list.resize(count * dim, 0.0);
            }
            values.resize(count * padded, 0.0);
            beta.resize(count, 0.0);
            lengths.resize(dim, 0.0);
            for (index, row) in rows.clone().enumerate() {
                let at = index * dim..(index + 1) * dim;
                let mut step = RowStep {
                    query: &mut queries[at.clone()],
                    key: &mut keys[at.clone()],
                    value: &mut values[index * padded..][..width],
                    decay: &mut decay[at],
                    beta: &mut beta[index],
                    lengths,
                };
                prepare(row, &mut step);
            }
            decayed_keys.clear();
            decayed_keys.extend_from_slice(keys);
            kernels.mul(decayed_keys, decay);
            let state = &mut *job.state;
            kernels.linear_attention(LinearSteps {
                keys: dim,
                is_delta,
                state,
                queries,
                learned: keys,
                decay,
                decayed_keys,
                beta,
                values,
            });
            let out = &mut job.out[(rows.start - job.rows.start) * width..][..count * width];
            for (out, value) in out.chunks_exact_mut(width).zip(values.chunks_exact(padded)) {
                out.copy_from_slice(&value[..width]);
            }
        }
    });
}

/// The step of a row and head by the rule, but for its value.
fn prepare(
    linear: &LinearAttention,
    weights: &RecurrentWeights,
    inputs: Inputs<'_>,
    [row, head]: [usize; 2],
    Parts { query, key, .. }: Parts<'_>,
    step: &mut RowStep<'_>,
    kernels: Kernels,
) {
    let (dim, heads) = (linear.key_dim, linear.num_value_heads);
    let scalar = |list: usize| inputs.scalars(row)[list * heads + head];
    let rate = weights.decay_rate[head];
    match linear.rule {
        LinearRule::GatedDelta { beta: most } => {
            step.of_length_one(query, key, kernels);
            *step.beta = most * sigmoid(scalar(0));
            step.decay.fill((rate * softplus(scalar(1) + weights.dt_bias[head])).exp());
        }
        LinearRule::KimiDelta { lower_bound } => {
            step.of_length_one(query, key, kernels);
            *step.beta = sigmoid(scalar(0));
            let channels = head * dim..(head + 1) * dim;
            step.decay.copy_from_slice(&inputs.decays(row, heads)[channels.clone()]);
            kernels.add(step.decay, &weights.dt_bias[channels]);
            match lower_bound {
                None => step.decay.iter_mut().for_each(|x| *x = rate * softplus(*x)),
                Some(bound) => {
                    kernels.scale(step.decay, -rate);
                    kernels.activate_in_place(Activation::Sigmoid, step.decay);
                    kernels.scale(step.decay, bound);
                }
            }
            kernels.exp(step.decay);
        }
        LinearRule::Mamba2 { time_step_limit: [least, most], multipliers } => {
            let length = softplus(scalar(0) * multipliers[4] + weights.dt_bias[head]);
            // Written so that NaN stays NaN.
            let length = if length < least {
                least
            } else if length > most {
                most
            } else {
                length
            };
            *step.beta = length;
            step.key.copy_from_slice(key);
            step.query.copy_from_slice(query);
            step.decay.fill((rate * length).exp());
        }
    }
}

/// What a value head reads of a row behind the convolution.
struct Parts<'a> {
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

/// The gate z of a row's heads, and their norm.
pub(crate) struct OutputGate<'a> {
    pub activation: Activation,
    /// Factor of z.
    pub factor: f32,
    pub output: GatedOutput,
    pub norm: Option<&'a NormWeights>,
}

impl OutputGate<'_> {
    /// Gates and norms the outputs of all heads.  // heads [heads * value_dim], z at least as many
    pub fn apply(&self, z: &[f32], heads: &mut [f32], kernels: Kernels) {
        ROW.with_borrow_mut(|scratch| {
            scratch.clear();
            scratch.extend_from_slice(&z[..heads.len()]);
            if self.factor != 1.0 {
                kernels.scale(scratch, self.factor);
            }
            kernels.activate_in_place(self.activation, scratch);
            let norm = |from: &[f32], into: &mut [f32], eps, group| {
                let Some(norm) = self.norm else { return into.copy_from_slice(from) };
                let groups = from.chunks_exact(group).zip(norm.weight.chunks_exact(group));
                for ((from, weight), into) in groups.zip(into.chunks_exact_mut(group)) {
                    kernels.rms_norm(from, weight, eps, into);
                }
            };
            match self.output {
                GatedOutput::Gate => kernels.mul(heads, scratch),
                GatedOutput::GateThenNorm { eps, group } => {
                    kernels.mul(scratch, heads);
                    norm(scratch, heads, eps, group);
                }
                GatedOutput::NormThenGate { eps, group, .. } => {
                    let gate = scratch.split_off(0);
                    scratch.extend_from_slice(heads);
                    norm(scratch, heads, eps, group);
                    kernels.mul(heads, &gate);
                }
            }
        });
    }
}
