//! The types of packed weights, and how rows of each are packed and unpacked.

use super::panels::step::{GROUP, LANES, SUPER_BLOCK};
use super::panels::table::{Lookup, Table};
use super::panels::{bit_planes, float, q2_k, q3_k, q4_0, q4_1_q5_1, q4_k_q5_k, q6_k, q8_0, table, ternary};

/// Version of the panel layout. Raise it with every change of what [`PackedType::pack_row`] writes, and of the types that
/// [`StorageType::packed`](super::StorageType::packed) names: packs on disk of another version are not used.
pub const PANEL_LAYOUT: u32 = 7;

/// A storage type of weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PackedType {
    /// IEEE binary32.
    F32,
    /// IEEE binary16.
    F16,
    /// The upper half of a binary32.
    BF16,
    /// Blocks of 32 signed bytes with an f16 scale.
    Q8_0,
    /// Integers of 6 bits (value + 32): a signed byte per 16 as scale, times an f16 per 256.
    Q6K,
    /// Blocks of 32 integers of 5 bits with an f16 scale and an f16 minimum.
    Q5_1,
    /// Blocks of 32 integers of 5 bits with a scale and a minimum of 6 bits, times two f16 per 256.
    Q5K,
    /// Blocks of 32 nibbles with an f16 scale and an f16 minimum.
    Q4_1,
    /// Blocks of 32 nibbles with a scale and a minimum of 6 bits, times two f16 per 256.
    Q4K,
    /// Blocks of 32 nibbles (value + 8) with an f16 scale.
    Q4_0,
    /// Blocks of 32 nibbles that name integers, with an f16 scale.
    Iq4Nl,
    /// Blocks of 32 floats of 4 bits, with an f16 scale.
    Mxfp4,
    /// Nibbles that name integers: a signed byte per 16 as scale, times an f32 per 256.
    Iq4Xs,
    /// As [`PackedType::Iq4Xs`], with other integers.
    Iq3Xxs,
    /// As [`PackedType::Iq4Xs`], with other integers.
    Iq3S,
    /// As [`PackedType::Iq4Xs`], with six integers.
    Iq2,
    /// As [`PackedType::Iq4Xs`], with six integers.
    Iq1,
    /// Integers of 3 bits (value + 4): six bits (less 32) per 16 as scale, times an f16 per 256.
    Q3K,
    /// Integers of 2 bits with a scale and a minimum of 4 bits per 16, times two f16 per 256.
    Q2K,
    /// Integers of 2 bits (value + 1) with an f16 scale per 64.
    Q2_0,
    /// Integers of 2 bits (value + 1) with an f32 scale of at most 22 significant bits per 256.
    Tq2_0,
    /// Signs with an f16 scale per 128.
    Q1_0,
}

impl PackedType {
    /// All types, the largest first.
    pub const ALL: [PackedType; 22] = [
        PackedType::F32,
        PackedType::BF16,
        PackedType::F16,
        PackedType::Q8_0,
        PackedType::Q6K,
        PackedType::Q5_1,
        PackedType::Q5K,
        PackedType::Q4_1,
        PackedType::Iq4Xs,
        PackedType::Iq3Xxs,
        PackedType::Iq3S,
        PackedType::Iq2,
        PackedType::Iq1,
        PackedType::Q4K,
        PackedType::Q4_0,
        PackedType::Iq4Nl,
        PackedType::Mxfp4,
        PackedType::Q3K,
        PackedType::Q2K,
        PackedType::Q2_0,
        PackedType::Tq2_0,
        PackedType::Q1_0,
    ];

    /// The name that the command line and messages use.
    pub fn name(self) -> &'static str {
        match self {
            PackedType::F32 => "f32",
            PackedType::F16 => "f16",
            PackedType::BF16 => "bf16",
            PackedType::Q8_0 => "q8_0",
            PackedType::Q6K => "q6_k",
            PackedType::Q5_1 => "q5_1",
            PackedType::Q5K => "q5_k",
            PackedType::Q4_1 => "q4_1",
            PackedType::Q4K => "q4_k",
            PackedType::Q4_0 => "q4_0",
            PackedType::Iq4Nl => "iq4_nl",
            PackedType::Mxfp4 => "mxfp4",
            PackedType::Iq4Xs => "iq4_xs",
            PackedType::Iq3Xxs => "iq3_xxs",
            PackedType::Iq3S => "iq3_s",
            PackedType::Iq2 => "iq2",
            PackedType::Iq1 => "iq1",
            PackedType::Q3K => "q3_k",
            PackedType::Q2K => "q2_k",
            PackedType::Q2_0 => "q2_0",
            PackedType::Tq2_0 => "tq2_0",
            PackedType::Q1_0 => "q1_0",
        }
    }

    /// Bytes of a value of the float formats.
    pub fn value_bytes(self) -> usize {
        if self == PackedType::F32 { 4 } else { 2 }
    }

    /// k per step of a panel.
    pub fn step_values(self) -> usize {
        match self {
            PackedType::F32 | PackedType::F16 => 1,
            PackedType::BF16 => 2,
            _ => GROUP,
        }
    }

    /// Bytes per step of a panel, without the numbers that steps share.
    pub const fn step_bytes(self) -> usize {
        match self {
            PackedType::F32 | PackedType::BF16 => 4 * LANES,
            PackedType::F16 => 2 * LANES,
            PackedType::Q8_0 => q8_0::STEP_BYTES,
            PackedType::Q6K => q6_k::STEP_BYTES,
            PackedType::Q5_1 => q4_1_q5_1::step_bytes(5),
            PackedType::Q5K => q4_k_q5_k::step_bytes(5),
            PackedType::Q4_1 => q4_1_q5_1::step_bytes(4),
            PackedType::Q4K => q4_k_q5_k::step_bytes(4),
            PackedType::Q4_0 | PackedType::Iq4Nl | PackedType::Mxfp4 => q4_0::STEP_BYTES,
            PackedType::Iq4Xs | PackedType::Iq3Xxs | PackedType::Iq3S | PackedType::Iq2 | PackedType::Iq1 => {
                bit_planes::bytes(4)
            }
            PackedType::Q3K => q3_k::STEP_BYTES,
            PackedType::Q2K => q2_k::STEP_BYTES,
            PackedType::Q2_0 | PackedType::Tq2_0 => ternary::step_bytes(2),
            PackedType::Q1_0 => ternary::step_bytes(1),
        }
    }

    /// Bytes of the numbers that come before four steps of the K-quants and of one and two bits.
    pub const fn numbers_bytes(self) -> usize {
        match self {
            PackedType::Q6K
            | PackedType::Iq4Xs
            | PackedType::Iq3Xxs
            | PackedType::Iq3S
            | PackedType::Iq2
            | PackedType::Iq1 => q6_k::NUMBERS_BYTES,
            PackedType::Q5K | PackedType::Q4K => q4_k_q5_k::NUMBERS_BYTES,
            PackedType::Q3K => q3_k::NUMBERS_BYTES,
            PackedType::Q2K => q2_k::NUMBERS_BYTES,
            PackedType::Q2_0 => ternary::numbers_bytes(ternary::Q2_0),
            PackedType::Tq2_0 => ternary::numbers_bytes(ternary::TQ2_0),
            PackedType::Q1_0 => ternary::numbers_bytes(ternary::Q1_0),
            _ => 0,
        }
    }

    /// Bytes of a panel of so many steps, at most `usize::MAX`.
    pub const fn panel_bytes(self, steps: usize) -> usize {
        let numbers = steps.div_ceil(SUPER_BLOCK / GROUP).saturating_mul(self.numbers_bytes());
        steps.saturating_mul(self.step_bytes()).saturating_add(numbers)
    }

    /// bf16 reductions are padded to this many steps: the pairs of k in a tile of AMX.
    pub const BF16_STEP_MULTIPLE: usize = 16;

    /// Steps that hold `k` values; what is beyond `k` is zero.
    pub fn steps(self, k: usize) -> usize {
        let steps = k.div_ceil(self.step_values());
        if self == PackedType::BF16 { steps.next_multiple_of(Self::BF16_STEP_MULTIPLE) } else { steps }
    }

    /// The values of `bytes` (a float format, little endian, any alignment) as f32; none for other formats.
    pub fn values(self, bytes: &[u8]) -> impl Iterator<Item = f32> + '_ {
        let size = if self == PackedType::F32 { 4 } else { 2 };
        let floats = matches!(self, PackedType::F32 | PackedType::F16 | PackedType::BF16);
        bytes[..if floats { bytes.len() } else { 0 }].chunks_exact(size).map(move |b| match self {
            PackedType::F32 => f32::from_le_bytes([b[0], b[1], b[2], b[3]]),
            PackedType::F16 => half::f16::from_bits(u16::from_le_bytes([b[0], b[1]])).to_f32(),
            _ => half::bf16::from_bits(u16::from_le_bytes([b[0], b[1]])).to_f32(),
        })
    }

    /// The integers that the four bits of a value name; of a type without a table, zeros.
    pub(crate) const fn table(self) -> Table {
        match self {
            PackedType::Iq4Nl | PackedType::Iq4Xs => table::IQ4,
            PackedType::Mxfp4 => table::MXFP4,
            PackedType::Iq3Xxs => table::IQ3_XXS,
            PackedType::Iq3S => table::IQ3_S,
            PackedType::Iq2 => table::IQ2,
            PackedType::Iq1 => table::IQ1,
            _ => [0; 16],
        }
    }

    /// The same table as kernels look it up.
    pub(crate) fn lookup(self) -> &'static Lookup {
        macro_rules! lookups {
            ($($dtype:ident)*) => {
                match self {
                    $(PackedType::$dtype => const { &table::biased(PackedType::$dtype.table()) },)*
                    _ => const { &table::biased([0; 16]) },
                }
            };
        }
        lookups!(Iq4Nl Iq4Xs Mxfp4 Iq3Xxs Iq3S Iq2 Iq1)
    }

    /// Rounds a row to this format and writes it into its lane of a panel.  // panel [steps, step_bytes]
    pub fn pack_row(self, values: &[f32], lane: usize, panel: &mut [u8]) {
        match self {
            PackedType::F32 => float::pack_f32(values, lane, panel),
            PackedType::F16 => float::pack_f16(values, lane, panel),
            PackedType::BF16 => float::pack_bf16(values, lane, panel),
            PackedType::Q8_0 => q8_0::pack_row(values, lane, panel),
            PackedType::Q6K => q6_k::pack_row(values, lane, panel),
            PackedType::Q5_1 => q4_1_q5_1::pack_row::<5>(values, lane, panel),
            PackedType::Q5K => q4_k_q5_k::pack_row::<5>(values, lane, panel),
            PackedType::Q4_1 => q4_1_q5_1::pack_row::<4>(values, lane, panel),
            PackedType::Q4K => q4_k_q5_k::pack_row::<4>(values, lane, panel),
            PackedType::Q4_0 => q4_0::pack_row(values, lane, panel),
            PackedType::Iq4Nl | PackedType::Mxfp4 => {
                table::pack_row_of_blocks(&self.table(), values, lane, panel)
            }
            PackedType::Iq4Xs | PackedType::Iq3Xxs | PackedType::Iq3S | PackedType::Iq2 | PackedType::Iq1 => {
                table::pack_row(&self.table(), values, lane, panel);
            }
            PackedType::Q3K => q3_k::pack_row(values, lane, panel),
            PackedType::Q2K => q2_k::pack_row(values, lane, panel),
            PackedType::Q2_0 => ternary::pack_row::<2, { ternary::Q2_0 }>(values, lane, panel),
            PackedType::Tq2_0 => ternary::pack_row::<2, { ternary::TQ2_0 }>(values, lane, panel),
            PackedType::Q1_0 => ternary::pack_row::<1, { ternary::Q1_0 }>(values, lane, panel),
        }
    }

    /// Reads the row in a lane of a panel.  // out [k]
    pub fn unpack_row(self, panel: &[u8], lane: usize, out: &mut [f32]) {
        match self {
            PackedType::F32 => float::unpack_f32(panel, lane, out),
            PackedType::F16 => float::unpack_f16(panel, lane, out),
            PackedType::BF16 => float::unpack_bf16(panel, lane, out),
            PackedType::Q8_0 => q8_0::unpack_row(panel, lane, out),
            PackedType::Q6K => q6_k::unpack_row(panel, lane, out),
            PackedType::Q5_1 => q4_1_q5_1::unpack_row::<5>(panel, lane, out),
            PackedType::Q5K => q4_k_q5_k::unpack_row::<5>(panel, lane, out),
            PackedType::Q4_1 => q4_1_q5_1::unpack_row::<4>(panel, lane, out),
            PackedType::Q4K => q4_k_q5_k::unpack_row::<4>(panel, lane, out),
            PackedType::Q4_0 => q4_0::unpack_row(panel, lane, out),
            PackedType::Iq4Nl | PackedType::Mxfp4 => {
                table::unpack_row_of_blocks(&self.table(), panel, lane, out)
            }
            PackedType::Iq4Xs | PackedType::Iq3Xxs | PackedType::Iq3S | PackedType::Iq2 | PackedType::Iq1 => {
                table::unpack_row(&self.table(), panel, lane, out);
            }
            PackedType::Q3K => q3_k::unpack_row(panel, lane, out),
            PackedType::Q2K => q2_k::unpack_row(panel, lane, out),
            PackedType::Q2_0 => ternary::unpack_row::<2, { ternary::Q2_0 }>(panel, lane, out),
            PackedType::Tq2_0 => ternary::unpack_row::<2, { ternary::TQ2_0 }>(panel, lane, out),
            PackedType::Q1_0 => ternary::unpack_row::<1, { ternary::Q1_0 }>(panel, lane, out),
        }
    }

    /// Whether weights of any values can be asked for in this type: the others have the values of a file's types, or too few for
    /// a model that was not trained with them.
    pub fn is_choice(self) -> bool {
        !matches!(
            self,
            PackedType::Iq4Nl
                | PackedType::Mxfp4
                | PackedType::Iq4Xs
                | PackedType::Iq3Xxs
                | PackedType::Iq3S
                | PackedType::Iq2
                | PackedType::Iq1
                | PackedType::Q2_0
                | PackedType::Tq2_0
                | PackedType::Q1_0
        )
    }
}
