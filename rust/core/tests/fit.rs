//! Whether a model fits, in which type, and what a refusal says.

use crate::common::{Folder, SHAPES, write_model};
use ropechat_core::Error;
use ropechat_core::checkpoint::Checkpoint;
use ropechat_core::engine::fit::{Choice, KvRoom, choose};
use ropechat_core::family;
use ropechat_core::model::Model;
use ropechat_kernels::compute::pool::Pool;
use ropechat_kernels::quant::PackedType;
use ropechat_platform::limits::Available;

const CONTEXT: usize = 4096;

fn chosen(model: &Folder, dtype: Option<PackedType>, context: usize, bytes: u64) -> Result<Choice, Error> {
    let checkpoint = Checkpoint::open(model.path()).unwrap();
    let config = family::config(&checkpoint).unwrap();
    let available = Available { bytes, limit: "free here" };
    let kv = KvRoom { tokens: context, dtype: None };
    choose(&checkpoint, &config, dtype, kv, Some(available))
}

fn refused(model: &Folder, dtype: Option<PackedType>, context: usize, bytes: u64) -> String {
    match chosen(model, dtype, context, bytes) {
        Err(error @ Error::Memory { .. }) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

/// The fewest bytes with which a type is not refused.
fn needed(model: &Folder, dtype: PackedType) -> u64 {
    let (mut refused, mut enough) = (0, 1 << 40);
    while enough - refused > 1 {
        let bytes = (refused + enough) / 2;
        match chosen(model, Some(dtype), CONTEXT, bytes) {
            Ok(_) => enough = bytes,
            Err(_) => refused = bytes,
        }
    }
    enough
}

#[test]
fn what_is_needed_is_what_loading_takes() {
    for shape in SHAPES {
        let model = write_model(shape);
        let checkpoint = Checkpoint::open(model.path()).unwrap();
        let config = family::config(&checkpoint).unwrap();
        let mut before = None;
        for dtype in [PackedType::F32, PackedType::BF16, PackedType::Q8_0] {
            let loaded = Model::load(&checkpoint, config.clone(), Some(dtype), &Pool::new(1)).unwrap();
            let kv = (CONTEXT / 32 * loaded.kv_layout.block_bytes()) as u64;
            let rest = needed(&model, dtype) - kv - loaded.weight_bytes() as u64;
            // The buffers of a pass are the same whatever the weights are.
            assert_eq!(*before.get_or_insert(rest), rest, "{dtype:?}");
        }
    }
}

#[test]
fn auto_keeps_what_is_stored_while_that_is_comfortable() {
    let model = write_model(SHAPES[0]);
    let stored = needed(&model, PackedType::F32);
    let choice = chosen(&model, None, CONTEXT, 2 * stored).unwrap();
    assert_eq!((choice.dtype, choice.is_smaller), (None, false));
    assert!(choice.words.starts_with("dtype: f32, as stored ("), "{}", choice.words);

    let choice = chosen(&model, None, CONTEXT, stored + stored / 10).unwrap();
    assert!(choice.is_smaller && choice.dtype == Some(PackedType::BF16), "{choice:?}");
    assert!(choice.words.starts_with("dtype: bf16 (") && choice.words.contains("as stored (f32)"));

    let q8_0 = needed(&model, PackedType::Q8_0);
    let bf16 = needed(&model, PackedType::BF16);
    assert!(q8_0 < bf16);
    let choice = chosen(&model, None, CONTEXT, q8_0 + (bf16 - q8_0) / 2).unwrap();
    assert_eq!(choice.dtype, Some(PackedType::Q8_0), "uncomfortable, and better than nothing");
}

#[test]
fn what_was_asked_for_is_kept_or_refused() {
    let model = write_model(SHAPES[0]);
    let need = needed(&model, PackedType::F32);
    assert_eq!(chosen(&model, Some(PackedType::F32), CONTEXT, need).unwrap().dtype, Some(PackedType::F32));
    let text = refused(&model, Some(PackedType::F32), CONTEXT, need - 1);
    for part in ["model.safetensors: memory: ", " are needed (", "4096 tokens", "free here; --context 3840"] {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
    assert!(text.contains("--dtype bf16"), "{text}");
    let choice = chosen(&model, Some(PackedType::Q8_0), CONTEXT, u64::MAX).unwrap();
    assert!(choice.words.starts_with("dtype: q8_0, made from f32 ("), "{}", choice.words);
}

#[test]
fn a_context_beyond_all_memory_is_refused_without_overflow() {
    let model = write_model(SHAPES[1]);
    for context in [1 << 40, usize::MAX] {
        let text = refused(&model, None, context, 16 << 30);
        assert!(text.contains("--context ") && text.contains(&context.to_string()), "{text}");
    }
    let text = refused(&model, Some(PackedType::Q4_0), CONTEXT, 1000);
    assert!(text.ends_with("a smaller model is needed, or both a smaller --dtype and --context"), "{text}");
}
