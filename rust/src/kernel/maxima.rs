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
    // Counting in u32 per part keeps the loop in vectors.
    let count = |part: &[f32]| part.iter().map(|&x| u32::from(x > logit)).sum::<u32>();
    logits.chunks(1 << 16).map(|part| count(part) as usize).sum()
}

#[cfg(test)]
mod tests {
    use super::super::{Isa, arch};
    use super::BLOCK;

    /// On every instruction set: each length around a block, with the largest logit at each place, and with what is no number
    /// there.
    #[test]
    fn every_place_counts() {
        for table in Isa::ALL.into_iter().filter_map(arch::table) {
            // SAFETY: `arch::table` has the tables of this CPU's instructions, and the lengths are right.
            let is_sound =
                |logits: &[f32], maxima: &mut [f32]| unsafe { (table.block_maxima)(logits, maxima) };
            // SAFETY: as above.
            let count_above = |logits: &[f32], logit| unsafe { (table.count_above)(logits, logit) };
            for len in [1, 15, 16, 17, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 5] {
                for place in 0..len {
                    let mut logits: Vec<f32> = (0..len).map(|i| -1.0 - (i % 7) as f32).collect();
                    logits[(place + 1) % len] = f32::NEG_INFINITY;
                    logits[place] = 3.0;
                    let mut maxima = vec![0.0; len.div_ceil(BLOCK)];
                    assert!(is_sound(&logits, &mut maxima));
                    for (block, &maximum) in logits.chunks(BLOCK).zip(&maxima) {
                        assert_eq!(maximum, block.iter().copied().fold(f32::NEG_INFINITY, f32::max));
                    }
                    assert_eq!((count_above(&logits, 2.0), count_above(&logits, 3.0)), (1, 0));
                    for unsound in [f32::NAN, f32::INFINITY] {
                        logits[place] = unsound;
                        assert!(!is_sound(&logits, &mut maxima), "{:?} {len} {place}", table.isa);
                    }
                }
            }
        }
    }
}
