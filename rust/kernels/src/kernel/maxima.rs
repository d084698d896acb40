//! Where a logit row is large: the maximum of each block, and how many logits are above one.

use super::lanes::{LANES, Lanes};

/// Logits of a block.
pub const BLOCK: usize = 64;

/// Writes the largest logit of each block to `maxima`; returns whether no logit is NaN or +inf. A row's last block may be
/// shorter.  // logits [n], maxima [ceil(n / BLOCK)]
///
/// # Safety
/// The CPU has the ISA of `V`, and the lengths are as above.
#[inline(always)]
pub(super) unsafe fn block_maxima<V: Lanes>(logits: &[f32], maxima: &mut [f32]) -> bool {
    let (whole, rest) = logits.as_chunks::<BLOCK>();
    let mut last = [f32::NEG_INFINITY; BLOCK];
    last[..rest.len()].copy_from_slice(rest);
    // SAFETY: the caller's duty; a block is whole vectors.
    unsafe {
        let (zero, lowest) = (V::splat(0.0), V::splat(f32::MIN));
        let mut nothing = zero; // + 0 * logit: NaN from the first NaN or +inf on
        for (block, maximum) in whole.iter().chain([&last]).zip(maxima) {
            let mut max = V::splat(f32::NEG_INFINITY);
            for at in 0..BLOCK / LANES {
                let x = V::load(block.as_ptr().add(at * LANES));
                max = x.max(max);
                nothing = lowest.max(x).mul_add(zero, nothing);
            }
            *maximum = max.reduce_max();
        }
        nothing.reduce_add() == 0.0
    }
}

/// How many logits are above `logit`.
#[inline(always)]
pub(super) fn count_above(logits: &[f32], logit: f32) -> usize {
    // A count in u32 per part lets the compiler vectorize the loop.
    let count = |part: &[f32]| part.iter().map(|&x| u32::from(x > logit)).sum::<u32>();
    logits.chunks(1 << 16).map(|part| count(part) as usize).sum()
}
