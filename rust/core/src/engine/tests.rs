//! Law 3 where only the engine's own parts can be broken: what a panic or an error in the middle of a step leaves behind.

use super::*;
use crate::common::{Folder, Noise, SHAPES, engine_with_kv, write_model};
use crate::config::{EmbeddingPosition, LayerRope};
use crate::parts::NormWeights;
use crate::sampling::Sampling;
use ropechat_kernels::kernel::Isa;
use ropechat_kernels::quant::PackedType;
use std::panic::{AssertUnwindSafe, catch_unwind};

const LENGTH: usize = 70; // more than two blocks of the cache
const HIDDEN: usize = SHAPES[0].hidden;

fn ids(seed: u64, length: usize) -> Vec<u32> {
    Noise(seed).ids(length, SHAPES[0].vocab)
}

fn make(folder: &Folder, threads: usize) -> Engine {
    let mut engine = engine_with_kv(folder.path(), PackedType::F32, None, Isa::Scalar, threads).unwrap();
    engine.set_rows_per_step(40);
    engine
}

/// The model, while nobody shares it.
fn model(engine: &mut Engine) -> &mut Model {
    Arc::get_mut(&mut engine.model).expect("the engine alone holds it")
}

fn greedy() -> Goal {
    let sampling = Sampling { temperature: 0.0, ..Sampling::default() };
    Goal::Generate(Generation { sampling, max_tokens: 6, stop_ids: vec![], readout_top_k: 3 })
}

/// One step; its events in words that differ where a bit differs.
fn step(engine: &mut Engine, numbers: &[u64]) -> Result<Vec<String>> {
    let events = engine.step(numbers, &CancelToken::default())?;
    Ok(events.iter().map(|event| format!("{event:?}")).collect())
}

/// The events of all steps to the end.
fn run(engine: &mut Engine, numbers: &[u64]) -> Vec<String> {
    let mut all = Vec::new();
    loop {
        let events = step(engine, numbers).unwrap();
        if events.is_empty() {
            return all;
        }
        all.extend(events);
    }
}

/// Frees everything and gives unused blocks back; the bytes that are still counted.
fn bytes_after_all(engine: &mut Engine) -> usize {
    for number in engine.sequences.keys().copied().collect::<Vec<_>>() {
        engine.free(number);
    }
    engine.set_prefix_bytes(0);
    engine.cache.kv.trim();
    engine.kv_bytes()
}

/// What is broken, and how; each change is undone by swapping once more.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    /// A pool thread finds no learned position: in the embedding.
    Position,
    /// The calling thread finds no angles, in the second layer.
    Angles,
    /// Pool threads find no weight for the norm of keys: in the third layer, beside those that write the cache.
    KeyNorm,
    /// Pool threads find no weight for the last norm: the forward is through, the logits are not.
    LastNorm,
    /// Every logit is NaN, which is an error.
    NaN,
}

/// A step of `numbers` in an engine with the fault; the fault is mended afterwards.
fn step_with(fault: Fault, engine: &mut Engine, numbers: &[u64]) -> std::thread::Result<Result<Vec<String>>> {
    let empty = || NormWeights { weight: vec![], bias: vec![], gate: None };
    let (mut spare, mut spares) = (Some(empty()), Some([empty(), empty()]));
    if fault == Fault::NaN {
        spare = Some(NormWeights { weight: vec![f32::NAN; HIDDEN], bias: vec![0.0; HIDDEN], gate: None });
    }
    let mut swap = |model: &mut Model| match fault {
        Fault::Position => {
            model.config.position = match model.config.position {
                EmbeddingPosition::None => EmbeddingPosition::Learned,
                _ => EmbeddingPosition::None,
            };
        }
        Fault::Angles => {
            let spec = &mut model.layers[1].attention.as_mut().unwrap().spec;
            let LayerRope::Rotary(rope) = spec.rope else { unreachable!() };
            spec.rope = LayerRope::Rotary(99 - rope);
        }
        Fault::KeyNorm => {
            std::mem::swap(&mut model.layers[2].attention.as_mut().unwrap().qk_norms, &mut spares);
        }
        Fault::LastNorm | Fault::NaN => std::mem::swap(&mut model.outside.norm, &mut spare),
    };
    swap(model(engine));
    let result = catch_unwind(AssertUnwindSafe(|| step(engine, numbers)));
    swap(model(engine));
    result
}

#[test]
fn a_step_that_fails_anywhere_leaves_every_sequence_as_it_was() {
    let folder = write_model(SHAPES[0]);
    let begin = |engine: &mut Engine| {
        let score = Goal::score(3);
        let prompt = ids(1, LENGTH / 2).repeat(2); // for drafts
        [engine.add(&prompt, greedy()).unwrap(), engine.add(&ids(2, 33), score).unwrap()]
    };
    for (mode, threads) in [(Speculative::Off, 1), (Speculative::Off, 3), (Speculative::Always, 3)] {
        let make = |threads| {
            let mut engine = make(&folder, threads);
            engine.set_speculative(mode);
            engine
        };
        let expected = {
            let mut engine = make(1);
            let numbers = begin(&mut engine);
            run(&mut engine, &numbers)
        };
        for fault in [Fault::Position, Fault::Angles, Fault::KeyNorm, Fault::LastNorm, Fault::NaN] {
            for steps_before in [0, 1, 2, 5] {
                let name = format!("{fault:?}, {mode:?}, {threads} threads, after {steps_before} steps");
                let mut engine = make(threads);
                let numbers = begin(&mut engine);
                let mut events = Vec::new();
                for _ in 0..steps_before {
                    events.extend(step(&mut engine, &numbers).unwrap());
                }
                let reads_rows = steps_before > 0; // the first step is a piece of a prompt that nobody reads
                for _ in 0..3 {
                    match step_with(fault, &mut engine, &numbers) {
                        Err(_) => assert!(!matches!(fault, Fault::NaN), "{name}"),
                        Ok(Err(error)) => {
                            assert!(
                                matches!((fault, error), (Fault::NaN, Error::NonFinite { .. })),
                                "{name}"
                            );
                        }
                        Ok(Ok(more)) => {
                            assert!(!reads_rows && matches!(fault, Fault::NaN | Fault::LastNorm), "{name}");
                            events.extend(more);
                            break;
                        }
                    }
                    let blocks: usize = engine.sequences.values().map(|s| s.cache.blocks().len()).sum();
                    let cached: usize = engine.sequences.values().map(|s| s.cache.len()).sum();
                    assert_eq!(engine.sequences.len(), 2, "{name}: a sequence is lost");
                    assert!(blocks * crate::kv_cache::BLOCK < cached + 64, "{name}: blocks are left over");
                }
                events.extend(run(&mut engine, &numbers));
                assert_eq!(events, expected, "{name}");
                assert_eq!(bytes_after_all(&mut engine), 0, "{name}: bytes that nobody holds");
            }
        }
    }
}

#[test]
fn a_panic_while_all_logits_are_made_leaves_no_bytes_behind() {
    let folder = write_model(SHAPES[0]);
    let mut engine = make(&folder, 2);
    let ids = ids(3, LENGTH);
    let expected = engine.logits(&ids, &CancelToken::default()).unwrap();
    let weight = std::mem::take(&mut model(&mut engine).outside.norm.as_mut().unwrap().weight);
    assert!(catch_unwind(AssertUnwindSafe(|| engine.logits(&ids, &CancelToken::default()))).is_err());
    model(&mut engine).outside.norm.as_mut().unwrap().weight = weight;
    assert_eq!(bytes_after_all(&mut engine), 0);
    assert_eq!(engine.logits(&ids, &CancelToken::default()).unwrap(), expected);
}

/// Positions that are NaN make one sequence NaN; those beside it, and those that get its memory later, see nothing of it.
#[test]
fn a_sequence_of_nan_harms_no_other() {
    const SOUND: usize = 45;
    let folder = write_model(SHAPES[0]);
    let best = Isa::ALL.into_iter().rev().find(|&isa| Kernels::of(isa).is_ok()).unwrap();
    for isa in [Isa::Scalar, best] {
        for (dtype, kv) in [
            (PackedType::F32, None),
            (PackedType::BF16, Some(PackedType::F16)),
            (PackedType::Q8_0, Some(PackedType::BF16)),
            (PackedType::Q8_0, Some(PackedType::Q8_0)),
        ] {
            let make = |nan: bool| {
                let mut engine = engine_with_kv(folder.path(), dtype, kv, isa, 2).unwrap();
                engine.set_rows_per_step(40);
                let model = model(&mut engine);
                model.config.position = EmbeddingPosition::Learned;
                model.outside.positions = vec![0.0; 200 * HIDDEN];
                if nan {
                    model.outside.positions[SOUND * HIDDEN..].fill(f32::NAN);
                }
                engine
            };
            let name = format!("{dtype:?} {isa:?}");
            let alone = |ids: &[u32], goal: Goal| {
                let mut engine = make(false);
                let number = engine.add(ids, goal).unwrap();
                let events = run_alone(&mut engine, number);
                assert!(!events.is_empty());
                events
            };
            let score = || Goal::score(3);
            for damaged_goal in [greedy(), score()] {
                let mut engine = make(true);
                let damaged = engine.add(&ids(4, 2 * LENGTH), damaged_goal).unwrap();
                let sound = [(ids(5, 30), greedy()), (ids(6, 44), score())];
                let numbers: Vec<u64> =
                    sound.iter().map(|(ids, goal)| engine.add(ids, goal.clone()).unwrap()).collect();
                let mut all = vec![damaged];
                all.extend(&numbers);
                let mut events = Vec::new();
                let error = loop {
                    match engine.step(&all, &CancelToken::default()) {
                        Ok(more) => events.extend(more),
                        Err(error) => break error,
                    }
                    assert!(events.len() < 1000, "{name}: no error");
                };
                assert!(
                    matches!(error, Error::NonFinite { position, .. } if position >= SOUND),
                    "{name}: {error}"
                );
                // What failed together goes on without the one at fault.
                loop {
                    let more = engine.step(&numbers, &CancelToken::default()).unwrap();
                    if more.is_empty() {
                        break;
                    }
                    events.extend(more);
                }
                for (number, (ids, goal)) in numbers.iter().zip(&sound) {
                    let found = rows(&events, *number);
                    assert_eq!(found, alone(ids, goal.clone()), "{name}: beside it");
                }
                // Its blocks serve others, while a sequence is in progress.
                engine.add(&[1], greedy()).unwrap();
                for number in all {
                    engine.free(number);
                }
                engine.set_prefix_bytes(0);
                let bytes = engine.kv_bytes();
                for (ids, goal) in &sound {
                    let number = engine.add(ids, goal.clone()).unwrap();
                    let found = run_alone(&mut engine, number);
                    assert_eq!(found, alone(ids, goal.clone()), "{name}: in its blocks");
                    engine.free(number);
                }
                assert_eq!(engine.kv_bytes(), bytes, "{name}: its blocks were not used");
            }
        }
    }
}

/// Everything but the progress of the prompt, which depends on the company.
fn rows(events: &[(u64, Event)], number: u64) -> Vec<String> {
    let own = events.iter().filter(|(of, event)| *of == number && !matches!(event, Event::Prefill { .. }));
    own.map(|(_, event)| format!("{event:?}")).collect()
}

fn run_alone(engine: &mut Engine, number: u64) -> Vec<String> {
    let mut all = Vec::new();
    loop {
        let events = engine.step(&[number], &CancelToken::default()).unwrap();
        if events.is_empty() {
            return rows(&all, number);
        }
        all.extend(events);
    }
}

/// The rows of a text that is scored from a token on are those of the whole text, also behind a cached context.
#[test]
fn a_text_scored_from_a_token_on_has_the_rows_of_the_whole() {
    let folder = write_model(SHAPES[0]);
    let ids = ids(7, LENGTH);
    let score = |engine: &mut Engine, goal: Goal| {
        let number = engine.add(&ids, goal).unwrap();
        let reused = engine.reused(number).unwrap();
        let events = run_alone(engine, number);
        engine.free(number);
        (reused, events)
    };
    let (_, whole) = score(&mut make(&folder, 1), Goal::score(3));
    for from in [0, 1, 2, 33, LENGTH - 1, LENGTH] {
        for read_next in [true, false] {
            let goal = Goal::Score { readout_top_k: 3, from, read_next };
            let mut engine = make(&folder, 2);
            if from == LENGTH && !read_next {
                assert!(matches!(engine.add(&ids, goal), Err(Error::Request(_))));
                continue;
            }
            let expected = &whole[from..if read_next { LENGTH + 1 } else { LENGTH }];
            let (cold, events) = score(&mut engine, goal.clone());
            assert_eq!((cold, events.as_slice()), (0, expected), "from {from}, next {read_next}");
            let (reused, events) = score(&mut engine, goal);
            assert_eq!(
                (reused, events.as_slice()),
                (from.saturating_sub(1), expected),
                "from {from}, cached"
            );
        }
    }
}
