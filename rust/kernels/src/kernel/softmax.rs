//! The softmax of attention: numerators and their sum.
//!
//! # Safety
//! As in `matmul.rs`: the CPU must have the ISA of [`Lanes`]; `kernel/mod.rs` checks the lengths.

use super::elementwise::exp_of_small;
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
        for vector in scores.chunks_exact(LANES) {
            // Never NaN: a NaN comes back as its numerator.
            max = V::load(vector.as_ptr()).mul(scale).max(max);
        }
        let max = max.reduce_max();
        let mut sum = V::splat(0.0);
        for vector in scores.chunks_exact_mut(LANES) {
            // Where the largest product was rounded up or down, all numerators have that factor, and so has their sum.
            let e = exp_of_small(V::load(vector.as_ptr()).mul_add(scale, V::splat(-max)));
            e.store(vector.as_mut_ptr());
            sum = sum.add(e);
        }
        (max, sum.reduce_add())
    }
}
