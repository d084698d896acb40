//! How far two distributions over the same ids are apart: KL divergence both ways and Jensen-Shannon divergence.
//!
//! As in `logsumexp.rs`: plain f64 arithmetic without branches, fused multiply-adds or calls, so the compiler vectorizes
//! it and every instruction set gives the same bits.

use super::logsumexp::{CHUNK, LOWEST, Lanes, add_lanes, add_pairwise, clamp, exp_in_range};
use std::f64::consts::{LN_2, SQRT_2};

/// Terms of the series of [`ln_2_over`]: its argument is at most 0.172, and 0.172^22 / 23 is below 2^-60.
const TERMS: usize = 11;
/// 1 / (2n + 1): the coefficients of atanh(s) / s in s^2.
const ATANH: [f64; TERMS] = {
    let mut coefficients = [0.0; TERMS];
    let mut n = 0;
    while n < TERMS {
        coefficients[n] = 1.0 / (2 * n + 1) as f64;
        n += 1;
    }
    coefficients
};

/// The divergences of two distributions p and q, in nats.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Divergence {
    /// KL(p || q) = sum p ln(p / q); infinite where q is 0 and p is not.
    pub kl: f64,
    /// KL(q || p).
    pub kl_back: f64,
    /// Jensen-Shannon: (KL(p || m) + KL(q || m)) / 2 with m = (p + q) / 2; from 0 to ln 2.
    pub js: f64,
}

/// The divergences of the distributions of two rows of logits without NaN and +inf, given their logsumexp.
///
/// With l = max(ln p, ln q), d = ln q - ln p and u = e^-|d|, the larger probability is e^l and the smaller one e^l u; the
/// term of Jensen-Shannon is e^l ((1 + u) ln(2 / (1 + u)) - |d| u) / 2. So equal rows give exactly 0, and 0 ln 0 is 0.
///
/// The order of additions is that of `exp_sums`. Always inlined, for the same reason.
#[inline(always)]
pub fn divergence(p: &[f32], q: &[f32], p_logsumexp: f64, q_logsumexp: f64) -> Divergence {
    let (mut kl, mut kl_back, mut js) = (Lanes::default(), Lanes::default(), Lanes::default());
    let (p_whole, p_rest) = p.as_chunks::<CHUNK>();
    let (q_whole, q_rest) = q.as_chunks::<CHUNK>();
    // The last chunk is padded with masked logits, which add exactly nothing.
    let (mut p_last, mut q_last) = ([f32::NEG_INFINITY; CHUNK], [f32::NEG_INFINITY; CHUNK]);
    p_last[..p_rest.len()].copy_from_slice(p_rest);
    q_last[..q_rest.len()].copy_from_slice(q_rest);
    for (p, q) in p_whole.iter().zip(q_whole).chain([(&p_last, &q_last)]) {
        let [a, b, c] = terms(p, q, p_logsumexp, q_logsumexp);
        add_lanes(&mut kl, &a);
        add_lanes(&mut kl_back, &b);
        add_lanes(&mut js, &c);
    }
    // Rounding may leave a sum slightly below 0.
    let sum = |lanes| add_pairwise(lanes).max(0.0);
    Divergence { kl: sum(kl), kl_back: sum(kl_back), js: sum(js) }
}

/// p ln(p / q), q ln(q / p) and the term of Jensen-Shannon, of a chunk. One step per loop, which vectorizes best.
#[inline(always)]
fn terms(p: &[f32; CHUNK], q: &[f32; CHUNK], p_logsumexp: f64, q_logsumexp: f64) -> [[f64; CHUNK]; 3] {
    let [mut d, mut larger, mut u] = [[0.0; CHUNK]; 3];
    for i in 0..CHUNK {
        let (ln_p, ln_q) = (f64::from(p[i]) - p_logsumexp, f64::from(q[i]) - q_logsumexp);
        d[i] = ln_q - ln_p; // NaN where both are masked
        larger[i] = exp_or_0(clamp(if d[i] > 0.0 { ln_q } else { ln_p }));
    }
    for i in 0..CHUNK {
        u[i] = exp_or_0(minus_abs(d[i]));
    }
    let [mut kl, mut kl_back, mut js] = [[0.0; CHUNK]; 3];
    for i in 0..CHUNK {
        let smaller = larger[i] * u[i];
        let (p, q) = if d[i] > 0.0 { (smaller, larger[i]) } else { (larger[i], smaller) };
        let (forth, back) = (p * -d[i], q * d[i]); // NaN for 0 times infinity
        kl[i] = if p > 0.0 { forth } else { 0.0 };
        kl_back[i] = if q > 0.0 { back } else { 0.0 };
    }
    for i in 0..CHUNK {
        let x = 1.0 + u[i];
        js[i] = 0.5 * larger[i] * (x * ln_2_over(x) + minus_abs(d[i]) * u[i]);
    }
    [kl, kl_back, js]
}

/// -|d|, at least LOWEST; LOWEST for NaN.
#[inline(always)]
fn minus_abs(d: f64) -> f64 {
    clamp(if d > 0.0 { -d } else { d })
}

/// exp(x) of a clamped x; 0 at LOWEST.
#[inline(always)]
fn exp_or_0(x: f64) -> f64 {
    let value = exp_in_range(x);
    if x > LOWEST { value } else { 0.0 }
}

/// ln(2 / x) for x in [1, 2]: ln(2 / t) + 2 atanh(s) with s = (t - x) / (t + x), by its series; t is 2, or sqrt 2 where
/// that is closer above. ln(2 / 2) is exactly 0.
#[inline(always)]
pub fn ln_2_over(x: f64) -> f64 {
    let below = x < SQRT_2;
    let (t, rest) = (if below { SQRT_2 } else { 2.0 }, if below { 0.5 * LN_2 } else { 0.0 });
    let s = (t - x) / (t + x);
    let z = s * s;
    let mut series = ATANH[TERMS - 1];
    for coefficient in ATANH[..TERMS - 1].iter().rev() {
        series = series * z + coefficient;
    }
    2.0 * s * series + rest
}
