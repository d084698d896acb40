//! Products of blocks of integers at the ends of their range.

use crate::kernel::Noise;
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

/// A file's types of few bits, with the place of their f16 numbers, and the panels that hold them unchanged.
const FEW_BITS: [(StorageType, &[usize], PackedType); 15] = [
    (StorageType::Q3_K, &[108], PackedType::Q3K),
    (StorageType::Q2_K, &[80, 82], PackedType::Q2K),
    (StorageType::Q2_0, &[0], PackedType::Q2_0),
    (StorageType::TQ2_0, &[64], PackedType::Tq2_0),
    (StorageType::TQ1_0, &[52], PackedType::Tq2_0),
    (StorageType::Q1_0, &[0], PackedType::Q1_0),
    (StorageType::Q3_K, &[108], PackedType::Q6K),
    (StorageType::IQ4_NL, &[0], PackedType::Iq4Nl),
    (StorageType::IQ4_XS, &[0], PackedType::Iq4Xs),
    (StorageType::IQ3_XXS, &[0], PackedType::Iq3Xxs),
    (StorageType::IQ3_S, &[0], PackedType::Iq3S),
    (StorageType::IQ2_XXS, &[0], PackedType::Iq2),
    (StorageType::IQ2_XS, &[0], PackedType::Iq2),
    (StorageType::IQ2_S, &[0], PackedType::Iq2),
    (StorageType::IQ1_S, &[0], PackedType::Iq1),
];

/// Random blocks whose f16 numbers are 1, times integers: every product and every sum is an integer (an eighth in IQ types) of
/// less than 25 bits, which f32 has exactly in any order.
#[test]
fn products_of_few_bits_are_exact_integers() {
    const K: usize = 768;
    const ROWS: usize = 29;
    let mut noise = Noise(7);
    let mut byte = || (noise.next().abs() * 256.0) as u8;
    for (kind, places, format) in FEW_BITS {
        assert!(kind.is_kept_in(format));
        let (steps, block) = (format.steps(K), kind.row_bytes(kind.block_values()));
        let mut panels = vec![0; 2 * format.panel_bytes(steps)];
        let mut weights = vec![0.0; 2 * LANES * K];
        for (row, values) in weights.chunks_exact_mut(K).enumerate() {
            let mut bytes: Vec<u8> = (0..kind.row_bytes(K)).map(|_| byte()).collect();
            for block in bytes.chunks_exact_mut(block) {
                for &place in places {
                    block[place..][..2].copy_from_slice(&half::f16::ONE.to_le_bytes());
                }
            }
            kind.dequantize(&bytes, values);
            let panel = &mut panels[row / LANES * format.panel_bytes(steps)..][..format.panel_bytes(steps)];
            kind.pack_row(&bytes, format, row % LANES, panel, &mut []);
            let mut back = vec![f32::NAN; K];
            format.unpack_row(panel, row % LANES, &mut back);
            assert_eq!(back, values, "{kind:?}");
        }
        // A block with a 127 has the scale 1. The others are small where weights are large.
        let most: i8 = if weights.iter().any(|x| x.abs() > 200.0) { 3 } else { 63 };
        let mut integer = |k: usize| if k % 32 == 5 { 127.0 } else { f32::from(byte() as i8 % most) };
        let rows: Vec<Vec<f32>> = (0..ROWS).map(|_| (0..K).map(&mut integer).collect()).collect();
        let stride = x_row_bytes(format, steps);
        let mut x = vec![0; ROWS * stride];
        for (row, out) in rows.iter().zip(x.chunks_exact_mut(stride)) {
            Kernels::of(Isa::Scalar).unwrap().quantize_q8(row, format, out);
        }
        let panel_bytes = format.panel_bytes(steps);
        let panels = Panels { format, bytes: &panels, panel_bytes, count: 2, steps };
        for kernels in Isa::ALL.into_iter().filter_map(|isa| Kernels::of(isa).ok()) {
            for count in [1, 2, 3, 4, 5, 7, 8, 11, 12, 13, ROWS] {
                let mut out = vec![f32::NAN; count * 2 * LANES];
                kernels.matmul(panels, Rows { bytes: &x, stride, count }, &mut out, 2 * LANES);
                for (row, out) in rows.iter().zip(out.chunks_exact(2 * LANES)) {
                    for (column, (found, weights)) in out.iter().zip(weights.chunks_exact(K)).enumerate() {
                        let exact: f64 = row.iter().zip(weights).map(|(x, w)| f64::from(x * w)).sum();
                        assert_eq!(
                            f64::from(*found),
                            exact,
                            "{kernels:?} {kind:?} in {format:?} column {column}"
                        );
                    }
                }
            }
        }
    }
}
