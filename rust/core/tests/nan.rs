//! A NaN anywhere in the weights ends in the named error, never in finite numbers: on every ISA, in every type.

use crate::common::{Folder, Noise, engine_with_kv, write_model_of};
use ropechat_core::Error;
use ropechat_core::checkpoint::safetensors;
use ropechat_core::engine::Goal;
use ropechat_kernels::compute::cancel::CancelToken;
use ropechat_kernels::kernel::{Isa, Kernels};
use ropechat_kernels::quant::PackedType;

const VOCAB: usize = 103;

const SIZES: &str = r#""vocab_size": 103, "hidden_size": 36, "intermediate_size": 50, "num_hidden_layers": 2,
    "num_attention_heads": 6, "max_position_embeddings": 512"#;

const GPT_OSS: (&str, &str) = (
    "gpt_oss",
    r#""head_dim": 10, "num_key_value_heads": 2, "num_local_experts": 3, "num_experts_per_tok": 2"#,
);
const GEMMA2: (&str, &str) = ("gemma2", r#""head_dim": 12, "num_key_value_heads": 2"#);
const DEEPSEEK: (&str, &str) = (
    "deepseek_v3",
    r#""q_lora_rank": null, "kv_lora_rank": 9, "qk_nope_head_dim": 5, "qk_rope_head_dim": 6, "v_head_dim": 7,
    "num_key_value_heads": 6, "n_routed_experts": 4, "moe_intermediate_size": 10, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1,
    "first_k_dense_replace": 0"#,
);

/// Writes NaN into the values of a tensor that `is_bad` says by their number.
fn damage(folder: &Folder, tensor: &str, nan: f32, is_bad: impl Fn(usize) -> bool) {
    let path = folder.path().join("model.safetensors");
    let mut file = std::fs::read(&path).unwrap();
    let entries = safetensors::parse(&file).unwrap();
    let entry = entries.get(tensor).unwrap_or_else(|| panic!("{tensor}: {:?}", entries.keys()));
    for (index, value) in file[entry.begin..entry.end].chunks_exact_mut(4).enumerate() {
        if is_bad(index) {
            value.copy_from_slice(&nan.to_le_bytes());
        }
    }
    std::fs::write(&path, file).unwrap();
}

/// The last row of a prompt is read out, for every type and ISA.
fn is_reported((family, own): (&str, &str), tensor: &str, nan: f32, is_bad: impl Fn(usize) -> bool) {
    let folder = write_model_of(&format!(r#"{{"model_type": "{family}", {SIZES}, {own}}}"#));
    damage(&folder, tensor, nan, is_bad);
    for isa in Isa::ALL.into_iter().filter(|&isa| Kernels::of(isa).is_ok()) {
        for dtype in PackedType::ALL {
            for kv in [None, Some(PackedType::BF16), Some(PackedType::Q8_0)] {
                let mut engine = engine_with_kv(folder.path(), dtype, kv, isa, 2).unwrap();
                let goal = Goal::score(0);
                let number = engine.add(&Noise(9).ids(20, VOCAB), goal).unwrap();
                let result = engine.step(&[number], &CancelToken::default());
                let name = format!("{family} {tensor} {dtype:?} {kv:?} {isa:?}");
                assert!(matches!(result, Err(Error::NonFinite { .. })), "{name}: {result:?}");
            }
        }
    }
}

#[test]
fn in_the_gate_or_the_up_of_a_clamped_swiglu() {
    // [experts, hidden_size, 2 * intermediate_size], gate and up in turn; of the first input, in every expert.
    for up_or_gate in 0..2 {
        let of_expert = move |index: usize| index % (36 * 100) == up_or_gate;
        is_reported(GPT_OSS, "model.layers.0.mlp.experts.gate_up_proj", f32::NAN, of_expert);
    }
}

#[test]
fn in_front_of_a_squared_relu() {
    is_reported(
        ("nemotron", r#""head_dim": 12, "num_key_value_heads": 6"#),
        "model.layers.1.mlp.up_proj.weight",
        f32::NAN,
        |index| index == 7,
    );
}

#[test]
fn in_scores_beside_an_attention_sink() {
    is_reported(GPT_OSS, "model.layers.0.self_attn.k_proj.weight", f32::NAN, |index| index == 40);
    is_reported(GPT_OSS, "model.layers.0.self_attn.sinks", f32::NAN, |index| index == 3);
}

#[test]
fn in_front_of_a_soft_cap() {
    is_reported(GEMMA2, "model.layers.0.self_attn.q_proj.weight", f32::NAN, |index| index == 40);
    is_reported(GEMMA2, "model.norm.weight", f32::NAN, |index| index == 5);
}

#[test]
fn in_a_router_of_either_sign() {
    for nan in [f32::NAN, -f32::NAN] {
        is_reported(DEEPSEEK, "model.layers.1.mlp.gate.weight", nan, |index| index == 2 * 36 + 1);
        is_reported(DEEPSEEK, "model.layers.1.mlp.gate.e_score_correction_bias", nan, |index| index == 2);
    }
}

#[test]
fn in_a_gate_that_is_rounded_to_integers() {
    is_reported(
        ("llama", r#""head_dim": 12, "num_key_value_heads": 6"#),
        "model.layers.0.mlp.gate_proj.weight",
        f32::NAN,
        |index| index == 60,
    );
}
