//! Prefixes in the KV cache: what is computed once, what is kept, and that none of it changes a bit.

use crate::common::{Noise, SHAPES, engine_with_kv, greedy, write_model};
use ropechat_core::engine::{Engine, Event, Goal};
use ropechat_kernels::compute::cancel::CancelToken;
use ropechat_kernels::kernel::Isa;
use ropechat_kernels::quant::PackedType;
use std::collections::BTreeMap;

const VOCAB: usize = SHAPES[0].vocab;
const BLOCK: usize = 32;

fn below(noise: &mut Noise, end: usize) -> usize {
    (((noise.next() + 1.0) * 0.5 * end as f32) as usize).min(end - 1)
}

/// Position, id and logprob in bits of a scored or generated token.
type Bits = (usize, u32, u64);

fn step(engine: &mut Engine, numbers: &[u64], found: &mut BTreeMap<u64, Vec<Bits>>) -> bool {
    let events = engine.step(numbers, &CancelToken::default()).unwrap();
    for (number, event) in &events {
        let (Event::Score(scored) | Event::Token { scored, .. }) = event else { continue };
        let Some((logprob, _)) = scored.logprob_and_rank else { continue };
        found.entry(*number).or_default().push((scored.position, scored.id, logprob.to_bits()));
    }
    !events.is_empty()
}

/// Adds the prompts together, runs them to the end and frees them; what was found of each, and its reused tokens.
fn run(engine: &mut Engine, prompts: &[(Vec<u32>, Goal)]) -> Vec<(Vec<Bits>, usize)> {
    let numbers: Vec<u64> =
        prompts.iter().map(|(ids, goal)| engine.add(ids, goal.clone()).unwrap()).collect();
    let mut found = BTreeMap::new();
    while step(engine, &numbers, &mut found) {}
    let mut results = Vec::new();
    for number in numbers {
        results.push((found.remove(&number).unwrap(), engine.reused(number).unwrap()));
        engine.free(number);
    }
    results
}

#[test]
fn a_common_prefix_is_computed_once_in_any_company() {
    let folder = write_model(SHAPES[0]);
    let prompts = |prefixes: usize, count: usize| -> Vec<(Vec<u32>, Goal)> {
        let mut noise = Noise(5);
        let prefixes: Vec<Vec<u32>> = (0..prefixes).map(|_| noise.ids(385, VOCAB)).collect();
        let prompt = |i: usize| [&prefixes[i % prefixes.len()][..], &noise.ids(4, VOCAB)].concat();
        (0..count).map(prompt).map(|ids| (ids, greedy(1))).collect()
    };
    for (prefixes, window, count, least) in [
        (1, 1, 256, 97),
        (1, 16, 256, 97),
        (1, 64, 256, 97),
        (1, 256, 256, 97),
        (16, 8, 320, 90),
        (32, 8, 640, 90),
    ] {
        let mut engine = engine_with_kv(folder.path(), PackedType::F32, None, Isa::Scalar, 2).unwrap();
        let (mut reused, mut tokens) = (0, 0);
        for together in prompts(prefixes, count).chunks(window) {
            reused += run(&mut engine, together).iter().map(|(_, reused)| reused).sum::<usize>();
            tokens += together.iter().map(|(ids, _)| ids.len()).sum::<usize>();
        }
        let share = 100 * reused / tokens;
        assert!(share >= least, "{prefixes} prefixes, {window} together: {share} % of the tokens are reused");
    }
}

/// Prompts that begin like others, in changing company, cancelled and freed at any time, with little memory.
#[test]
fn no_company_and_no_limit_changes_a_bit() {
    let folder = write_model(SHAPES[0]);
    for (seed, kv) in (1..).zip([PackedType::F32, PackedType::F16, PackedType::Q8_0]) {
        let make = || engine_with_kv(folder.path(), PackedType::F32, Some(kv), Isa::Scalar, 2).unwrap();
        let mut noise = Noise(seed);
        println!("seed {seed}");
        let mut prompts = vec![(noise.ids(100, VOCAB), greedy(40))];
        while prompts.len() < 24 {
            let other = &prompts[below(&mut noise, prompts.len())].0;
            let shared = below(&mut noise, other.len() + 1);
            let own = 2 + below(&mut noise, 60);
            let ids = [&other[..shared], &noise.ids(own, VOCAB)].concat();
            let from = below(&mut noise, ids.len());
            let score = Goal::Score { readout_top_k: 0, from, read_next: false };
            let goal = if prompts.len() % 3 == 0 { score } else { greedy(1 + below(&mut noise, 50)) };
            prompts.push((ids, goal));
        }
        let mut alone = make();
        alone.set_prefix_bytes(0);
        let expected: Vec<Vec<Bits>> = prompts
            .iter()
            .flat_map(|prompt| run(&mut alone, std::slice::from_ref(prompt)))
            .map(|(found, reused)| {
                assert_eq!(reused, 0, "nothing is kept");
                found
            })
            .collect();
        assert_eq!(alone.kv_bytes(), 0);

        let block_bytes = {
            let mut engine = make();
            run(&mut engine, &[(vec![1], greedy(1))]);
            engine.kv_bytes()
        };
        let mut all_reused = 0;
        for (limit, rows) in [(0, 40), (block_bytes, 64), (5 * block_bytes, 33), (1 << 26, 128)] {
            let mut engine = make();
            engine.set_prefix_bytes(limit);
            engine.set_rows_per_step(rows);
            let mut waiting: Vec<usize> = (0..prompts.len()).rev().chain(0..prompts.len()).collect();
            let mut active: Vec<(u64, usize)> = Vec::new();
            let mut found = BTreeMap::new();
            while !waiting.is_empty() || !active.is_empty() {
                while active.len() < 6 && !waiting.is_empty() {
                    let index = waiting.pop().unwrap();
                    let (ids, goal) = &prompts[index];
                    active.push((engine.add(ids, goal.clone()).unwrap(), index));
                }
                let cancelled = CancelToken::default();
                cancelled.cancel();
                match below(&mut noise, 12) {
                    0 => {
                        let (number, index) = active.remove(below(&mut noise, active.len()));
                        engine.free(number); // begins anew later
                        found.remove(&number);
                        waiting.insert(0, index);
                    }
                    1 => {
                        let numbers: Vec<u64> = active.iter().map(|(number, _)| *number).collect();
                        assert!(engine.step(&numbers, &cancelled).is_err());
                    }
                    2 => drop(step(&mut engine, &[active[0].0], &mut found)),
                    _ => {}
                }
                let numbers: Vec<u64> = active.iter().map(|(number, _)| *number).collect();
                step(&mut engine, &numbers, &mut found);
                active.retain(|&(number, index)| {
                    let now = found.get(&number).map_or(0, Vec::len);
                    let done = now == expected[index].len();
                    if done {
                        assert_eq!(found[&number], expected[index], "{kv:?}, limit {limit}, prompt {index}");
                        all_reused += engine.reused(number).unwrap();
                        engine.free(number);
                    }
                    !done
                });
                let in_use =
                    prompts.iter().map(|(ids, _)| (ids.len() + 50).div_ceil(BLOCK)).max().unwrap() * 7;
                assert!(engine.kv_bytes() <= limit + 2 * in_use * block_bytes, "{kv:?}, limit {limit}");
            }
            assert!(engine.kv_bytes() <= limit, "{kv:?}, limit {limit}: {} bytes", engine.kv_bytes());
        }
        assert!(all_reused > 1000, "{kv:?}: only {all_reused} tokens were reused");
    }
}
