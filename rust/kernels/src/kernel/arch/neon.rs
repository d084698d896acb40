//! NEON, with byte dot products (FEAT_DotProd, FEAT_I8MM) where the CPU has them: four q registers per sixteen lanes.
//!
//! Instructions whose intrinsics are not stable (products of bytes, f16) are inline assembly, one instruction each.

use super::super::lanes::{LANES, Lanes, ROUND_BIAS, bf16_high, bf16_low};
use super::super::table::{Isa, kernels};
use std::arch::aarch64::*;
use std::arch::asm;
use std::marker::PhantomData;

/// An array of an expression for each quarter of sixteen lanes.
macro_rules! quarters {
    ($q:ident => $value:expr) => {{
        macro_rules! quarter {
            ($at:literal) => {{
                const $q: usize = $at;
                $value
            }};
        }
        [quarter!(0), quarter!(1), quarter!(2), quarter!(3)]
    }};
}

/// Sixteen lanes, with the dot products of `D`.
#[derive(Clone, Copy)]
pub(super) struct Quad<D>([float32x4_t; 4], PhantomData<D>);

/// An array of quarters.
#[inline(always)]
fn quad<D>(quarters: [float32x4_t; 4]) -> Quad<D> {
    Quad(quarters, PhantomData)
}

/// The dot products in which the CPUs differ.
pub(super) trait Dots: Copy {
    /// See [`Lanes::SIGNED`].
    const SIGNED: bool;
    /// acc + the products of four times four bytes with the four signed bytes that `x` repeats.
    ///
    /// # Safety
    /// The features of the implementing type.
    unsafe fn dot4(acc: int32x4_t, bytes: uint8x16_t, x: int8x16_t) -> int32x4_t;
}

/// No dot products: Cortex-A53, A72 (Raspberry Pi 4).
#[derive(Clone, Copy)]
pub(super) struct Base;
/// Products of signed bytes, FEAT_DotProd: Apple M1, Graviton 2, Cortex-A76 (Raspberry Pi 5).
#[derive(Clone, Copy)]
pub(super) struct DotProd;
/// Products of unsigned with signed bytes, FEAT_I8MM: Apple M2, Graviton 3, Snapdragon X.
#[derive(Clone, Copy)]
pub(super) struct I8mm;

impl Dots for Base {
    const SIGNED: bool = true;
    #[inline(always)]
    unsafe fn dot4(acc: int32x4_t, bytes: uint8x16_t, x: int8x16_t) -> int32x4_t {
        // SAFETY: the caller's duty. A sum of two products fits i16: 2 x 128 x 127 = 32,512.
        unsafe {
            let w = vreinterpretq_s8_u8(bytes);
            let low = vmull_s8(vget_low_s8(w), vget_low_s8(x));
            vpadalq_s16(acc, vpaddq_s16(low, vmull_high_s8(w, x)))
        }
    }
}

impl Dots for DotProd {
    const SIGNED: bool = true;
    #[inline(always)]
    unsafe fn dot4(mut acc: int32x4_t, bytes: uint8x16_t, x: int8x16_t) -> int32x4_t {
        // SAFETY: the caller's duty; registers only.
        unsafe {
            asm!("sdot {acc:v}.4s, {bytes:v}.16b, {x:v}.16b", acc = inout(vreg) acc, bytes = in(vreg) bytes,
                x = in(vreg) x, options(pure, nomem, nostack, preserves_flags));
        }
        acc
    }
}

impl Dots for I8mm {
    const SIGNED: bool = false;
    #[inline(always)]
    unsafe fn dot4(mut acc: int32x4_t, bytes: uint8x16_t, x: int8x16_t) -> int32x4_t {
        // SAFETY: the caller's duty; registers only.
        unsafe {
            asm!("usdot {acc:v}.4s, {bytes:v}.16b, {x:v}.16b", acc = inout(vreg) acc, bytes = in(vreg) bytes,
                x = in(vreg) x, options(pure, nomem, nostack, preserves_flags));
        }
        acc
    }
}

/// Four f16 values, widened.
///
/// # Safety
/// `from` is valid for four values.
#[inline(always)]
unsafe fn widen(from: *const u16) -> float32x4_t {
    // SAFETY: the caller's duty; the instruction uses registers only.
    unsafe {
        let halves = vld1_u16(from);
        let wide: float32x4_t;
        asm!("fcvtl {wide:v}.4s, {halves:v}.4h", wide = lateout(vreg) wide, halves = in(vreg) halves,
            options(pure, nomem, nostack, preserves_flags));
        wide
    }
}

/// Four f32 values, rounded to f16.
///
/// # Safety
/// Registers only.
#[inline(always)]
unsafe fn narrow(wide: float32x4_t) -> uint16x4_t {
    let halves: uint16x4_t;
    // SAFETY: registers only.
    unsafe {
        asm!("fcvtn {halves:v}.4h, {wide:v}.4s", halves = lateout(vreg) halves, wide = in(vreg) wide,
            options(pure, nomem, nostack, preserves_flags));
    }
    halves
}

/// Sixteen signed bytes as floats.
///
/// # Safety
/// Registers only.
#[inline(always)]
unsafe fn floats_of_i8<D>(bytes: int8x16_t) -> Quad<D> {
    // SAFETY: registers only.
    unsafe {
        let (low, high) = (vmovl_s8(vget_low_s8(bytes)), vmovl_high_s8(bytes));
        quad([
            vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))),
            vcvtq_f32_s32(vmovl_high_s16(low)),
            vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))),
            vcvtq_f32_s32(vmovl_high_s16(high)),
        ])
    }
}

/// Lane i of row j becomes lane j of row i.
///
/// # Safety
/// Registers only.
#[inline(always)]
unsafe fn transpose_quarter(rows: [float32x4_t; 4]) -> [float32x4_t; 4] {
    // SAFETY: registers only.
    unsafe {
        let pairs = |low, high| (vreinterpretq_f64_f32(low), vreinterpretq_f64_f32(high));
        let even = pairs(vtrn1q_f32(rows[0], rows[1]), vtrn1q_f32(rows[2], rows[3]));
        let odd = pairs(vtrn2q_f32(rows[0], rows[1]), vtrn2q_f32(rows[2], rows[3]));
        [
            vreinterpretq_f32_f64(vtrn1q_f64(even.0, even.1)),
            vreinterpretq_f32_f64(vtrn1q_f64(odd.0, odd.1)),
            vreinterpretq_f32_f64(vtrn2q_f64(even.0, even.1)),
            vreinterpretq_f32_f64(vtrn2q_f64(odd.0, odd.1)),
        ]
    }
}

/// The larger of each lane, `b` where either is NaN.
///
/// # Safety
/// Registers only.
#[inline(always)]
unsafe fn larger(a: float32x4_t, b: float32x4_t) -> float32x4_t {
    // SAFETY: registers only.
    unsafe { vbslq_f32(vcgtq_f32(a, b), a, b) }
}

// SAFETY: every method needs NEON and the features of `D` only, which the trait makes the caller's duty; all memory access
// is unaligned and within the 16 values that the trait demands.
unsafe impl<D: Dots> Lanes for Quad<D> {
    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        // SAFETY: see the impl.
        quad([unsafe { vdupq_n_f32(value) }; 4])
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: see the impl.
        unsafe { quad(quarters!(Q => vld1q_f32(from.add(4 * Q)))) }
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> Self {
        // SAFETY: see the impl.
        unsafe { quad(quarters!(Q => widen(from.add(4 * Q)))) }
    }
    #[inline(always)]
    unsafe fn load_i8(from: *const i8) -> Self {
        // SAFETY: see the impl.
        unsafe { floats_of_i8(vld1q_s8(from)) }
    }
    #[inline(always)]
    unsafe fn load_u4(from: *const u8, at: usize) -> Self {
        // SAFETY: see the impl. Four bits are a positive signed byte.
        unsafe {
            let bytes = vandq_u8(vshlq_u8(vld1q_u8(from), vdupq_n_s8(-(at as i8))), vdupq_n_u8(15));
            floats_of_i8(vreinterpretq_s8_u8(bytes))
        }
    }
    #[inline(always)]
    unsafe fn load_u6(low: *const u8, low_at: usize, high: *const u8, high_at: usize) -> Self {
        // SAFETY: see the impl. Six bits are a positive signed byte.
        unsafe {
            let low = vshlq_u8(vld1q_u8(low), vdupq_n_s8(-(low_at as i8)));
            let high = vshlq_u8(vld1q_u8(high), vdupq_n_s8(4 - high_at as i8));
            let bytes = vorrq_u8(vandq_u8(low, vdupq_n_u8(15)), vandq_u8(high, vdupq_n_u8(48)));
            floats_of_i8(vreinterpretq_s8_u8(bytes))
        }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: see the impl.
        unsafe { quarters!(Q => vst1q_f32(to.add(4 * Q), self.0[Q])) };
    }
    #[inline(always)]
    unsafe fn store_f16(self, to: *mut u16) {
        // SAFETY: see the impl.
        unsafe { quarters!(Q => vst1_u16(to.add(4 * Q), narrow(self.0[Q]))) };
    }
    #[inline(always)]
    unsafe fn transpose(rows: [Self; LANES]) -> [Self; LANES] {
        // SAFETY: see the impl.
        unsafe {
            let mut out = rows;
            for row in 0..4 {
                for lane in 0..4 {
                    let block = transpose_quarter(quarters!(Q => rows[4 * row + Q].0[lane]));
                    quarters!(Q => out[4 * lane + Q].0[row] = block[Q]);
                }
            }
            out
        }
    }
    #[inline(always)]
    unsafe fn mul_add(self, b: Self, c: Self) -> Self {
        // SAFETY: see the impl.
        unsafe { quad(quarters!(Q => vfmaq_f32(c.0[Q], self.0[Q], b.0[Q]))) }
    }
    #[inline(always)]
    unsafe fn add(self, b: Self) -> Self {
        // SAFETY: see the impl.
        unsafe { quad(quarters!(Q => vaddq_f32(self.0[Q], b.0[Q]))) }
    }
    #[inline(always)]
    unsafe fn sub(self, b: Self) -> Self {
        // SAFETY: see the impl.
        unsafe { quad(quarters!(Q => vsubq_f32(self.0[Q], b.0[Q]))) }
    }
    #[inline(always)]
    unsafe fn mul(self, b: Self) -> Self {
        // SAFETY: see the impl.
        unsafe { quad(quarters!(Q => vmulq_f32(self.0[Q], b.0[Q]))) }
    }
    #[inline(always)]
    unsafe fn div(self, b: Self) -> Self {
        // SAFETY: see the impl.
        unsafe { quad(quarters!(Q => vdivq_f32(self.0[Q], b.0[Q]))) }
    }
    #[inline(always)]
    unsafe fn max(self, b: Self) -> Self {
        // SAFETY: see the impl.
        unsafe { quad(quarters!(Q => larger(self.0[Q], b.0[Q]))) }
    }
    #[inline(always)]
    unsafe fn min(self, b: Self) -> Self {
        // SAFETY: see the impl.
        unsafe { quad(quarters!(Q => vbslq_f32(vcltq_f32(self.0[Q], b.0[Q]), self.0[Q], b.0[Q]))) }
    }
    #[inline(always)]
    unsafe fn reduce_add(self) -> f32 {
        // SAFETY: see the impl.
        unsafe {
            let four = vaddq_f32(vaddq_f32(self.0[0], self.0[2]), vaddq_f32(self.0[1], self.0[3]));
            let two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
            vget_lane_f32::<0>(two) + vget_lane_f32::<1>(two)
        }
    }
    #[inline(always)]
    unsafe fn reduce_max(self) -> f32 {
        // SAFETY: see the impl.
        unsafe { vmaxvq_f32(larger(larger(self.0[0], self.0[2]), larger(self.0[1], self.0[3]))) }
    }
    #[inline(always)]
    unsafe fn round(self) -> Self {
        // SAFETY: see the impl.
        unsafe { quad(quarters!(Q => vrndnq_f32(self.0[Q]))) }
    }
    #[inline(always)]
    unsafe fn ldexp(self, n: Self) -> Self {
        // SAFETY: see the impl.
        unsafe {
            quad(quarters!(Q => {
                let biased = vqaddq_s32(vcvtnq_s32_f32(n.0[Q]), vdupq_n_s32(127));
                let clamped = vminq_s32(vmaxq_s32(biased, vdupq_n_s32(0)), vdupq_n_s32(254));
                vmulq_f32(self.0[Q], vreinterpretq_f32_s32(vshlq_n_s32::<23>(clamped)))
            }))
        }
    }
    type Int = [int32x4_t; 4];
    type U8x4 = [uint8x16_t; 4];
    #[inline(always)]
    unsafe fn int_splat(value: i32) -> Self::Int {
        // SAFETY: see the impl.
        unsafe { [vdupq_n_s32(value); 4] }
    }
    #[inline(always)]
    unsafe fn load_u8x4(from: *const u8) -> Self::U8x4 {
        // SAFETY: see the impl.
        unsafe { quarters!(Q => vld1q_u8(from.add(16 * Q))) }
    }
    #[inline(always)]
    unsafe fn store_u8x4(bytes: Self::U8x4, to: *mut u8) {
        // SAFETY: see the impl.
        unsafe { quarters!(Q => vst1q_u8(to.add(16 * Q), bytes[Q])) };
    }
    #[inline(always)]
    unsafe fn shift_right(bytes: Self::U8x4, by: usize, mask: u8) -> Self::U8x4 {
        // SAFETY: see the impl.
        unsafe {
            let (by, mask) = (vdupq_n_s8(-(by as i8)), vdupq_n_u8(mask));
            quarters!(Q => vandq_u8(vshlq_u8(bytes[Q], by), mask))
        }
    }
    #[inline(always)]
    unsafe fn shift_left(bytes: Self::U8x4, by: usize, mask: u8) -> Self::U8x4 {
        // SAFETY: see the impl.
        unsafe {
            let (by, mask) = (vdupq_n_s8(by as i8), vdupq_n_u8(mask));
            quarters!(Q => vandq_u8(vshlq_u8(bytes[Q], by), mask))
        }
    }
    #[inline(always)]
    unsafe fn lookup(table: Self::U8x4, indices: Self::U8x4) -> Self::U8x4 {
        // SAFETY: see the impl.
        unsafe { quarters!(Q => vqtbl1q_u8(table[Q], indices[Q])) }
    }
    #[inline(always)]
    unsafe fn or(a: Self::U8x4, b: Self::U8x4) -> Self::U8x4 {
        // SAFETY: see the impl.
        unsafe { quarters!(Q => vorrq_u8(a[Q], b[Q])) }
    }
    const SIGNED: bool = D::SIGNED;
    #[inline(always)]
    unsafe fn to_signed(bytes: Self::U8x4) -> Self::U8x4 {
        // SAFETY: see the impl.
        unsafe { quarters!(Q => veorq_u8(bytes[Q], vdupq_n_u8(0x80))) }
    }
    #[inline(always)]
    unsafe fn dot4(acc: Self::Int, bytes: Self::U8x4, x: u32) -> Self::Int {
        // SAFETY: see the impl.
        unsafe {
            let x = vreinterpretq_s8_u32(vdupq_n_u32(x));
            quarters!(Q => D::dot4(acc[Q], bytes[Q], x))
        }
    }
    #[inline(always)]
    unsafe fn keep_order() {
        // SAFETY: no instruction.
        unsafe { asm!("", options(nostack, preserves_flags)) }
    }
    const TILES_KEEP_ORDER: bool = true;
    type Words = ();
    #[inline(always)]
    unsafe fn words_zero() -> Self::Words {}
    #[inline(always)]
    unsafe fn scaled(sums: Self::Int, scale: Self, _minus_bias: Self) -> Self {
        // SAFETY: see the impl. There is no register left for `_minus_bias`.
        unsafe {
            let floats: Self = quad(quarters!(Q => vreinterpretq_f32_s32(sums[Q])));
            floats.sub(Self::splat(ROUND_BIAS)).mul(scale)
        }
    }
    #[inline(always)]
    unsafe fn store_i8(self, to: *mut i8) {
        // SAFETY: see the impl.
        unsafe {
            let ints = quarters!(Q => vqmovn_s32(vcvtnq_s32_f32(self.0[Q])));
            let low = vqmovn_s16(vcombine_s16(ints[0], ints[1]));
            vst1q_s8(to, vcombine_s8(low, vqmovn_s16(vcombine_s16(ints[2], ints[3]))));
        }
    }
    #[inline(always)]
    unsafe fn dot_bf16(acc: Self, weights: *const u32, pair: u32) -> Self {
        // SAFETY: see the impl.
        unsafe {
            let (x_low, x_high) = (vdupq_n_f32(bf16_low(pair)), vdupq_n_f32(bf16_high(pair)));
            quad(quarters!(Q => {
                let w = vld1q_u32(weights.add(4 * Q));
                let low = vreinterpretq_f32_u32(vshlq_n_u32::<16>(w));
                let high = vreinterpretq_f32_u32(vandq_u32(w, vdupq_n_u32(0xffff_0000)));
                vfmaq_f32(vfmaq_f32(acc.0[Q], low, x_low), high, x_high)
            }))
        }
    }
}

kernels!(@all table [NEON, Quad<Base>, Isa::Neon, (2, 2), 3, 3, [target_feature(enable = "neon")]]);
kernels!(@blocks table [DOT_PROD, Quad<DotProd>, Isa::NeonDotProd, (2, 2), 3, 3,
    [target_feature(enable = "neon,dotprod")], ..NEON] []);
kernels!(@blocks table [I8MM, Quad<I8mm>, Isa::NeonI8mm, (2, 2), 3, 3,
    [target_feature(enable = "neon,dotprod,i8mm")], ..NEON] []);
