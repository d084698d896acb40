//! KL and JS divergence of two rows of logits.

use ropechat_kernels::kernel::Divergence;
use ropechat_kernels::kernel::divergence::{divergence, ln_2_over};

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
    assert_eq!(ropechat_kernels::kernel::divergence(&p, &q, 12.0, 12.5), divergence(&p, &q, 12.0, 12.5));
}
