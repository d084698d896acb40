//! The portable path: plain Rust arrays that any compiler vectorizes as far as the target allows.

use super::super::lanes::{LANES, Lanes, ROUND_BIAS, bf16_high, bf16_low, tree};
use super::super::table::{Isa, kernels};
use half::f16;

#[derive(Clone, Copy)]
pub(super) struct Array([f32; LANES]);

#[inline(always)]
fn zip(a: Array, b: Array, f: impl Fn(f32, f32) -> f32) -> Array {
    Array(std::array::from_fn(|i| f(a.0[i], b.0[i])))
}

// SAFETY: plain Rust: no CPU feature is needed; the pointer rules are those of the trait.
unsafe impl Lanes for Array {
    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        Array([value; LANES])
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the caller passes a pointer valid for 16 values.
        Array(unsafe { from.cast::<[f32; LANES]>().read_unaligned() })
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> Self {
        // SAFETY: the caller passes a pointer valid for 16 values.
        let bits = unsafe { from.cast::<[u16; LANES]>().read_unaligned() };
        Array(bits.map(|b| f16::from_bits(b).to_f32_const()))
    }
    #[inline(always)]
    unsafe fn load_i8(from: *const i8) -> Self {
        // SAFETY: the caller passes a pointer valid for 16 bytes.
        Array(unsafe { from.cast::<[i8; LANES]>().read() }.map(f32::from))
    }
    #[inline(always)]
    unsafe fn load_u4(from: *const u8, at: usize) -> Self {
        // SAFETY: the caller passes a pointer valid for 16 bytes.
        Array(unsafe { from.cast::<[u8; LANES]>().read() }.map(|byte| f32::from(byte >> at & 15)))
    }
    #[inline(always)]
    unsafe fn load_u6(low: *const u8, low_at: usize, high: *const u8, high_at: usize) -> Self {
        // SAFETY: the caller passes pointers valid for 16 bytes.
        let (low, high) = unsafe { (low.cast::<[u8; LANES]>().read(), high.cast::<[u8; LANES]>().read()) };
        Array(std::array::from_fn(|i| f32::from(low[i] >> low_at & 15 | (high[i] >> high_at & 3) << 4)))
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the caller passes a pointer valid for 16 values.
        unsafe { to.cast::<[f32; LANES]>().write_unaligned(self.0) }
    }
    #[inline(always)]
    unsafe fn store_f16(self, to: *mut u16) {
        let bits = self.0.map(|x| f16::from_f32_const(x).to_bits());
        // SAFETY: the caller passes a pointer valid for 16 values.
        unsafe { to.cast::<[u16; LANES]>().write_unaligned(bits) }
    }
    #[inline(always)]
    unsafe fn transpose(rows: [Self; LANES]) -> [Self; LANES] {
        std::array::from_fn(|lane| Array(rows.map(|row| row.0[lane])))
    }
    #[inline(always)]
    unsafe fn mul_add(self, b: Self, c: Self) -> Self {
        // Not fused: without an FMA unit `f32::mul_add` is a library call.
        Array(std::array::from_fn(|i| self.0[i] * b.0[i] + c.0[i]))
    }
    #[inline(always)]
    unsafe fn add(self, b: Self) -> Self {
        zip(self, b, |x, y| x + y)
    }
    #[inline(always)]
    unsafe fn sub(self, b: Self) -> Self {
        zip(self, b, |x, y| x - y)
    }
    #[inline(always)]
    unsafe fn mul(self, b: Self) -> Self {
        zip(self, b, |x, y| x * y)
    }
    #[inline(always)]
    unsafe fn div(self, b: Self) -> Self {
        zip(self, b, |x, y| x / y)
    }
    #[inline(always)]
    unsafe fn max(self, b: Self) -> Self {
        zip(self, b, |x, y| if x > y { x } else { y })
    }
    #[inline(always)]
    unsafe fn min(self, b: Self) -> Self {
        zip(self, b, |x, y| if x < y { x } else { y })
    }
    #[inline(always)]
    unsafe fn reduce_add(self) -> f32 {
        tree(self.0, |x, y| x + y)
    }
    #[inline(always)]
    unsafe fn reduce_max(self) -> f32 {
        tree(self.0, |x, y| if x > y { x } else { y })
    }
    #[inline(always)]
    unsafe fn round(self) -> Self {
        // The sum has no room for the fraction; exact for |x| < 2^22, all that exp needs.
        Array(self.0.map(|x| (x + ROUND_BIAS) - ROUND_BIAS))
    }
    #[inline(always)]
    unsafe fn ldexp(self, n: Self) -> Self {
        zip(self, n, |x, n| x * f32::from_bits(((n as i32 + 127).clamp(0, 254) as u32) << 23))
    }
    type Int = [i32; LANES];
    type U8x4 = [[u8; 4]; LANES];
    #[inline(always)]
    unsafe fn int_splat(value: i32) -> Self::Int {
        [value; LANES]
    }
    #[inline(always)]
    unsafe fn load_u8x4(from: *const u8) -> Self::U8x4 {
        // SAFETY: the caller passes a pointer valid for 64 bytes.
        unsafe { from.cast::<Self::U8x4>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store_u8x4(bytes: Self::U8x4, to: *mut u8) {
        // SAFETY: the caller passes a pointer valid for 64 bytes.
        unsafe { to.cast::<Self::U8x4>().write_unaligned(bytes) }
    }
    #[inline(always)]
    unsafe fn shift_right(bytes: Self::U8x4, by: usize, mask: u8) -> Self::U8x4 {
        bytes.map(|four| four.map(|byte| byte >> by & mask))
    }
    #[inline(always)]
    unsafe fn shift_left(bytes: Self::U8x4, by: usize, mask: u8) -> Self::U8x4 {
        bytes.map(|four| four.map(|byte| byte << by & mask))
    }
    #[inline(always)]
    unsafe fn lookup(table: Self::U8x4, indices: Self::U8x4) -> Self::U8x4 {
        std::array::from_fn(|i| indices[i].map(|index| table.as_flattened()[usize::from(index)]))
    }
    #[inline(always)]
    unsafe fn or(a: Self::U8x4, b: Self::U8x4) -> Self::U8x4 {
        std::array::from_fn(|i| std::array::from_fn(|j| a[i][j] | b[i][j]))
    }
    #[inline(always)]
    unsafe fn dot4(acc: Self::Int, bytes: Self::U8x4, x: u32) -> Self::Int {
        let x = x.to_le_bytes().map(|byte| i32::from(byte as i8));
        std::array::from_fn(|i| acc[i] + (0..4).map(|j| i32::from(bytes[i][j]) * x[j]).sum::<i32>())
    }
    type Words = ();
    #[inline(always)]
    unsafe fn words_zero() -> Self::Words {}
    #[inline(always)]
    unsafe fn scaled(sums: Self::Int, scale: Self, _minus_bias: Self) -> Self {
        Array(std::array::from_fn(|i| (f32::from_bits(sums[i] as u32) - ROUND_BIAS) * scale.0[i]))
    }
    #[inline(always)]
    unsafe fn store_i8(self, to: *mut i8) {
        let bytes = self.0.map(|x| x.round_ties_even() as i8);
        // SAFETY: the caller passes a pointer valid for 16 bytes.
        unsafe { to.cast::<[i8; LANES]>().write_unaligned(bytes) }
    }
    #[inline(always)]
    unsafe fn dot_bf16(acc: Self, weights: *const u32, pair: u32) -> Self {
        // SAFETY: the caller passes a pointer valid for 16 pairs.
        let w = unsafe { weights.cast::<[u32; LANES]>().read_unaligned() };
        Array(std::array::from_fn(|i| {
            acc.0[i] + bf16_low(w[i]) * bf16_low(pair) + bf16_high(w[i]) * bf16_high(pair)
        }))
    }
}

kernels!(@all table [SCALAR, Array, Isa::Scalar, (2, 2), 1, 1, [inline]]);
