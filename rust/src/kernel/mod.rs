//! Arithmetic on slices, compiled once per instruction set and chosen at run time.
//!
//! [`generic`] states every algorithm once over sixteen f32 [`lanes`]; `scalar`, `avx2` and `avx512` say what sixteen
//! lanes are there and compile a table of function pointers. [`Kernels::detect`] hands out the best table of this CPU:
//! holding a [`Kernels`] is the proof that the CPU has its instructions, which is the one safety argument of every call.

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod blocks;
mod elementwise;
mod generic;
mod isa;
mod lanes;
pub mod logsumexp;
mod scalar;
#[cfg(test)]
pub(crate) mod tests;

use crate::error::{Error, Result};
use crate::kernel::logsumexp::Sums;
use crate::quant::{BLOCK, PackedType};
pub use elementwise::Activation;
use generic::Product;
pub use isa::Isa;
pub use lanes::LANES;
use std::sync::OnceLock;

/// (bytes, scales, out).
type Widen = unsafe fn(&[u8], &[f32], &mut [f32]);
/// (x, weight, bias, eps, out).
type LayerNorm = unsafe fn(&[f32], &[f32], &[f32], f32, &mut [f32]);

/// The functions of one ISA. Each is `unsafe` because the CPU must have that ISA.
struct Table {
    isa: Isa,
    product_f32: unsafe fn(&Product),
    product_f16: unsafe fn(&Product),
    product_bf16: unsafe fn(&Product),
    product_q8_0: unsafe fn(&Product),
    product_q6_k: unsafe fn(&Product),
    product_q5_k: unsafe fn(&Product),
    product_q4_k: unsafe fn(&Product),
    product_q4_0: unsafe fn(&Product),
    to_q8: unsafe fn(&[f32], PackedType, &mut [u8]),
    widen_keys: Widen,
    widen_values: Widen,
    add: unsafe fn(&mut [f32], &[f32]),
    rms_norm: unsafe fn(&[f32], &[f32], f32, &mut [f32]),
    layer_norm: LayerNorm,
    gate: unsafe fn(Activation, &[f32], &[f32], &mut [f32]),
    activate: unsafe fn(Activation, &[f32], &mut [f32]),
    scale: unsafe fn(&mut [f32], f32),
    softcap: unsafe fn(&mut [f32], f32, f32),
    rotate_half: unsafe fn(&mut [f32], &[f32], &[f32]),
    rotate_pairs: unsafe fn(&mut [f32], &[f32], &[f32]),
    softmax: unsafe fn(&mut [f32], usize, f32) -> (f32, f32),
    merge: unsafe fn(&mut [f32], &[f32], f32, f32),
    to_f16: unsafe fn(&[f32], &mut [u16]),
    to_bf16: unsafe fn(&[f32], &mut [u16]),
    sums: unsafe fn(&[f32], f32, f64) -> Sums,
}

/// Compiles the algorithms of `generic.rs` for one [`lanes::Lanes`] type and ISA into `TABLE`.
macro_rules! kernel_table {
    ($lanes:ty, $isa:expr, tile_rows = $rows:literal, quad_rows = $quad_rows:literal $(, $features:literal)?) => {
        /// This ISA's functions.
        pub(in crate::kernel) const TABLE: Table = {
            use $crate::kernel::{blocks, elementwise};
            type V = $lanes;
            $crate::kernel::kernel_table!(@wrap $($features)? =>
                fn product_f32(job: &generic::Product) = generic::product::<V, generic::F32, $rows>;
                fn product_f16(job: &generic::Product) = generic::product::<V, generic::F16, $rows>;
                fn product_bf16(job: &generic::Product) = generic::product::<V, generic::Bf16, $rows>;
                fn product_q8_0(job: &generic::Product) = blocks::block_product::<V, blocks::Q8_0, $quad_rows>;
                fn product_q6_k(job: &generic::Product) = blocks::block_product::<V, blocks::Q6K, $quad_rows>;
                fn product_q5_k(job: &generic::Product) = blocks::block_product::<V, blocks::Q5K, $quad_rows>;
                fn product_q4_k(job: &generic::Product) = blocks::block_product::<V, blocks::Q4K, $quad_rows>;
                fn product_q4_0(job: &generic::Product) = blocks::block_product::<V, blocks::Q4_0, $quad_rows>;
                fn to_q8(x: &[f32], weights: $crate::quant::PackedType, out: &mut [u8]) = blocks::to_q8::<V>;
                fn widen_keys(bytes: &[u8], scales: &[f32], out: &mut [f32]) = elementwise::widen_keys::<V>;
                fn widen_values(bytes: &[u8], scales: &[f32], out: &mut [f32]) = elementwise::widen_values::<V>;
                fn add(x: &mut [f32], y: &[f32]) = generic::add::<V>;
                fn rms_norm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) = generic::rms_norm::<V>;
                fn layer_norm(x: &[f32], weight: &[f32], bias: &[f32], eps: f32, out: &mut [f32]) = elementwise::layer_norm::<V>;
                fn gate(act: elementwise::Activation, gate: &[f32], up: &[f32], out: &mut [f32]) = elementwise::gate::<V>;
                fn activate(act: elementwise::Activation, x: &[f32], out: &mut [f32]) = elementwise::activate::<V>;
                fn scale(x: &mut [f32], factor: f32) = elementwise::scale::<V>;
                fn softcap(x: &mut [f32], factor: f32, cap: f32) = elementwise::softcap::<V>;
                fn rotate_half(head: &mut [f32], cos: &[f32], sin: &[f32]) = generic::rotate_half::<V>;
                fn rotate_pairs(x: &mut [f32], cos: &[f32], sin: &[f32]) = elementwise::rotate_pairs;
                fn softmax(scores: &mut [f32], valid: usize, scale: f32) -> (f32, f32) = generic::softmax::<V>;
                fn merge(acc: &mut [f32], partial: &[f32], a: f32, b: f32) = generic::merge::<V>;
                fn to_f16(x: &[f32], out: &mut [u16]) = generic::to_f16::<V>;
                fn to_bf16(x: &[f32], out: &mut [u16]) = generic::to_bf16;
                fn sums(logits: &[f32], max: f32, inverse_temperature: f64) -> $crate::kernel::logsumexp::Sums = $crate::kernel::logsumexp::sums;
            );
            Table {
                isa: $isa, product_f32, product_f16, product_bf16, product_q8_0, product_q6_k,
                product_q5_k, product_q4_k, product_q4_0, to_q8, widen_keys, widen_values, add, rms_norm,
                layer_norm, gate, activate, scale, softcap, rotate_half, rotate_pairs, softmax, merge, to_f16,
                to_bf16, sums,
            }
        };
    };
    (@wrap $($features:literal)? => $($rest:tt)*) => { $crate::kernel::kernel_table!(@each [$($features)?] $($rest)*); };
    (@each $features:tt) => {};
    (@each [$($features:literal)?] fn $name:ident($($arg:ident: $ty:ty),*) $(-> $ret:ty)? = $f:expr; $($rest:tt)*) => {
        $(#[target_feature(enable = $features)])?
        #[allow(unused_unsafe)]
        unsafe fn $name($($arg: $ty),*) $(-> $ret)? {
            // SAFETY: this function's features are the ISA's, and the caller vouches for the CPU.
            unsafe { $f($($arg),*) }
        }
        $crate::kernel::kernel_table!(@each [$($features)?] $($rest)*);
    };
}
pub(crate) use kernel_table;

/// Panels of 16 output rows, `panel_bytes` apart.
#[derive(Clone, Copy)]
pub(crate) struct Panels<'a> {
    /// Storage type.
    pub format: PackedType,
    /// From the first panel on.
    pub bytes: &'a [u8],
    /// Distance of two panels.
    pub panel_bytes: usize,
    /// Number of panels.
    pub count: usize,
    /// Steps of the reduction.
    pub steps: usize,
}

/// Activation rows, in the type that the panels' format is multiplied with.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'a> {
    /// From the first row on.
    pub bytes: &'a [u8],
    /// Distance of two rows in bytes.
    pub stride: usize,
    /// Number of rows.
    pub count: usize,
}

/// Bytes of an activation row of `steps` for weights of `format`: f32, pairs of bf16, or blocks of bytes with their
/// scales and sums.
pub fn x_row_bytes(format: PackedType, steps: usize) -> usize {
    match format {
        PackedType::F32 | PackedType::F16 | PackedType::BF16 => 4 * steps,
        PackedType::Q8_0 | PackedType::Q6K | PackedType::Q5K | PackedType::Q4K | PackedType::Q4_0 => {
            blocks::x_row_bytes(format, steps)
        }
    }
}

/// Do `len` values hold `count` things of `size`, `distance` apart?
fn holds(len: usize, count: usize, distance: usize, size: usize) -> bool {
    let last = (count - 1).checked_mul(distance);
    last.and_then(|last| last.checked_add(size)).is_some_and(|end| end <= len)
}

/// The n bytes of a row that [`Kernels::to_q8`] rounded, and the scales of its blocks of 32.
pub fn q8_parts(row: &[u8], n: usize) -> (&[u8], impl Iterator<Item = f32> + '_) {
    let scales = &row[blocks::x_scales_at(PackedType::Q8_0.steps(n))..][..4 * n.div_ceil(BLOCK)];
    (&row[..n], scales.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])))
}

/// Asks for bytes that are wanted at once.
pub fn prefetch(bytes: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    for line in bytes.chunks(64) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch reads nothing and cannot fault.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = bytes;
}

/// Asks for `bytes` bytes that are wanted soon, into the second-level cache; they need not exist.
#[inline(always)]
fn ask_for(from: *const u8, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    for at in (0..bytes).step_by(64) {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        // SAFETY: a prefetch reads nothing and cannot fault.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(from.wrapping_add(at).cast()) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (from, bytes);
}

/// The kernels of an instruction set that this CPU has.
#[derive(Clone, Copy)]
pub struct Kernels(&'static Table);

impl Kernels {
    /// The widest ISA of this CPU, or the one that the environment variable `ROPECHAT_ISA` names.
    ///
    /// # Errors
    /// `ROPECHAT_ISA` names no ISA, or one that this CPU lacks.
    pub fn detect() -> Result<Self> {
        match std::env::var("ROPECHAT_ISA") {
            Ok(name) if !name.is_empty() => Isa::ALL
                .into_iter()
                .find(|isa| isa.name() == name)
                .ok_or_else(|| {
                    let known = Isa::ALL.map(Isa::name).join(", ");
                    Error::Request(format!("ROPECHAT_ISA: {name:?} is no instruction set; known are {known}"))
                })
                .and_then(Self::of),
            _ => Isa::ALL
                .into_iter()
                .rev()
                .find_map(|isa| Self::of(isa).ok())
                .map_or_else(|| Self::of(Isa::Scalar), Ok),
        }
    }

    /// The kernels of one ISA.
    ///
    /// # Errors
    /// This CPU lacks it.
    pub fn of(isa: Isa) -> Result<Self> {
        isa.table().map(Self).ok_or_else(|| {
            Error::Request(format!("ROPECHAT_ISA: this CPU has no {}; leave the variable unset", isa.name()))
        })
    }

    /// Which ISA these kernels use.
    pub fn isa(self) -> Isa {
        self.0.isa
    }

    /// out[r][16 p + lane] = sum over steps of x[r] * panels[p][lane], in the order of the steps.
    ///
    /// `out`: rows `out_stride` values apart.
    pub(crate) fn product(self, panels: Panels<'_>, x: Rows<'_>, out: &mut [f32], out_stride: usize) {
        self.run_product(panels, x, out, out_stride, false);
    }

    /// The same onto what stands in `out`, in the same order: a reduction that goes on. f32 and f16 panels only.
    pub(crate) fn add_product(self, panels: Panels<'_>, x: Rows<'_>, out: &mut [f32], out_stride: usize) {
        assert!(matches!(panels.format, PackedType::F32 | PackedType::F16));
        self.run_product(panels, x, out, out_stride, true);
    }

    fn run_product(self, panels: Panels<'_>, x: Rows<'_>, out: &mut [f32], out_stride: usize, onto: bool) {
        let Panels { format, bytes, panel_bytes, count, steps } = panels;
        let Rows { bytes: x, stride: x_bytes, count: rows } = x;
        assert!(rows > 0 && count > 0 && steps > 0);
        assert!(format != PackedType::BF16 || steps.is_multiple_of(PackedType::BF16_STEP_MULTIPLE)); // AMX reads whole tiles
        assert!(panel_bytes <= bytes.len());
        let panel = steps.checked_mul(format.step_bytes());
        assert!(panel.is_some_and(|panel| holds(bytes.len(), count, panel_bytes, panel)));
        // A row takes less than a panel of as many steps, which is in memory.
        assert!(holds(x.len(), rows, x_bytes, x_row_bytes(format, steps)));
        assert!(count.checked_mul(LANES).is_some_and(|width| holds(out.len(), rows, out_stride, width)));
        let product = match format {
            PackedType::F32 => self.0.product_f32,
            PackedType::F16 => self.0.product_f16,
            PackedType::BF16 => self.0.product_bf16,
            PackedType::Q8_0 => self.0.product_q8_0,
            PackedType::Q6K => self.0.product_q6_k,
            PackedType::Q5K => self.0.product_q5_k,
            PackedType::Q4K => self.0.product_q4_k,
            PackedType::Q4_0 => self.0.product_q4_0,
        };
        let (weights, x, out) = (bytes.as_ptr(), x.as_ptr(), out.as_mut_ptr());
        let job =
            Product { weights, panel_bytes, panels: count, x, x_bytes, rows, steps, out, out_stride, onto };
        // SAFETY: holding `Kernels` proves the ISA; the lengths are checked above.
        unsafe { product(&job) }
    }

    /// Keys of a block as f32: a byte times the scale of its position for its 32 dimensions.
    ///
    /// bytes and out `[2 panels of 16 positions][head_dim][16]`, scales `[head_dim / 32][32 positions]`
    pub fn widen_keys(self, bytes: &[u8], scales: &[f32], out: &mut [f32]) {
        let dim = bytes.len() / (2 * LANES);
        assert!(bytes.len() == out.len() && scales.len() == dim.div_ceil(BLOCK) * BLOCK);
        // SAFETY: holding `Kernels` proves the ISA; the lengths are checked.
        unsafe { (self.0.widen_keys)(bytes, scales, out) }
    }

    /// Values of a block as f32, likewise.
    ///
    /// bytes and out `[panels of 16 dimensions][32 positions][16]`, scales `[v_head_dim / 32][32 positions]`
    pub fn widen_values(self, bytes: &[u8], scales: &[f32], out: &mut [f32]) {
        let dim = bytes.len() / BLOCK;
        assert!(bytes.len() == out.len() && scales.len() == dim.div_ceil(BLOCK) * BLOCK);
        // SAFETY: holding `Kernels` proves the ISA; the lengths are checked.
        unsafe { (self.0.widen_values)(bytes, scales, out) }
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
    pub fn rotate_half(self, head: &mut [f32], cos: &[f32], sin: &[f32]) {
        assert!(cos.len() == sin.len() && head.len() == 2 * cos.len());
        // SAFETY: holding `Kernels` proves the ISA; lengths agree.
        unsafe { (self.0.rotate_half)(head, cos, sin) }
    }

    /// Rotates the pairs (2i, 2i + 1) of `x`.  // x [2n], cos and sin [n]
    pub fn rotate_pairs(self, x: &mut [f32], cos: &[f32], sin: &[f32]) {
        assert!(cos.len() == sin.len() && x.len() == 2 * cos.len());
        // SAFETY: holding `Kernels` proves the ISA; lengths agree.
        unsafe { (self.0.rotate_pairs)(x, cos, sin) }
    }

    /// Scores become e^(scale * score - max), 0 from `valid` to the end of its vector; returns (max, sum).
    pub fn softmax(self, scores: &mut [f32], valid: usize, scale: f32) -> (f32, f32) {
        assert!(0 < valid && valid.next_multiple_of(LANES) <= scores.len());
        // SAFETY: holding `Kernels` proves the ISA; the scores are whole vectors.
        unsafe { (self.0.softmax)(scores, valid, scale) }
    }

    /// acc = acc * a + partial * b.  // acc and partial [n]
    pub fn merge(self, acc: &mut [f32], partial: &[f32], a: f32, b: f32) {
        assert_eq!(acc.len(), partial.len());
        // SAFETY: holding `Kernels` proves the ISA; lengths are equal.
        unsafe { (self.0.merge)(acc, partial, a, b) }
    }

    /// Round to blocks of 32 signed bytes with scale and sum.  // x [n], out [`x_row_bytes`(weights, steps)]
    pub fn to_q8(self, x: &[f32], weights: PackedType, out: &mut [u8]) {
        assert_eq!(out.len(), blocks::x_row_bytes(weights, weights.steps(x.len())));
        // SAFETY: holding `Kernels` proves the ISA; the length is checked.
        unsafe { (self.0.to_q8)(x, weights, out) }
    }

    /// Round to binary16, nearest even.  // both [n]
    pub fn to_f16(self, x: &[f32], out: &mut [u16]) {
        assert_eq!(x.len(), out.len());
        // SAFETY: holding `Kernels` proves the ISA; lengths are equal.
        unsafe { (self.0.to_f16)(x, out) }
    }

    /// Round to bf16, nearest even.  // both [n]
    pub fn to_bf16(self, x: &[f32], out: &mut [u16]) {
        assert_eq!(x.len(), out.len());
        // SAFETY: holding `Kernels` proves the ISA; lengths are equal.
        unsafe { (self.0.to_bf16)(x, out) }
    }
}

/// [`crate::kernel::logsumexp::sums`] on the widest vectors of this CPU. The bits are the same on all, so no [`Kernels`] need be named.
pub fn sums(logits: &[f32], max: f32, inverse_temperature: f64) -> Sums {
    static WIDEST: OnceLock<&'static Table> = OnceLock::new();
    let table =
        WIDEST.get_or_init(|| Isa::ALL.into_iter().rev().find_map(Isa::table).unwrap_or(&scalar::TABLE));
    // SAFETY: `Isa::table` gives a table only when this CPU has its instructions.
    unsafe { (table.sums)(logits, max, inverse_temperature) }
}

impl std::fmt::Debug for Kernels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Kernels({})", self.0.isa.name())
    }
}
