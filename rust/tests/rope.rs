//! Rotation angles against transformers' own numbers (tests/golden/rope_units), read through config.json's keys.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use ropechat_core::checkpoint::safetensors::{self, Entry};
use ropechat_core::config::Rope;
use ropechat_core::family;
use ropechat_core::family::metadata::Metadata;
use serde_json::{Value, json};

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/rope_units")
}

fn cases() -> Value {
    serde_json::from_str(&fs::read_to_string(golden().join("rope.json")).unwrap()).unwrap()
}

struct Tensors {
    bytes: Vec<u8>,
    entries: BTreeMap<String, Entry>,
}

impl Tensors {
    fn read() -> Tensors {
        let bytes = fs::read(golden().join("rope.safetensors")).unwrap();
        let entries = safetensors::parse(&bytes).unwrap();
        Tensors { bytes, entries }
    }

    fn raw(&self, name: &str) -> &[u8] {
        let entry = &self.entries[name];
        &self.bytes[entry.begin..entry.end]
    }

    fn f64(&self, name: &str) -> Vec<f64> {
        self.raw(name).chunks_exact(8).map(|b| f64::from_le_bytes(b.try_into().unwrap())).collect()
    }

    fn f32(&self, name: &str) -> Vec<f32> {
        self.raw(name).chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
    }
}

/// The rotary embedding of a one-head llama with these keys.
fn rope(head_dim: u64, max_position_embeddings: u64, keys: &Value) -> Rope {
    let mut config = json!({
        "model_type": "llama", "hidden_size": head_dim, "intermediate_size": 8, "num_hidden_layers": 1,
        "num_attention_heads": 1, "vocab_size": 8, "max_position_embeddings": max_position_embeddings,
    });
    config.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
    let warnings = RefCell::default();
    let metadata = Metadata::new(Path::new("config.json"), config.as_object().unwrap(), &warnings);
    family::from_metadata(&metadata).unwrap().rope
}

/// The same parameters as older files write them.
fn old_style(parameters: &Value) -> Value {
    let mut scaling = parameters.as_object().unwrap().clone();
    let theta = scaling.remove("rope_theta").unwrap();
    let kind = scaling.remove("rope_type").unwrap();
    scaling.insert("type".to_owned(), kind);
    json!({"rope_theta": theta, "rope_scaling": scaling})
}

#[test]
fn inverse_frequencies_and_attention_factors() {
    let (cases, tensors) = (cases(), Tensors::read());
    let tables = cases["tables"].as_object().unwrap();
    assert!(tables.len() >= 9);
    for (name, table) in tables {
        let parameters = &table["rope_parameters"];
        let sizes = (table["head_dim"].as_u64().unwrap(), table["max_position_embeddings"].as_u64().unwrap());
        for keys in [json!({"rope_parameters": parameters}), old_style(parameters)] {
            let rope = rope(sizes.0, sizes.1, &keys);
            let length = table["seq_len"].as_u64().unwrap_or(1) as usize;
            let frequencies = rope.frequencies(rope.regime(length));
            let expected = tensors.f64(&format!("inv_freq.{name}.f64"));
            assert_eq!(frequencies.inv_freq().len(), expected.len(), "{name}");
            for (pair, (found, expected)) in frequencies.inv_freq().iter().zip(&expected).enumerate() {
                let error = (found - expected).abs() / expected;
                assert!(error < 1e-12, "{name}, pair {pair}: {found} is not {expected} (relative {error:e})");
            }
            let factor = table["attention_factor"].as_f64().unwrap();
            assert!((frequencies.attention_factor() - factor).abs() < 1e-12, "{name}");
        }
    }
}

#[test]
fn angles_rotate_a_head_as_transformers_does() {
    let (cases, tensors) = (cases(), Tensors::read());
    let rotation = &cases["rotation"];
    let head_dim = rotation["head_dim"].as_u64().unwrap() as usize;
    let rope = rope(head_dim as u64, 4096, &json!({"rope_theta": rotation["theta"]}));
    let frequencies = rope.frequencies(rope.regime(40));
    let (rows, expected) = (tensors.f32("rot.q"), tensors.f32("rot.half.q"));
    let half = head_dim / 2;
    let (mut cos, mut sin) = (vec![0.0; half], vec![0.0; half]);
    let first = rotation["first_position"].as_u64().unwrap() as usize;
    for (row, (q, expected)) in rows.chunks_exact(head_dim).zip(expected.chunks_exact(head_dim)).enumerate() {
        frequencies.angles(first + row, &mut cos, &mut sin);
        for pair in 0..half {
            let (x, y) = (q[pair], q[pair + half]);
            let rotated = (x * cos[pair] - y * sin[pair], y * cos[pair] + x * sin[pair]);
            let error = (rotated.0 - expected[pair]).abs().max((rotated.1 - expected[pair + half]).abs());
            assert!(error < 2e-5, "row {row}, pair {pair}: off by {error:e}");
        }
    }
}

#[test]
fn yarn_without_a_factor_takes_the_ratio_of_lengths() {
    let with =
        json!({"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}});
    let without =
        json!({"rope_scaling": {"type": "yarn", "factor": null, "original_max_position_embeddings": 64}});
    assert_eq!(rope(16, 256, &with), rope(16, 256, &without));
}

#[test]
fn every_allowed_value_gives_finite_angles() {
    let ends = |least: f64, most: f64| [json!(least), json!(most)];
    for theta in ends(1e-3, 1e18) {
        for factor in ends(1e-6, 1e9) {
            let scalings = [
                json!({"type": "linear", "factor": factor}),
                json!({"type": "dynamic", "factor": factor}),
                json!({"type": "yarn", "factor": factor, "beta_fast": 1e9, "beta_slow": 1e-6}),
                json!({"type": "yarn", "factor": factor, "truncate": false, "original_max_position_embeddings": 1}),
                json!({"type": "llama3", "factor": factor, "low_freq_factor": 1e-6, "high_freq_factor": 1e9,
                    "original_max_position_embeddings": 1}),
            ];
            for scaling in scalings {
                if scaling["type"] == "yarn" && theta.as_f64() <= Some(1.0) {
                    continue;
                }
                for (head_dim, trained) in [(4, 1), (8192, 1 << 40)] {
                    let rope =
                        rope(head_dim, trained, &json!({"rope_theta": theta, "rope_scaling": scaling}));
                    let frequencies = rope.frequencies(rope.regime(1 << 40));
                    let (mut cos, mut sin) =
                        (vec![0.0; head_dim as usize / 2], vec![0.0; head_dim as usize / 2]);
                    frequencies.angles(1 << 40, &mut cos, &mut sin);
                    assert!(cos.iter().chain(&sin).all(|x| x.is_finite()), "{theta}, {scaling}, {head_dim}");
                }
            }
        }
    }
}
