//! Arithmetic on slices, compiled once per instruction set and chosen at run time.
//!
//! Every algorithm is stated once, over sixteen f32 [`lanes`]: `matmul.rs` (floats), `matmul_blocks.rs` (blocks of 32
//! integers), `quantize.rs`, `softmax.rs`, `elementwise.rs`, `maxima.rs`, and `logsumexp.rs` in f64. `arch/` says what sixteen lanes
//! are on each instruction set and compiles a table of function pointers (`table.rs` lists the functions).
//! [`Kernels::detect`] returns the best table of this CPU: holding a [`Kernels`] is the proof that the CPU has its
//! instructions, which is the one safety argument of every call.

mod arch;
pub mod divergence;
mod elementwise;
mod lanes;
mod linear_attention;
pub mod logsumexp;
mod matmul;
mod matmul_blocks;
pub mod maxima;
mod prefetch;
mod quantize;
mod selective_scan;
mod softmax;
mod table;

use crate::quant::{BLOCK, PackedType};
pub use divergence::Divergence;
pub use elementwise::Activation;
pub use lanes::LANES;
pub use linear_attention::LinearSteps;
use logsumexp::{ChunkSums, ExpSums};
use matmul::MatmulArgs;
pub use prefetch::prefetch;
pub use quantize::{q8_parts, rows_as_for, x_row_bytes};
use ropechat_platform::error::{Error, Result};
pub use selective_scan::ScanSteps;
use std::sync::OnceLock;
pub use table::Isa;
use table::Table;

/// `count` panels of 16 output rows, `panel_bytes` apart.
#[derive(Clone, Copy)]
pub struct Panels<'a> {
    /// How numbers are stored.
    pub format: PackedType,
    /// The panels.
    pub bytes: &'a [u8],
    /// Distance of two panels.
    pub panel_bytes: usize,
    /// Panels.
    pub count: usize,
    /// Steps of the reduction.
    pub steps: usize,
}

/// `count` activation rows, `stride` bytes apart, in the type that the panels' format is multiplied with.
#[derive(Clone, Copy)]
pub struct Rows<'a> {
    /// The rows.
    pub bytes: &'a [u8],
    /// Distance of two rows in bytes.
    pub stride: usize,
    /// Rows.
    pub count: usize,
}

/// Whether `len` values have room for `count` items of `size` that are `distance` apart.
fn holds(len: usize, count: usize, distance: usize, size: usize) -> bool {
    let last = (count - 1).checked_mul(distance);
    last.and_then(|last| last.checked_add(size)).is_some_and(|end| end <= len)
}

/// The kernels of an instruction set that this CPU has.
#[derive(Clone, Copy)]
pub struct Kernels(&'static Table);

impl Kernels {
    /// The widest ISA of this CPU whose instructions are fast, or the one that the environment variable `ROPECHAT_ISA` names.
    ///
    /// # Errors
    /// Request: `ROPECHAT_ISA` names no ISA, or one that this CPU does not have.
    pub fn detect() -> Result<Self> {
        match std::env::var("ROPECHAT_ISA") {
            Ok(name) if !name.is_empty() => Isa::ALL
                .into_iter()
                .find(|isa| isa.name() == name)
                .ok_or_else(|| {
                    let known = Isa::ALL.map(Isa::name).join(", ");
                    Error::Request(format!("ROPECHAT_ISA: must be one of {known} (got {name:?})"))
                })
                .and_then(Self::of),
            _ => Isa::ALL
                .into_iter()
                .rev()
                .filter(|&isa| arch::is_fast(isa))
                .find_map(|isa| Self::of(isa).ok())
                .map_or_else(|| Self::of(Isa::Scalar), Ok),
        }
    }

    /// The kernels of one ISA.
    ///
    /// # Errors
    /// Request: this CPU does not have it.
    pub fn of(isa: Isa) -> Result<Self> {
        arch::table(isa).map(Self).ok_or_else(|| {
            Error::Request(format!("ROPECHAT_ISA: this CPU does not have {}; unset the variable", isa.name()))
        })
    }

    /// Whether products of bf16 are twice as many per instruction as those of f32. (AMX multiplies tiles of them, in which
    /// attention was not measured.)
    pub fn multiplies_bf16(self) -> bool {
        self.isa() == Isa::Avx512Bf16
    }

    /// Which ISA these kernels use.
    pub fn isa(self) -> Isa {
        self.0.isa
    }

    /// out[r][16 p + lane] = sum over steps of x[r] * panels[p][lane], in the order of the steps.
    ///
    /// `out`: rows `out_stride` values apart.
    pub fn matmul(self, panels: Panels<'_>, x: Rows<'_>, out: &mut [f32], out_stride: usize) {
        self.run_matmul(panels, x, out, out_stride, false);
    }

    /// `out += panels * x`, in the order of the steps: continues a reduction. Panels of floats only.
    pub fn matmul_accumulate(self, panels: Panels<'_>, x: Rows<'_>, out: &mut [f32], out_stride: usize) {
        assert!(matches!(panels.format, PackedType::F32 | PackedType::F16 | PackedType::BF16));
        self.run_matmul(panels, x, out, out_stride, true);
    }

    fn run_matmul(
        self,
        panels: Panels<'_>,
        x: Rows<'_>,
        out: &mut [f32],
        out_stride: usize,
        accumulate: bool,
    ) {
        let Panels { format, bytes, panel_bytes, count, steps } = panels;
        let Rows { bytes: x, stride: x_bytes, count: rows } = x;
        assert!(rows > 0 && count > 0 && steps > 0);
        assert!(panel_bytes <= bytes.len());
        assert!(holds(bytes.len(), count, panel_bytes, format.panel_bytes(steps)));
        // A row takes less than a panel of as many steps, which is in memory.
        assert!(holds(x.len(), rows, x_bytes, x_row_bytes(format, steps)));
        assert!(count.checked_mul(LANES).is_some_and(|width| holds(out.len(), rows, out_stride, width)));
        let matmul = match format {
            PackedType::F32 => self.0.matmul_f32,
            PackedType::F16 => self.0.matmul_f16,
            PackedType::BF16 => self.0.matmul_bf16,
            PackedType::Q8_0 => self.0.matmul_q8_0,
            PackedType::Q6K => self.0.matmul_q6_k,
            PackedType::Q5_1 => self.0.matmul_q5_1,
            PackedType::Q5K => self.0.matmul_q5_k,
            PackedType::Q4_1 => self.0.matmul_q4_1,
            PackedType::Q4K => self.0.matmul_q4_k,
            PackedType::Q4_0 => self.0.matmul_q4_0,
            PackedType::Iq4Nl | PackedType::Mxfp4 => self.0.matmul_named_blocks,
            PackedType::Iq4Xs | PackedType::Iq3Xxs | PackedType::Iq3S | PackedType::Iq2 | PackedType::Iq1 => {
                self.0.matmul_named_halves
            }
            PackedType::Q3K => self.0.matmul_q3_k,
            PackedType::Q2K => self.0.matmul_q2_k,
            PackedType::Q2_0 => self.0.matmul_q2_0,
            PackedType::Tq2_0 => self.0.matmul_tq2_0,
            PackedType::Q1_0 => self.0.matmul_q1_0,
        };
        let (weights, x, out) = (bytes.as_ptr(), x.as_ptr(), out.as_mut_ptr());
        let args = MatmulArgs {
            weights,
            panel_bytes,
            panels: count,
            table: format.lookup().0.as_ptr(),
            x,
            x_bytes,
            rows,
            steps,
            out,
            out_stride,
            accumulate,
        };
        // SAFETY: holding `Kernels` proves the ISA; the lengths are checked above.
        unsafe { matmul(&args) }
    }

    /// Dequantizes the keys of a KV block: byte * scale of its position and 32 dimensions.
    ///
    /// bytes and out `[2 panels of 16 positions][head_dim][16]`, scales `[head_dim / 32][32 positions]`
    pub fn dequantize_keys(self, bytes: &[u8], scales: &[f32], out: &mut [f32]) {
        let dim = bytes.len() / (2 * LANES);
        assert!(bytes.len() == out.len() && scales.len() == dim.div_ceil(BLOCK) * BLOCK);
        // SAFETY: holding `Kernels` proves the ISA; the lengths are checked.
        unsafe { (self.0.dequantize_keys)(bytes, scales, out) }
    }

    /// Dequantizes the values of a KV block, by the same rule.
    ///
    /// bytes and out `[panels of 16 dimensions][32 positions][16]`, scales `[v_head_dim / 32][32 positions]`
    pub fn dequantize_values(self, bytes: &[u8], scales: &[f32], out: &mut [f32]) {
        let dim = bytes.len() / BLOCK;
        assert!(bytes.len() == out.len() && scales.len() == dim.div_ceil(BLOCK) * BLOCK);
        // SAFETY: holding `Kernels` proves the ISA; the lengths are checked.
        unsafe { (self.0.dequantize_values)(bytes, scales, out) }
    }

    /// Transposes the columns of a KV block's keys (f32 or f16) from `first` on into panels of values.
    ///
    /// keys `[2 panels of 16 positions][head_dim][16]`, values `[panels of 16 dimensions][32 positions][16]`
    pub fn transpose_keys(self, format: PackedType, keys: &[u8], first: usize, values: &mut [f32]) {
        assert!(matches!(format, PackedType::F32 | PackedType::F16));
        let dim = keys.len() / (2 * LANES * format.value_bytes());
        assert!(keys.len() == dim * 2 * LANES * format.value_bytes() && first < dim);
        assert_eq!(values.len(), (dim - first).next_multiple_of(LANES) * 2 * LANES);
        // SAFETY: holding `Kernels` proves the ISA; the lengths are checked.
        unsafe { (self.0.transpose_keys)(format, keys, first, values) }
    }

    /// x += y.  // both [n]
    pub fn add(self, x: &mut [f32], y: &[f32]) {
        assert_eq!(x.len(), y.len());
        // SAFETY: holding `Kernels` proves the ISA; lengths are equal.
        unsafe { (self.0.add)(x, y) }
    }

    /// out = x / sqrt(mean(x^2) + eps) * weight.  // all [n]
    pub fn rms_norm(self, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
        assert!(x.len() == weight.len() && x.len() == out.len());
        // SAFETY: holding `Kernels` proves the ISA; lengths are equal.
        unsafe { (self.0.rms_norm)(x, weight, eps, out) }
    }

    /// out = (x - mean) / sqrt(variance + eps) * weight + bias.  // all [n]
    pub fn layer_norm(self, x: &[f32], weight: &[f32], bias: &[f32], eps: f32, out: &mut [f32]) {
        assert!(x.len() == weight.len() && x.len() == bias.len() && x.len() == out.len());
        // SAFETY: holding `Kernels` proves the ISA; lengths are equal.
        unsafe { (self.0.layer_norm)(x, weight, bias, eps, out) }
    }

    /// out = act(gate) * up.  // all [n]
    pub fn gate(self, activation: Activation, gate: &[f32], up: &[f32], out: &mut [f32]) {
        assert!(gate.len() == up.len() && gate.len() == out.len());
        // SAFETY: holding `Kernels` proves the ISA; lengths are equal.
        unsafe { (self.0.gate)(activation, gate, up, out) }
    }

    /// out = act(x).  // both [n]
    pub fn activate(self, activation: Activation, x: &[f32], out: &mut [f32]) {
        assert_eq!(x.len(), out.len());
        // SAFETY: holding `Kernels` proves the ISA; lengths are equal.
        unsafe { (self.0.activate)(activation, x, out) }
    }

    /// x = act(x).  // [n]
    pub fn activate_in_place(self, activation: Activation, x: &mut [f32]) {
        // SAFETY: holding `Kernels` proves the ISA.
        unsafe { (self.0.activate_in_place)(activation, x) }
    }

    /// x *= y.  // both [n]
    pub fn mul(self, x: &mut [f32], y: &[f32]) {
        assert_eq!(x.len(), y.len());
        // SAFETY: holding `Kernels` proves the ISA; lengths are equal.
        unsafe { (self.0.mul)(x, y) }
    }

    /// acc += x * y.  // all [n]
    pub fn mul_add(self, acc: &mut [f32], x: &[f32], y: &[f32]) {
        assert!(acc.len() == x.len() && acc.len() == y.len());
        // SAFETY: holding `Kernels` proves the ISA; lengths are equal.
        unsafe { (self.0.mul_add)(acc, x, y) }
    }

    /// The tokens of one head of linear attention, in order.
    pub fn linear_attention(self, mut steps: LinearSteps<'_>) {
        let (rows, keys) = (steps.beta.len(), steps.keys);
        let LinearSteps { queries, learned, decay, decayed_keys, .. } = &steps;
        assert!([queries, learned, decay, decayed_keys].iter().all(|list| list.len() == rows * keys));
        let panel = keys * LANES;
        assert!(steps.state.len().is_multiple_of(panel));
        assert_eq!(steps.values.len(), rows * steps.state.len() / keys);
        // SAFETY: holding `Kernels` proves the ISA; the lengths are checked.
        unsafe { (self.0.linear_attention)(&mut steps) }
    }

    /// The tokens of 16 channels of a selective scan, in order.
    pub fn selective_scan(self, mut scan: ScanSteps<'_>) {
        let (rows, keys) = (scan.steps.len() / LANES, scan.keys);
        assert!(scan.steps.len() == rows * LANES && scan.values.len() == rows * LANES);
        assert!(scan.state.len() == keys * LANES && scan.rates.len() == keys * LANES);
        assert!(scan.learned.len() == rows * keys && scan.queries.len() == rows * keys);
        // SAFETY: holding `Kernels` proves the ISA; the lengths are checked.
        unsafe { (self.0.selective_scan)(&mut scan) }
    }

    /// x = e^x.  // [n]
    pub fn exp(self, x: &mut [f32]) {
        // SAFETY: holding `Kernels` proves the ISA.
        unsafe { (self.0.exp)(x) }
    }

    /// x *= factor.  // [n]
    pub fn scale(self, x: &mut [f32], factor: f32) {
        // SAFETY: holding `Kernels` proves the ISA.
        unsafe { (self.0.scale)(x, factor) }
    }

    /// x = cap * tanh(x * factor / cap).  // [n]
    pub fn softcap(self, x: &mut [f32], factor: f32, cap: f32) {
        // SAFETY: holding `Kernels` proves the ISA.
        unsafe { (self.0.softcap)(x, factor, cap) }
    }

    /// Rotates the pairs (i, i + n) of `head`.  // head [2n], cos and sin [n]
    pub fn rope_neox(self, head: &mut [f32], cos: &[f32], sin: &[f32]) {
        assert!(cos.len() == sin.len() && head.len() == 2 * cos.len());
        // SAFETY: holding `Kernels` proves the ISA; lengths agree.
        unsafe { (self.0.rope_neox)(head, cos, sin) }
    }

    /// Rotates the pairs (2i, 2i + 1) of `x`.  // x [2n], cos and sin [n]
    pub fn rope_interleaved(self, x: &mut [f32], cos: &[f32], sin: &[f32]) {
        assert!(cos.len() == sin.len() && x.len() == 2 * cos.len());
        // SAFETY: holding `Kernels` proves the ISA; lengths agree.
        unsafe { (self.0.rope_interleaved)(x, cos, sin) }
    }

    /// Scores become e^(scale * score - max), 0 from `valid` to the end of its vector; returns (max, sum).
    pub fn softmax(self, scores: &mut [f32], valid: usize, scale: f32) -> (f32, f32) {
        assert!(0 < valid && valid.next_multiple_of(LANES) <= scores.len());
        // SAFETY: holding `Kernels` proves the ISA; the scores are whole vectors.
        unsafe { (self.0.softmax)(scores, valid, scale) }
    }

    /// acc = a * acc + b * x.  // acc and x [n]
    pub fn axpby(self, acc: &mut [f32], x: &[f32], a: f32, b: f32) {
        assert_eq!(acc.len(), x.len());
        // SAFETY: holding `Kernels` proves the ISA; lengths are equal.
        unsafe { (self.0.axpby)(acc, x, a, b) }
    }

    /// Rounds to blocks of 32 signed bytes, as `x_row_bytes` describes them.  // x [n], out [`x_row_bytes`(weights, steps)]
    pub fn quantize_q8(self, x: &[f32], weights: PackedType, out: &mut [u8]) {
        assert_eq!(out.len(), x_row_bytes(weights, weights.steps(x.len())));
        // SAFETY: holding `Kernels` proves the ISA; the length is checked.
        unsafe { (self.0.quantize_q8)(x, false, weights, out) }
    }

    /// As [`quantize_q8`](Self::quantize_q8), with one scale for all blocks: the largest magnitude / 127.
    pub fn quantize_q8_by_row(self, x: &[f32], weights: PackedType, out: &mut [u8]) {
        assert_eq!(out.len(), x_row_bytes(weights, weights.steps(x.len())));
        // SAFETY: holding `Kernels` proves the ISA; the length is checked.
        unsafe { (self.0.quantize_q8)(x, true, weights, out) }
    }

    /// The values that [`quantize_q8_by_row`](Self::quantize_q8_by_row) rounds to, up to the last bits.  // x [n]
    pub fn round_by_row(self, x: &mut [f32]) {
        quantize::round_by_row(x);
    }

    /// Rounds to f16, nearest even.  // both [n]
    pub fn to_f16(self, x: &[f32], out: &mut [u16]) {
        assert_eq!(x.len(), out.len());
        // SAFETY: holding `Kernels` proves the ISA; lengths are equal.
        unsafe { (self.0.to_f16)(x, out) }
    }

    /// f16 as f32, exactly.  // both [n], n whole vectors of 16
    pub fn widen_f16(self, x: &[u16], out: &mut [f32]) {
        assert!(x.len() == out.len() && x.len().is_multiple_of(LANES));
        // SAFETY: holding `Kernels` proves the ISA; the lengths are checked.
        unsafe { (self.0.widen_f16)(x, out) }
    }

    /// Rounds to bf16, nearest even.  // both [n]
    pub fn to_bf16(self, x: &[f32], out: &mut [u16]) {
        assert_eq!(x.len(), out.len());
        // SAFETY: holding `Kernels` proves the ISA; lengths are equal.
        unsafe { (self.0.to_bf16)(x, out) }
    }

    /// [`maxima::block_maxima`] on these instructions.
    pub fn block_maxima(self, logits: &[f32], maxima: &mut [f32]) -> bool {
        assert_eq!(maxima.len(), logits.len().div_ceil(maxima::BLOCK));
        // SAFETY: holding `Kernels` proves the ISA; the lengths are checked.
        unsafe { (self.0.block_maxima)(logits, maxima) }
    }

    /// [`maxima::count_above`] on these instructions.
    pub fn count_above(self, logits: &[f32], logit: f32) -> usize {
        // SAFETY: holding `Kernels` proves the ISA.
        unsafe { (self.0.count_above)(logits, logit) }
    }
}

/// [`logsumexp::exp_sums`] on the widest vectors of this CPU. All instruction sets give the same bits, so this needs no
/// [`Kernels`].
pub fn exp_sums(logits: &[f32], max: f32, inverse_temperature: f64) -> ExpSums {
    // SAFETY: this CPU has the instructions of its widest table.
    unsafe { (widest().exp_sums)(logits, max, inverse_temperature) }
}

/// [`logsumexp::exp_sums_with_squares`], like [`exp_sums`].
pub fn exp_sums_with_squares(logits: &[f32], max: f32) -> (ExpSums, f64) {
    // SAFETY: this CPU has the instructions of its widest table.
    unsafe { (widest().exp_sums_with_squares)(logits, max) }
}

/// [`logsumexp::exp_chunks`], like [`exp_sums`].
pub fn exp_chunks(logits: &[f32], max: f32, out: &mut [ChunkSums]) {
    assert_eq!(out.len(), logits.len().div_ceil(logsumexp::CHUNK));
    // SAFETY: this CPU has the instructions of its widest table.
    unsafe { (widest().exp_chunks)(logits, max, out) }
}

/// [`maxima::block_maxima`], like [`exp_sums`].
pub fn block_maxima(logits: &[f32], maxima: &mut [f32]) -> bool {
    Kernels(widest()).block_maxima(logits, maxima)
}

/// [`maxima::count_above`], like [`exp_sums`].
pub fn count_above(logits: &[f32], logit: f32) -> usize {
    Kernels(widest()).count_above(logits, logit)
}

/// [`divergence::divergence`], like [`exp_sums`].
pub fn divergence(p: &[f32], q: &[f32], p_logsumexp: f64, q_logsumexp: f64) -> Divergence {
    // SAFETY: this CPU has the instructions of its widest table.
    unsafe { (widest().divergence)(p, q, p_logsumexp, q_logsumexp) }
}

/// The widest table of this CPU: `arch::table` gives one only when the CPU has its instructions.
fn widest() -> &'static Table {
    static WIDEST: OnceLock<&'static Table> = OnceLock::new();
    WIDEST.get_or_init(|| Isa::ALL.into_iter().rev().find_map(arch::table).unwrap_or(&arch::SCALAR))
}

impl std::fmt::Debug for Kernels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Kernels({})", self.0.isa.name())
    }
}
