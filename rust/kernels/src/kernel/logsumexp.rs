//! exp in f64, and the sums over a logit row behind logsumexp, entropy and varentropy.
//!
//! Everything here is plain arithmetic on `[f64; WIDTH]` without branches, fused multiply-adds or calls, so the
//! compiler vectorizes it for every target, and every instruction set gives the same bits.

/// f64 values of one step: one AVX-512 register, two of AVX2, four of SSE2 or NEON.
const WIDTH: usize = 8;
/// Sums in progress, added pairwise at the end.
pub type Lanes = [f64; WIDTH];
/// Logits whose terms are computed together; they stay in the first-level cache.
pub const CHUNK: usize = 256;

/// Below this exp is taken as 0 (exp(-708) = 3.3e-308 is the last step before subnormals).
pub(super) const LOWEST: f64 = -708.0;
/// Adding 1.5 * 2^52 rounds to an integer, which is then in the low bits of the sum.
const ROUND: f64 = 6_755_399_441_055_744.0;
/// ln 2 in two parts; the first has 32 trailing zero bits, so n * LN2_HIGH is exact (Cody and Waite 1980).
const LN2_HIGH: f64 = f64::from_bits(0x3FE6_2E42_FEE0_0000);
const LN2_LOW: f64 = f64::from_bits(0x3DEA_39EF_3579_3C76);
/// q of exp(r) = 1 + r + r^2 q(r), |r| <= ln 2 / 2, by Remez exchange at 60 digits: relative error 3.0e-16.
const Q: [f64; 9] = [
    0.499_999_999_999_984_07,
    0.166_666_666_666_128,
    0.041_666_666_668_096_47,
    0.008_333_333_370_383_639,
    0.001_388_888_852_212_645,
    0.000_198_411_858_258_485_1,
    2.480_192_855_120_973e-5,
    2.763_476_468_433_586e-6,
    2.747_723_934_787_555_3e-7,
];

/// exp(x) for x <= 709; 0 below -708 (also for -inf) and for NaN; relative error below 1e-15; exp(0) is exactly 1.
#[inline(always)]
pub fn exp(x: f64) -> f64 {
    let value = exp_in_range(clamp(x));
    if x >= LOWEST { value } else { 0.0 }
}

/// exp(x) for x in [-708, 709]: 2^n exp(r) with x = n ln 2 + r.
#[inline(always)]
pub(super) fn exp_in_range(x: f64) -> f64 {
    let shifted = x * std::f64::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = (x - n * LN2_HIGH) - n * LN2_LOW;
    let mut q = Q[8];
    for coefficient in Q[..8].iter().rev() {
        q = q * r + coefficient;
    }
    // 2^n, written into the exponent field.
    let power = f64::from_bits(shifted.to_bits().wrapping_add(1023) << 52);
    (1.0 + (r + r * r * q)) * power
}

#[inline(always)]
pub(super) fn clamp(x: f64) -> f64 {
    if x > LOWEST { x } else { LOWEST }
}

/// The sums behind logsumexp and entropy of the scaled logits d = (x - max) / temperature.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ExpSums {
    /// sum of exp(d); at least 1.
    pub exp: f64,
    /// sum of d exp(d); at most 0. A term with exp(d) = 0 is 0, also for d = -inf.
    pub d_exp: f64,
}

impl ExpSums {
    /// Entropy in nats: H = ln W - (sum d e^d) / W.
    pub fn entropy(self) -> f64 {
        (self.exp.ln() - self.d_exp / self.exp).max(0.0)
    }
}

/// The variance of the log probability in nats^2, from the sums of a row and `dd_exp`, the sum of d^2 exp(d):
/// V = (sum d^2 e^d) / W - ((sum d e^d) / W)^2, since ln p and d differ by a constant. d counts from the largest logit, so that a
/// sure row keeps its digits.
pub fn varentropy(sums: ExpSums, dd_exp: f64) -> f64 {
    let mean = sums.d_exp / sums.exp;
    (dd_exp / sums.exp - mean * mean).max(0.0)
}

/// The sums of exp(d), d exp(d) and d^2 exp(d) of a chunk of 256 logits, lane by lane.
pub type ChunkSums = [Lanes; 3];

/// ExpSums over a row: `logits` without NaN and +inf, `max` their maximum (finite), `inverse_temperature` 1 / T.
///
/// The order of additions is fixed: lane i takes every eighth logit of a chunk, chunks are added lane by lane, the lanes
/// then pairwise. Always inlined, so that a caller compiled for a wider instruction set has wider vectors and the same
/// bits.
#[inline(always)]
pub fn exp_sums(logits: &[f32], max: f32, inverse_temperature: f64) -> ExpSums {
    let [exp, d_exp] = row_sums(logits, max, inverse_temperature);
    ExpSums { exp, d_exp }
}

/// [`exp_sums`] at temperature 1, with the same bits, and the sum of d^2 exp(d), for [`varentropy`].
#[inline(always)]
pub fn exp_sums_with_squares(logits: &[f32], max: f32) -> (ExpSums, f64) {
    let [exp, d_exp, dd_exp] = row_sums(logits, max, 1.0);
    (ExpSums { exp, d_exp }, dd_exp)
}

/// The sums of exp(d), d exp(d), and so on.
#[inline(always)]
fn row_sums<const N: usize>(logits: &[f32], max: f32, inverse_temperature: f64) -> [f64; N] {
    let mut sums = [Lanes::default(); N];
    for chunk in logits.chunks(CHUNK) {
        add_chunk(&mut sums, &chunk_sums(chunk, max, inverse_temperature));
    }
    sums.map(add_pairwise)
}

/// The sums of each chunk of a row's part, which begins at a whole chunk: [`add_chunks`] gives the bits of
/// [`exp_sums_with_squares`] then, whoever computed which part.  // out [ceil(logits / CHUNK)]
#[inline(always)]
pub(super) fn exp_chunks(logits: &[f32], max: f32, out: &mut [ChunkSums]) {
    for (chunk, out) in logits.chunks(CHUNK).zip(out) {
        *out = chunk_sums(chunk, max, 1.0);
    }
}

/// The sums of a row out of those of its chunks.
pub fn add_chunks(chunks: &[ChunkSums]) -> (ExpSums, f64) {
    let mut sums = ChunkSums::default();
    chunks.iter().for_each(|chunk| add_chunk(&mut sums, chunk));
    let [exp, d_exp, dd_exp] = sums.map(add_pairwise);
    (ExpSums { exp, d_exp }, dd_exp)
}

#[inline(always)]
fn add_chunk<const N: usize>(sums: &mut [Lanes; N], chunk: &[Lanes; N]) {
    for (sum, value) in sums.as_flattened_mut().iter_mut().zip(chunk.as_flattened()) {
        *sum += value;
    }
}

#[inline(always)]
fn chunk_sums<const N: usize>(chunk: &[f32], max: f32, inverse_temperature: f64) -> [Lanes; N] {
    // The last chunk is padded with masked logits, which add exactly nothing.
    let mut last = [f32::NEG_INFINITY; CHUNK];
    let block = <&[f32; CHUNK]>::try_from(chunk).unwrap_or_else(|_| {
        last[..chunk.len()].copy_from_slice(chunk);
        &last
    });
    let mut sums = [Lanes::default(); N];
    let terms = terms::<N>(block, f64::from(max), inverse_temperature);
    sums.iter_mut().zip(&terms).for_each(|(sum, terms)| add_lanes(sum, terms));
    sums
}

/// exp(d), d exp(d), and so on of a chunk. Separate from the additions, so that the loop has no reduction and vectorizes.
#[inline(always)]
fn terms<const N: usize>(block: &[f32; CHUNK], max: f64, inverse_temperature: f64) -> [[f64; CHUNK]; N] {
    let mut terms = [[0.0; CHUNK]; N];
    for i in 0..CHUNK {
        let d = clamp((f64::from(block[i]) - max) * inverse_temperature);
        let value = exp_in_range(d);
        let mut term = if d > LOWEST { value } else { 0.0 };
        for power in &mut terms {
            power[i] = term;
            term *= d;
        }
    }
    terms
}

#[inline(always)]
pub(super) fn add_lanes(total: &mut Lanes, terms: &[f64; CHUNK]) {
    let mut block = [0.0; WIDTH];
    for lanes in terms.as_chunks::<WIDTH>().0 {
        for i in 0..WIDTH {
            block[i] += lanes[i];
        }
    }
    for i in 0..WIDTH {
        total[i] += block[i];
    }
}

pub(super) fn add_pairwise(x: Lanes) -> f64 {
    ((x[0] + x[4]) + (x[2] + x[6])) + ((x[1] + x[5]) + (x[3] + x[7]))
}
