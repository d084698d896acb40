//! The step of linear attention with decay: a matrix that decays, learns from a key and a value, and is read by a query.
//!
//! A token's operations do not depend on the other tokens of the pass, so law 1 holds. Columns of the state
//! do not depend on each other: a panel of 16 stays in the first cache while all tokens pass it.
//!
//! # Safety
//! As in `matmul.rs`: the CPU must have the ISA of [`Lanes`]; `kernel/mod.rs` checks the lengths.

use super::lanes::{LANES, Lanes};

/// Sums that a reduction over keys is split into, always in the same way.
const SUMS: usize = 4;

/// The tokens of one head.
pub struct LinearSteps<'a> {
    /// Width of a key and of a query.
    pub keys: usize,
    /// Whether the update is beta (value - S^T key), and not beta value.
    pub is_delta: bool,
    /// The state, panels of 16 columns.  // [panels][keys][16]
    pub state: &'a mut [f32],
    /// Queries.  // [rows, keys]
    pub queries: &'a [f32],
    /// Keys to learn with.  // [rows, keys]
    pub learned: &'a [f32],
    /// Factors of the state's rows.  // [rows, keys]
    pub decay: &'a [f32],
    /// Keys times decay: what the state before its decay is read with; not read where `is_delta` is false.  // [rows, keys]
    pub decayed_keys: &'a [f32],
    /// Factor of the update.  // [rows]
    pub beta: &'a [f32],
    /// Values in, outputs out.  // [rows, panels * 16]
    pub values: &'a mut [f32],
}

/// For each row: S = diag(decay) S + key (x) update; value = S^T query.
#[inline(always)]
pub(super) unsafe fn linear_attention<V: Lanes>(steps: &mut LinearSteps<'_>) {
    let keys = steps.keys;
    let panels = steps.state.len() / (keys * LANES);
    let stride = panels * LANES;
    for panel in 0..panels {
        let state = steps.state[panel * keys * LANES..][..keys * LANES].as_mut_ptr();
        for (row, &beta) in steps.beta.iter().enumerate() {
            let at = row * keys..(row + 1) * keys;
            let (query, key) = (&steps.queries[at.clone()], &steps.learned[at.clone()]);
            let decay = &steps.decay[at.clone()];
            let value = steps.values[row * stride + panel * LANES..][..LANES].as_mut_ptr();
            // SAFETY: the panel has keys * 16 values, the value 16; the ISA is the caller's duty.
            unsafe {
                let mut update = V::load(value);
                if steps.is_delta {
                    update = update.sub(read::<V>(state, &steps.decayed_keys[at]));
                }
                let update = update.mul(V::splat(beta));
                let mut sums = [V::splat(0.0); SUMS];
                let mut i = 0;
                while i + SUMS <= keys {
                    for (j, sum) in sums.iter_mut().enumerate() {
                        *sum = step(state, i + j, decay, key, query, update, *sum);
                    }
                    i += SUMS;
                }
                while i < keys {
                    sums[0] = step(state, i, decay, key, query, update, sums[0]);
                    i += 1;
                }
                sums[0].add(sums[1]).add(sums[2].add(sums[3])).store(value);
            }
        }
    }
}

/// Row i of the state = decay[i] * row + key[i] * update; returns sum + query[i] * row.
///
/// # Safety
/// `state` is valid for row i; the ISA is the caller's duty.
#[inline(always)]
unsafe fn step<V: Lanes>(
    state: *mut f32,
    i: usize,
    decay: &[f32],
    key: &[f32],
    query: &[f32],
    update: V,
    sum: V,
) -> V {
    // SAFETY: the caller's duty.
    unsafe {
        let at = state.add(i * LANES);
        let decayed = V::load(at).mul(V::splat(*decay.get_unchecked(i)));
        let row = update.mul_add(V::splat(*key.get_unchecked(i)), decayed);
        row.store(at);
        row.mul_add(V::splat(*query.get_unchecked(i)), sum)
    }
}

/// S^T key.
///
/// # Safety
/// `state` is valid for key.len() rows; the ISA is the caller's duty.
#[inline(always)]
unsafe fn read<V: Lanes>(state: *const f32, key: &[f32]) -> V {
    // SAFETY: the caller's duty.
    unsafe {
        let mut sums = [V::splat(0.0); SUMS];
        let whole = key.len() - key.len() % SUMS;
        let mut i = 0;
        while i < whole {
            for (j, sum) in sums.iter_mut().enumerate() {
                let row = V::load(state.add((i + j) * LANES));
                *sum = row.mul_add(V::splat(*key.get_unchecked(i + j)), *sum);
            }
            i += SUMS;
        }
        while i < key.len() {
            sums[0] = V::load(state.add(i * LANES)).mul_add(V::splat(*key.get_unchecked(i)), sums[0]);
            i += 1;
        }
        sums[0].add(sums[1]).add(sums[2].add(sums[3]))
    }
}
