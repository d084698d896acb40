//! Fuzz targets: what strangers write, read by the engine. The variable `TARGET` names one; `make fuzz` sets it.
//!
//! The one rule: an error that says what is wrong, or a result. A panic, an abort, a wrong access of memory (AddressSanitizer),
//! an allocation of over 512 MB or 10 seconds are findings.
#![no_main]

mod blocks;
mod files;
mod json;
mod models;

use libfuzzer_sys::{fuzz_mutator, fuzz_target, fuzzer_mutate};
use std::sync::LazyLock;

/// How an input is used, and whether it is JSON: then half of the mutations change values and keys in place of bytes.
type Target = (&'static str, fn(&[u8]), bool);

const TARGETS: [Target; 8] = [
    ("safetensors", files::safetensors, true),
    ("index", files::index, true),
    ("config", files::config, true),
    ("gguf", files::gguf, false),
    ("gguf_split", files::gguf_split, false),
    ("blocks", blocks::blocks, false),
    ("matmul", blocks::matmul, false),
    ("model", models::model, true),
];

static TARGET: LazyLock<Target> = LazyLock::new(|| {
    let name = std::env::var("TARGET").unwrap_or_default();
    let names = TARGETS.map(|target| target.0);
    *TARGETS.iter().find(|target| target.0 == name).unwrap_or_else(|| {
        eprintln!("TARGET must be one of {names:?} (got {name:?})");
        std::process::exit(2)
    })
});

fuzz_target!(|data: &[u8]| TARGET.1(data));

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    if TARGET.2
        && seed % 2 == 0
        && let Some(changed) = json::mutate(&data[..size], seed / 2)
    {
        if changed.len() <= max_size {
            data[..changed.len()].copy_from_slice(&changed);
            return changed.len();
        }
    }
    fuzzer_mutate(data, size, max_size)
});
