//! What a trace says of the stages: each sums to 1, the last one is what is drawn, and u with it gives the draw again.

use super::*;
use crate::sampling::readout::Logprobs;

/// Logits with masked ids and ties, and their read-out with every id.
fn row(case: u64) -> (Vec<f32>, Logprobs) {
    let mut logits = bf16(gaussian(300, 1.0 + (case % 3) as f32 as f64, case));
    if case.is_multiple_of(5) {
        logits.iter_mut().step_by(3).for_each(|x| *x = f32::NEG_INFINITY);
    }
    let raw = read_logprobs(&logits, logits.len(), 0).unwrap();
    (logits, raw)
}

const HISTORY: [u32; 9] = [5, 1, 5, 5, 80, 299, 1, 5, 5];

/// `grid` with its biases inside 300 ids.
fn settings() -> Vec<Sampling> {
    let mut all = grid();
    for sampling in &mut all {
        sampling.logit_bias.iter_mut().for_each(|(id, _)| *id %= 300);
    }
    all
}

/// Whether a penalty applies to an id.
fn is_penalized(id: u32, sampling: &Sampling) -> bool {
    let answer = &HISTORY[sampling.answer_start..];
    let of_answer = sampling.presence_penalty != 0.0 || sampling.frequency_penalty != 0.0;
    let last = sampling.dry_penalty_last_n.unwrap_or(HISTORY.len()).min(HISTORY.len());
    let text = &HISTORY[HISTORY.len() - last..];
    (sampling.repetition_penalty != 1.0 && HISTORY.contains(&id))
        || (of_answer && answer.contains(&id))
        || (sampling.dry_multiplier != 0.0
            && longest_repetition(text, id, sampling.dry_allowed_length).is_some())
}

#[test]
fn each_stage_sums_to_1_and_says_what_it_kept() {
    let mut sampler = Sampler::new();
    let mut worst: f64 = 0.0;
    for (case, sampling) in settings().into_iter().enumerate() {
        let (logits, raw) = row(case as u64);
        let draw = sampler.sample(&logits, &HISTORY, case as u64, &sampling, Some(&raw)).unwrap();
        assert_eq!(draw.candidates.len(), raw.top.len());
        for (n, stage) in draw.stages.iter().enumerate() {
            let p: Vec<f64> = draw.candidates.iter().map(|one| one.by_stage[n]).collect();
            worst = worst.max((p.iter().sum::<f64>() - 1.0).abs());
            let entropy = -p.iter().filter(|&&p| p > 0.0).map(|p| p * p.ln()).sum::<f64>();
            assert!((entropy - stage.entropy).abs() < 1e-11, "{stage:?} {entropy} {sampling:?}");
            let names: Vec<_> = draw.stages[..=n].iter().map(|stage| Some(stage.name)).collect();
            let cut =
                draw.candidates.iter().filter(|one| one.cut.is_some() && names.contains(&one.cut)).count();
            assert_eq!(draw.candidates.len() - cut, stage.kept, "{stage:?} {sampling:?}");
        }
        let last: f64 = draw.candidates.iter().map(|one| one.probability).sum();
        worst = worst.max((last - 1.0).abs());
        for one in &draw.candidates {
            assert_eq!(one.by_stage.last().copied().unwrap_or(one.probability), one.probability);
            assert_eq!(one.penalized, is_penalized(one.id, &sampling), "{one:?} {sampling:?}");
        }
    }
    println!("largest |sum - 1| of a stage: {worst:e}");
    assert!(worst < 1e-12, "{worst:e}");
}

#[test]
fn a_stage_is_the_draw_of_the_settings_up_to_it() {
    let mut sampler = Sampler::new();
    for (case, sampling) in settings().into_iter().enumerate() {
        let (logits, raw) = row(case as u64);
        let whole = sampler.explain(&logits, &HISTORY, 0, &sampling, &raw, 7).unwrap();
        let mut upto = Sampling { answer_start: sampling.answer_start, ..off() };
        let mut n = 0;
        for step in SAMPLER_CHAIN.into_iter().filter(|step| step.is_on(&sampling)) {
            match step {
                ChainStep::Forced | ChainStep::Grammar => unreachable!("not settings"),
                ChainStep::LogitBias => upto.logit_bias = sampling.logit_bias.clone(),
                ChainStep::RepetitionPenalty => upto.repetition_penalty = sampling.repetition_penalty,
                ChainStep::PresencePenalty => upto.presence_penalty = sampling.presence_penalty,
                ChainStep::FrequencyPenalty => upto.frequency_penalty = sampling.frequency_penalty,
                ChainStep::Dry => {
                    upto.dry_multiplier = sampling.dry_multiplier;
                    upto.dry_allowed_length = sampling.dry_allowed_length;
                    upto.dry_penalty_last_n = sampling.dry_penalty_last_n;
                }
                ChainStep::TopNSigma => upto.top_n_sigma = sampling.top_n_sigma,
                ChainStep::Xtc => {
                    upto.xtc_probability = sampling.xtc_probability;
                    upto.xtc_threshold = sampling.xtc_threshold;
                }
                ChainStep::Temperature => upto.temperature = sampling.temperature,
                ChainStep::TopK => upto.top_k = sampling.top_k,
                ChainStep::TopP => upto.top_p = sampling.top_p,
                ChainStep::MinP => upto.min_p = sampling.min_p,
            }
            let part = sampler.explain(&logits, &HISTORY, 0, &upto, &raw, 7).unwrap();
            assert_eq!(part.stages, whole.stages[..=n], "{sampling:?}");
            for (one, other) in part.candidates.iter().zip(&whole.candidates) {
                assert_eq!(one.by_stage, other.by_stage[..=n]);
                assert_eq!(one.probability, other.by_stage[n]);
            }
            n += 1;
        }
        assert_eq!(n, whole.stages.len());
    }
}

/// The id that u selects when the survivors lie side by side in order of rank.
fn replayed(candidates: &[Candidate], u: f64) -> u32 {
    let mut survivors: Vec<_> = candidates.iter().filter(|one| one.cut.is_none()).collect();
    survivors.sort_by_key(|one| one.rank);
    let mut end = 0.0;
    for one in &survivors {
        end += one.probability;
        if u < end {
            return one.id;
        }
    }
    survivors[survivors.len() - 1].id
}

#[test]
fn twenty_thousand_draws_are_replayed_and_follow_the_last_stage() {
    let all = [
        off(),
        Sampling { temperature: 0.7, top_k: 40, top_p: 0.95, ..off() },
        Sampling { temperature: 1.3, min_p: 0.02, repetition_penalty: 1.3, ..off() },
        Sampling { top_p: 0.9, logit_bias: vec![(5, 2.0), (299, -100.0)], seed: 12, ..off() },
        Sampling { presence_penalty: 1.5, answer_start: 1, ..off() },
        Sampling { frequency_penalty: -0.5, ..off() },
        Sampling { dry_multiplier: 0.8, dry_allowed_length: 1, ..off() },
        Sampling { top_n_sigma: 1.5, ..off() },
        Sampling { xtc_probability: 1.0, xtc_threshold: 0.01, ..off() },
        Sampling { xtc_probability: 0.4, xtc_threshold: 0.02, top_p: 0.9, ..off() },
    ];
    let (logits, raw) = row(3);
    let mut sampler = Sampler::new();
    for sampling in all {
        let mut counts = vec![0u64; logits.len()];
        let mut expected = vec![0.0; logits.len()];
        for position in 0..20_000 {
            let draw = sampler.sample(&logits, &HISTORY, position, &sampling, Some(&raw)).unwrap();
            let u = draw.u.unwrap();
            assert_eq!(replayed(&draw.candidates, u), draw.id, "{sampling:?} {position}");
            let (start, end) = draw.interval.unwrap();
            assert!(start <= u && u < end, "{start} {u} {end}");
            counts[draw.id as usize] += 1;
        }
        // Nothing is drawn here, so XTC's two cases are weighed.
        let given = sampler.explain(&logits, &HISTORY, 0, &sampling, &raw, 0).unwrap();
        given.candidates.iter().for_each(|one| expected[one.id as usize] = one.probability);
        let (statistic, critical) = chance::statistic(&counts, &expected);
        println!("seed {}: chi-square {statistic:.1}, critical {critical:.1} at p = 0.001", sampling.seed);
        assert!(statistic < critical, "{statistic} {critical} {sampling:?}");
    }
}

#[test]
fn a_given_token_has_the_record_of_a_drawn_one() {
    let mut sampler = Sampler::new();
    for (case, sampling) in settings().into_iter().enumerate() {
        let (logits, _) = row(case as u64);
        let raw = read_logprobs(&logits, 4, 0).unwrap();
        let drawn = sampler.sample(&logits, &HISTORY, 9, &sampling, Some(&raw)).unwrap();
        let given = sampler.explain(&logits, &HISTORY, 9, &sampling, &raw, drawn.id).unwrap();
        let is_random = ChainStep::Xtc.is_on(&sampling) && sampling.xtc_probability < 1.0;
        let mut drawn = Draw { u: None, ..drawn };
        drawn.stages.iter_mut().filter(|stage| stage.name == "xtc").for_each(|stage| stage.value = None);
        if is_random {
            let before = drawn.stages.len() - 1;
            assert_eq!(given.stages[..before], drawn.stages[..before]);
        } else {
            assert_eq!(given, drawn, "{sampling:?}");
        }
        // Any other token too: the ranks are those of a full sort, the intervals lie side by side.
        let mut last = None;
        for id in [1, 7, 80, 160, 299] {
            let told = sampler.explain(&logits, &HISTORY, 9, &sampling, &raw, id).unwrap();
            let own = told.candidates.iter().find(|one| one.id == id).unwrap();
            let has_both = is_random && told.stages.last().is_some_and(|stage| stage.value.is_none());
            assert!(told.interval.is_some() == (own.probability > 0.0) || has_both);
            if let Some((start, end)) = told.interval {
                assert!(((end - start) - own.probability).abs() < 1e-12, "{told:?}");
                last = last.max(Some(own.rank));
            } else if logits[id as usize].is_finite() && own.probability == 0.0 {
                assert!(own.cut.is_some() && last.is_none_or(|rank| rank < own.rank || own.rank > 0));
            }
        }
    }
    let error =
        sampler.explain(&[1.0], &[], 0, &off(), &read_logprobs(&[1.0], 1, 0).unwrap(), 1).unwrap_err();
    assert!(error.to_string().contains("(got 1)"), "{error}");
}

#[test]
fn ranks_are_those_of_a_full_sort_after_bias_and_penalty() {
    let mut sampler = Sampler::new();
    for case in 0..20 {
        let (logits, raw) = row(case);
        let sampling = Sampling {
            repetition_penalty: 1.7,
            logit_bias: vec![(5, 2.0), (80, -1.0)],
            top_k: [0, 3][case as usize % 2],
            ..off()
        };
        let told = sampler.explain(&logits, &HISTORY, 0, &sampling, &raw, raw.top[0].0).unwrap();
        let mut adjusted = logits.clone();
        let mut adjustments = Adjustments::default();
        for step in [ChainStep::LogitBias, ChainStep::RepetitionPenalty] {
            adjustments.apply(step, &mut adjusted, &HISTORY, &sampling).unwrap();
        }
        let order = ranked(&adjusted);
        for one in &told.candidates {
            assert_eq!(order[one.rank - 1], one.id, "case {case}");
        }
    }
}

#[test]
fn greedy_keeps_the_best_one() {
    let mut sampler = Sampler::new();
    let logits = [1.0, 3.0, 3.0, 2.0];
    let raw = read_logprobs(&logits, 4, 0).unwrap();
    let sampling = Sampling { temperature: 0.0, top_k: 2, repetition_penalty: 3.0, ..off() };
    let draw = sampler.sample(&logits, &[1], 0, &sampling, Some(&raw)).unwrap();
    let names: Vec<_> = draw.stages.iter().map(|stage| (stage.name, stage.kept)).collect();
    assert_eq!(names, [("repetition_penalty", 4), ("temperature", 1)]);
    assert_eq!((draw.id, draw.u, draw.interval), (2, None, Some((0.0, 1.0))));
    let cuts: Vec<_> =
        draw.candidates.iter().map(|one| (one.id, one.rank, one.cut, one.probability)).collect();
    let cut = Some("temperature");
    assert_eq!(cuts, [(1, 4, cut, 0.0), (2, 1, None, 1.0), (3, 2, cut, 0.0), (0, 3, cut, 0.0)]);
}

#[test]
fn bias_and_penalty_are_stages_of_their_own() {
    let logits = [1.0, 2.0, 0.5];
    let raw = read_logprobs(&logits, 3, 0).unwrap();
    let sampling = Sampling { logit_bias: vec![(0, 1.0)], repetition_penalty: 2.0, ..off() };
    let told = Sampler::new().explain(&logits, &[1], 0, &sampling, &raw, 0).unwrap();
    let softmax = |x: [f64; 3]| x.map(|v| v.exp() / x.iter().map(|v| v.exp()).sum::<f64>());
    let [biased, penalized] = [softmax([2.0, 2.0, 0.5]), softmax([2.0, 1.0, 0.5])];
    for one in &told.candidates {
        assert!((one.by_stage[0] - biased[one.id as usize]).abs() < 1e-15);
        assert!((one.by_stage[1] - penalized[one.id as usize]).abs() < 1e-15);
    }
}

#[test]
fn of_a_given_token_xtc_has_the_mean_of_its_two_cases() {
    let (logits, raw) = row(3);
    let mut sampler = Sampler::new();
    let told = |probability, sampler: &mut Sampler| {
        let sampling = Sampling { xtc_probability: probability, xtc_threshold: 0.01, top_k: 50, ..off() };
        sampler.explain(&logits, &HISTORY, 0, &sampling, &raw, raw.top[0].0).unwrap()
    };
    let (never, always) = (told(0.0, &mut sampler), told(1.0, &mut sampler));
    let removed = never.stages[0].kept - always.stages[1].kept;
    assert!(removed > 3, "{removed}");
    for (at, one) in always.candidates.iter().enumerate() {
        assert_eq!(one.cut == Some("xtc"), one.rank <= removed, "{at} {one:?}");
    }
    assert_eq!((always.interval, never.interval.map(|(start, _)| start)), (None, Some(0.0)));
    let sometimes = told(0.25, &mut sampler);
    assert_eq!(sometimes.interval, None);
    assert_eq!((sometimes.stages[1].kept, sometimes.stages[1].value), (50, None));
    for (at, one) in sometimes.candidates.iter().enumerate() {
        let mean = 0.75 * never.candidates[at].probability + 0.25 * always.candidates[at].probability;
        assert!((one.probability - mean).abs() < 1e-15);
    }
}

#[test]
fn penalties_of_the_answer_leave_the_prompt_alone() {
    let logits = [1.0; 6];
    let raw = read_logprobs(&logits, 6, 0).unwrap();
    let sampling = Sampling { presence_penalty: 1.0, frequency_penalty: 0.5, answer_start: 2, ..off() };
    let told = Sampler::new().explain(&logits, &[0, 1, 1, 2, 2], 0, &sampling, &raw, 0).unwrap();
    let log_odds: Vec<f64> =
        [0, 1, 2].map(|id| (told.candidates[id].probability / told.candidates[5].probability).ln()).to_vec();
    for (id, (got, expected)) in log_odds.iter().zip([0.0, -1.5, -2.0]).enumerate() {
        assert!((got - expected).abs() < 1e-6, "{id}: {got}");
    }
    let names: Vec<_> = told.stages.iter().map(|stage| stage.name).collect();
    assert_eq!(names, ["presence_penalty", "frequency_penalty"]);
}
