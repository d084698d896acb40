//! Maxima of blocks of logits.

use ropechat_kernels::kernel::maxima::BLOCK;
use ropechat_kernels::kernel::{Isa, Kernels};

/// On every instruction set: each length around a block, with the largest logit at each place, and with what is no number
/// there.
#[test]
fn every_place_counts() {
    for kernels in Isa::ALL.into_iter().filter_map(|isa| Kernels::of(isa).ok()) {
        for len in [1, 15, 16, 17, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 5] {
            for place in 0..len {
                let mut logits: Vec<f32> = (0..len).map(|i| -1.0 - (i % 7) as f32).collect();
                logits[(place + 1) % len] = f32::NEG_INFINITY;
                logits[place] = 3.0;
                let mut maxima = vec![0.0; len.div_ceil(BLOCK)];
                assert!(kernels.block_maxima(&logits, &mut maxima));
                for (block, &maximum) in logits.chunks(BLOCK).zip(&maxima) {
                    assert_eq!(maximum, block.iter().copied().fold(f32::NEG_INFINITY, f32::max));
                }
                assert_eq!((kernels.count_above(&logits, 2.0), kernels.count_above(&logits, 3.0)), (1, 0));
                for unsound in [f32::NAN, f32::INFINITY] {
                    logits[place] = unsound;
                    assert!(!kernels.block_maxima(&logits, &mut maxima), "{:?} {len} {place}", kernels.isa());
                }
            }
        }
    }
}
