//! The same candidates and probabilities as llama.cpp's samplers, in this order (tests/golden/README.md).

use super::*;
use crate::sampling::dry::Breakers;
use serde_json::Value;
use std::sync::Arc;

const VOCAB: usize = 40;

/// The logits of a case: multiples of 1/250, which both sides read as the same f32.
fn logits(case: u64) -> Vec<f32> {
    let mut state = case * 7919 + 17;
    (0..VOCAB)
        .map(|_| {
            state = (state * 1_103_515_245 + 12_345) % (1 << 31);
            ((state >> 8) % 4001) as f32 / 250.0 - 8.0
        })
        .collect()
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

#[test]
fn two_hundred_cases_have_llama_cpps_candidates() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/samplers/llama_cpp.jsonl");
    let text = std::fs::read_to_string(file).unwrap();
    let mut sampler = Sampler::new();
    let mut worst: f64 = 0.0;
    for (case, line) in text.lines().enumerate() {
        let given: Value = serde_json::from_str(line).unwrap();
        let number = |name: &str| given[name].as_f64().unwrap() as f32;
        let bias = |pair: &Value| (pair[0].as_u64().unwrap() as u32, pair[1].as_f64().unwrap() as f32);
        let sampling = Sampling {
            logit_bias: given["logit_bias"].as_array().unwrap().iter().map(bias).collect(),
            repetition_penalty: number("repetition_penalty"),
            presence_penalty: number("presence_penalty"),
            frequency_penalty: number("frequency_penalty"),
            dry_multiplier: number("dry_multiplier"),
            dry_base: number("dry_base"),
            dry_allowed_length: number("dry_allowed_length") as usize,
            dry_penalty_last_n: usize::try_from(given["dry_penalty_last_n"].as_i64().unwrap()).ok(),
            dry_breakers: Arc::new(Breakers::new(
                given["breakers"].as_array().unwrap().iter().map(ids).collect(),
            )),
            temperature: number("temperature"),
            top_n_sigma: number("top_n_sigma"),
            top_k: number("top_k") as usize,
            top_p: number("top_p"),
            min_p: number("min_p"),
            xtc_probability: number("xtc_probability"),
            xtc_threshold: number("xtc_threshold"),
            ..Sampling::default()
        };
        let logits = logits(case as u64);
        let raw = read_logprobs(&logits, VOCAB, 0).unwrap();
        let told = sampler.explain(&logits, &ids(&given["history"]), 0, &sampling, &raw, 0).unwrap();
        let mut left: Vec<_> = told.candidates.iter().filter(|one| one.cut.is_none()).collect();
        left.sort_by_key(|one| one.rank);
        let theirs = given["left"].as_array().unwrap();
        assert_eq!(left.len(), theirs.len(), "case {case}: {line}");
        for (one, other) in left.iter().zip(theirs) {
            let (id, probability) = (other[0].as_u64().unwrap() as u32, other[1].as_f64().unwrap());
            // llama.cpp computes in f32, so ids of the same probability may change places.
            let apart = (one.probability - probability).abs();
            assert!(one.id == id || apart < 1e-5 * probability, "case {case}: {id} {line}");
            worst = worst.max(apart / probability.max(1e-30));
        }
    }
    println!("largest relative difference of a probability: {worst:e}");
    assert_eq!(text.lines().count(), 200);
    assert!(worst < 1e-4, "{worst:e}");
}
