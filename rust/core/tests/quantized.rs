//! Quantized matrices: each layout against the weight that the golden case holds, which other programs unpacked.

use std::path::{Path, PathBuf};

use ropechat_core::checkpoint::Checkpoint;
use ropechat_core::checkpoint::quantized::{Matrix, MatrixShape, Quantized};
use ropechat_core::config::Config;
use ropechat_core::family;
use ropechat_kernels::quant::{PackedType, StorageType};

fn golden(case: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(case)
}

/// The tensor `dequantized.<module>`: module, shape, values.
fn dequantized(case: &str) -> (String, Vec<usize>, Vec<f32>) {
    let file = std::fs::read(golden(case).join("golden.safetensors")).unwrap();
    let entries = ropechat_core::checkpoint::safetensors::parse(&file).unwrap();
    let found = entries.iter().find_map(|(name, entry)| Some((name.strip_prefix("dequantized.")?, entry)));
    let (module, entry) = found.unwrap();
    let values = file[entry.begin..entry.end].as_chunks().0.iter().map(|b| f32::from_le_bytes(*b));
    (module.to_owned(), entry.shape.to_vec(), values.collect())
}

fn open(case: &str) -> (Checkpoint, Config) {
    let checkpoint = Checkpoint::open(&golden(case)).unwrap();
    let config = family::config(&checkpoint).unwrap();
    (checkpoint, config)
}

/// All rows of a matrix in the type that goes with `dtype`.
fn rows(matrix: &Quantized<'_>, dtype: PackedType, rows: usize, columns: usize) -> (StorageType, Vec<f32>) {
    let (kind, mut bytes, mut all) = (matrix.row_type(dtype), Vec::new(), vec![f32::NAN; rows * columns]);
    for (row, out) in all.chunks_exact_mut(columns).enumerate() {
        matrix.read_row(row, kind, &mut bytes);
        assert_eq!(bytes.len(), kind.row_bytes(columns));
        kind.dequantize(&bytes, out);
    }
    (kind, all)
}

#[test]
fn each_layout_is_read_to_the_bit_and_keeps_its_integers() {
    use StorageType::{F16, MXFP4, Q4_0, Q4_1, Q8_0};
    for (case, kept) in [
        ("q_awq_g32", Q4_1),
        ("q_bnb_nf4", F16),
        ("q_ct_fp8", F16),
        ("q_ct_int4_group", Q4_0),
        ("q_ct_int8_channel", Q8_0),
        ("q_fp8_block", F16),
        ("q_gptq_act", F16),
        ("q_gptq_g32", Q4_1),
        ("q_gptq_v2", F16),
        ("gpt_oss_mxfp4", MXFP4),
    ] {
        let (checkpoint, config) = open(case);
        let (module, stored, expected) = dequantized(case);
        let is_expert = kept == MXFP4;
        let name = if is_expert { module } else { format!("{module}.weight") };
        let columns = stored[stored.len() - 1 - usize::from(is_expert)];
        let shape = MatrixShape { stored: &stored, columns, in_out: is_expert };
        let matrix = checkpoint.matrix(&[&name], shape, &config.quantization).unwrap();
        let Matrix::Quantized(matrix) = matrix else { panic!("{case}: {name} is quantized") };
        assert_eq!(matrix.tensor_type(), kept, "{case}");

        let count = expected.len() / columns;
        let (kind, exact) = rows(&matrix, PackedType::F32, count, columns);
        assert_eq!(kind, StorageType::F32);
        let out = stored[stored.len() - 1];
        let at = |index: usize| match is_expert {
            // [experts, in, out]
            true => {
                expected[(index / columns / out * columns + index % columns) * out + index / columns % out]
            }
            false => expected[index],
        };
        for (index, value) in exact.iter().enumerate() {
            assert_eq!(*value, at(index), "{case}: value {index}");
        }
        let (kind, near) = rows(&matrix, kept.packed(), count, columns);
        assert_eq!(kind, if kept.is_float() { StorageType::F32 } else { kept }, "{case}");
        let largest = exact.iter().fold(0.0, |largest: f32, value| largest.max(value.abs()));
        for (near, exact) in near.iter().zip(&exact) {
            // scale * zero point of Q4_1 is rounded to f16: it is at most twice the largest value of its group.
            let rounding = if kept == Q4_1 { 2.0 * largest / 2048.0 } else { 0.0 };
            assert!((near - exact).abs() <= rounding, "{case}: {near} {exact}");
        }
    }
}

#[test]
fn a_checked_checkpoint_uses_every_tensor() {
    for case in ["q_gptq_act", "q_ct_int4_group", "q_bnb_nf4", "q_fp8_block", "gpt_oss_mxfp4"] {
        let (checkpoint, config) = open(case);
        family::check_tensors(&checkpoint, &config).unwrap_or_else(|error| panic!("{case}: {error}"));
    }
}
