//! Laws 1 and 3 of docs/architecture.md, in bits: on every ISA that this CPU has, every weight type, awkward shapes.

use crate::common::{Folder, Noise, SHAPES, engine, engine_of, few_ids, greedy, model, write_model};
use ropechat_core::Error;
use ropechat_core::engine::{Engine, Event, FinishReason, Generation, Goal, Speculative};
use ropechat_core::sampling::Sampling;
use ropechat_kernels::compute::cancel::CancelToken;
use ropechat_kernels::kernel::{Isa, Kernels};
use ropechat_kernels::quant::PackedType;
use std::sync::OnceLock;

const LENGTH: usize = 70; // more than two blocks of the cache

fn models() -> &'static [Folder; 3] {
    static MODELS: OnceLock<[Folder; 3]> = OnceLock::new();
    MODELS.get_or_init(|| SHAPES.map(write_model))
}

/// Every model, type and ISA, with a fresh prompt.
fn for_all(mut test: impl FnMut(&dyn Fn(usize) -> Engine, Vec<u32>, String)) {
    for (shape, folder) in SHAPES.iter().zip(models()) {
        for dtype in PackedType::ALL {
            let mut loaded = [None, None]; // with keys and values in f16 and in bf16
            for kernels in Isa::ALL.into_iter().filter_map(|isa| Kernels::of(isa).ok()) {
                let isa = kernels.isa();
                let place = &mut loaded[usize::from(kernels.multiplies_bf16())];
                let model = place.get_or_insert_with(|| model(folder.path(), dtype, None, kernels));
                let make = |threads| engine_of(model.clone(), kernels, threads);
                let name = format!("head_dim {} {dtype:?} {isa:?}", shape.head_dim);
                test(&make, Noise(9).ids(LENGTH, shape.vocab), name);
            }
        }
    }
}

fn logits(engine: &mut Engine, ids: &[u32]) -> Vec<u32> {
    let all = engine.logits(ids, &CancelToken::default()).unwrap();
    assert!(all.iter().all(|x| x.is_finite()));
    all.iter().map(|x| x.to_bits()).collect()
}

/// What identifies a scored or generated token in bits: position, id, logprob, log-sum-exp, entropy.
type Bits = (usize, u32, u64, u64, u64);

fn bits(event: &Event) -> Option<Bits> {
    let (Event::Score(scored) | Event::Token { scored, .. }) = event else { return None };
    let (row, (logprob, _)) = (scored.row.as_ref()?, scored.logprob_and_rank?);
    Some((scored.position, scored.id, logprob.to_bits(), row.logsumexp.to_bits(), row.entropy.to_bits()))
}

/// Runs sequences to their end; the token records of each.
fn run(engine: &mut Engine, numbers: &[u64]) -> Vec<Vec<Bits>> {
    run_counted(engine, numbers).0
}

/// As [`run`], and how many steps there were.
fn run_counted(engine: &mut Engine, numbers: &[u64]) -> (Vec<Vec<Bits>>, usize) {
    let mut records = vec![Vec::new(); numbers.len()];
    for steps in 0.. {
        let events = engine.step(numbers, &CancelToken::default()).unwrap();
        if events.is_empty() {
            return (records, steps);
        }
        for (number, event) in &events {
            let index = numbers.iter().position(|n| n == number).unwrap();
            records[index].extend(bits(event));
        }
    }
    unreachable!("sequences end")
}

#[test]
fn chunks_and_threads_do_not_change_a_bit() {
    for_all(|make, ids, name| {
        let expected = logits(&mut make(1), &ids);
        for threads in [2, 3] {
            assert!(logits(&mut make(threads), &ids) == expected, "{name}: {threads} threads");
        }
        for chunk in [1, 2, 31, 32, 64] {
            let mut engine = make(2);
            engine.set_rows_per_step(chunk);
            assert!(logits(&mut engine, &ids) == expected, "{name}: chunks of {chunk}");
        }
    });
}

/// Attention joins chunks of 256 positions, which threads share when rows are few.
#[test]
fn long_sequences_are_joined_alike_by_any_cut() {
    const LONG: usize = 600;
    for (shape, folder) in SHAPES.iter().zip(models()) {
        for dtype in [PackedType::F32, PackedType::Q8_0] {
            let make = |threads| engine(folder.path(), dtype, Isa::Scalar, threads).unwrap();
            let ids = Noise(11).ids(LONG, shape.vocab);
            let mut expected = None;
            for (threads, rows) in [(1, 512), (3, 512), (1, 1), (3, 1), (3, 7), (2, 200)] {
                let mut engine = make(threads);
                engine.set_rows_per_step(rows);
                let found = logits(&mut engine, &ids);
                let expected = expected.get_or_insert_with(|| found.clone());
                assert!(found == *expected, "{dtype:?}: {threads} threads, {rows} rows per step");
            }
        }
    }
}

#[test]
fn company_does_not_change_a_bit() {
    for_all(|make, ids, name| {
        let mut engine = make(2);
        let alone = engine.add(&ids, Goal::score(3)).unwrap();
        let expected = run(&mut engine, &[alone]).remove(0);
        for company in [2, 7, 33] {
            let mut engine = make(2);
            let numbers: Vec<u64> = (0..company)
                .map(|i| {
                    // The sequence under test stands in the middle of others of other lengths.
                    let prompt: Vec<u32> =
                        if i == company / 2 { ids.clone() } else { ids[i % 20..30 + i].to_vec() };
                    engine.add(&prompt, Goal::score(3)).unwrap()
                })
                .collect();
            let records = run(&mut engine, &numbers);
            assert!(records[company / 2] == expected, "{name}: batch of {company}");
        }
    });
}

#[test]
fn generated_tokens_score_the_same_and_a_cached_prefix_changes_nothing() {
    for_all(|make, ids, name| {
        let mut engine = make(2);
        let first = engine.add(&ids[..20], greedy(40)).unwrap();
        let generated = run(&mut engine, &[first]).remove(0);
        assert_eq!(generated.len(), 40, "{name}");
        let whole: Vec<u32> = ids[..20].iter().copied().chain(generated.iter().map(|r| r.1)).collect();

        let scored = engine.add(&whole, Goal::score(3)).unwrap();
        let scored = run(&mut engine, &[scored]).remove(0);
        assert!(scored[19..] == generated[..], "{name}: scored against generated");

        let again = engine.add(&whole[..45], greedy(15)).unwrap();
        assert_eq!(engine.reused(again).unwrap(), 44, "{name}: the prefix is in the cache");
        assert!(run(&mut engine, &[again])[0] == generated[25..], "{name}: from a cached prefix");

        engine.free(first);
        let ended = engine.add(&whole[..33], greedy(5)).unwrap();
        assert_eq!(engine.reused(ended).unwrap(), 32, "{name}: the cache of ended sequences serves too");
        assert!(run(&mut engine, &[ended])[0] == generated[13..18], "{name}: from an ended sequence");
    });
}

/// Drafts are verified by rows of the same pass: tokens, their numbers and how sequences end stay, with fewer steps.
#[test]
fn drafted_tokens_do_not_change_a_bit() {
    let steps = std::cell::Cell::new([0, 0]);
    for_all(|make, ids, name| {
        let repeated = ids[..12].repeat(4);
        let run_in = |mode: Speculative| {
            let mut engine = make(2);
            engine.set_speculative(mode);
            let goals = [0.0, 0.4, 1.0].map(|temperature| few_ids(45, &ids[..3], temperature));
            let mut numbers: Vec<u64> =
                goals.into_iter().map(|goal| engine.add(&repeated, goal).unwrap()).collect();
            let Goal::Generate(mut stopping) = few_ids(45, &ids[..4], 1.0) else { unreachable!() };
            stopping.stop_ids = vec![ids[3]];
            numbers.push(engine.add(&repeated[..20], Goal::Generate(stopping)).unwrap());
            numbers.push(engine.add(&ids, Goal::score(3)).unwrap());
            run_counted(&mut engine, &numbers)
        };
        let ((expected, before), (found, after)) = (run_in(Speculative::Off), run_in(Speculative::Always));
        assert!(found == expected, "{name}");
        let [all_before, all_after] = steps.get();
        steps.set([all_before + before, all_after + after]);
    });
    let [before, after] = steps.get();
    assert!(after * 5 < before * 4, "{after} steps with drafts, {before} without");
}

#[test]
fn a_cancel_at_any_layer_leaves_no_trace() {
    let layers = SHAPES[0].layers;
    let ids = Noise(11).ids(LENGTH, SHAPES[0].vocab);
    let make = || engine(models()[0].path(), PackedType::F32, Isa::Scalar, 2).unwrap();
    let expected = {
        let mut engine = make();
        let number = engine.add(&ids, greedy(6)).unwrap();
        run(&mut engine, &[number])
    };
    for check in 1..=layers + 1 {
        for steps_before in [0, 1, 3] {
            let mut engine = make();
            engine.set_rows_per_step(40);
            let number = engine.add(&ids, greedy(6)).unwrap();
            let mut records = Vec::new();
            for _ in 0..steps_before {
                let events = engine.step(&[number], &CancelToken::default()).unwrap();
                records.extend(events.iter().filter_map(|(_, event)| bits(event)));
            }
            let kv_bytes = engine.kv_bytes();
            let result = engine.step(&[number], &CancelToken::at_check(check));
            let reaches_readout = steps_before > 0;
            if check <= layers || reaches_readout {
                assert!(matches!(result, Err(Error::Cancelled)), "check {check} after {steps_before} steps");
                assert!(engine.kv_bytes() >= kv_bytes);
            }
            if let Ok(events) = result {
                records.extend(events.iter().filter_map(|(_, event)| bits(event)));
            }
            records.extend(run(&mut engine, &[number]).remove(0));
            assert_eq!(vec![records], expected, "check {check} after {steps_before} steps");
        }
    }
}

/// Whoever generates gets a token in every step, in whatever order the sequences are named.
#[test]
fn a_long_prompt_delays_no_sequence_that_generates() {
    let noise = &mut Noise(17);
    let (short, long) = (noise.ids(5, SHAPES[0].vocab), noise.ids(LENGTH, SHAPES[0].vocab));
    let mut engine = engine(models()[0].path(), PackedType::F32, Isa::Scalar, 2).unwrap();
    engine.set_rows_per_step(8);
    let writing = engine.add(&short, greedy(20)).unwrap();
    engine.step(&[writing], &CancelToken::default()).unwrap();
    let reading = engine.add(&long, greedy(1)).unwrap();
    for numbers in [[reading, writing], [writing, reading]].into_iter().cycle().take(LENGTH / 8) {
        let events = engine.step(&numbers, &CancelToken::default()).unwrap();
        let kinds: Vec<_> =
            events.iter().map(|(number, event)| (*number, matches!(event, Event::Token { .. }))).collect();
        assert!(kinds.contains(&(writing, true)) && kinds.contains(&(reading, false)), "{kinds:?}");
    }
}

#[test]
fn a_draw_depends_on_seed_stream_and_position_only() {
    let ids = Noise(12).ids(30, SHAPES[1].vocab);
    let sampling = |seed, stream| Sampling {
        temperature: 0.9,
        top_k: 50,
        top_p: 0.95,
        min_p: 0.01,
        repetition_penalty: 1.1,
        seed,
        stream,
        ..Sampling::default()
    };
    let mut engine = engine(models()[1].path(), PackedType::F32, Isa::Scalar, 2).unwrap();
    let mut generate = |prompt: &[u32], seed, stream, max_tokens| {
        let goal =
            Generation { sampling: sampling(seed, stream), max_tokens, stop_ids: vec![], readout_top_k: 0 };
        let number = engine.add(prompt, Goal::Generate(goal)).unwrap();
        run(&mut engine, &[number]).remove(0).iter().map(|r| r.1).collect::<Vec<u32>>()
    };
    let whole = generate(&ids, 5, 0, 20);
    assert_eq!(generate(&ids, 5, 0, 20), whole);
    assert_ne!(generate(&ids, 6, 0, 20), whole);
    assert_ne!(generate(&ids, 5, 1, 20), whole);
    // A fork in the middle reproduces the old tail.
    let middle: Vec<u32> = ids.iter().chain(&whole[..8]).copied().collect();
    assert_eq!(generate(&middle, 5, 0, 12), whole[8..]);
}

#[test]
fn a_sequence_ends_at_a_stop_id_at_max_tokens_and_at_the_context() {
    let ids = Noise(13).ids(10, SHAPES[0].vocab);
    let mut engine = engine(models()[0].path(), PackedType::F32, Isa::Scalar, 1).unwrap();
    let mut last = |goal: Goal, prompt: &[u32]| {
        let number = engine.add(prompt, goal).unwrap();
        let mut ids = Vec::new();
        loop {
            for (_, event) in engine.step(&[number], &CancelToken::default()).unwrap() {
                if let Event::Token { scored, finish_reason, .. } = event {
                    ids.push(scored.id);
                    if let Some(reason) = finish_reason {
                        return (ids, reason);
                    }
                }
            }
        }
    };
    let (all, reason) = last(greedy(5), &ids);
    assert_eq!((all.len(), reason), (5, FinishReason::Length));
    let Goal::Generate(mut stopping) = greedy(50) else { unreachable!() };
    stopping.stop_ids = vec![all[2]];
    let (stopped, reason) = last(Goal::Generate(stopping), &ids);
    assert_eq!(reason, FinishReason::Stop);
    assert_eq!(stopped.last(), Some(&all[2]));
    let long: Vec<u32> = ids.iter().cycle().take(695).copied().collect();
    let (full, reason) = last(greedy(50), &long);
    assert_eq!((full.len(), reason), (5, FinishReason::Context));
    assert!(matches!(
        engine.add(&ids.repeat(80), greedy(1)),
        Err(Error::ContextFull { tokens: 800, context: 700 })
    ));
    assert!(matches!(engine.add(&[105], greedy(1)), Err(Error::Request(_))));
    assert!(matches!(engine.add(&[], greedy(1)), Err(Error::Request(_))));
    assert!(matches!(engine.step(&[999], &CancelToken::default()), Err(Error::Request(_))));
}

/// Words of a letter or two by id, so that a grammar leaves some of them; the last id ends an answer.
#[cfg(feature = "grammar")]
fn grammar(vocab: usize) -> ropechat_core::sampling::grammar::Grammar {
    use ropechat_core::sampling::grammar::{Source, Vocabulary};
    let letter = |i: usize| b'a' + (i % 26) as u8;
    let tokens =
        (0..vocab).map(|i| if i % 3 == 0 { vec![letter(i)] } else { vec![letter(i / 3), letter(i)] });
    let last = vocab as u32 - 1;
    let vocabulary = Vocabulary::new(tokens.collect(), &[(last, "<end>".into())], &[last]).unwrap();
    vocabulary.compile(&Source::Regex("([a-m]{3}[n-z]){4,9}".into())).unwrap()
}

#[cfg(feature = "grammar")]
#[test]
fn a_masked_draw_is_the_same_in_company_and_from_a_given_beginning() {
    let prompt = Noise(14).ids(30, SHAPES[1].vocab);
    let grammar = grammar(SHAPES[1].vocab);
    let goal = |stream, max_tokens| {
        let sampling = Sampling { seed: 9, stream, ..Sampling::default() };
        let stop_ids = vec![SHAPES[1].vocab as u32 - 1];
        Goal::Generate(Generation { sampling, max_tokens, stop_ids, readout_top_k: 3 })
    };
    let make = |threads| engine(models()[1].path(), PackedType::F32, Isa::Scalar, threads).unwrap();
    let add = |engine: &mut Engine, ids: &[u32], stream, max_tokens, from| {
        let number = engine.add(ids, goal(stream, max_tokens)).unwrap();
        engine.constrain(number, None, Some(&grammar), from).unwrap();
        number
    };
    let mut alone = make(1);
    let number = add(&mut alone, &prompt, 5, 30, 30);
    let expected = run(&mut alone, &[number]).remove(0);
    let drawn: Vec<u32> = expected.iter().map(|record| record.1).collect();
    assert!(drawn.len() >= 8, "{drawn:?}");
    for company in [2, 7, 33] {
        let mut engine = make(2);
        let numbers: Vec<u64> = (0..company)
            .map(|i| add(&mut engine, &prompt, if i == company / 2 { 5 } else { 100 + i as u64 }, 30, 30))
            .collect();
        assert!(run(&mut engine, &numbers)[company / 2] == expected, "batch of {company}");
    }
    // Drafts are masked as what is drawn one by one.
    let said = [&prompt[..], &drawn, &prompt, &drawn[..2]].concat();
    let [one_by_one, drafted] = [Speculative::Off, Speculative::Always].map(|mode| {
        let mut engine = make(2);
        engine.set_speculative(mode);
        let numbers: Vec<u64> = [said.len() - 2, said.len()]
            .into_iter()
            .flat_map(|from| (0..9).map(move |stream| (from, stream)))
            .map(|(from, stream)| add(&mut engine, &said, stream, 30, from))
            .collect();
        run_counted(&mut engine, &numbers)
    });
    assert!(drafted.0 == one_by_one.0);
    assert!(drafted.1 <= one_by_one.1);
    // What a sequence begins with is matched first.
    let begun = [&prompt[..], &drawn[..5]].concat();
    let mut engine = make(2);
    let number = add(&mut engine, &begun, 5, 25, 30);
    let tail: Vec<u32> = run(&mut engine, &[number]).remove(0).iter().map(|record| record.1).collect();
    assert_eq!(tail, drawn[5..]);
    // A cancelled step takes nothing.
    let number = add(&mut engine, &prompt, 5, 30, 30);
    let cancelled = CancelToken::default();
    cancelled.cancel();
    for _ in 0..3 {
        assert!(matches!(engine.step(&[number], &cancelled), Err(Error::Cancelled)));
    }
    assert!(run(&mut engine, &[number]).remove(0) == expected);
    let free = engine.add(&prompt, goal(5, 30)).unwrap();
    let bad = [&prompt[..], &[1, 1, 1, 1][..]].concat();
    let number = engine.add(&bad, goal(5, 30)).unwrap();
    assert!(matches!(engine.constrain(number, None, Some(&grammar), 30), Err(Error::Request(_))));
    assert_ne!(run(&mut engine, &[free]).remove(0).iter().map(|r| r.1).collect::<Vec<_>>(), drawn);
}
