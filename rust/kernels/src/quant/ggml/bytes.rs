//! The numbers in the bytes of a block.

use half::f16;

/// The first bytes of a block.
#[inline]
pub(super) fn first<const N: usize>(block: &[u8]) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(&block[..N]);
    bytes
}

/// The f16 at the beginning.
#[inline]
pub(super) fn half(block: &[u8]) -> f32 {
    f16::from_le_bytes(first(block)).to_f32()
}
