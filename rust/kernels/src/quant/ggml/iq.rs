//! Groups of 8 or 4 values that are named together in a list (ggml's IQ1, IQ2 and IQ3), 256 values per block.
//!
//! ```text
//! IQ2_XXS | d f16 | 8 x (4 numbers of 8 bits | 4 x 7 signs, scale of 4 bits) |                      d * (s + 1/2) / 4
//! IQ2_XS  | d f16 | 32 x (number of 9 bits, 7 signs) | 8 x 2 scales of 4 bits |                      d * (s + 1/2) / 4
//! IQ2_S   | d f16 | 32 numbers, low 8 bits | 32 x 8 signs | 32 x upper 2 bits | 8 x 2 scales |        d * (s + 1/2) / 4
//! IQ3_XXS | d f16 | 64 numbers of 8 bits | 8 x (4 x 7 signs, scale of 4 bits) |                      d * (s + 1/2) / 2
//! IQ3_S   | d f16 | 64 numbers, low 8 bits | 64 x ninth bit | 32 x 8 signs | 8 scales of 4 bits |    d * (2 s + 1)
//! IQ1_S   | d f16 | 32 numbers, low 8 bits | 8 x (4 x upper 3 bits, scale of 3 bits, sign) |          d * (2 s + 1)
//! IQ1_M   | 32 numbers, low 8 bits | 32 x (upper 3 bits, sign) | 4 x (4 scales of 3 bits, 4 bits of d) |   d * (2 s + 1)
//! ```
//!
//! The lists are in `grids.bin`, one little-endian word per group: its levels, two bits each of 8 values or three bits each of 4,
//! the first lowest; `tests/golden/gguf/types/make.py` writes it. A value's sign is a bit, which is set for minus; of seven signs the
//! eighth makes the number of minuses even. IQ1 has no signs: its levels are -1, 0 and 1, and an eighth is added to all values of a
//! group or taken away.

use super::bytes::{first, half};
use crate::quant::panels::bit_planes::{SuperBlock, quads};
use crate::quant::panels::table::{Table, codes};
use half::f16;

/// A block: `d * scale * q`, with a scale per 16 values.
pub(super) struct Decoded {
    pub d: f32,
    pub scales: [i8; 16],
    pub q: [i8; 256],
}

impl Decoded {
    pub fn values(&self, out: &mut [f32]) {
        for ((out, q), scale) in out.chunks_exact_mut(16).zip(self.q.as_chunks::<16>().0).zip(self.scales) {
            let scale = self.d * f32::from(scale);
            out.iter_mut().zip(q).for_each(|(out, q)| *out = scale * f32::from(*q));
        }
    }
}

/// What a panel holds of each block: d, the scales, and the names of the integers in a table.
pub(super) fn coded<'a, const BYTES: usize>(
    bytes: &'a [u8],
    table: &Table,
    decode: impl Fn(&[u8]) -> Decoded + 'a,
) -> impl Iterator<Item = (f32, [i8; 16], SuperBlock)> + 'a {
    let codes = codes(table);
    bytes.as_chunks::<BYTES>().0.iter().map(move |block| {
        let Decoded { d, scales, q } = decode(block);
        (d, scales, quads(4, &q.map(|q| codes[usize::from(q as u8)])))
    })
}

static GRIDS: &[u8; 9216] = include_bytes!("grids.bin");

/// A list of groups: its place in `grids.bin`, and what its levels are.
struct Grid {
    at: usize,
    levels: &'static [i8],
}

const TWO_BITS: &[i8] = &[8, 25, 43];
const IQ2_XXS: Grid = Grid { at: 0, levels: TWO_BITS };
const IQ2_XS: Grid = Grid { at: 256, levels: TWO_BITS };
const IQ2_S: Grid = Grid { at: 768, levels: TWO_BITS };
const IQ3_XXS: Grid = Grid { at: 1792, levels: &[4, 12, 20, 28, 36, 44, 52, 62] };
const IQ3_S: Grid = Grid { at: 2048, levels: &[1, 3, 5, 7, 9, 11, 13, 15] };
/// Eighths.
const IQ1: Grid = Grid { at: 2560, levels: &[-8, 0, 8] };

impl Grid {
    /// Group `index`, of 8 or 4 values.
    fn group<const N: usize>(&self, index: usize) -> [i8; N] {
        let word = u16::from_le_bytes(first(&GRIDS[2 * (self.at + index)..]));
        let width = if N == 8 { 2 } else { 3 };
        std::array::from_fn(|i| self.levels[usize::from(word >> (width * i) & ((1 << width) - 1))])
    }
}

/// The eight signs of seven.
fn even(seven: u32) -> u8 {
    let seven = (seven & 127) as u8;
    seven | (seven.count_ones() as u8 & 1) << 7
}

/// Turns the signs of eight values, of which a bit is set.
fn signed(signs: u8, values: &mut [i8]) {
    for (i, value) in values.iter_mut().enumerate() {
        if signs >> i & 1 == 1 {
            *value = -*value;
        }
    }
}

fn word(bytes: &[u8], index: usize) -> u16 {
    u16::from_le_bytes(first(&bytes[2 * index..]))
}

fn double_word(bytes: &[u8], index: usize) -> u32 {
    u32::from_le_bytes(first(&bytes[4 * index..]))
}

/// The nibble, doubled and 1 more.
fn odd_scale(bytes: &[u8], index: usize) -> i8 {
    ((bytes[index / 2] >> (4 * (index % 2)) & 15) * 2 + 1) as i8
}

/// Eight values for each of 32 groups.
fn groups(of: impl Fn(usize) -> [i8; 8]) -> [i8; 256] {
    let mut all = [0; 256];
    all.as_chunks_mut::<8>().0.iter_mut().enumerate().for_each(|(group, values)| *values = of(group));
    all
}

/// Two groups of four.
fn joined([a, b, c, d]: [i8; 4], [e, f, g, h]: [i8; 4]) -> [i8; 8] {
    [a, b, c, d, e, f, g, h]
}

pub(super) fn iq2_xxs(block: &[u8]) -> Decoded {
    let parts = &block[2..];
    let numbers = |part: usize| double_word(parts, 2 * part + 1);
    let q = groups(|group| {
        let mut values = IQ2_XXS.group(usize::from(parts[8 * (group / 4) + group % 4]));
        signed(even(numbers(group / 4) >> (7 * (group % 4))), &mut values);
        values
    });
    let scales = std::array::from_fn(|half| (2 * (numbers(half / 2) >> 28) + 1) as i8);
    Decoded { d: half(block) / 8.0, scales, q }
}

pub(super) fn iq2_xs(block: &[u8]) -> Decoded {
    let q = groups(|group| {
        let number = word(&block[2..], group);
        let mut values = IQ2_XS.group(usize::from(number & 511));
        signed(even(u32::from(number >> 9)), &mut values);
        values
    });
    Decoded { d: half(block) / 8.0, scales: std::array::from_fn(|part| odd_scale(&block[66..], part)), q }
}

pub(super) fn iq2_s(block: &[u8]) -> Decoded {
    let (low, signs, high) = (&block[2..34], &block[34..66], &block[66..74]);
    let q = groups(|group| {
        let upper = high[group / 4] >> (2 * (group % 4)) & 3;
        let mut values = IQ2_S.group(usize::from(low[group]) | usize::from(upper) << 8);
        signed(signs[group], &mut values);
        values
    });
    Decoded { d: half(block) / 8.0, scales: std::array::from_fn(|part| odd_scale(&block[74..], part)), q }
}

pub(super) fn iq3_xxs(block: &[u8]) -> Decoded {
    let (numbers, parts) = (&block[2..66], &block[66..]);
    let q = groups(|group| {
        let half = |index: usize| IQ3_XXS.group(usize::from(numbers[index]));
        let mut values = joined(half(2 * group), half(2 * group + 1));
        signed(even(double_word(parts, group / 4) >> (7 * (group % 4))), &mut values);
        values
    });
    let scales = std::array::from_fn(|half| (2 * (double_word(parts, half / 2) >> 28) + 1) as i8);
    Decoded { d: half(block) / 4.0, scales, q }
}

pub(super) fn iq3_s(block: &[u8]) -> Decoded {
    let (low, high, signs) = (&block[2..66], &block[66..74], &block[74..106]);
    let q = groups(|group| {
        let half = |index: usize| {
            let ninth = high[index / 8] >> (index % 8) & 1;
            IQ3_S.group(usize::from(low[index]) | usize::from(ninth) << 8)
        };
        let mut values = joined(half(2 * group), half(2 * group + 1));
        signed(signs[group], &mut values);
        values
    });
    Decoded { d: half(block), scales: std::array::from_fn(|half| odd_scale(&block[106..], half / 2)), q }
}

/// A group of IQ1: eighths of its levels, and one more or less.
fn iq1_group(low: u8, upper: u16, is_less: bool) -> [i8; 8] {
    let values = IQ1.group(usize::from(low) | usize::from(upper & 7) << 8);
    values.map(|value: i8| value + if is_less { -1 } else { 1 })
}

pub(super) fn iq1_s(block: &[u8]) -> Decoded {
    let parts = |part: usize| word(&block[34..], part);
    let q = groups(|group| {
        let part = parts(group / 4);
        iq1_group(block[2 + group], part >> (3 * (group % 4)), part >> 15 == 1)
    });
    let scales = std::array::from_fn(|half| (2 * (parts(half / 2) >> 12 & 7) + 1) as i8);
    Decoded { d: half(block) / 8.0, scales, q }
}

pub(super) fn iq1_m(block: &[u8]) -> Decoded {
    let parts = |part: usize| word(&block[48..], part);
    let q = groups(|group| {
        let upper = block[32 + group / 2] >> (4 * (group % 2));
        iq1_group(block[group], u16::from(upper), upper >> 3 & 1 == 1)
    });
    let d = (0..4).map(|part| (parts(part) >> 12) << (4 * part)).fold(0, |a, b| a | b);
    let scales = std::array::from_fn(|half| (2 * (parts(half / 4) >> (3 * (half % 4)) & 7) + 1) as i8);
    Decoded { d: f16::from_bits(d).to_f32() / 8.0, scales, q }
}
