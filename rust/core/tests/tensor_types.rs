//! Every tensor type, against the values that the `gguf` package reads in random blocks (`tests/golden/gguf/types`).

use std::path::{Path, PathBuf};

use ropechat_core::checkpoint::Checkpoint;
use ropechat_kernels::quant::{PackedType, StorageType};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/gguf/types").join(name)
}

/// The expected values, out of a model folder made of the fixture.
fn values(name: &str) -> Vec<f32> {
    let file = std::fs::read(fixture("values.safetensors")).unwrap();
    let entries = ropechat_core::checkpoint::safetensors::parse(&file).unwrap();
    let entry = &entries[name];
    file[entry.begin..entry.end].chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

#[test]
fn every_type_is_read_to_the_bit() {
    let checkpoint = Checkpoint::open(&fixture("blocks.gguf")).unwrap();
    assert_eq!(checkpoint.names().count(), StorageType::ALL.len());
    for kind in StorageType::ALL {
        let tensor = checkpoint.tensor(kind.name()).unwrap();
        let expected = values(kind.name());
        let (rows, mut found) = (expected.len() / 512, vec![f32::NAN; expected.len()]);
        assert_eq!((tensor.tensor_type, tensor.shape), (kind, &[rows, 512][..]));
        assert_eq!(tensor.bytes.len(), rows * kind.row_bytes(512));
        kind.dequantize(tensor.bytes, &mut found);
        for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
            assert_eq!(found.to_bits(), expected.to_bits(), "{kind:?} value {i}: {found} is not {expected}");
        }
    }
}

#[test]
fn blocks_of_equal_formats_are_kept() {
    let checkpoint = Checkpoint::open(&fixture("blocks.gguf")).unwrap();
    let kept = [
        (StorageType::Q8_0, PackedType::Q8_0, 6),
        (StorageType::Q4_0, PackedType::Q4_0, 6),
        (StorageType::Q4_1, PackedType::Q4_1, 6),
        (StorageType::Q5_1, PackedType::Q5_1, 6),
        // 16 of the largest scales are beyond f16.
        (StorageType::Q5_0, PackedType::Q5_1, 4),
        (StorageType::Q4_K, PackedType::Q4K, 6),
        (StorageType::Q4_K, PackedType::Q5K, 6),
        (StorageType::Q5_K, PackedType::Q5K, 6),
        (StorageType::Q3_K, PackedType::Q6K, 6),
        (StorageType::Q3_K, PackedType::Q3K, 6),
        (StorageType::Q6_K, PackedType::Q6K, 6),
        (StorageType::Q2_K, PackedType::Q2K, 6),
        (StorageType::TQ1_0, PackedType::Tq2_0, 2),
        (StorageType::TQ2_0, PackedType::Tq2_0, 2),
        (StorageType::Q2_0, PackedType::Q2_0, 2),
        (StorageType::Q1_0, PackedType::Q1_0, 2),
        (StorageType::IQ4_NL, PackedType::Iq4Nl, 6),
        (StorageType::IQ4_XS, PackedType::Iq4Xs, 6),
        (StorageType::IQ3_XXS, PackedType::Iq3Xxs, 2),
        (StorageType::IQ3_S, PackedType::Iq3S, 2),
        (StorageType::IQ2_XXS, PackedType::Iq2, 2),
        (StorageType::IQ2_XS, PackedType::Iq2, 2),
        (StorageType::IQ2_S, PackedType::Iq2, 2),
        (StorageType::IQ1_S, PackedType::Iq1, 2),
        (StorageType::IQ1_M, PackedType::Iq1, 2),
    ];
    for (kind, dtype, rows) in kept {
        assert!(kind.is_kept_in(dtype));
        let tensor = checkpoint.tensor(kind.name()).unwrap();
        let (expected, mut panel) = (values(kind.name()), vec![0; dtype.panel_bytes(dtype.steps(512))]);
        let mut scratch = vec![0.0; 512];
        let row = kind.row_bytes(512);
        let rows = || tensor.bytes.chunks_exact(row).zip(expected.chunks_exact(512)).take(rows).enumerate();
        for (lane, (row, _)) in rows() {
            kind.pack_row(row, dtype, lane, &mut panel, &mut scratch);
        }
        for (lane, (_, expected)) in rows() {
            let mut found = vec![f32::NAN; 512];
            dtype.unpack_row(&panel, lane, &mut found);
            // Bits, but for the sign of zero: a packed zero has the scale's.
            assert_eq!(found, expected, "{kind:?} row {lane}");
        }
    }
}

/// Also in blocks that add a minimum: exact where f16 has the scale.
#[test]
fn mxfp4_and_q4_0_fit_other_blocks() {
    let values: Vec<u8> = (0..16).map(|i| i | (15 - i) << 4).collect();
    let mxfp4 = |exponent: u8| [&[exponent], &values[..]].concat();
    let q4_0 = |scale: f32| [&half::f16::from_f32(scale).to_le_bytes(), &values[..]].concat();
    for (kind, dtype, bytes) in [
        (StorageType::MXFP4, PackedType::Q5_1, [mxfp4(104), mxfp4(127), mxfp4(140)].concat()),
        (StorageType::MXFP4, PackedType::Mxfp4, [mxfp4(104), mxfp4(127), mxfp4(143)].concat()),
        (StorageType::Q4_0, PackedType::Q4_1, [q4_0(0.013), q4_0(-0.7), q4_0(3e-6)].concat()),
    ] {
        assert!(kind.is_kept_in(dtype));
        let mut panel = vec![0; dtype.panel_bytes(dtype.steps(96))];
        let (mut expected, mut found) = (vec![f32::NAN; 96], vec![f32::NAN; 96]);
        kind.dequantize(&bytes, &mut expected);
        kind.pack_row(&bytes, dtype, 9, &mut panel, &mut [0.0; 96]);
        dtype.unpack_row(&panel, 9, &mut found);
        assert_eq!(found, expected, "{kind:?}");
        assert!(expected.iter().any(|value| *value != 0.0));
    }
}

#[test]
fn other_types_are_packed_by_value() {
    let checkpoint = Checkpoint::open(&fixture("blocks.gguf")).unwrap();
    for kind in [StorageType::Q5_1, StorageType::Q6_K, StorageType::BF16] {
        let tensor = checkpoint.tensor(kind.name()).unwrap();
        let (expected, mut scratch) = (&values(kind.name())[..512], vec![0.0; 512]);
        let mut panel = vec![0; PackedType::F32.panel_bytes(512)];
        kind.pack_row(&tensor.bytes[..kind.row_bytes(512)], PackedType::F32, 3, &mut panel, &mut scratch);
        let mut found = vec![f32::NAN; 512];
        PackedType::F32.unpack_row(&panel, 3, &mut found);
        assert_eq!(found, expected, "{kind:?}");
    }
}

#[test]
fn names_and_sizes_agree() {
    for kind in StorageType::ALL {
        assert_eq!(StorageType::named(kind.name()), Some(kind));
        assert_eq!(kind.is_float(), kind.block_values() == 1);
    }
    assert_eq!(StorageType::named("Q4_K_M"), None);
    assert_eq!(StorageType::named("I32"), None);
}
