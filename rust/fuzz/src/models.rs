//! A whole model of any accepted config.json: its tensors are made, loaded and computed with.

use crate::files::FOLDER;
use ropechat_core::checkpoint::Checkpoint;
use ropechat_core::engine::{Context, Engine, Generation, Goal};
use ropechat_core::family;
use ropechat_core::model::Model;
use ropechat_core::sampling::Sampling;
use ropechat_kernels::compute::cancel::CancelToken;
use ropechat_kernels::compute::pool::Pool;
use ropechat_kernels::kernel::{Isa, Kernels};
use ropechat_kernels::quant::PackedType;
use std::path::Path;
use std::sync::Arc;

/// Most numbers of a model: a fuzzer needs many small ones.
const MOST: usize = 200_000;

pub fn model(data: &[u8]) {
    let folder = FOLDER.as_path();
    std::fs::write(folder.join("config.json"), data).unwrap();
    let Ok(config) = family::config_of_file(folder) else { return };
    if config.moe.as_ref().is_some_and(|moe| moe.num_experts > 64) || config.layers.len() > 16 {
        return;
    }
    let (mut header, mut end) = (String::new(), 0);
    for (name, shape) in family::required_tensors(&config) {
        let Some(numbers) = shape.iter().try_fold(1usize, |all, &n| all.checked_mul(n)) else { return };
        let (dtype, bytes) = if name.ends_with("tid2eid") { ("I64", 8) } else { ("F32", 4) };
        let Some(next) = numbers.checked_mul(bytes).map(|bytes| end + bytes).filter(|&next| next < 4 * MOST)
        else {
            return;
        };
        let comma = if header.is_empty() { "" } else { "," };
        header += &format!(
            r#"{comma}"{name}":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{end},{next}]}}"#
        );
        end = next;
    }
    let header = format!("{{{header}}}");
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    let ramp = (0..end / 4).map(|i| ((i * 37 % 101) as f32 - 50.0) / 400.0);
    // Ids of experts, which are 64 bits wide, are zero.
    if header.contains("I64") {
        file.resize(file.len() + end, 0)
    } else {
        file.extend(ramp.flat_map(f32::to_le_bytes))
    }
    std::fs::write(folder.join("model.safetensors"), file).unwrap();
    for (dtype, kv) in [(PackedType::F32, None), (PackedType::Q8_0, Some(PackedType::Q8_0))] {
        for kernels in Isa::ALL.into_iter().filter_map(|isa| Kernels::of(isa).ok()) {
            let _ = compute(folder, dtype, kv, kernels);
        }
    }
}

fn compute(
    folder: &Path,
    dtype: PackedType,
    kv: Option<PackedType>,
    kernels: Kernels,
) -> ropechat_core::Result<()> {
    let checkpoint = Checkpoint::open(folder)?;
    let config = family::config(&checkpoint)?;
    family::check_tensors(&checkpoint, &config)?;
    let vocabulary = config.vocab_size as u32;
    let model = Model::load(&checkpoint, config, Some(dtype), &Pool::new(1))?.with_kv(kv, kernels);
    let mut engine = Engine::new(Arc::new(model), kernels, Pool::new(1), Context::Stated(64));
    let ids: Vec<u32> = [0, 1, 2, 1, 3, 4, 5].iter().map(|id| id % vocabulary.max(1)).collect();
    let sampling = Sampling { temperature: 0.0, ..Sampling::default() };
    let goal = Generation { sampling, max_tokens: 3, stop_ids: vec![], readout_top_k: 2 };
    let number = engine.add(&ids, Goal::Generate(goal))?;
    for _ in 0..4 {
        engine.step(&[number], &CancelToken::default())?;
    }
    Ok(())
}
