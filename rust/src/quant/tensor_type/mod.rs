//! How files store values: one file per group of formats, with a drawing of its block, read exactly.
//!
//! A row is a sequence of blocks; a block holds some values as integers, and what they are multiplied with. The formats
//! and their names are ggml's, which safetensors' F32, F16 and BF16 are too. Scales are products of two f32, rounded
//! once per operation and in the order of ggml's reference code, so that every reader gets the same bits.
//!
//! What a kernel multiplies with is another matter: [`TensorType::packed`] says into which [`DType`] each is packed.

mod iq4;
mod k_quants;
mod mxfp4;
mod nibbles;

use super::{DType, q4_0, q8_0};
use half::{bf16, f16};

/// Values of a block of the formats whose names end in K or XS.
const SUPER_BLOCK: usize = 256;

/// A storage type of tensors in files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // ggml's own names
#[allow(non_camel_case_types)]
pub enum TensorType {
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
}

/// One block: its bytes to its values.
type Reader = fn(&[u8], &mut [f32]);

impl TensorType {
    /// Every one.
    pub const ALL: [TensorType; 16] = [
        TensorType::F32,
        TensorType::F16,
        TensorType::BF16,
        TensorType::Q8_0,
        TensorType::Q4_0,
        TensorType::Q4_1,
        TensorType::Q5_0,
        TensorType::Q5_1,
        TensorType::Q2_K,
        TensorType::Q3_K,
        TensorType::Q4_K,
        TensorType::Q5_K,
        TensorType::Q6_K,
        TensorType::IQ4_NL,
        TensorType::IQ4_XS,
        TensorType::MXFP4,
    ];

    /// Name, values of a block, its bytes, and how it is read.
    fn facts(self) -> (&'static str, usize, usize, Reader) {
        match self {
            TensorType::F32 => ("F32", 1, 4, |block, out| out[0] = f32::from_le_bytes(first(block))),
            TensorType::F16 => ("F16", 1, 2, |block, out| out[0] = half(block)),
            TensorType::BF16 => {
                ("BF16", 1, 2, |block, out| out[0] = bf16::from_le_bytes(first(block)).to_f32())
            }
            TensorType::Q8_0 => ("Q8_0", super::BLOCK, 34, q8_0::read_block),
            TensorType::Q4_0 => ("Q4_0", super::BLOCK, 18, nibbles::q4_0),
            TensorType::Q4_1 => ("Q4_1", super::BLOCK, 20, nibbles::q4_1),
            TensorType::Q5_0 => ("Q5_0", super::BLOCK, 22, nibbles::q5_0),
            TensorType::Q5_1 => ("Q5_1", super::BLOCK, 24, nibbles::q5_1),
            TensorType::Q2_K => ("Q2_K", SUPER_BLOCK, 84, k_quants::q2_k),
            TensorType::Q3_K => ("Q3_K", SUPER_BLOCK, 110, k_quants::q3_k),
            TensorType::Q4_K => ("Q4_K", SUPER_BLOCK, 144, k_quants::q4_k),
            TensorType::Q5_K => ("Q5_K", SUPER_BLOCK, 176, k_quants::q5_k),
            TensorType::Q6_K => ("Q6_K", SUPER_BLOCK, 210, k_quants::q6_k),
            TensorType::IQ4_NL => ("IQ4_NL", super::BLOCK, 18, iq4::iq4_nl),
            TensorType::IQ4_XS => ("IQ4_XS", SUPER_BLOCK, 136, iq4::iq4_xs),
            TensorType::MXFP4 => ("MXFP4", super::BLOCK, 17, mxfp4::read_block),
        }
    }

    /// The type of that name.
    pub fn named(name: &str) -> Option<TensorType> {
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

    /// Is a value stored by itself, without a block?
    pub fn is_float(self) -> bool {
        self.block_values() == 1
    }

    /// The values of whole blocks, exactly.  // bytes [row_bytes(n)], out [n]
    pub fn dequantize(self, bytes: &[u8], out: &mut [f32]) {
        let (_, values, size, read) = self.facts();
        for (block, out) in bytes.chunks_exact(size).zip(out.chunks_exact_mut(values)) {
            read(block, out);
        }
    }

    /// What `auto` packs it into: what the file has where there are kernels for it, else the nearest that loses nothing
    /// that matters.
    pub fn packed(self) -> DType {
        match self {
            TensorType::F32 => DType::F32,
            TensorType::F16 => DType::F16,
            TensorType::BF16 => DType::BF16,
            TensorType::Q4_0 => DType::Q4_0,
            _ => DType::Q8_0,
        }
    }

    /// Writes a row into its lane of a panel: block by block where both formats have the same blocks, with the file's own
    /// scales and integers, else value by value.  // bytes [row_bytes(n)], panel [steps, step_bytes]
    pub fn pack_row(self, bytes: &[u8], into: DType, lane: usize, panel: &mut [u8], values: &mut [f32]) {
        match (self, into) {
            (TensorType::Q8_0, DType::Q8_0) => q8_0::pack_blocks(bytes, lane, panel),
            (TensorType::Q4_0, DType::Q4_0) => q4_0::pack_blocks(bytes, lane, panel),
            _ => {
                self.dequantize(bytes, values);
                into.pack_row(values, lane, panel);
            }
        }
    }
}

/// The first bytes of a block.
fn first<const N: usize>(block: &[u8]) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(&block[..N]);
    bytes
}

/// An f16 that begins here.
fn half(block: &[u8]) -> f32 {
    f16::from_le_bytes(first(block)).to_f32()
}
