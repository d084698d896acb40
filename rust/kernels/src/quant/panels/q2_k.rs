//! q2_k (ggml): `value = d * s * q - dmin * m`, q in 0..4, s and m of four bits per 16 values, d and dmin f16 per super-block
//! of 256 values.
//!
//! A super-block of 16 rows is 320 bytes of numbers and up to four steps of 64 values, 256 bytes each; `bit_planes.rs`
//! shows the place of a value in the lines:
//!
//! ```text
//! | d: 16 x f16 | -dmin: 16 x f16 |                                                            64 bytes
//! | for each step, m << 4 | s of each row: of k 0..16 | of 16..32 | of 32..48 | of 48..64 |   4 x 64 bytes
//! | for each step: 4 lines of two bits |                                                      256 bytes
//! ```

use super::bit_planes::{self, SuperBlock, quads};
use super::step::{BLOCK, GROUP, LANES, SUPER_BLOCK, f16_at, place_of, put_f16, scale_of};
use half::f16;

/// Bytes of the numbers of a super-block.
pub(crate) const NUMBERS_BYTES: usize = STEP_SCALES + SUPER_BLOCK / GROUP * STEP_SCALES_BYTES;
/// Where the scales and minima of the first step begin.
pub(crate) const STEP_SCALES: usize = 4 * LANES;
/// Bytes of the scales and minima of a step.
pub(crate) const STEP_SCALES_BYTES: usize = 4 * LANES;
pub(crate) const STEP_BYTES: usize = bit_planes::bytes(BITS);
pub(crate) const BITS: usize = 2;
/// Values that share a scale and a minimum.
const PART: usize = 16;
/// Scales of a super-block.
pub(crate) const PARTS: usize = SUPER_BLOCK / PART;

/// The numbers of a super-block of one row.
pub(crate) struct Numbers {
    pub d: f16,
    pub dmin: f16,
    /// m << 4 | s of each part.
    pub parts: [u8; PARTS],
}

/// Writes super-block `index` of a row.
fn put(panel: &mut [u8], index: usize, lane: usize, numbers: &Numbers, integers: &SuperBlock) {
    let (at, _) = place_of(index * SUPER_BLOCK / GROUP, NUMBERS_BYTES, STEP_BYTES);
    let bytes = &mut panel[at..][..NUMBERS_BYTES];
    put_f16(bytes, 2 * lane, numbers.d);
    put_f16(bytes, 2 * LANES + 2 * lane, -numbers.dmin);
    for (part, byte) in numbers.parts.into_iter().enumerate() {
        bytes[STEP_SCALES + part * LANES + lane] = byte;
    }
    bit_planes::put_super_block(BITS, panel, index, lane, (NUMBERS_BYTES, STEP_BYTES), integers);
}

pub(crate) fn pack_row(values: &[f32], lane: usize, panel: &mut [u8]) {
    for (index, values) in values.chunks(SUPER_BLOCK).enumerate() {
        let mut padded = [0.0; SUPER_BLOCK];
        padded[..values.len()].copy_from_slice(values);
        let parts = padded.as_chunks().0.try_into().expect("a super-block has 16 parts");
        let mut numbers = search(parts);
        numbers.d = f16::from_f32(scale_of(&padded, numbers.d.to_f32()));
        let mut q = [0; SUPER_BLOCK];
        for ((q, part), byte) in q.as_chunks_mut::<PART>().0.iter_mut().zip(parts).zip(numbers.parts) {
            *q = integers(part, Line::of(byte, &numbers)).map(|q| q as u8);
        }
        put(panel, index, lane, &numbers, &quads(BITS, &q));
    }
}

type Part = [f32; PART];

/// `scale * q - min`, neither below 0.
#[derive(Clone, Copy)]
struct Line {
    scale: f32,
    min: f32,
}

impl Line {
    fn of(byte: u8, numbers: &Numbers) -> Line {
        let [scale, min] = [byte & 15, byte >> 4].map(f32::from);
        Line { scale: numbers.d.to_f32() * scale, min: numbers.dmin.to_f32() * min }
    }
}

/// Sums over values and their integers, which the best line through them needs.
struct Sums {
    q: f32,
    qq: f32,
    x: f32,
    qx: f32,
}

impl Sums {
    fn new(values: &Part, q: &Part) -> Sums {
        let sum = |of: fn(f32, f32) -> f32| sum(&std::array::from_fn(|i| of(q[i], values[i])));
        Sums { q: sum(|q, _| q), qq: sum(|q, _| q * q), x: sum(|_, x| x), qx: sum(|q, x| q * x) }
    }

    /// The line of least squared error; none if all integers are the same.
    fn line(&self) -> Option<Line> {
        let n = PART as f32;
        let spread = n * self.qq - self.q * self.q;
        if spread <= 0.0 {
            return None;
        }
        let scale = (n * self.qx - self.q * self.x) / spread;
        let min = (scale * self.q - self.x) / n;
        let line = if min >= 0.0 { Line { scale, min } } else { Line { scale: self.qx / self.qq, min: 0.0 } };
        (line.scale > 0.0).then_some(line)
    }
}

/// The sum in four lanes, which compilers make a vector of.
fn sum(terms: &Part) -> f32 {
    let [a, b, c, d] = terms
        .as_chunks::<4>()
        .0
        .iter()
        .fold([0.0; 4], |sums, terms| std::array::from_fn(|lane| sums[lane] + terms[lane]));
    a + b + c + d
}

/// The integers of least error. Compared with the three values between two integers, not rounded: that is a vector's work
/// also where there is no instruction that rounds.
fn integers(values: &Part, line: Line) -> Part {
    let between = [0.5, 1.5, 2.5].map(|q| q * line.scale - line.min);
    values.map(|x| between.iter().map(|&between| if x > between { 1.0 } else { 0.0 }).sum())
}

/// Squared error of a part under a line.
fn error(values: &Part, line: Line) -> f32 {
    let q = integers(values, line);
    sum(&std::array::from_fn(|i| (line.scale * q[i] - line.min - values[i]).powi(2)))
}

/// The line of small squared error. The best line through the integers that a line gives is a better one; where this ends
/// depends on where it begins, so it begins with the range of the values and with a part of it.
fn best_line(values: &Part) -> Line {
    let (low, high) = values.iter().fold((0.0_f32, f32::MIN), |(low, high), &x| (low.min(x), high.max(x)));
    let mut best = Line { scale: 0.0, min: (-sum(values) / PART as f32).max(0.0) };
    let mut least = error(values, best);
    let range = high - low;
    for (from, width) in STARTS {
        let mut line = Line { scale: range * width / 3.0, min: -(low + range * from) };
        for _ in 0..2 {
            line = Sums::new(values, &integers(values, line)).line().unwrap_or(line);
        }
        let error = error(values, line);
        if error < least && line.min >= 0.0 {
            (best, least) = (line, error);
        }
    }
    best
}

/// Parts of a range: where they begin and how wide they are.
const STARTS: [(f32, f32); 7] =
    [(0.0, 1.0), (0.0, 0.8), (0.2, 0.8), (0.1, 0.8), (0.0, 0.6), (0.4, 0.6), (0.2, 0.6)];

/// The numbers of small squared error: from the best line of each part, in turns, s and m of each part by the error of what
/// they make of its values, and d and dmin by least squares from all integers.
fn search(parts: &[Part; PARTS]) -> Numbers {
    let mut lines = parts.each_ref().map(best_line);
    let factor = |of: fn(&Line) -> f32| factor(lines.iter().map(of).fold(0.0, f32::max) / 15.0);
    let (mut d, mut dmin) = (factor(|line| line.scale), factor(|line| line.min));
    let mut best = Numbers { d, dmin, parts: [0; PARTS] };
    let mut least = f32::INFINITY;
    for _ in 0..ROUNDS {
        let mut found = Numbers { d, dmin, parts: [0; PARTS] };
        let mut all = 0.0;
        for ((byte, part), line) in found.parts.iter_mut().zip(parts).zip(&lines) {
            let (nearby, error) = nearby(part, *line, (d, dmin));
            (*byte, all) = (nearby, all + error);
        }
        if all >= least || all.is_nan() {
            break;
        }
        (best, least) = (found, all);
        let Some(refitted) = refit(parts, &best) else { break };
        lines = best.parts.map(|byte| Line::of(byte, &best));
        (d, dmin) = refitted;
    }
    best
}

/// How often d and dmin are tried.
const ROUNDS: usize = 3;

/// The f16 of a factor, which is neither 0 nor infinite: tiny values keep a step, huge ones become the largest.
fn factor(x: f32) -> f16 {
    f16::from_f32(x.clamp(f16::MIN_POSITIVE_SUBNORMAL.to_f32(), f16::MAX.to_f32()))
}

/// `m << 4 | s` next to a line, and the squared error.
fn nearby(values: &Part, line: Line, (d, dmin): (f16, f16)) -> (u8, f32) {
    let (d, dmin) = (d.to_f32(), dmin.to_f32());
    let around = |x: f32, of: f32| {
        let nearest = (x / of + 0.5) as u8;
        nearest.min(15).saturating_sub(1)..=nearest.saturating_add(1).min(15)
    };
    let (mut best, mut least) = (0, f32::INFINITY);
    for m in around(line.min, dmin) {
        for s in around(line.scale, d) {
            let error = error(values, Line { scale: d * f32::from(s), min: dmin * f32::from(m) });
            if error < least {
                (best, least) = (m << 4 | s, error);
            }
        }
    }
    (best, least)
}

/// d and dmin of least squared error for the integers and s and m of all parts, if those determine them.
fn refit(parts: &[Part; PARTS], numbers: &Numbers) -> Option<(f16, f16)> {
    // Of the two linear equations `a d - b dmin = x`, `b d - c dmin = y`.
    let (mut a, mut b, mut c, mut x, mut y) = (0.0, 0.0, 0.0, 0.0, 0.0);
    for (part, byte) in parts.iter().zip(numbers.parts) {
        let sums = Sums::new(part, &integers(part, Line::of(byte, numbers)));
        let [s, m] = [byte & 15, byte >> 4].map(f32::from);
        (a, b, c) = (a + s * s * sums.qq, b + s * m * sums.q, c + m * m * PART as f32);
        (x, y) = (x + s * sums.qx, y + m * sums.x);
    }
    let (d, dmin) = match a * c - b * b {
        determinant if determinant > 0.0 => ((c * x - b * y) / determinant, (b * x - a * y) / determinant),
        _ if a > 0.0 => (x / a, 0.0),
        _ => return None,
    };
    (d > 0.0 && dmin >= 0.0).then(|| (factor(d), factor(dmin)))
}

/// A file's super-blocks, unchanged.
pub(crate) fn pack_super_blocks(
    blocks: impl Iterator<Item = (Numbers, SuperBlock)>,
    lane: usize,
    panel: &mut [u8],
) {
    for (index, (numbers, integers)) in blocks.enumerate() {
        put(panel, index, lane, &numbers, &integers);
    }
}

pub(crate) fn unpack_row(panel: &[u8], lane: usize, out: &mut [f32]) {
    for (step, out) in out.chunks_mut(GROUP).enumerate() {
        let (numbers, lines) = place_of(step, NUMBERS_BYTES, STEP_BYTES);
        let (numbers, lines) = (&panel[numbers..], &panel[lines..]);
        let (d, minus_dmin) = (f16_at(numbers, 2 * lane), f16_at(numbers, 2 * LANES + 2 * lane));
        let parts = &numbers[STEP_SCALES + step % (SUPER_BLOCK / GROUP) * STEP_SCALES_BYTES..];
        for (i, out) in out.iter_mut().enumerate() {
            let part = parts[i / PART * LANES + lane];
            let q = bit_planes::get(BITS, lines, i / BLOCK, i % BLOCK, lane);
            *out = d * f32::from(part & 15) * f32::from(q) + minus_dmin * f32::from(part >> 4);
        }
    }
}
