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

use super::step::{BLOCK, GROUP, LANES};

/// Bytes of the integers of a step.
#[inline]
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

/// Writes the values of a block, integers of `bits` (4, 5 or 6) bits, into the lines of a step, a quad at a time.
#[inline]
pub(crate) fn put_block(bits: usize, lines: &mut [u8], block: usize, lane: usize, q: &[u8; BLOCK]) {
    let (low, high) = lines.split_at_mut(bytes(4));
    put_quads::<4>(low, block, lane, q, 0);
    match bits {
        5 => put_quads::<1>(high, block, lane, q, 4),
        6 => put_quads::<2>(high, block, lane, q, 4),
        _ => {}
    }
}

/// Writes `WIDTH` bits of each value, those from bit `from` on.
#[inline]
fn put_quads<const WIDTH: usize>(lines: &mut [u8], block: usize, lane: usize, q: &[u8; BLOCK], from: usize) {
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
    get(lines, 4) | if bits > 4 { get(&lines[bytes(4)..], bits - 4) << 4 } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_read_as_it_was_written_and_others_keep_theirs() {
        for bits in [4, 5, 6] {
            let q =
                |block: usize, i: usize, lane: usize| ((i * 37 + lane * 11 + block * 5) % (1 << bits)) as u8;
            let mut lines = vec![0xa5; bytes(bits)];
            // Backwards, so that a block that touched another would be seen.
            for (block, lane) in (0..2).flat_map(|block| (0..LANES).map(move |lane| (1 - block, 15 - lane))) {
                put_block(bits, &mut lines, block, lane, &std::array::from_fn(|i| q(block, i, lane)));
            }
            for (block, lane) in (0..2).flat_map(|block| (0..LANES).map(move |lane| (block, lane))) {
                let read: Vec<u8> = (0..BLOCK).map(|i| get(bits, &lines, block, i, lane)).collect();
                let expected: Vec<u8> = (0..BLOCK).map(|i| q(block, i, lane)).collect();
                assert_eq!(read, expected, "{bits} bits, block {block}, lane {lane}");
            }
        }
    }
}
