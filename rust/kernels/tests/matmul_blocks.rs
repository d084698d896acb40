//! Products of blocks of integers at the ends of their range.

use ropechat_kernels::kernel::{Isa, Kernels, LANES, Panels, Rows, x_row_bytes};
use ropechat_kernels::quant::{PackedType, StorageType};

/// The ends of its integers and scales, with rows of nothing but 127 or -127: a part's sum just fits 24 bits.
#[test]
fn sums_of_the_largest_numbers_of_q6_k_are_exact() {
    const K: usize = 256;
    const ROWS: usize = 14;
    let (format, steps) = (PackedType::Q6K, PackedType::Q6K.steps(K));
    for (bits, q) in [(0x00, -32.0), (0xff, 31.0)] {
        for scale in [i8::MIN, i8::MAX] {
            let d = half::f16::ONE.to_le_bytes();
            let block: Vec<u8> = [vec![bits; 192], vec![scale as u8; 16], d.to_vec()].concat();
            let mut panel = vec![0; format.panel_bytes(steps)];
            StorageType::Q6_K.pack_row(&block, format, 5, &mut panel, &mut []);
            for x in [1.0, -1.0] {
                let mut row = vec![0; x_row_bytes(format, steps)];
                Kernels::of(Isa::Scalar).unwrap().quantize_q8(&[x; K], format, &mut row);
                let (stride, rows) = (row.len(), row.repeat(ROWS));
                let panels = Panels { format, bytes: &panel, panel_bytes: panel.len(), count: 1, steps };
                let exact = q * f32::from(scale) * x * K as f32;
                for kernels in Isa::ALL.into_iter().filter_map(|isa| Kernels::of(isa).ok()) {
                    let mut out = [f32::NAN; ROWS * LANES];
                    let x = Rows { bytes: &rows, stride, count: ROWS };
                    kernels.matmul(panels, x, &mut out, LANES);
                    for out in out.chunks_exact(LANES) {
                        assert!((out[5] / exact - 1.0).abs() < 1e-6, "{kernels:?} {} for {exact}", out[5]);
                        assert!(out.iter().enumerate().all(|(lane, &sum)| lane == 5 || sum == 0.0));
                    }
                }
            }
        }
    }
}
