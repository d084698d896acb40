//! The draws follow the distribution, and how long they take.

use super::*;
use crate::sampling::readout::tests::fastest;

/// Chi-square statistic of `draws` draws against the distribution, and its p = 0.001 critical value.
fn chi_square(logits: &[f32], sampling: &Sampling, expected: &[f64], draws: u64) -> (f64, f64) {
    let mut sampler = Sampler::new();
    let mut counts = vec![0u64; logits.len()];
    for position in 0..draws {
        counts[sampler.sample(logits, &[], position, sampling, None).unwrap().id as usize] += 1;
    }
    statistic(&counts, expected)
}

/// Chi-square statistic of these counts against the distribution, and its p = 0.001 critical value.
pub(super) fn statistic(counts: &[u64], expected: &[f64]) -> (f64, f64) {
    let draws: u64 = counts.iter().sum();
    let possible = expected.iter().filter(|&&p| p > 0.0).count();
    let statistic = counts.iter().zip(expected).fold(0.0, |sum, (&n, &p)| {
        assert!(p > 0.0 || n == 0);
        let mean = p * draws as f64;
        if p > 0.0 { sum + (n as f64 - mean).powi(2) / mean } else { sum }
    });
    // Wilson and Hilferty 1931; 3.0902 is the normal quantile of 0.999.
    let df = (possible - 1) as f64;
    let critical = df * (1.0 - 2.0 / (9.0 * df) + 3.0902 * (2.0 / (9.0 * df)).sqrt()).powi(3);
    (statistic, critical)
}

#[test]
fn draws_follow_the_distribution() {
    let logits = gaussian(64, 1.0, 11);
    let softmax = |kept: usize, t: f64| {
        let mut p = vec![0.0; 64];
        ranked(&logits)[..kept]
            .iter()
            .for_each(|&i| p[i as usize] = (f64::from(logits[i as usize]) / t).exp());
        let total: f64 = p.iter().sum();
        p.iter().map(|x| x / total).collect::<Vec<f64>>()
    };
    let cases = [
        (off(), softmax(64, 1.0), 1_000_000),
        (Sampling { temperature: 2.0, seed: 1, ..off() }, softmax(64, 2.0), 100_000),
        (Sampling { temperature: 0.5, top_k: 10, stream: 9, ..off() }, softmax(10, 0.5), 100_000),
    ];
    for (sampling, expected, draws) in cases {
        let (statistic, critical) = chi_square(&logits, &sampling, &expected, draws);
        println!("chi-square {statistic:.1}, critical {critical:.1} at p = 0.001, {draws} draws");
        assert!(statistic < critical, "{statistic} {critical} {sampling:?}");
    }
}

#[test]
fn a_deep_draw_in_a_flat_vocabulary_is_the_inverse_cdf() {
    let flat = vec![0.25; 20_000];
    let mut sampler = Sampler::new();
    for position in 0..300 {
        let draw = sampler.sample(&flat, &[], position, &off(), None).unwrap();
        assert_eq!(draw.id, (draw.u.unwrap() * 20_000.0) as u32);
    }
}

#[test]
#[ignore = "prints timings; run with --release -- --ignored --nocapture speed"]
fn speed() {
    for len in [49_152, 151_936] {
        let logits = gaussian(len, 3.0, 1);
        let raw = read_logprobs(&logits, 20, 0).unwrap();
        let history: Vec<u32> = (0..2000).collect();
        let chat = Sampling {
            temperature: 0.7,
            top_k: 40,
            top_p: 0.9,
            min_p: 0.05,
            repetition_penalty: 1.1,
            ..off()
        };
        let cases = [
            ("greedy", Sampling { temperature: 0.0, ..off() }),
            ("T 1, no filter", off()),
            ("T 0.7, top_p 0.9", Sampling { temperature: 0.7, top_p: 0.9, ..off() }),
            ("T 0.7, top_k 40, top_p 0.9", Sampling { repetition_penalty: 1.0, min_p: 0.0, ..chat.clone() }),
            ("all five", chat.clone()),
            ("DRY, 2,000 tokens", Sampling { dry_multiplier: 0.8, ..off() }),
            ("top_n_sigma", Sampling { top_n_sigma: 1.0, ..off() }),
            ("XTC", Sampling { xtc_probability: 0.5, ..chat }),
        ];
        for (name, sampling) in cases {
            let mut sampler = Sampler::new();
            for trace in [None, Some(&raw)] {
                let mut position = 0;
                let micros = fastest(|| {
                    position = (position + 1) % 4;
                    f64::from(sampler.sample(&logits, &history, position, &sampling, trace).unwrap().id)
                });
                println!("sample {len:>7} logits, trace {:5}, {name:<28}: {micros:7.1} us", trace.is_some());
            }
        }
        let flat = vec![1.0; len];
        let mut sampler = Sampler::new();
        let micros = fastest(|| f64::from(sampler.sample(&flat, &[], 0, &off(), None).unwrap().id));
        println!("sample {len:>7} equal logits (the deepest draw): {micros:7.1} us");
    }
}
