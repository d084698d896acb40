//! Rotation angles against transformers' own numbers (tests/golden/rope_units), read through config.json's keys.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use ropechat_core::checkpoint::safetensors::{self, Entry};
use ropechat_core::config::RopeFrequencies;
use ropechat_core::config::{Rope, RopeScaling};
use ropechat_core::family;
use ropechat_core::family::metadata::Metadata;
use ropechat_kernels::kernel::{Isa, Kernels};
use serde_json::{Value, json};

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/rope_units")
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
    family::from_metadata(metadata).unwrap().ropes.remove(0)
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
            let frequencies = rope.frequencies(rope.variant(length));
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
    let frequencies = rope.frequencies(rope.variant(40));
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

/// Both styles of keys, the share beside the object or in it, and where the share is a family's default (glm: a half).
#[test]
fn proportional_in_every_style_of_keys() {
    let new = json!({"rope_parameters": {"rope_type": "proportional", "rope_theta": 1e6,
        "partial_rotary_factor": 0.25, "factor": 2}});
    let old = json!({"rope_theta": 1e6, "partial_rotary_factor": 0.25,
        "rope_scaling": {"type": "proportional", "factor": 2.0}});
    let found = rope(16, 256, &new);
    assert_eq!(found, rope(16, 256, &old));
    let scaling = RopeScaling::Proportional { partial_rotary_factor: 0.25, factor: 2.0 };
    assert_eq!((found.rotary_dim, found.scaling), (16, scaling));
    let bare = json!({"rope_theta": 1e6, "num_key_value_heads": 1, "rope_scaling": {"type": "proportional"}});
    let default = |model_type: &str| {
        let mut keys = bare.clone();
        keys["model_type"] = json!(model_type);
        rope(16, 256, &keys).scaling
    };
    let share = |partial_rotary_factor| RopeScaling::Proportional { partial_rotary_factor, factor: 1.0 };
    assert_eq!([default("llama"), default("glm")], [share(1.0), share(0.5)]);
}

#[test]
fn every_allowed_value_gives_finite_angles() {
    let ends = |least: f64, most: f64| [json!(least), json!(most)];
    for theta in ends(1e-3, 1e18) {
        for factor in ends(1e-6, 1e9) {
            let scalings = [
                json!({"type": "linear", "factor": factor}),
                json!({"type": "proportional", "factor": factor, "partial_rotary_factor": 0.5}),
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
                    let frequencies = rope.frequencies(rope.variant(1 << 40));
                    let (mut cos, mut sin) =
                        (vec![0.0; head_dim as usize / 2], vec![0.0; head_dim as usize / 2]);
                    frequencies.angles(1 << 40, &mut cos, &mut sin);
                    assert!(cos.iter().chain(&sin).all(|x| x.is_finite()), "{theta}, {scaling}, {head_dim}");
                }
            }
        }
    }
}

/// Rows of q, rotated by the kernel of every ISA from a position on, against transformers' rows.
fn check_rotation(
    expected: &str,
    rotary_dim: usize,
    first: usize,
    turn: fn(Kernels, &mut [f32], &[f32], &[f32]),
) {
    let tensors = Tensors::read();
    let rope = rope(rotary_dim as u64, 4096, &json!({}));
    let frequencies = rope.frequencies(rope.variant(40));
    let (mut cos, mut sin) = (vec![0.0; rotary_dim / 2], vec![0.0; rotary_dim / 2]);
    for kernels in Isa::ALL.into_iter().filter_map(|isa| Kernels::of(isa).ok()) {
        let (rows, expected) = (tensors.f32("rot.q"), tensors.f32(expected));
        for (row, (q, expected)) in rows.chunks_exact(16).zip(expected.chunks_exact(16)).enumerate() {
            frequencies.angles(first + row, &mut cos, &mut sin);
            let mut rotated = q.to_vec();
            turn(kernels, &mut rotated[..rotary_dim], &cos, &sin);
            for (found, expected) in rotated.iter().zip(expected) {
                assert!((found - expected).abs() < 2e-5, "{kernels:?}, row {row}: {found} for {expected}");
            }
        }
    }
}

#[test]
fn kernels_rotate_as_llama_roformer_and_gptj_do() {
    check_rotation("rot.half.q", 16, 3, Kernels::rope_neox);
    check_rotation("rot.roformer.q", 16, 0, Kernels::rope_interleaved);
    check_rotation("rot.gptj_partial6.q", 6, 3, Kernels::rope_interleaved);
}

/// cos and sin of a position, and the row rotated by the kernel.
fn rotated(frequencies: &RopeFrequencies, position: usize, x: &[f32]) -> Vec<f32> {
    let (mut cos, mut sin) = (vec![0.0; x.len() / 2], vec![0.0; x.len() / 2]);
    frequencies.angles(position, &mut cos, &mut sin);
    let mut out = x.to_vec();
    Kernels::detect().unwrap().rope_interleaved(&mut out, &cos, &sin);
    out
}

fn noise(n: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((state >> 40) as f32) / (1 << 23) as f32 - 1.0
    };
    (0..n).map(|_| next()).collect()
}

/// Su et al. 2021: equation 15 (a matrix of blocks), equation 34 (elementwise), and complex numbers.
#[test]
fn matrix_elementwise_and_complex_forms_agree() {
    for (d, position) in [(2, 1), (8, 7), (22, 100), (128, 5000)] {
        let rope = rope(d, 4096, &json!({}));
        let frequencies = rope.frequencies(rope.variant(1));
        let d = d as usize;
        let x = noise(d, position as u64);
        let angle = |row: usize| position as f64 * frequencies.inv_freq()[row / 2];
        // R[row][column]: cos on the diagonal, -+ sin beside it.
        let entry = |row: usize, column: usize| match (row == column, row ^ 1 == column) {
            (true, _) => angle(row).cos(),
            (_, true) => angle(row).sin() * if row.is_multiple_of(2) { -1.0 } else { 1.0 },
            _ => 0.0,
        };
        let matrix = |row: usize| (0..d).map(|column| entry(row, column) * f64::from(x[column])).sum::<f64>();
        let complex = |row: usize| {
            let (re, im) = (f64::from(x[row & !1]), f64::from(x[row | 1]));
            let (c, s) = (angle(row).cos(), angle(row).sin()); // e^(i angle)
            if row.is_multiple_of(2) { re * c - im * s } else { re * s + im * c }
        };
        let elementwise = rotated(&frequencies, position, &x);
        for (row, &found) in elementwise.iter().enumerate() {
            assert!((matrix(row) - complex(row)).abs() < 1e-12, "d {d}, row {row}");
            assert!((matrix(row) - f64::from(found)).abs() < 1e-6, "d {d}, row {row}");
        }
    }
}

/// Equation 16: q at m and k at n meet in a product that depends on m - n.
#[test]
fn a_product_depends_on_the_distance_only() {
    let rope = rope(64, 4096, &json!({}));
    let frequencies = rope.frequencies(rope.variant(1));
    let (q, k) = (noise(64, 1), noise(64, 2));
    let product = |m: usize, n: usize| {
        let (q, k) = (rotated(&frequencies, m, &q), rotated(&frequencies, n, &k));
        q.iter().zip(&k).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum::<f64>()
    };
    for distance in [0, 1, 17, 300] {
        let near = product(distance, 0);
        for n in [1, 50, 2000] {
            assert!((product(n + distance, n) - near).abs() < 2e-5, "distance {distance} at {n}");
        }
    }
    assert!((product(0, 0) - product(1, 0)).abs() > 1e-3);
}

/// Section 3.4.3 and figure 2: the bound sum |S_i| / (d/2), S_i = sum of e^(i (m-n) theta_j) for j < i, falls with distance.
#[test]
fn the_bound_of_a_product_falls_with_the_distance() {
    let rope = rope(128, 4096, &json!({}));
    let frequencies = rope.frequencies(rope.variant(1));
    let bound = |distance: usize| {
        let (mut re, mut im, mut sum) = (0.0, 0.0, 0.0);
        for frequency in frequencies.inv_freq() {
            let (sin, cos) = (distance as f64 * frequency).sin_cos();
            (re, im) = (re + cos, im + sin);
            sum += f64::hypot(re, im);
        }
        sum / 64.0
    };
    // At no distance all S_i are i: the mean of 1..64.
    assert!((bound(0) - 32.5).abs() < 1e-12);
    let window = |from: usize| (from..from + 25).map(bound).sum::<f64>() / 25.0;
    let means: Vec<f64> = [1, 26, 51, 101, 201].map(window).to_vec();
    assert!(means.windows(2).all(|pair| pair[1] < pair[0]), "{means:?}");
    assert!(means[0] < 20.0 && means[4] < 10.0, "{means:?}");
}
