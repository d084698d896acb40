//! Tiny random models on disk, of any shape, that every run repeats.
#![allow(dead_code)] // each test file takes what it needs

use ropechat_core::checkpoint::Checkpoint;
use ropechat_core::engine::{Context, Engine, Generation, Goal};
use ropechat_core::family;
use ropechat_core::model::Model;
use ropechat_core::sampling::Sampling;
use ropechat_kernels::compute::pool::Pool;
use ropechat_kernels::kernel::{Isa, Kernels};
use ropechat_kernels::quant::PackedType;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A folder that goes away with the value.
pub struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Folder {
    pub fn path(&self) -> &Path {
        &self.0
    }
}

/// The sizes of a llama model.
#[derive(Clone, Copy)]
pub struct Shape {
    pub hidden: usize,
    pub ffn: usize,
    pub layers: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub vocab: usize,
    pub tied: bool,
    pub bias: bool,
}

/// Shapes that no power of two divides: ffn 172, head_dim 8, 12 and 20, vocab 105 exist in real models.
pub const SHAPES: [Shape; 3] = [
    Shape {
        hidden: 64,
        ffn: 172,
        layers: 3,
        heads: 8,
        kv_heads: 4,
        head_dim: 8,
        vocab: 105,
        tied: true,
        bias: false,
    },
    Shape {
        hidden: 36,
        ffn: 50,
        layers: 2,
        heads: 3,
        kv_heads: 1,
        head_dim: 12,
        vocab: 97,
        tied: false,
        bias: true,
    },
    Shape {
        hidden: 40,
        ffn: 33,
        layers: 2,
        heads: 2,
        kv_heads: 2,
        head_dim: 20,
        vocab: 130,
        tied: false,
        bias: false,
    },
];

/// Writes config.json and model.safetensors in f32.
pub fn write_model(shape: Shape) -> Folder {
    let Shape { hidden, ffn, layers, heads, kv_heads, head_dim, vocab, tied, bias } = shape;
    write_model_of(&format!(
        r#"{{"model_type": "llama", "hidden_size": {hidden}, "intermediate_size": {ffn}, "num_hidden_layers": {layers},
        "num_attention_heads": {heads}, "num_key_value_heads": {kv_heads}, "head_dim": {head_dim}, "vocab_size": {vocab},
        "tie_word_embeddings": {tied}, "attention_bias": {bias}, "mlp_bias": {bias}, "max_position_embeddings": 1024,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0}}"#
    ))
}

/// Writes a config.json of any family, and the model.safetensors that it asks for.
pub fn write_model_of(config: &str) -> Folder {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let folder = std::env::temp_dir().join(format!("ropechat-test-{}-{number}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("config.json"), config).unwrap();

    let (mut header, mut data, mut noise) = (String::new(), Vec::<u8>::new(), Noise(number as u64 % 3 + 7));
    let checkpoint_config = family_config(&folder);
    for (name, sizes) in family::required_tensors(&checkpoint_config) {
        let start = data.len();
        let comma = if header.is_empty() { "" } else { "," };
        // Numbers of experts: a mixture has three or more.
        if name.ends_with("tid2eid") {
            let numbers = (0..sizes.iter().product::<usize>()).map(|number| (number % 3) as i64);
            data.extend(numbers.flat_map(i64::to_le_bytes));
            header += &format!(
                r#"{comma}"{name}":{{"dtype":"I64","shape":{sizes:?},"data_offsets":[{start},{}]}}"#,
                data.len()
            );
            continue;
        }
        for _ in 0..sizes.iter().product::<usize>() {
            let scale = 1.7 / (*sizes.last().unwrap() as f32).sqrt();
            // Norms near one: the only vectors that are weights.
            let value = if sizes.len() == 1 && !name.ends_with("bias") {
                1.0 + 0.1 * noise.next()
            } else {
                scale * noise.next()
            };
            data.extend(value.to_le_bytes());
        }
        header += &format!(
            r#"{comma}"{name}":{{"dtype":"F32","shape":{sizes:?},"data_offsets":[{start},{}]}}"#,
            data.len()
        );
    }
    let header = format!("{{{header}}}");
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.extend(data);
    std::fs::write(folder.join("model.safetensors"), file).unwrap();
    Folder(folder)
}

fn family_config(folder: &Path) -> ropechat_core::config::Config {
    // Which tensors there are follows from config.json alone; that experts fit into a file, from the file's size.
    const SIZE: usize = 1 << 20;
    let header = format!(r#"{{"filler":{{"dtype":"U8","shape":[{SIZE}],"data_offsets":[0,{SIZE}]}}}}"#);
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.resize(file.len() + SIZE, 0);
    std::fs::write(folder.join("model.safetensors"), file).unwrap();
    family::config(&Checkpoint::open(folder).unwrap()).unwrap()
}

pub struct Noise(pub u64);

impl Noise {
    pub fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.0 >> 40) as f32) / (1 << 23) as f32 - 1.0
    }

    pub fn take(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.next()).collect()
    }

    pub fn ids(&mut self, n: usize, vocab: usize) -> Vec<u32> {
        (0..n).map(|_| ((self.next() + 1.0) * 0.5 * vocab as f32) as u32 % vocab as u32).collect()
    }
}

/// An engine on a model folder.
pub fn engine(folder: &Path, dtype: PackedType, isa: Isa, threads: usize) -> Option<Engine> {
    engine_with_kv(folder, dtype, None, isa, threads)
}

/// An engine with keys and values in a type of their own.
pub fn engine_with_kv(
    folder: &Path,
    dtype: PackedType,
    kv: Option<PackedType>,
    isa: Isa,
    threads: usize,
) -> Option<Engine> {
    let kernels = Kernels::of(isa).ok()?;
    Some(engine_of(model(folder, dtype, kv, kernels), kernels, threads))
}

/// The weights of a folder. They depend on `kernels` only by the type of keys and values.
pub fn model(folder: &Path, dtype: PackedType, kv: Option<PackedType>, kernels: Kernels) -> Arc<Model> {
    let checkpoint = Checkpoint::open(folder).unwrap();
    let config = family::config(&checkpoint).unwrap();
    let model = Model::load(&checkpoint, config, Some(dtype), &Pool::new(2)).unwrap();
    Arc::new(model.with_kv(kv, kernels))
}

/// An engine with weights that others may share.
pub fn engine_of(model: Arc<Model>, kernels: Kernels, threads: usize) -> Engine {
    Engine::new(model, kernels, Pool::new(threads), Context::Stated(700))
}

/// Generation of little else than these ids, so that repeats are frequent.
pub fn few_ids(max_tokens: usize, ids: &[u32], temperature: f32) -> Goal {
    let Goal::Generate(mut goal) = greedy(max_tokens) else { unreachable!() };
    goal.sampling.logit_bias = ids.iter().map(|&id| (id, 20.0)).collect();
    goal.sampling.temperature = temperature;
    Goal::Generate(goal)
}

/// Greedy generation of `max_tokens`.
pub fn greedy(max_tokens: usize) -> Goal {
    let sampling = Sampling { temperature: 0.0, ..Sampling::default() };
    Goal::Generate(Generation { sampling, max_tokens, stop_ids: vec![], readout_top_k: 3 })
}
