//! The place of the bits of integers of less than a byte: the low four of each value, and the bits above them in lines of
//! their own, so that a kernel gets a quad of values by a shift, a mask and an "or".
//!
//! A line is 64 bytes: a quad of each lane, byte `4 lane + j` for the values 4t + j. A byte holds `width` bits of `4 / width`
//! quads of both blocks of a step, those of block 0 in its low half and those of block 1 in its high half, the first quad
//! lowest:
//!
//! ```text
//!                bit 7  6  5  4     3  2  1  0
//! 4 bits, line t:   | block 1, t  | block 0, t  |          8 lines
//! 2 bits, line l:   | 2l+1 | 2l   | 2l+1 | 2l   |          4 lines
//! 1 bit,  line l:   | 4l+3 .. 4l  | 4l+3 .. 4l  |          2 lines
//! ```

use super::step::{GROUP, LANES};

/// Bytes of the integers of a step.
pub(crate) const fn bytes(bits: usize) -> usize {
    GROUP * LANES / 8 * bits
}

/// Byte of value i of a block, and how far its lowest bit is shifted.
#[inline]
fn place(width: usize, block: usize, i: usize, lane: usize) -> (usize, usize) {
    let (quad, per_line) = (i / 4, 4 / width);
    ((quad / per_line * LANES + lane) * 4 + i % 4, 4 * block + width * (quad % per_line))
}

/// Writes value i of a block, an integer of `bits` (4, 5 or 6) bits, into the lines of a step.
#[inline]
pub(crate) fn put(bits: usize, lines: &mut [u8], block: usize, i: usize, lane: usize, q: u8) {
    let put = |lines: &mut [u8], width: usize, q: u8| {
        let (byte, shift) = place(width, block, i, lane);
        let mask = ((1 << width) - 1) << shift;
        lines[byte] = lines[byte] & !mask | q << shift & mask;
    };
    put(lines, 4, q);
    if bits > 4 {
        put(&mut lines[bytes(4)..], bits - 4, q >> 4);
    }
}

/// Reads value i of a block.
#[inline]
pub(crate) fn get(bits: usize, lines: &[u8], block: usize, i: usize, lane: usize) -> u8 {
    let get = |lines: &[u8], width: usize| {
        let (byte, shift) = place(width, block, i, lane);
        lines[byte] >> shift & ((1 << width) - 1)
    };
    get(lines, 4) | if bits > 4 { get(&lines[bytes(4)..], bits - 4) << 4 } else { 0 }
}
