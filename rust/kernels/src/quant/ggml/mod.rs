//! How files store values: one file per group of formats, with a drawing of its block, read exactly.
//!
//! A row is a sequence of blocks; a block has some values as integers, and their factors. The formats
//! and their names are ggml's, which safetensors' F32, F16 and BF16 are too. Scales are products of two f32, rounded
//! once per operation and in the order of ggml's reference code, so that every reader gets the same bits.
//!
//! Kernels multiply other formats: [`StorageType::packed`] names the [`PackedType`] that each is packed into.

mod bytes;
mod iq;
mod iq4;
mod k_quants;
mod legacy;
mod mxfp4;
mod ternary;

use super::packed_type::PackedType;
use super::panels::step::{BLOCK, SUPER_BLOCK};
use super::panels::{q2_k, q3_k, q4_0, q4_1_q5_1, q4_k_q5_k, q6_k, q8_0, table, ternary as panels};
use half::{bf16, f16};

/// A storage type of tensors in files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // ggml's own names
#[allow(non_camel_case_types)]
pub enum StorageType {
    F32,
    F16,
    BF16,
    Q8_0,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
    IQ4_NL,
    IQ4_XS,
    MXFP4,
    TQ1_0,
    TQ2_0,
    Q2_0,
    Q1_0,
    IQ1_S,
    IQ1_M,
    IQ2_XXS,
    IQ2_XS,
    IQ2_S,
    IQ3_XXS,
    IQ3_S,
}

/// Whole blocks: their bytes to their values.
type Reader = fn(&[u8], &mut [f32]);

impl StorageType {
    /// All types.
    pub const ALL: [StorageType; 27] = [
        StorageType::F32,
        StorageType::F16,
        StorageType::BF16,
        StorageType::Q8_0,
        StorageType::Q4_0,
        StorageType::Q4_1,
        StorageType::Q5_0,
        StorageType::Q5_1,
        StorageType::Q2_K,
        StorageType::Q3_K,
        StorageType::Q4_K,
        StorageType::Q5_K,
        StorageType::Q6_K,
        StorageType::IQ4_NL,
        StorageType::IQ4_XS,
        StorageType::MXFP4,
        StorageType::TQ1_0,
        StorageType::TQ2_0,
        StorageType::Q2_0,
        StorageType::Q1_0,
        StorageType::IQ1_S,
        StorageType::IQ1_M,
        StorageType::IQ2_XXS,
        StorageType::IQ2_XS,
        StorageType::IQ2_S,
        StorageType::IQ3_XXS,
        StorageType::IQ3_S,
    ];

    /// Name, values of a block, its bytes, and how rows of it are read.
    fn facts(self) -> (&'static str, usize, usize, Reader) {
        match self {
            StorageType::F32 => ("F32", 1, 4, |bytes, out| floats(bytes, out, f32::from_le_bytes)),
            StorageType::F16 => {
                ("F16", 1, 2, |bytes, out| floats(bytes, out, |x| f16::from_le_bytes(x).to_f32()))
            }
            StorageType::BF16 => {
                ("BF16", 1, 2, |bytes, out| floats(bytes, out, |x| bf16::from_le_bytes(x).to_f32()))
            }
            StorageType::Q8_0 => {
                ("Q8_0", BLOCK, 34, |bytes, out| blocks::<34, BLOCK>(bytes, out, q8_0::read_block))
            }
            StorageType::Q4_0 => {
                ("Q4_0", BLOCK, 18, |bytes, out| blocks::<18, BLOCK>(bytes, out, legacy::q4_0))
            }
            StorageType::Q4_1 => {
                ("Q4_1", BLOCK, 20, |bytes, out| blocks::<20, BLOCK>(bytes, out, legacy::q4_1))
            }
            StorageType::Q5_0 => {
                ("Q5_0", BLOCK, 22, |bytes, out| blocks::<22, BLOCK>(bytes, out, legacy::q5_0))
            }
            StorageType::Q5_1 => {
                ("Q5_1", BLOCK, 24, |bytes, out| blocks::<24, BLOCK>(bytes, out, legacy::q5_1))
            }
            StorageType::Q2_K => {
                ("Q2_K", SUPER_BLOCK, 84, |bytes, out| blocks::<84, SUPER_BLOCK>(bytes, out, k_quants::q2_k))
            }
            StorageType::Q3_K => ("Q3_K", SUPER_BLOCK, 110, |bytes, out| {
                blocks::<110, SUPER_BLOCK>(bytes, out, k_quants::q3_k)
            }),
            StorageType::Q4_K => ("Q4_K", SUPER_BLOCK, 144, |bytes, out| {
                blocks::<144, SUPER_BLOCK>(bytes, out, k_quants::q4_k)
            }),
            StorageType::Q5_K => ("Q5_K", SUPER_BLOCK, 176, |bytes, out| {
                blocks::<176, SUPER_BLOCK>(bytes, out, k_quants::q5_k)
            }),
            StorageType::Q6_K => ("Q6_K", SUPER_BLOCK, 210, |bytes, out| {
                blocks::<210, SUPER_BLOCK>(bytes, out, k_quants::q6_k)
            }),
            StorageType::IQ4_NL => {
                ("IQ4_NL", BLOCK, 18, |bytes, out| blocks::<18, BLOCK>(bytes, out, iq4::iq4_nl))
            }
            StorageType::IQ4_XS => ("IQ4_XS", SUPER_BLOCK, 136, |bytes, out| {
                blocks::<136, SUPER_BLOCK>(bytes, out, |block, out| iq4::iq4_xs(block).values(out))
            }),
            StorageType::MXFP4 => {
                ("MXFP4", BLOCK, 17, |bytes, out| blocks::<17, BLOCK>(bytes, out, mxfp4::read_block))
            }
            StorageType::TQ1_0 => {
                ("TQ1_0", SUPER_BLOCK, 54, |bytes, out| blocks::<54, SUPER_BLOCK>(bytes, out, ternary::tq1_0))
            }
            StorageType::TQ2_0 => {
                ("TQ2_0", SUPER_BLOCK, 66, |bytes, out| blocks::<66, SUPER_BLOCK>(bytes, out, ternary::tq2_0))
            }
            StorageType::Q2_0 => ("Q2_0", panels::Q2_0, 18, |bytes, out| {
                blocks::<18, { panels::Q2_0 }>(bytes, out, ternary::q2_0)
            }),
            StorageType::Q1_0 => ("Q1_0", panels::Q1_0, 18, |bytes, out| {
                blocks::<18, { panels::Q1_0 }>(bytes, out, ternary::q1_0)
            }),
            StorageType::IQ1_S => ("IQ1_S", SUPER_BLOCK, 50, |bytes, out| {
                blocks::<50, SUPER_BLOCK>(bytes, out, |block, out| iq::iq1_s(block).values(out))
            }),
            StorageType::IQ1_M => ("IQ1_M", SUPER_BLOCK, 56, |bytes, out| {
                blocks::<56, SUPER_BLOCK>(bytes, out, |block, out| iq::iq1_m(block).values(out))
            }),
            StorageType::IQ2_XXS => ("IQ2_XXS", SUPER_BLOCK, 66, |bytes, out| {
                blocks::<66, SUPER_BLOCK>(bytes, out, |block, out| iq::iq2_xxs(block).values(out))
            }),
            StorageType::IQ2_XS => ("IQ2_XS", SUPER_BLOCK, 74, |bytes, out| {
                blocks::<74, SUPER_BLOCK>(bytes, out, |block, out| iq::iq2_xs(block).values(out))
            }),
            StorageType::IQ2_S => ("IQ2_S", SUPER_BLOCK, 82, |bytes, out| {
                blocks::<82, SUPER_BLOCK>(bytes, out, |block, out| iq::iq2_s(block).values(out))
            }),
            StorageType::IQ3_XXS => ("IQ3_XXS", SUPER_BLOCK, 98, |bytes, out| {
                blocks::<98, SUPER_BLOCK>(bytes, out, |block, out| iq::iq3_xxs(block).values(out))
            }),
            StorageType::IQ3_S => ("IQ3_S", SUPER_BLOCK, 110, |bytes, out| {
                blocks::<110, SUPER_BLOCK>(bytes, out, |block, out| iq::iq3_s(block).values(out))
            }),
        }
    }

    /// The type of that name.
    pub fn named(name: &str) -> Option<StorageType> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// ggml's name, which safetensors uses too.
    pub fn name(self) -> &'static str {
        self.facts().0
    }

    /// Values of a block.
    pub fn block_values(self) -> usize {
        self.facts().1
    }

    /// Bytes of `n` values, which are whole blocks.
    pub fn row_bytes(self, n: usize) -> usize {
        let (_, values, bytes, _) = self.facts();
        n / values * bytes
    }

    /// Whether each value is stored separately, without a block.
    pub fn is_float(self) -> bool {
        self.block_values() == 1
    }

    /// The values of whole blocks, exactly.  // bytes [row_bytes(n)], out [n]
    pub fn dequantize(self, bytes: &[u8], out: &mut [f32]) {
        (self.facts().3)(bytes, out);
    }

    /// The type that `auto` packs it into, which has room for all of its values.
    pub fn packed(self) -> PackedType {
        match self {
            StorageType::F32 => PackedType::F32,
            StorageType::F16 => PackedType::F16,
            StorageType::BF16 => PackedType::BF16,
            StorageType::Q4_0 => PackedType::Q4_0,
            StorageType::Q4_1 => PackedType::Q4_1,
            StorageType::Q4_K => PackedType::Q4K,
            StorageType::Q5_0 | StorageType::Q5_1 => PackedType::Q5_1,
            StorageType::Q5_K => PackedType::Q5K,
            StorageType::Q6_K => PackedType::Q6K,
            StorageType::Q3_K => PackedType::Q3K,
            StorageType::Q2_K => PackedType::Q2K,
            StorageType::TQ1_0 | StorageType::TQ2_0 => PackedType::Tq2_0,
            StorageType::Q2_0 => PackedType::Q2_0,
            StorageType::Q1_0 => PackedType::Q1_0,
            StorageType::IQ4_NL => PackedType::Iq4Nl,
            StorageType::MXFP4 => PackedType::Mxfp4,
            StorageType::IQ4_XS => PackedType::Iq4Xs,
            StorageType::IQ3_XXS => PackedType::Iq3Xxs,
            StorageType::IQ3_S => PackedType::Iq3S,
            StorageType::IQ2_XXS | StorageType::IQ2_XS | StorageType::IQ2_S => PackedType::Iq2,
            StorageType::IQ1_S | StorageType::IQ1_M => PackedType::Iq1,
            StorageType::Q8_0 => PackedType::Q8_0,
        }
    }

    /// Whether [`StorageType::pack_row`] keeps its integers.
    pub fn is_kept_in(self, dtype: PackedType) -> bool {
        self.packed() == dtype
            || (self, dtype) == (StorageType::Q4_K, PackedType::Q5K)
            || (self, dtype) == (StorageType::Q4_0, PackedType::Q4_1)
            || (self, dtype) == (StorageType::Q3_K, PackedType::Q6K)
            || (self, dtype) == (StorageType::MXFP4, PackedType::Q5_1)
    }

    /// Writes a row into its lane of a panel: block by block where both formats have the same blocks, with the file's own
    /// scales and integers, else value by value.  // bytes [row_bytes(n)], panel [steps, step_bytes]
    pub fn pack_row(self, bytes: &[u8], into: PackedType, lane: usize, panel: &mut [u8], values: &mut [f32]) {
        match (self, into) {
            (StorageType::Q8_0, PackedType::Q8_0) => q8_0::pack_blocks(bytes, lane, panel),
            (StorageType::Q4_0, PackedType::Q4_0) => q4_0::pack_blocks(bytes, lane, panel),
            (StorageType::Q4_0, PackedType::Q4_1) => {
                q4_1_q5_1::pack_blocks::<4>(legacy::q4_0_blocks(bytes), lane, panel);
            }
            (StorageType::Q4_1, PackedType::Q4_1) => {
                q4_1_q5_1::pack_blocks::<4>(legacy::q4_1_blocks(bytes), lane, panel);
            }
            (StorageType::Q5_0, PackedType::Q5_1) => {
                q4_1_q5_1::pack_blocks::<5>(legacy::q5_0_blocks(bytes), lane, panel);
            }
            (StorageType::Q5_1, PackedType::Q5_1) => {
                q4_1_q5_1::pack_blocks::<5>(legacy::q5_1_blocks(bytes), lane, panel);
            }
            (StorageType::MXFP4, PackedType::Q5_1) => {
                q4_1_q5_1::pack_blocks::<5>(mxfp4::blocks(bytes), lane, panel);
            }
            (StorageType::Q4_K, PackedType::Q4K) => {
                q4_k_q5_k::pack_super_blocks::<4>(k_quants::q4_k_blocks(bytes), lane, panel);
            }
            (StorageType::Q4_K, PackedType::Q5K) => {
                q4_k_q5_k::pack_super_blocks::<5>(k_quants::q4_k_blocks(bytes), lane, panel);
            }
            (StorageType::Q5_K, PackedType::Q5K) => {
                q4_k_q5_k::pack_super_blocks::<5>(k_quants::q5_k_blocks(bytes), lane, panel);
            }
            (StorageType::Q3_K, PackedType::Q6K) => {
                q6_k::pack_super_blocks::<6>(k_quants::q3_k_blocks(bytes), lane, panel);
            }
            (StorageType::Q3_K, PackedType::Q3K) => {
                q3_k::pack_super_blocks(k_quants::q3_k_blocks_of_3_bits(bytes), lane, panel);
            }
            (StorageType::Q2_K, PackedType::Q2K) => {
                q2_k::pack_super_blocks(k_quants::q2_k_blocks(bytes), lane, panel);
            }
            (StorageType::TQ1_0, PackedType::Tq2_0) => {
                panels::pack_blocks::<2, { panels::TQ2_0 }>(ternary::tq1_0_blocks(bytes), lane, panel);
            }
            (StorageType::TQ2_0, PackedType::Tq2_0) => {
                panels::pack_blocks::<2, { panels::TQ2_0 }>(ternary::tq2_0_blocks(bytes), lane, panel);
            }
            (StorageType::Q2_0, PackedType::Q2_0) => {
                panels::pack_blocks::<2, { panels::Q2_0 }>(ternary::q2_0_blocks(bytes), lane, panel);
            }
            (StorageType::Q1_0, PackedType::Q1_0) => {
                panels::pack_blocks::<1, { panels::Q1_0 }>(ternary::q1_0_blocks(bytes), lane, panel);
            }
            (StorageType::IQ4_NL, PackedType::Iq4Nl) => {
                table::pack_blocks(iq4::iq4_nl_blocks(bytes), lane, panel);
            }
            (StorageType::MXFP4, PackedType::Mxfp4) => {
                table::pack_blocks(mxfp4::coded_blocks(bytes), lane, panel);
            }
            (StorageType::IQ4_XS, PackedType::Iq4Xs) => {
                q6_k::pack_super_blocks::<4>(
                    iq::coded::<136>(bytes, &into.table(), iq4::iq4_xs),
                    lane,
                    panel,
                );
            }
            (StorageType::IQ1_S, PackedType::Iq1) => {
                q6_k::pack_super_blocks::<4>(iq::coded::<50>(bytes, &into.table(), iq::iq1_s), lane, panel);
            }
            (StorageType::IQ1_M, PackedType::Iq1) => {
                q6_k::pack_super_blocks::<4>(iq::coded::<56>(bytes, &into.table(), iq::iq1_m), lane, panel);
            }
            (StorageType::IQ2_XXS, PackedType::Iq2) => {
                q6_k::pack_super_blocks::<4>(iq::coded::<66>(bytes, &into.table(), iq::iq2_xxs), lane, panel);
            }
            (StorageType::IQ2_XS, PackedType::Iq2) => {
                q6_k::pack_super_blocks::<4>(iq::coded::<74>(bytes, &into.table(), iq::iq2_xs), lane, panel);
            }
            (StorageType::IQ2_S, PackedType::Iq2) => {
                q6_k::pack_super_blocks::<4>(iq::coded::<82>(bytes, &into.table(), iq::iq2_s), lane, panel);
            }
            (StorageType::IQ3_XXS, PackedType::Iq3Xxs) => {
                q6_k::pack_super_blocks::<4>(iq::coded::<98>(bytes, &into.table(), iq::iq3_xxs), lane, panel);
            }
            (StorageType::IQ3_S, PackedType::Iq3S) => {
                q6_k::pack_super_blocks::<4>(iq::coded::<110>(bytes, &into.table(), iq::iq3_s), lane, panel);
            }
            (StorageType::Q6_K, PackedType::Q6K) => {
                q6_k::pack_super_blocks::<6>(k_quants::q6_k_blocks(bytes), lane, panel);
            }
            _ => {
                self.dequantize(bytes, values);
                into.pack_row(values, lane, panel);
            }
        }
    }
}

/// Values that are stored by themselves.
fn floats<const N: usize>(bytes: &[u8], out: &mut [f32], read: impl Fn([u8; N]) -> f32) {
    for (value, out) in bytes.as_chunks().0.iter().zip(out) {
        *out = read(*value);
    }
}

/// Block by block. The sizes are constants, so that a block's reader needs no checks.
fn blocks<const BYTES: usize, const VALUES: usize>(
    bytes: &[u8],
    out: &mut [f32],
    read: impl Fn(&[u8], &mut [f32]),
) {
    for (block, out) in bytes.as_chunks::<BYTES>().0.iter().zip(out.as_chunks_mut::<VALUES>().0) {
        read(block, out);
    }
}
