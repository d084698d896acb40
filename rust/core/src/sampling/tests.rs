//! The sampler against an oracle that sorts everything, and against the laws of chance.

use super::*;
use crate::Error;
use crate::sampling::readout::read_logprobs;
use crate::sampling::readout::tests::{any_bits, bf16, gaussian, ranked};

mod chance;

mod explained;
mod llama_cpp;

/// Every stage off.
fn off() -> Sampling {
    Sampling { seed: 7, stream: 3, ..Sampling::default() }
}

/// (id, stages) by full sort, libm, searches and plain sums.
fn oracle(logits: &[f32], history: &[u32], position: u64, s: &Sampling) -> (u32, Vec<Stage>) {
    let softmax = |x: &[f64]| {
        let max = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let total: f64 = x.iter().map(|x| (x - max).exp()).sum();
        x.iter().map(|x| (x - max).exp() / total).collect::<Vec<f64>>()
    };
    let raw = softmax(&logits.iter().map(|&x| f64::from(x)).collect::<Vec<_>>());
    let mut row = logits.to_vec();
    let mut ids = ranked(&row);
    let mut temperature = 1.0;
    let mut stages = Vec::new();
    let [u, xtc_u] = philox::uniforms(s.seed, s.stream, position);
    let of_row = |row: &[f32], ids: &[u32], t: f64| {
        softmax(&ids.iter().map(|&i| f64::from(row[i as usize]) / t).collect::<Vec<_>>())
    };
    let answer = &history[s.answer_start..];
    let said = |text: &[u32]| (0..logits.len()).filter(|&id| text.contains(&(id as u32))).collect::<Vec<_>>();
    for link in SAMPLER_CHAIN.into_iter().filter(|l| l.is_on(s)) {
        let p = of_row(&row, &ids, temperature);
        let mut value = None;
        match link {
            ChainStep::Forced | ChainStep::Grammar => unreachable!("not settings"),
            ChainStep::LogitBias => s.logit_bias.iter().for_each(|&(id, bias)| row[id as usize] += bias),
            ChainStep::RepetitionPenalty => {
                for id in said(history) {
                    let x = &mut row[id];
                    *x = if *x < 0.0 { *x * s.repetition_penalty } else { *x / s.repetition_penalty };
                }
            }
            ChainStep::PresencePenalty => {
                said(answer).into_iter().for_each(|id| row[id] -= s.presence_penalty);
            }
            ChainStep::FrequencyPenalty => {
                for id in said(answer) {
                    let times = answer.iter().filter(|&&one| one == id as u32).count();
                    row[id] -= times as f32 * s.frequency_penalty;
                }
            }
            ChainStep::Dry => {
                let last = s.dry_penalty_last_n.unwrap_or(history.len()).min(history.len());
                let text = &history[history.len() - last..];
                for id in said(text) {
                    if let Some(n) = longest_repetition(text, id as u32, s.dry_allowed_length) {
                        let more = (n - s.dry_allowed_length) as i32;
                        let less = f64::from(s.dry_multiplier) * f64::from(s.dry_base).powi(more);
                        row[id] = (f64::from(row[id]) - less) as f32;
                    }
                }
            }
            ChainStep::Temperature => temperature = f64::from(s.temperature),
            ChainStep::TopNSigma => {
                let x: Vec<f64> = row.iter().filter(|x| x.is_finite()).map(|&x| f64::from(x)).collect();
                let mean = x.iter().sum::<f64>() / x.len() as f64;
                let sigma = (x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / x.len() as f64).sqrt();
                let lowest = x.iter().copied().fold(f64::MIN, f64::max) - f64::from(s.top_n_sigma) * sigma;
                ids.retain(|&id| f64::from(row[id as usize]) >= lowest);
                value = Some(sigma);
            }
            ChainStep::TopK => ids.truncate(s.top_k),
            ChainStep::TopP => {
                // transformers: a candidate stays while the mass before it is below top_p.
                let before = |n: usize| p[..n].iter().sum::<f64>();
                let n = (1..=ids.len()).find(|&n| before(n) >= f64::from(s.top_p)).unwrap_or(ids.len());
                ids.truncate(n);
            }
            ChainStep::MinP => ids.truncate(p.iter().filter(|&&x| x >= f64::from(s.min_p) * p[0]).count()),
            ChainStep::Xtc => {
                let best = p.iter().filter(|&&x| x >= f64::from(s.xtc_threshold)).count();
                if best > 1 && xtc_u < f64::from(s.xtc_probability) {
                    ids.drain(..best - 1);
                }
                value = Some(xtc_u);
            }
        }
        if link.adjusts() {
            ids = ranked(&row);
        }
        let p = of_row(&row, &ids, temperature);
        let entropy = -p.iter().filter(|&&x| x > 0.0).map(|x| x * x.ln()).sum::<f64>();
        let mass = ids.iter().map(|&i| raw[i as usize]).sum();
        stages.push(Stage { name: link.name(), kept: ids.len(), mass, entropy, value });
    }
    let mut cumulative = 0.0;
    let drawn = of_row(&row, &ids, temperature).iter().position(|p| {
        cumulative += p;
        cumulative > u
    });
    (ids[drawn.unwrap_or(ids.len() - 1)], stages)
}

/// The longest end of the text that `id` followed earlier, of at least `least` tokens.
fn longest_repetition(text: &[u32], id: u32, least: usize) -> Option<usize> {
    let places = (1..text.len()).filter(|&at| text[at] == id);
    places
        .map(|at| (0..=at).take_while(|&n| text[..at].ends_with(&text[text.len() - n..])).count() - 1)
        .filter(|&n| n >= least)
        .max()
}

/// Combinations of every field, switched off and on.
fn grid() -> Vec<Sampling> {
    let mut all = Vec::new();
    for temperature in [1.0, 0.7, 3.0] {
        for top_k in [0, 1, 40, 100_000] {
            for top_p in [1.0, 0.9, 0.1, 0.999] {
                for min_p in [0.0, 0.05, 0.9] {
                    for repetition_penalty in [1.0, 1.3] {
                        let some = vec![(5, 2.5), (77, -100.0), (899, 0.5)];
                        let logit_bias = if all.len() % 3 == 1 { some } else { vec![] };
                        let n = all.len();
                        all.push(Sampling {
                            logit_bias,
                            temperature,
                            top_k,
                            top_p,
                            min_p,
                            repetition_penalty,
                            presence_penalty: [0.0, 0.5, -1.5][n % 3],
                            frequency_penalty: [0.0, 0.0, 0.25, -0.1][n % 4],
                            dry_multiplier: [0.0, 0.8, 0.0, 0.3, 2.0][n % 5],
                            dry_allowed_length: 1 + n % 3,
                            dry_penalty_last_n: [None, Some(4), Some(0)][n / 5 % 3],
                            top_n_sigma: [0.0, 1.0, 0.0, 2.5, 0.01, 0.0, 0.3][n % 7],
                            xtc_probability: [0.0, 0.5, 1.0, 0.0, 0.1][n / 2 % 5],
                            xtc_threshold: [0.1, 0.01, 0.3, 0.5, 0.6, 0.0, 1e-6][n / 3 % 7],
                            answer_start: n % 4,
                            ..off()
                        });
                    }
                }
            }
        }
    }
    all
}

#[test]
fn agrees_with_the_oracle_stage_by_stage() {
    let mut sampler = Sampler::new();
    for (case, sampling) in grid().into_iter().enumerate() {
        let case = case as u64;
        let mut logits = gaussian(900, 1.0 + (case % 3) as f64, case);
        if case.is_multiple_of(2) {
            logits = bf16(logits);
        }
        if case.is_multiple_of(5) {
            logits.iter_mut().step_by(3).for_each(|x| *x = f32::NEG_INFINITY);
        }
        let history = [5, 1, 5, 5, 800, 899, 5, 800, 5, 1, 5];
        let raw = read_logprobs(&logits, 0, 0).unwrap();
        let (id, stages) = oracle(&logits, &history, case, &sampling);
        let draw = sampler.sample(&logits, &history, case, &sampling, Some(&raw)).unwrap();
        assert_eq!(draw.id, id, "{sampling:?}");
        assert_eq!(draw.stages.len(), stages.len(), "{sampling:?}");
        for (got, expected) in draw.stages.iter().zip(&stages) {
            assert_eq!((got.name, got.kept), (expected.name, expected.kept), "{sampling:?}");
            assert_eq!(got.value.is_some(), expected.value.is_some());
            assert!((got.value.unwrap_or(0.0) - expected.value.unwrap_or(0.0)).abs() < 1e-12);
            assert!((got.mass - expected.mass).abs() < 1e-12, "{got:?} {expected:?}");
            assert!((got.entropy - expected.entropy).abs() < 1e-11, "{got:?} {expected:?}");
        }
        let silent = sampler.sample(&logits, &history, case, &sampling, None).unwrap();
        assert_eq!((silent.id, silent.u, silent.stages.len()), (draw.id, draw.u, 0));
    }
}

#[test]
fn greedy_takes_the_largest_logit_and_the_lowest_id_after_penalties() {
    let greedy = Sampling { temperature: 0.0, top_k: 5, top_p: 0.5, ..off() };
    let mut sampler = Sampler::new();
    let mut pick = |logits: &[f32], history: &[u32], s: &Sampling| {
        let draw = sampler.sample(logits, history, 0, s, None).unwrap();
        assert_eq!((draw.u, draw.stages.len()), (None, 0));
        draw.id
    };
    assert_eq!(pick(&[1.0, 3.0, 3.0, 2.0], &[], &greedy), 1);
    assert_eq!(pick(&[-0.0, 0.0, -1.0], &[], &greedy), 0);
    let penalized = Sampling { repetition_penalty: 2.0, ..greedy.clone() };
    assert_eq!(pick(&[1.0, 3.0, 2.0], &[1], &penalized), 2);
    assert_eq!(pick(&[-1.0, -1.5, -3.0], &[0, 0], &penalized), 1);
    let biased = Sampling { logit_bias: vec![(1, -100.0), (2, 1.5)], ..greedy.clone() };
    assert_eq!(pick(&[1.0, 3.0, 0.0], &[], &biased), 2);
    let both = Sampling { logit_bias: vec![(0, 2.0), (0, 2.0)], ..penalized };
    assert_eq!(pick(&[-1.0, 1.6, 0.0], &[0, 0], &both), 1); // (-1 + 4) / 2, once
    let logits = bf16(gaussian(49_152, 1.0, 3));
    assert_eq!(pick(&logits, &[], &greedy), ranked(&logits)[0]);
}

#[test]
fn ties_are_cut_exactly_by_lower_id() {
    let mut sampler = Sampler::new();
    let logits = [0.0, 1.0, 1.0, 1.0, 0.5];
    let raw = read_logprobs(&logits, 0, 0).unwrap();
    let two = Sampling { top_k: 2, ..off() };
    let mut seen = [0; 5];
    for position in 0..200 {
        let draw = sampler.sample(&logits, &[], position, &two, Some(&raw)).unwrap();
        assert_eq!(draw.stages[0].kept, 2);
        assert!((draw.stages[0].entropy - 2f64.ln()).abs() < 1e-15);
        seen[draw.id as usize] += 1;
    }
    assert!(seen[1] > 60 && seen[2] > 60 && seen[1] + seen[2] == 200, "{seen:?}");
    // min_p = 1 keeps every tie of the best; top_p = 0.5 of four equal ones keeps two.
    let best = sampler.sample(&logits, &[], 0, &Sampling { min_p: 1.0, ..off() }, Some(&raw)).unwrap();
    assert_eq!(best.stages[0].kept, 3);
    let flat = [2.5; 4];
    let raw = read_logprobs(&flat, 0, 0).unwrap();
    let half = sampler.sample(&flat, &[], 0, &Sampling { top_p: 0.5, ..off() }, Some(&raw)).unwrap();
    assert_eq!(half.stages[0].kept, 2);
    assert!((half.stages[0].mass - 0.5).abs() < 1e-15);
}

#[test]
fn extreme_settings() {
    let mut sampler = Sampler::new();
    let logits = gaussian(5000, 2.0, 9);
    let best = ranked(&logits)[0];
    for position in 0..50 {
        let mut id = |s: Sampling| sampler.sample(&logits, &[], position, &s, None).unwrap().id;
        assert_eq!(id(Sampling { temperature: 1e-4, ..off() }), best);
        assert_eq!(id(Sampling { temperature: f32::from_bits(1), top_p: 0.99, ..off() }), best);
        assert_eq!(id(Sampling { top_p: 0.0, ..off() }), best);
        assert_eq!(id(Sampling { top_k: 1, ..off() }), best);
        assert_eq!(id(Sampling { top_k: usize::MAX, ..off() }), id(off()));
        assert!(id(Sampling { repetition_penalty: f32::MAX, temperature: f32::MAX, ..off() }) < 5000);
    }
    let one = sampler
        .sample(&[-2.0], &[0], 0, &Sampling { top_k: 9, repetition_penalty: 1.5, ..off() }, None)
        .unwrap();
    assert_eq!(one.id, 0);
    // A huge temperature makes every candidate, but no masked id, about equally likely.
    let mut logits = vec![5.0, -5.0, 100.0, 0.0];
    logits.push(f32::NEG_INFINITY);
    let mut seen = [0; 5];
    let hot = Sampling { temperature: 1e30, ..off() };
    (0..4000).for_each(|p| seen[sampler.sample(&logits, &[], p, &hot, None).unwrap().id as usize] += 1);
    assert!(seen[..4].iter().all(|n| (880..1120).contains(n)) && seen[4] == 0, "{seen:?}");
}

#[test]
fn any_bit_pattern_gives_an_id_of_the_vocabulary_or_a_non_finite_error() {
    let mut sampler = Sampler::new();
    let settings: Vec<Sampling> = grid()
        .into_iter()
        .chain([0.0, 1e-38, 3e38].map(|temperature| Sampling { temperature, ..off() }))
        .collect();
    for seed in 0..4000 {
        let logits = any_bits(seed);
        let sampling = Sampling {
            logit_bias: [vec![], vec![(0, f32::MAX)], vec![(0, f32::MIN)]][seed as usize % 3].clone(),
            repetition_penalty: [1.0, 1e-30, 1e30][seed as usize % 3],
            ..settings[seed as usize % settings.len()].clone()
        };
        let sound = logits.iter().all(|x| *x < f32::INFINITY) && logits.iter().any(|x| x.is_finite());
        let raw = read_logprobs(&logits, 0, 0).ok();
        match sampler.sample(&logits, &[0], u64::from(seed), &sampling, raw.as_ref()) {
            Ok(draw) => {
                assert!(sound && logits[draw.id as usize].is_finite());
                assert!(
                    draw.stages
                        .iter()
                        .all(|s| s.kept > 0 && s.entropy.is_finite() && (0.0..=1.0).contains(&s.mass))
                );
            }
            Err(error) => assert!(!sound && matches!(error, Error::NonFinite { .. }), "{error} {sampling:?}"),
        }
    }
}

#[test]
fn refusals_name_the_field_and_the_value() {
    let nan = f32::NAN;
    let cases = [
        ("temperature: must be", "(got -1)", Sampling { temperature: -1.0, ..off() }),
        ("temperature: must be", "(got NaN)", Sampling { temperature: nan, ..off() }),
        ("temperature: must be", "(got inf)", Sampling { temperature: f32::INFINITY, ..off() }),
        ("top_p: must be", "(got 1.5)", Sampling { top_p: 1.5, ..off() }),
        ("top_p: must be", "(got NaN)", Sampling { top_p: nan, ..off() }),
        ("min_p: must be", "(got -0.1)", Sampling { min_p: -0.1, ..off() }),
        ("min_p: must be", "(got NaN)", Sampling { min_p: nan, ..off() }),
        ("repetition_penalty: must be", "(got 0)", Sampling { repetition_penalty: 0.0, ..off() }),
        ("repetition_penalty: must be", "(got NaN)", Sampling { repetition_penalty: nan, ..off() }),
        ("presence_penalty: must be", "(got 2.5)", Sampling { presence_penalty: 2.5, ..off() }),
        ("frequency_penalty: must be", "(got NaN)", Sampling { frequency_penalty: nan, ..off() }),
        ("dry_multiplier: must be", "(got -1)", Sampling { dry_multiplier: -1.0, ..off() }),
        ("dry_base: must be", "(got 0.5)", Sampling { dry_base: 0.5, ..off() }),
        ("top_n_sigma: must be", "(got inf)", Sampling { top_n_sigma: f32::INFINITY, ..off() }),
        ("xtc_probability: must be", "(got 1.5)", Sampling { xtc_probability: 1.5, ..off() }),
        ("xtc_threshold: must be", "(got NaN)", Sampling { xtc_threshold: nan, ..off() }),
        ("logit_bias: must be", "(got NaN)", Sampling { logit_bias: vec![(0, nan)], ..off() }),
        ("logit_bias: must be", "(got -inf)", Sampling { logit_bias: vec![(0, f32::NEG_INFINITY)], ..off() }),
        ("logit_bias: ids must be below 1", "(got 1)", Sampling { logit_bias: vec![(1, 2.0)], ..off() }),
    ];
    for (start, value, sampling) in cases {
        let error = Sampler::new().sample(&[1.0], &[], 0, &sampling, None).unwrap_err();
        let text = error.to_string();
        assert!(
            matches!(error, Error::Request(_)) && text.starts_with(start) && text.contains(value),
            "{error}"
        );
    }
    let penalized = Sampling { repetition_penalty: 1.1, ..off() };
    let error = Sampler::new().sample(&[1.0, 2.0], &[2], 0, &penalized, None).unwrap_err();
    assert!(error.to_string().contains("ids must be below 2 (got 2)"), "{error}");
    let error = Sampler::new().sample(&[1.0, f32::NAN], &[1], 77, &penalized, None).unwrap_err();
    assert!(matches!(error, Error::NonFinite { position: 77, .. }), "{error}");
}
