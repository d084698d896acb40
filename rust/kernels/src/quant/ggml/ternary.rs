//! One and two bits per value: ternary integers, and integers close to them.
//!
//! ```text
//! TQ1_0 | 48 bytes of five trits | 4 bytes of four trits | d f16 |     256 values: d * (trit - 1)
//! TQ2_0 | 64 bytes of 2 bits | d f16 |                                 256 values: d * (q - 1)
//! Q2_0  | d f16 | 16 bytes of 2 bits |                                  64 values: d * (q - 1)
//! Q1_0  | d f16 | 16 bytes of 1 bit |                                  128 values: d or -d
//! ```
//!
//! TQ1_0: a byte is a fraction of 256; each multiplication by 3 yields a trit before the point. Of 32 bytes the first trits
//! are values 0..32, the second ones 32..64, and so on; likewise of the next 16 bytes values 160..240, of the last 4 values
//! 240..256. TQ2_0 has its bits where Q2_K has them. Q2_0 and Q1_0 have them in the order of the values, lowest first.

use super::bytes::{first, half};
use super::k_quants::two_bits;
use half::f16;

/// What is taken away from an integer.
const OFFSET: f32 = 1.0;

fn values(d: f32, q: impl Iterator<Item = u8>, out: &mut [f32]) {
    out.iter_mut().zip(q).for_each(|(out, q)| *out = d * (f32::from(q) - OFFSET));
}

/// d, and the integers of a block.
type Block<const N: usize> = (f16, [u8; N]);

fn d_of(bytes: &[u8]) -> f16 {
    f16::from_le_bytes(first(bytes))
}

fn tq1_0_integers(block: &[u8]) -> [u8; 256] {
    const POWERS: [u8; 5] = [1, 3, 9, 27, 81];
    let mut all = [0; 256];
    let mut rest = &mut all[..];
    for (bytes, trits) in [(&block[..32], 5), (&block[32..48], 5), (&block[48..52], 4)] {
        for power in &POWERS[..trits] {
            for (byte, q) in bytes.iter().zip(rest.split_off_mut(..bytes.len()).unwrap_or_default()) {
                *q = ((u16::from(byte.wrapping_mul(*power)) * 3) >> 8) as u8;
            }
        }
    }
    all
}

fn tq2_0_integers(block: &[u8]) -> [u8; 256] {
    std::array::from_fn(|i| two_bits(block, i))
}

fn q2_0_integers(block: &[u8]) -> [u8; 64] {
    std::array::from_fn(|i| block[2 + i / 4] >> (2 * (i % 4)) & 3)
}

/// 0 for -d, 2 for d.
fn q1_0_integers(block: &[u8]) -> [u8; 128] {
    std::array::from_fn(|i| (block[2 + i / 8] >> (i % 8) & 1) << 1)
}

pub(super) fn tq1_0(block: &[u8], out: &mut [f32]) {
    values(half(&block[52..]), tq1_0_integers(block).into_iter(), out);
}

pub(super) fn tq2_0(block: &[u8], out: &mut [f32]) {
    values(half(&block[64..]), tq2_0_integers(block).into_iter(), out);
}

pub(super) fn q2_0(block: &[u8], out: &mut [f32]) {
    values(half(block), q2_0_integers(block).into_iter(), out);
}

pub(super) fn q1_0(block: &[u8], out: &mut [f32]) {
    values(half(block), q1_0_integers(block).into_iter(), out);
}

pub(super) fn tq1_0_blocks(bytes: &[u8]) -> impl Iterator<Item = Block<256>> {
    bytes.as_chunks::<54>().0.iter().map(|block| (d_of(&block[52..]), tq1_0_integers(block)))
}

pub(super) fn tq2_0_blocks(bytes: &[u8]) -> impl Iterator<Item = Block<256>> {
    bytes.as_chunks::<66>().0.iter().map(|block| (d_of(&block[64..]), tq2_0_integers(block)))
}

pub(super) fn q2_0_blocks(bytes: &[u8]) -> impl Iterator<Item = Block<64>> {
    bytes.as_chunks::<18>().0.iter().map(|block| (d_of(block), q2_0_integers(block)))
}

/// Integers 0 and 1.
pub(super) fn q1_0_blocks(bytes: &[u8]) -> impl Iterator<Item = Block<128>> {
    bytes.as_chunks::<18>().0.iter().map(|block| (d_of(block), q1_0_integers(block).map(|q| q / 2)))
}
