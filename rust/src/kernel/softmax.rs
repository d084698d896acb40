//! The softmax of attention: numerators and their sum.
//!
//! # Safety
//! As in `matmul.rs`: the CPU must have the ISA of [`Lanes`]; `kernel/mod.rs` checks the lengths.

use super::elementwise::exp;
use super::lanes::{LANES, Lanes};

/// Softmax numerators: scores become e^(score - max) for the first `valid` positions and 0 for the rest of the last
/// vector. Returns (max, sum).  // scores [>= valid, up to whole vectors], scaled by `scale` first
///
/// A score that is NaN or +inf makes its numerator NaN, and so the sum; `max` leaves NaN out.
#[inline(always)]
pub(super) unsafe fn softmax<V: Lanes>(scores: &mut [f32], valid: usize, scale: f32) -> (f32, f32) {
    let whole = valid.next_multiple_of(LANES);
    scores[valid..whole].fill(f32::NEG_INFINITY);
    let scores = &mut scores[..whole];
    // SAFETY: `scores` holds whole vectors.
    unsafe {
        let scale = V::splat(scale);
        let mut max = V::splat(f32::NEG_INFINITY);
        for vector in scores.chunks_exact_mut(LANES) {
            let scaled = V::load(vector.as_ptr()).mul(scale);
            scaled.store(vector.as_mut_ptr());
            max = scaled.max(max); // never NaN: a NaN comes back as its numerator
        }
        let max = max.reduce_max();
        let mut sum = V::splat(0.0);
        for vector in scores.chunks_exact_mut(LANES) {
            let e = exp(V::load(vector.as_ptr()).sub(V::splat(max)));
            e.store(vector.as_mut_ptr());
            sum = sum.add(e);
        }
        (max, sum.reduce_add())
    }
}
