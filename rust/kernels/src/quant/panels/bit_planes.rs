//! The place of the bits of integers of less than a byte: the low four (of three bits the low two) of each value, and the bits
//! above them in lines of their own, so that a kernel gets a quad of values by a shift, a mask and an "or".
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

use super::step::{BLOCK, GROUP, LANES, SUPER_BLOCK, place_of};

/// Bytes of the integers of a step.
#[inline]
pub(crate) const fn bytes(bits: usize) -> usize {
    GROUP * LANES / 8 * bits
}

/// How many of `bits` bits are in the first lines; the others follow in lines of their own.
#[inline]
pub(crate) const fn low_width(bits: usize) -> usize {
    match bits {
        1 => 1,
        2 | 3 => 2,
        _ => 4,
    }
}

/// Byte of value i of a block, and how far its lowest bit is shifted.
#[inline]
fn place(width: usize, block: usize, i: usize, lane: usize) -> (usize, usize) {
    let (quad, per_line) = (i / 4, 4 / width);
    ((quad / per_line * LANES + lane) * 4 + i % 4, 4 * block + width * (quad % per_line))
}

/// The integers of a step of one row, of up to 6 bits: its quad of each line.
pub(crate) type Quads = [u32; bytes(6) / (4 * LANES)];
/// The steps of a super-block.
pub(crate) type SuperBlock = [Quads; SUPER_BLOCK / GROUP];

/// The quads of a super-block's integers of `bits` bits.
#[inline]
pub(crate) fn quads(bits: usize, q: &[u8; SUPER_BLOCK]) -> SuperBlock {
    let mut all = SuperBlock::default();
    for (quads, q) in all.iter_mut().zip(q.as_chunks().0) {
        *quads = step_quads(bits, q);
    }
    all
}

/// The quads of a step's integers of `bits` bits.
#[inline]
pub(crate) fn step_quads(bits: usize, q: &[u8; GROUP]) -> Quads {
    let mut quads = Quads::default();
    let low = low_width(bits);
    let quad = |i: usize| u32::from_le_bytes([q[4 * i], q[4 * i + 1], q[4 * i + 2], q[4 * i + 3]]);
    for t in 0..BLOCK / 4 {
        let [first, second] = [quad(t), quad(BLOCK / 4 + t)];
        for (width, from) in [(low, 0), (bits - low, low)] {
            if width > 0 {
                let (line, mask) = (2 * from + t * width / 4, u32::from_le_bytes([(1 << width) - 1; 4]));
                quads[line] |= (first >> from & mask | (second >> from & mask) << 4) << (width * t % 4);
            }
        }
    }
    quads
}

/// Writes the integers of super-block `index` of one row into the lines of its steps; `sizes` are the bytes of a super-block's
/// numbers and of a step.
#[inline]
pub(super) fn put_super_block(
    bits: usize,
    panel: &mut [u8],
    index: usize,
    lane: usize,
    sizes: (usize, usize),
    integers: &SuperBlock,
) {
    for (step, quads) in integers.iter().enumerate() {
        let (_, at) = place_of(index * integers.len() + step, sizes.0, sizes.1);
        if at >= panel.len() {
            break; // zeros behind the row's end
        }
        put_quads(bits, &mut panel[at..], lane, quads);
    }
}

/// Writes the integers of a step of one row, of `bits` bits, into its lines.
#[inline]
pub(crate) fn put_quads(bits: usize, lines: &mut [u8], lane: usize, quads: &Quads) {
    for (line, quad) in lines.as_chunks_mut::<{ 4 * LANES }>().0.iter_mut().zip(&quads[..2 * bits]) {
        line[4 * lane..][..4].copy_from_slice(&quad.to_le_bytes());
    }
}

/// Writes the values of a block, integers of 4 or 5 bits, into the lines of a step, a quad at a time.
#[inline]
pub(crate) fn put_block(bits: usize, lines: &mut [u8], block: usize, lane: usize, q: &[u8; BLOCK]) {
    let (low, high) = lines.split_at_mut(bytes(4));
    put_bits::<4>(low, block, lane, q, 0);
    if bits > 4 {
        put_bits::<1>(high, block, lane, q, 4);
    }
}

/// Writes `WIDTH` bits of each value, those from bit `from` on.
#[inline]
fn put_bits<const WIDTH: usize>(lines: &mut [u8], block: usize, lane: usize, q: &[u8; BLOCK], from: usize) {
    let mask = u32::from_le_bytes([(1 << WIDTH) - 1; 4]);
    for (line, quads) in q.chunks_exact(16 / WIDTH).enumerate() {
        let mut written = 0;
        for (index, quad) in quads.as_chunks::<4>().0.iter().enumerate() {
            written |= (u32::from_le_bytes(*quad) >> from & mask) << (4 * block + WIDTH * index);
        }
        let quad = &mut lines[(line * LANES + lane) * 4..][..4];
        let other = u32::from_le_bytes([quad[0], quad[1], quad[2], quad[3]]) & !(0x0f0f_0f0f << (4 * block));
        quad.copy_from_slice(&(other | written).to_le_bytes());
    }
}

/// Reads value i of a block.
#[inline]
pub(crate) fn get(bits: usize, lines: &[u8], block: usize, i: usize, lane: usize) -> u8 {
    let get = |lines: &[u8], width: usize| {
        let (byte, shift) = place(width, block, i, lane);
        lines[byte] >> shift & ((1 << width) - 1)
    };
    let low = low_width(bits);
    get(lines, low) | if bits > low { get(&lines[bytes(low)..], bits - low) << low } else { 0 }
}
