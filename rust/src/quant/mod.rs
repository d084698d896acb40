//! How numbers are stored: one file per format, with its layout and its dequantization.

/// A storage type of weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DType {
    /// IEEE binary32.
    F32,
    /// IEEE binary16.
    F16,
    /// The upper half of a binary32.
    BF16,
}

impl DType {
    /// Bytes of one value.
    pub fn size(self) -> usize {
        match self {
            DType::F32 => 4,
            DType::F16 | DType::BF16 => 2,
        }
    }

    /// The name that the command line and messages use.
    pub fn name(self) -> &'static str {
        match self {
            DType::F32 => "f32",
            DType::F16 => "f16",
            DType::BF16 => "bf16",
        }
    }
}

impl DType {
    /// The values of `bytes` (little endian, any alignment) as f32.
    pub fn values(self, bytes: &[u8]) -> impl Iterator<Item = f32> + '_ {
        bytes.chunks_exact(self.size()).map(move |b| match self {
            DType::F32 => f32::from_le_bytes([b[0], b[1], b[2], b[3]]),
            DType::F16 => half::f16::from_bits(u16::from_le_bytes([b[0], b[1]])).to_f32(),
            DType::BF16 => half::bf16::from_bits(u16::from_le_bytes([b[0], b[1]])).to_f32(),
        })
    }
}
