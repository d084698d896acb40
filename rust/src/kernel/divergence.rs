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
fn ln_2_over(x: f64) -> f64 {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn logsumexp(x: &[f32]) -> f64 {
        let max = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = x.iter().map(|&x| (f64::from(x) - f64::from(max)).exp()).sum();
        f64::from(max) + sum.ln()
    }

    fn of(p: &[f32], q: &[f32]) -> Divergence {
        divergence(p, q, logsumexp(p), logsumexp(q))
    }

    /// The definitions, with libm.
    fn defined(p: &[f32], q: &[f32]) -> Divergence {
        let (a, b) = (logsumexp(p), logsumexp(q));
        let pairs = || p.iter().zip(q).map(|(&p, &q)| ((f64::from(p) - a).exp(), (f64::from(q) - b).exp()));
        let term = |x: f64, y: f64| if x > 0.0 { x * (x / y).ln() } else { 0.0 };
        Divergence {
            kl: pairs().map(|(p, q)| term(p, q)).sum(),
            kl_back: pairs().map(|(p, q)| term(q, p)).sum(),
            js: pairs().map(|(p, q)| 0.5 * (term(p, 0.5 * (p + q)) + term(q, 0.5 * (p + q)))).sum(),
        }
    }

    fn row(len: usize, seed: u32) -> Vec<f32> {
        let mut state = seed;
        (0..len)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 8) as f32 / 1e6 - 8.0
            })
            .collect()
    }

    #[test]
    fn the_logarithm_is_within_1e_15_of_libm() {
        for i in 0..=100_000 {
            let x = 1.0 + f64::from(i) / 1e5;
            let exact = (2.0 / x).ln();
            assert!((ln_2_over(x) - exact).abs() <= 4e-16, "{x}: {} {exact}", ln_2_over(x));
        }
        assert_eq!(ln_2_over(2.0), 0.0);
    }

    #[test]
    fn divergences_are_those_of_the_definition() {
        for len in [1, 2, 7, 255, 256, 257, 4000] {
            let (p, q) = (row(len, 1), row(len, 2));
            let (got, exact) = (of(&p, &q), defined(&p, &q));
            for (got, exact) in [(got.kl, exact.kl), (got.kl_back, exact.kl_back), (got.js, exact.js)] {
                assert!((got - exact).abs() <= 1e-12 * (1.0 + exact), "{len}: {got} {exact}");
            }
            let back = of(&q, &p);
            assert_eq!((back.kl, back.kl_back, back.js), (got.kl_back, got.kl, got.js));
        }
    }

    #[test]
    fn a_row_beside_itself_gives_exactly_0() {
        let mut p = row(3001, 3);
        p[17] = f32::NEG_INFINITY;
        assert_eq!(of(&p, &p), Divergence { kl: 0.0, kl_back: 0.0, js: 0.0 });
    }

    #[test]
    fn masked_ids_follow_the_rule() {
        let masked = f32::NEG_INFINITY;
        // p is sure of an id that q masks: infinite one way, and no more than ln 2 apart.
        let found = of(&[0.0, masked], &[masked, 0.0]);
        assert_eq!((found.kl, found.kl_back), (f64::INFINITY, f64::INFINITY));
        assert!((found.js - 2f64.ln()).abs() < 1e-15);
        let found = of(&[0.0, masked, masked], &[0.0, 0.0, masked]);
        assert!((found.kl - 2f64.ln()).abs() < 1e-15);
        assert_eq!(found.kl_back, f64::INFINITY);
        assert!(found.js > 0.0 && found.js < 2f64.ln());
    }

    #[test]
    fn small_differences_keep_their_digits() {
        // For q = p e^(d - c), KL is var(d) / 2 + O(d^3).
        let p = vec![0.0_f32; 1000];
        let q: Vec<f32> = (0..1000).map(|i| if i % 2 == 0 { 1e-4 } else { -1e-4 }).collect();
        let found = of(&p, &q);
        for (got, exact) in [(found.kl, 0.5e-8), (found.kl_back, 0.5e-8), (found.js, 0.125e-8)] {
            assert!((got / exact - 1.0).abs() < 1e-5, "{got} {exact}");
        }
    }

    #[test]
    fn trailing_masked_logits_change_nothing() {
        let (mut p, mut q) = (row(300, 5), row(300, 6));
        let before = of(&p, &q);
        p.extend([f32::NEG_INFINITY; 9]);
        q.extend([f32::NEG_INFINITY; 9]);
        assert_eq!(of(&p, &q), before);
    }

    #[test]
    fn every_instruction_set_gives_these_bits() {
        let (p, q) = (row(5000, 8), row(5000, 9));
        assert_eq!(crate::kernel::divergence(&p, &q, 12.0, 12.5), divergence(&p, &q, 12.0, 12.5));
    }
}
