//! The selective scan of Mamba: a state per channel that decays by its step, learns from the input, and is read.
//!
//! A token's operations do not depend on the other tokens of the pass, so law 1 holds.
//!
//! # Safety
//! As in `matmul.rs`: the CPU must have the ISA of [`Lanes`]; `kernel/mod.rs` checks the lengths.

use super::elementwise::exp;
use super::lanes::{LANES, Lanes};

/// The tokens of 16 channels.
pub struct ScanSteps<'a> {
    /// Values of a channel's state.
    pub keys: usize,
    /// The state.  // [keys, 16]
    pub state: &'a mut [f32],
    /// -exp(A_log).  // [keys, 16]
    pub rates: &'a [f32],
    /// dt, positive.  // [rows, 16]
    pub steps: &'a [f32],
    /// B.  // [rows, keys]
    pub learned: &'a [f32],
    /// C.  // [rows, keys]
    pub queries: &'a [f32],
    /// Values in, outputs out.  // [rows, 16]
    pub values: &'a mut [f32],
}

/// For each row: state = exp(rates dt) state + B dt value; value = C state.
#[inline(always)]
pub(super) unsafe fn selective_scan<V: Lanes>(scan: &mut ScanSteps<'_>) {
    let keys = scan.keys;
    let (state, rates) = (scan.state.as_mut_ptr(), scan.rates.as_ptr());
    for (row, step) in scan.steps.chunks_exact(LANES).enumerate() {
        let (learned, query) = (&scan.learned[row * keys..][..keys], &scan.queries[row * keys..][..keys]);
        let value = scan.values[row * LANES..][..LANES].as_mut_ptr();
        // SAFETY: the state and the rates have keys * 16 values, the step and the value 16; the ISA is the caller's duty.
        unsafe {
            let step = V::load(step.as_ptr());
            let update = V::load(value).mul(step);
            let mut sum = V::splat(0.0);
            for (i, (learned, query)) in learned.iter().zip(query).enumerate() {
                let at = state.add(i * LANES);
                let decay = exp(V::load(rates.add(i * LANES)).mul(step));
                let next = decay.mul_add(V::load(at), update.mul(V::splat(*learned)));
                next.store(at);
                sum = next.mul_add(V::splat(*query), sum);
            }
            sum.store(value);
        }
    }
}
