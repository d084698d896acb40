//! Read-outs against an oracle that sorts everything and adds with compensation.

use super::*;
use crate::Error;
use crate::sampling::philox::{philox4x32, uniforms};

/// Deterministic normal logits (Box and Muller 1958) with standard deviation `scale`.
pub(crate) fn gaussian(len: usize, scale: f64, seed: u64) -> Vec<f32> {
    (0..len as u64)
        .map(|i| {
            let radius = (-2.0 * (1.0 - uniforms(seed, 0, i)[0]).ln()).sqrt();
            (scale * radius * (std::f64::consts::TAU * uniforms(seed, 1, i)[0]).cos()) as f32
        })
        .collect()
}

/// Logits rounded to bf16: many ties.
pub(crate) fn bf16(mut logits: Vec<f32>) -> Vec<f32> {
    for x in &mut logits {
        *x = f32::from_bits(x.to_bits() & 0xFFFF_0000);
    }
    logits
}

/// Ids of the finite logits, best first, ties by lower id.
pub(crate) fn ranked(logits: &[f32]) -> Vec<u32> {
    let mut ids: Vec<u32> =
        (0..logits.len() as u32).filter(|&i| logits[i as usize] > f32::NEG_INFINITY).collect();
    ids.sort_by(|&a, &b| logits[b as usize].partial_cmp(&logits[a as usize]).unwrap().then(a.cmp(&b)));
    ids
}

/// Neumaier 1974.
fn compensated(terms: impl Iterator<Item = f64>) -> f64 {
    let (mut sum, mut lost) = (0.0f64, 0.0);
    for x in terms {
        let next = sum + x;
        lost += if sum.abs() >= x.abs() { (sum - next) + x } else { (x - next) + sum };
        sum = next;
    }
    sum + lost
}

/// (logsumexp, entropy, varentropy) with libm and compensation, the last one from its definition.
fn oracle(logits: &[f32]) -> (f64, f64, f64) {
    let max = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let finite = || logits.iter().filter(|x| x.is_finite()).map(|&x| f64::from(x) - max);
    let weight = compensated(finite().map(f64::exp));
    let mean = compensated(finite().map(|d| d * d.exp())) / weight;
    let variance = compensated(finite().map(|d| (d - mean).powi(2) * d.exp())) / weight;
    (max + weight.ln(), weight.ln() - mean, variance)
}

fn close(got: f64, expected: f64, relative: f64) {
    assert!((got - expected).abs() <= relative * expected.abs().max(1e-300), "{got:e} is not {expected:e}");
}

#[test]
fn agrees_with_the_oracle_on_a_large_vocabulary() {
    for (seed, scale) in [(1, 0.01), (2, 1.2), (3, 3.0), (4, 30.0)] {
        for len in [49_152, 151_936] {
            let logits = gaussian(len, scale, seed);
            let got = read_logprobs(&logits, 20, 0).unwrap();
            let (logsumexp, entropy, varentropy) = oracle(&logits);
            close(got.logsumexp, logsumexp, 1e-14);
            close(got.entropy, entropy, 2e-13);
            close(got.varentropy.unwrap(), varentropy, 1e-10);
            let without = read_logprobs(&logits, 0, 0).unwrap();
            assert_eq!((without.logsumexp, without.entropy), (got.logsumexp, got.entropy), "to the bit");
            assert_eq!(without.varentropy, None);
            let ids: Vec<u32> = got.top.iter().map(|t| t.0).collect();
            assert_eq!(ids, ranked(&logits)[..20]);
            close(got.top_mass, got.top.iter().map(|t| t.1.exp()).sum::<f64>().min(1.0), 1e-14);
        }
    }
}

#[test]
fn top_is_exact_for_any_k_with_ties_and_masked_ids() {
    for (len, step) in [(1, 2), (7, 2), (64, 3), (1000, 4), (4099, 5)] {
        let mut logits = bf16(gaussian(len, 2.0, len as u64));
        for x in logits.iter_mut().skip(1).step_by(step) {
            *x = f32::NEG_INFINITY;
        }
        let expected = ranked(&logits);
        for k in [0, 1, 2, 20, 1000, len, len + 1, usize::MAX] {
            let got = read_logprobs(&logits, k, 0).unwrap();
            let ids: Vec<u32> = got.top.iter().map(|t| t.0).collect();
            assert_eq!(ids, expected[..k.min(expected.len())], "len {len}, k {k}");
            assert!(
                got.top.iter().all(|&(id, p)| p.is_finite() && p == logprob_and_rank(&got, &logits, id).0)
            );
            assert!(got.entropy.is_finite() && (0.0..=1.0).contains(&got.top_mass));
        }
        let all = read_logprobs(&logits, len, 0).unwrap();
        close(compensated(all.top.iter().map(|t| t.1.exp())), 1.0, 1e-13);
    }
}

#[test]
fn rows_whose_answer_is_known() {
    let one = read_logprobs(&[-3.5], 5, 0).unwrap();
    assert_eq!(
        one,
        Logprobs { logsumexp: -3.5, entropy: 0.0, varentropy: Some(0.0), top: vec![(0, 0.0)], top_mass: 1.0 }
    );
    let masked = read_logprobs(&[f32::NEG_INFINITY, 2.0, f32::NEG_INFINITY], 5, 0).unwrap();
    assert_eq!(
        masked,
        Logprobs { logsumexp: 2.0, entropy: 0.0, varentropy: Some(0.0), top: vec![(1, 0.0)], top_mass: 1.0 }
    );
    assert_eq!(
        logprob_and_rank(&masked, &[f32::NEG_INFINITY, 2.0, f32::NEG_INFINITY], 0),
        (f64::NEG_INFINITY, 2)
    );
    let flat = read_logprobs(&vec![7.25; 151_936], 3, 0).unwrap();
    close(flat.entropy, 151_936f64.ln(), 1e-15);
    assert_eq!(flat.varentropy, Some(0.0));
    // Probabilities 3/4 and 1/4: p (1 - p) (ln 3)^2.
    let two = read_logprobs(&[3f32.ln(), 0.0], 1, 0).unwrap();
    close(two.varentropy.unwrap(), 3.0 / 16.0 * 3f64.ln().powi(2), 1e-7);
    assert_eq!(flat.top.iter().map(|t| t.0).collect::<Vec<_>>(), [0, 1, 2]);
    let widest = read_logprobs(&[f32::MAX, f32::MIN], 2, 0).unwrap();
    assert_eq!((widest.entropy, widest.varentropy, widest.top[1].0), (0.0, Some(0.0), 1));
    assert!(widest.top[1].1.is_finite());
}

#[test]
fn a_very_sure_token_keeps_its_digits() {
    let logits = [18.084_f32, 0.0];
    let readout = read_logprobs(&logits, 2, 0).unwrap();
    let (logprob, rank) = logprob_and_rank(&readout, &logits, 0);
    close(logprob, -(-f64::from(logits[0])).exp().ln_1p(), 1e-6);
    assert!((-1.41e-8..-1.39e-8).contains(&logprob), "{logprob:e}");
    assert_eq!(rank, 1);
}

#[test]
fn rank_is_one_plus_the_number_of_larger_logits() {
    let logits = bf16(gaussian(70_000, 1.0, 5));
    let readout = read_logprobs(&logits, 0, 0).unwrap();
    for id in (0..70_000).step_by(977) {
        let x = logits[id as usize];
        let (logprob, rank) = logprob_and_rank(&readout, &logits, id);
        assert_eq!(rank, 1 + logits.iter().filter(|&&y| y > x).count());
        assert_eq!(logprob, f64::from(x) - readout.logsumexp);
    }
}

#[test]
fn what_is_no_distribution_is_refused_with_its_position() {
    for bad in [f32::NAN, -f32::NAN, f32::INFINITY] {
        for at in [0, 17, 63, 64, 100, 129] {
            let mut logits = vec![1.0; 130];
            logits[at] = bad;
            let error = read_logprobs(&logits, 1, 42).unwrap_err();
            assert!(matches!(error, Error::NonFinite { position: 42, .. }), "{error}");
            assert!(error.to_string().contains(&format!("id {at} ")), "{error}");
        }
    }
    let error = read_logprobs(&[f32::NEG_INFINITY; 200], 1, 9).unwrap_err();
    assert!(matches!(error, Error::NonFinite { position: 9, .. }), "{error}");
    assert!(matches!(read_logprobs(&[], 1, 0), Err(Error::Request(_))));
}

/// Random f32 bit patterns with exponents of all sizes; `seed % 4 != 0` replaces NaN and +inf by -inf.
pub(crate) fn any_bits(seed: u32) -> Vec<f32> {
    let len = 1 + (seed as usize * 37) % 300;
    (0..len as u32)
        .map(|i| f32::from_bits(philox4x32([i, 0, 0, 0], [seed, 1])[0]))
        .map(|x| {
            if !seed.is_multiple_of(4) && (x.is_nan() || x == f32::INFINITY) { f32::NEG_INFINITY } else { x }
        })
        .collect()
}

#[test]
fn any_bit_pattern_gives_finite_numbers_or_a_non_finite_error() {
    let mut refused = 0;
    for seed in 0..4000 {
        let logits = any_bits(seed);
        let sound = logits.iter().all(|x| *x < f32::INFINITY) && logits.iter().any(|x| x.is_finite());
        match read_logprobs(&logits, 10, 0) {
            Ok(readout) => {
                assert!(sound);
                assert!(readout.logsumexp.is_finite() && readout.entropy >= 0.0 && readout.entropy < 6.0);
                assert!(readout.varentropy.is_some_and(|v| v.is_finite() && v >= 0.0));
                assert!(readout.top.iter().all(|t| t.1.is_finite() && t.1 <= 0.0));
            }
            Err(error) => {
                assert!(!sound && matches!(error, Error::NonFinite { .. }));
                refused += 1;
            }
        }
    }
    assert!((200..600).contains(&refused), "{refused}");
}

#[test]
#[ignore = "prints timings; run with --release -- --ignored --nocapture speed"]
fn speed() {
    for len in [49_152, 151_936, 262_144] {
        let logits = gaussian(len, 3.0, 1);
        for top_k in [0, 20, 1000] {
            let micros = fastest(|| read_logprobs(&logits, top_k, 0).unwrap().entropy);
            println!("read_logprobs        {len:>7} logits, top_k {top_k:>4}: {micros:7.1} us");
        }
        let readout = read_logprobs(&logits, 0, 0).unwrap();
        let micros = fastest(|| logprob_and_rank(&readout, &logits, 5).1 as f64);
        println!("logprob_and_rank {len:>6} logits            : {micros:7.1} us");
        let micros = fastest(|| f64::from(TopK::default().scan(&logits, 0).unwrap()));
        println!("  scan          {len:>7} logits            : {micros:7.1} us");
        let micros = fastest(|| exp_sums(&logits, 15.0, 1.0).exp);
        println!("  sums          {len:>7} logits            : {micros:7.1} us");
    }
}

/// Microseconds of the fastest of 200 runs.
pub(crate) fn fastest(mut work: impl FnMut() -> f64) -> f64 {
    let mut best = f64::INFINITY;
    for _ in 0..200 {
        let start = std::time::Instant::now();
        std::hint::black_box(work());
        best = best.min(start.elapsed().as_secs_f64() * 1e6);
    }
    best
}

#[test]
fn threads_read_the_same_bits() {
    let pool = Pool::oversubscribed(3);
    for len in [1, 8191, 8192, 50_001] {
        let mut logits: Vec<f32> = (0..len).map(|i| ((i * 7919) % 4999) as f32 * 0.004).collect();
        let (alone, shared) =
            (read_logprobs(&logits, 5, 0).unwrap(), read_logprobs_with(Some(&pool), &logits, 5, 0).unwrap());
        assert_eq!(alone, shared);
        let id = (len - 1) as u32;
        assert_eq!(
            logprob_and_rank(&alone, &logits, id),
            logprob_and_rank_with(Some(&pool), &shared, &logits, id)
        );
        logits[len - 1] = f32::NAN;
        assert_eq!(
            read_logprobs_with(Some(&pool), &logits, 5, 0).unwrap_err().to_string(),
            read_logprobs(&logits, 5, 0).unwrap_err().to_string()
        );
    }
}
