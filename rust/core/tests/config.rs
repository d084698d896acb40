//! config.json, key by key: ranges, defaults with their source, what is refused by name.

use std::cell::RefCell;
use std::path::Path;

use ropechat_core::config::{
    Activation, Bias, Config, LayerRope, LmHead, Mask, Norm, RopeLayout, RopeScaling,
};
use ropechat_core::family;
use ropechat_core::family::metadata::Metadata;
use ropechat_core::mechanisms::indexer::config::{IndexChoice, Indexer, LayerIndexer};
use ropechat_core::{Error, Result};
use ropechat_kernels::quant::PackedType;
use serde_json::{Value, json};

/// A sound config with these keys changed or, where null, taken away.
fn read(changes: &Value) -> (Result<Config>, Vec<String>) {
    let mut config = json!({
        "model_type": "llama", "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
        "num_attention_heads": 2, "vocab_size": 288,
    });
    let keys = config.as_object_mut().unwrap();
    for (key, value) in changes.as_object().unwrap() {
        keys.insert(key.clone(), value.clone());
    }
    let warnings = RefCell::default();
    let config = family::from_metadata(Metadata::new(Path::new("config.json"), keys, &warnings));
    (config, warnings.into_inner())
}

fn sound(changes: Value) -> Config {
    read(&changes).0.unwrap()
}

/// The key that the `Config` error names.
fn bad(changes: Value) -> String {
    match read(&changes).0 {
        Err(Error::Config { key, .. }) => key,
        other => panic!("{changes}: {other:?}"),
    }
}

/// The key that the `Unsupported` error names.
fn unsupported(changes: Value) -> String {
    match read(&changes).0 {
        Err(Error::Unsupported { key, .. }) => key,
        other => panic!("{changes}: {other:?}"),
    }
}

#[test]
fn absent_keys_take_the_values_of_configuration_llama() {
    let config = sound(json!({}));
    assert_eq!((config.num_key_value_heads, config.head_dim, config.max_position_embeddings), (2, 8, 2048));
    assert_eq!((config.norm, config.activation), (Norm::RmsNorm { eps: 1e-6 }, Activation::Silu));
    assert_eq!(
        (config.attention_bias, config.mlp_bias, config.lm_head),
        (Bias::None, Bias::None, LmHead::Own)
    );
    assert_eq!(
        (config.ropes[0].theta, config.ropes[0].rotary_dim, config.ropes[0].scaling.clone()),
        (10_000.0, 8, RopeScaling::None)
    );
    assert_eq!((config.bos_token_id, config.eos_token_id, config.torch_dtype), (None, vec![], None));
}

#[test]
fn stated_keys() {
    let config = sound(json!({
        "num_key_value_heads": 1, "head_dim": 12, "rms_norm_eps": 1e-5, "rope_theta": 500000, "attention_bias": true,
        "mlp_bias": true, "tie_word_embeddings": true, "bos_token_id": 1, "eos_token_id": [2, 5], "dtype": "bfloat16",
        "hidden_act": "swish", "max_position_embeddings": 64,
    }));
    assert_eq!((config.num_key_value_heads, config.head_dim, config.ropes[0].theta), (1, 12, 500_000.0));
    assert_eq!(
        (config.attention_bias, config.mlp_bias, config.lm_head),
        (Bias::Added, Bias::Added, LmHead::Tied)
    );
    assert_eq!((config.bos_token_id, config.eos_token_id), (Some(1), vec![2, 5]));
    assert_eq!((config.torch_dtype, config.layers.len()), (Some(PackedType::BF16), 2));
}

#[test]
fn sizes_have_no_default_and_a_range() {
    for key in ["hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size"]
    {
        for value in [
            json!(null),
            json!(0),
            json!(-1),
            json!(1e300),
            json!("16"),
            json!(2.5),
            json!(true),
            json!([2]),
            json!(1u64 << 62),
        ] {
            assert_eq!(bad(json!({key: value})), key, "{value}");
        }
    }
    for key in ["num_key_value_heads", "head_dim", "max_position_embeddings"] {
        for value in [json!(0), json!(-1), json!("1"), json!(2.5), json!(1u64 << 62)] {
            assert_eq!(bad(json!({key: value})), key, "{value}");
        }
    }
}

#[test]
fn heads_divide_and_come_in_pairs() {
    assert_eq!(bad(json!({"num_attention_heads": 3, "head_dim": 8})), "num_attention_heads");
    assert_eq!(bad(json!({"num_attention_heads": 4, "num_key_value_heads": 3})), "num_key_value_heads");
    assert_eq!(bad(json!({"head_dim": 7})), "head_dim");
    assert_eq!(bad(json!({"num_attention_heads": 16})), "head_dim");
    let wide = json!({"hidden_size": 1 << 16, "num_attention_heads": 1 << 16, "head_dim": 1 << 13});
    assert_eq!(bad(wide), "head_dim");
}

#[test]
fn numbers_flags_and_ids() {
    assert_eq!(bad(json!({"rms_norm_eps": -1})), "rms_norm_eps");
    assert_eq!(bad(json!({"rms_norm_eps": "1e-5"})), "rms_norm_eps");
    assert_eq!(bad(json!({"rope_theta": 0})), "rope_theta");
    assert_eq!(bad(json!({"tie_word_embeddings": "yes"})), "tie_word_embeddings");
    for value in [json!(288), json!(-1), json!("x"), json!([2, 1u64 << 40])] {
        assert_eq!(bad(json!({"eos_token_id": value})), "eos_token_id");
        assert_eq!(bad(json!({"bos_token_id": value})), "bos_token_id");
    }
    let (config, warnings) = read(&json!({"rms_norm_eps": 0, "rope_theta": null, "eos_token_id": [],
        "max_position_embeddings": 1u64 << 40}));
    assert!(config.is_ok());
    for key in ["rms_norm_eps", "rope_theta", "eos_token_id", "max_position_embeddings"] {
        assert!(
            warnings.iter().any(|line| line.starts_with("config.json: ") && line.contains(key)),
            "{key}: {warnings:?}"
        );
    }
}

#[test]
fn models_that_are_not_computed() {
    assert_eq!(bad(json!({"model_type": null})), "model_type");
    assert_eq!(bad(json!({"model_type": 7})), "model_type");
    assert_eq!(unsupported(json!({"model_type": "megatron9"})), "model_type");
    assert_eq!(unsupported(json!({"hidden_act": "wobble"})), "hidden_act");
    assert_eq!(unsupported(json!({"sliding_window": 24})), "sliding_window");
    assert_eq!(unsupported(json!({"partial_rotary_factor": 0.5})), "partial_rotary_factor");
    // Phi cuts its heads where its own share ends, and a proportional rope rotates whole heads.
    let phi = json!({"model_type": "phi", "rope_scaling": {"type": "proportional"}});
    assert_eq!(unsupported(phi), "partial_rotary_factor");
    assert_eq!(bad(json!({"partial_rotary_factor": 2.0})), "partial_rotary_factor");
    let quantized = read(&json!({"quantization_config": {"quant_method": "foo"}})).0.unwrap_err().to_string();
    assert!(quantized.contains("quantization_config") && quantized.contains("foo"), "{quantized}");
    let escape = read(&json!({"model_type": "\u{1b}]52;c;AA\u{7}"})).0.unwrap_err().to_string();
    assert!(escape.contains("supported: llama, ") && !escape.contains('\u{1b}'), "{escape}");
}

#[test]
fn keys_that_are_not_understood() {
    for (key, value) in [
        ("logit_scale", json!(0.0625)),
        ("attn_logit_softcapping", json!(50)),
        ("num_local_experts", json!(8)),
        ("pretraining_tp", json!(2)),
        ("is_encoder_decoder", json!(true)),
        ("layer_types", json!(["sliding_attention"])),
        ("a_key_of_next_year", json!(false)),
        ("embedding_multiplier", json!(12)),
    ] {
        assert_eq!(unsupported(json!({key: value})), key);
    }
    sound(json!({
        "architectures": ["LlamaForCausalLM"], "pretraining_tp": 1, "use_cache": true, "pad_token_id": -1,
        "transformers_version": "4.44.0", "attention_dropout": 0.1, "logit_scale": 1, "sliding_window": null,
        "a_key_of_next_year": null, "layer_types": ["full_attention", "full_attention"], "num_local_experts": 0,
    }));
    let (config, warnings) = read(&json!({"auto_map": {"AutoModel": "evil.Model"}}));
    assert!(config.is_ok() && warnings[0].contains("auto_map"));
}

#[test]
fn rope_in_both_styles() {
    let llama3 = json!({"factor": 8, "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 64});
    let with = |kind: &str, object: &Value| {
        let mut object = object.clone();
        object[kind] = json!("llama3");
        object
    };
    let old = sound(json!({"rope_theta": 5e5, "rope_scaling": with("rope_type", &llama3)}));
    let older = sound(json!({"rope_theta": 5e5, "rope_scaling": with("type", &llama3)}));
    let mut parameters = with("rope_type", &llama3);
    parameters["rope_theta"] = json!(500_000);
    let new = sound(json!({"rope_parameters": parameters}));
    assert_eq!((&old.ropes, &older.ropes), (&new.ropes, &new.ropes));
    assert!(matches!(old.ropes[0].scaling, RopeScaling::Llama3 { factor: 8.0, .. }));
    assert_eq!(bad(json!({"rope_theta": 1e4, "rope_parameters": parameters})), "rope_theta");
    assert_eq!(bad(json!({"rope_scaling": llama3, "rope_parameters": parameters})), "rope_scaling");
    assert_eq!(
        bad(json!({"rope_scaling": {"type": "linear", "rope_type": "yarn"}})),
        "rope_scaling.rope_type"
    );
    assert_eq!(sound(json!({"rope_scaling": {}})).ropes[0].scaling, RopeScaling::None);
}

#[test]
fn rope_values() {
    let scaling = |object: Value| json!({"rope_scaling": object});
    assert_eq!(bad(scaling(json!({"type": "linear"}))), "rope_scaling.factor");
    for factor in [json!(0), json!(-4), json!("2"), json!(1e300)] {
        assert_eq!(bad(scaling(json!({"type": "linear", "factor": factor}))), "rope_scaling.factor");
    }
    let equal = json!({"type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 4,
        "original_max_position_embeddings": 64});
    assert_eq!(bad(scaling(equal)), "rope_scaling.high_freq_factor");
    let no_length = json!({"type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4});
    assert_eq!(bad(scaling(no_length)), "rope_scaling.original_max_position_embeddings");
    assert_eq!(bad(scaling(json!({"type": "yarn"}))), "rope_scaling.factor");
    assert_eq!(
        bad(scaling(json!({"type": "yarn", "factor": 2, "beta_fast": 1, "beta_slow": 2}))),
        "rope_scaling.beta_fast"
    );
    assert_eq!(bad(json!({"rope_theta": 1, "rope_scaling": {"type": "yarn", "factor": 2}})), "rope_theta");
    assert_eq!(
        bad(json!({"head_dim": 2, "rope_scaling": {"type": "dynamic", "factor": 2}})),
        "rope_scaling.rope_type"
    );
    assert_eq!(bad(json!({"rope_scaling": ["linear"]})), "rope_scaling");
    assert_eq!(unsupported(scaling(json!({"type": "spiral", "factor": 2}))), "rope_scaling.rope_type");
    assert_eq!(
        unsupported(scaling(json!({"type": "linear", "factor": 2, "alpha": 1000}))),
        "rope_scaling.alpha"
    );
    let nested = json!({"rope_parameters": {"full_attention": {"rope_type": "default"}}});
    assert_eq!(unsupported(nested), "rope_parameters.full_attention");
}

#[test]
fn yarn_attention_factor() {
    let factor = |object: Value| match sound(json!({"rope_scaling": object})).ropes.remove(0).scaling {
        RopeScaling::Yarn { attention_factor, .. } => attention_factor,
        other => panic!("{other:?}"),
    };
    let temperature = |scale: f64| 0.1 * scale * 4f64.ln() + 1.0;
    assert_eq!(factor(json!({"type": "yarn", "factor": 4})), temperature(1.0));
    assert_eq!(factor(json!({"type": "yarn", "factor": 4, "attention_factor": 1.25})), 1.25);
    assert_eq!(factor(json!({"type": "yarn", "factor": 4, "mscale": 0.7})), temperature(1.0));
    let pair = json!({"type": "yarn", "factor": 4, "mscale": 1.0, "mscale_all_dim": 0.8});
    assert_eq!(factor(pair), temperature(1.0) / temperature(0.8));
    assert_eq!(factor(json!({"type": "yarn", "factor": 0.5})), 1.0);
}

#[test]
fn known_models_that_are_not_computed_say_what_they_would_need() {
    for (model_type, needs) in [
        ("mamba", "no attention"),
        ("zamba", "Mamba"),
        ("bailing_moe_linear", "lightning"),
        ("inkling_mm_model", "other names"),
        ("glm4v", "pictures and text"),
        ("bert", "encoder"),
        ("t5", "cross-attention"),
        ("mpt", "ALiBi"),
        ("gemma4_assistant", "a draft model"),
    ] {
        let refusal = read(&json!({"model_type": model_type})).0.unwrap_err();
        assert!(matches!(&refusal, Error::Unsupported { key, .. } if key == "model_type"), "{refusal}");
        let text = refusal.to_string();
        assert!(text.contains(model_type) && text.contains(needs) && text.contains("supported: "), "{text}");
    }
    for method in ["hqq", "quanto", "torchao", "modelopt"] {
        let refusal =
            read(&json!({"quantization_config": {"quant_method": method}})).0.unwrap_err().to_string();
        let known = ["fp8", "compressed-tensors", "gptq", "awq", "mxfp4", "bitsandbytes"];
        assert!(refusal.contains("quantization_config") && refusal.contains(method), "{refusal}");
        assert!(known.iter().all(|known| refusal.contains(known)), "{refusal}");
    }
}

#[test]
fn bitnet_says_how_its_matrices_are_stored() {
    use ropechat_core::checkpoint::quantized::{Scheme, TernaryForm};
    let with = |quantization: Value| {
        let mut all = json!({"quant_method": "bitnet"});
        all.as_object_mut().unwrap().extend(quantization.as_object().unwrap().clone());
        json!({"quantization_config": all, "is_bitnet_config": true})
    };
    for (keys, expected) in [
        (json!({"modules_to_not_convert": null}), TernaryForm::Divided),
        (json!({"linear_class": "bitlinear", "quantization_mode": "online"}), TernaryForm::Divided),
        (json!({"linear_class": "autobitlinear"}), TernaryForm::Multiplied),
        (
            json!({"linear_class": "autobitlinear", "quantization_mode": "online", "use_rms_norm": false}),
            TernaryForm::Floats,
        ),
    ] {
        let Scheme::BitNet { form, skipped } = sound(with(keys)).quantization else { panic!() };
        assert_eq!(form, expected);
        assert_eq!(skipped, ["lm_head", "embed_tokens", "lm_head"]);
    }
    for (key, value) in [
        ("linear_class", json!("bitnet")),
        ("quantization_mode", json!("static")),
        ("use_rms_norm", json!(true)),
        ("modules_to_not_convert", json!(["model.layers.0"])),
        ("modules_to_not_convert", json!(["lm_head", "model.layers.(0|1)"])),
    ] {
        let named = unsupported(with(json!({key: value})));
        assert_eq!(named, format!("quantization_config.{key}"), "{value}");
    }
    let mut mixture = with(json!({}));
    let keys = json!({"model_type": "mixtral", "num_key_value_heads": 2, "num_local_experts": 2});
    mixture.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
    assert_eq!(unsupported(mixture), "quantization_config");
}

/// Values that other programs compute with and that are not computed here, family by family.
#[test]
fn what_a_family_does_not_compute_is_refused_by_its_key() {
    for (model_type, key, value) in [
        ("falcon", "alibi", json!(true)),
        ("gpt_neo", "scale_attn_by_inverse_layer_idx", json!(true)),
        ("gptj", "reorder_and_upcast_attn", json!(true)),
        ("gpt2", "add_cross_attention", json!(true)),
        ("gemma3_text", "use_bidirectional_attention", json!(true)),
        ("deepseek_v2", "scoring_func", json!("sigmoid")),
        ("deepseek_v3", "topk_method", json!("greedy")),
        ("cohere2", "position_embedding_type", json!("alibi")),
        ("starcoder2", "norm_type", json!("rms_norm")),
        ("qwen2", "layer_types", json!(["full_attention", "chunked_attention"])),
        ("mistral", "attention_bias", json!(true)),
        ("olmo2", "clip_qkv", json!(8)),
        ("qwen3", "attn_logit_softcapping", json!(50)),
        ("exaone4", "attention_bias", json!(true)),
        ("mixtral", "shared_expert_intermediate_size", json!(8)),
        ("jamba", "hidden_act", json!("mish")),
        ("jamba", "mamba_inner_layernorms", json!(false)),
        ("minimax", "postnorm", json!(false)),
        ("minimax", "shared_intermediate_size", json!(8)),
        ("kimi_linear", "mla_use_nope", json!(false)),
        ("kimi_linear", "moe_router_activation_func", json!("softmax")),
        ("zamba2", "layers_block_type", json!(["hybrid", "conv"])),
        ("zaya", "num_experts_per_tok", json!(2)),
        ("zaya", "layer_types", json!(["hybrid", "linear_attention"])),
        ("doge", "is_moe", json!(true)),
        ("hrm_text", "attention_bias", json!(true)),
        ("hrm_text", "mlp_bias", json!(true)),
        ("jetmoe", "attention_bias", json!(true)),
        ("inkling_text", "layer_types", json!(["hybrid", "linear_attention"])),
        ("recurrent_gemma", "embeddings_scale_by_sqrt_dim", json!(false)),
        ("recurrent_gemma", "block_types", json!(["recurrent", "linear"])),
        ("dtransformer_rope", "rope_pairs", json!("half-split")),
        ("glm_moe_dsa", "indexer_rope_interleave", json!(false)),
        ("deepseek_v32", "layer_types", json!(["full_attention", "indexed_attention"])),
        ("axk2", "indexer_types", json!(["full", "none"])),
        ("minimax_m3_vl_text", "layer_types", json!(["full_attention", "sliding_attention"])),
        ("qwen4_exp_text", "hidden_act", json!("gelu")),
        ("qwen4_exp_text", "output_gate_type", json!("tanh")),
        ("qwen4_exp_text", "layer_types", json!(["linear_attention", "sliding_attention"])),
        ("qwen4_exp_text", "indexer_kv_heads", json!(2)),
        ("deepseek_v4", "num_key_value_heads", json!(2)),
        ("deepseek_v4", "n_shared_experts", json!(2)),
        ("deepseek_v4", "scoring_func", json!("relu")),
        ("deepseek_v4", "layer_types", json!(["full_attention", "sliding_attention"])),
        ("deepseek_v4", "compress_ratios", json!([4, 64])),
        ("deepseek_v4", "mlp_layer_types", json!(["moe", "dense"])),
    ] {
        let mut config = json!({"model_type": model_type, key: value});
        let extra = match model_type {
            "deepseek_v2" | "deepseek_v3" => {
                json!({"n_routed_experts": 8, "moe_intermediate_size": 8, "num_experts_per_tok": 1})
            }
            "deepseek_v32" | "glm_moe_dsa" | "axk2" => json!({
                "n_routed_experts": 8, "moe_intermediate_size": 8, "num_experts_per_tok": 1, "n_group": 1,
                "qk_rope_head_dim": 4
            }),
            "deepseek_v4" => json!({
                "n_routed_experts": 8, "moe_intermediate_size": 8, "num_experts_per_tok": 1, "o_groups": 1
            }),
            "minimax_m3_vl_text" => {
                json!({"head_dim": 8, "partial_rotary_factor": 0.5, "num_key_value_heads": 2})
            }
            "qwen4_exp_text" => json!({
                "num_experts": 8, "moe_intermediate_size": 8, "num_experts_per_tok": 1, "indexer_n_heads": 2,
                "indexer_head_dim": 256, "indexer_budget": 8, "indexer_compress_ratio": 4,
                "full_attention_interval": 1
            }),
            "gptj" => json!({"rotary_dim": 4}),
            "gpt2" | "gpt_neo" | "falcon" | "dtransformer_rope" => json!({}),
            _ => json!({"num_key_value_heads": 2}),
        };
        config.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        let refusal = read(&config).0.unwrap_err();
        assert!(
            matches!(&refusal, Error::Unsupported { key: found, .. } if found == key),
            "{model_type}: {refusal}"
        );
    }
}

/// Which layers choose the positions that they read, and which read what another one chose.
#[test]
fn indexers_of_each_layer() {
    use LayerIndexer::{Full, None, Shared};
    let dsa = |model_type: &str, own: Value| {
        let mut config = json!({"model_type": model_type, "num_hidden_layers": 6, "n_routed_experts": 8, "n_group": 1,
            "topk_group": 1, "moe_intermediate_size": 8, "num_experts_per_tok": 1, "qk_rope_head_dim": 4});
        config.as_object_mut().unwrap().extend(own.as_object().unwrap().clone());
        config
    };
    let indexer = |config: &Config| -> Indexer { config.mechanisms.indexer.clone().unwrap() };
    let kinds = |own: Value| indexer(&sound(dsa("glm_moe_dsa", own))).layers;
    assert_eq!(kinds(json!({})), [Full; 6]);
    assert_eq!(kinds(json!({"index_topk_pattern": "FSFSSF"})), [Full, Shared, Full, Shared, Shared, Full]);
    let every_third = json!({"index_topk_freq": 3, "index_skip_topk_offset": 2});
    assert_eq!(kinds(every_third), [Full, Full, Shared, Shared, Full, Shared]);
    assert_eq!(indexer(&sound(dsa("hy_v4", json!({})))).layers, [Full, Full, Shared, Shared, Shared, Full]);
    for (key, value) in [
        ("indexer_types", json!(["shared", "full", "full", "full", "full", "full"])),
        ("indexer_types", json!(["full"])),
        ("index_topk_pattern", json!("FFXFFF")),
        ("index_topk", json!(0)),
        ("index_head_dim", json!(2)),
        ("q_lora_rank", json!(null)),
    ] {
        assert_eq!(bad(dsa("glm_moe_dsa", json!({key: value}))), key);
    }
    // The indexer's pairs are half a head apart where attention's are adjacent.
    let config = sound(dsa("deepseek_v32", json!({"index_topk": 7})));
    let Indexer { choice, heads, .. } = indexer(&config);
    assert_eq!(choice, IndexChoice::Positions { index_topk: 7 });
    let layouts: Vec<RopeLayout> = config.ropes.iter().map(|rope| rope.layout).collect();
    assert_eq!((layouts, heads.rope), (vec![RopeLayout::Interleaved, RopeLayout::Neox], 1));

    let m3 = |own: Value| {
        let mut config = json!({"model_type": "minimax_m3_vl_text", "head_dim": 8, "rotary_dim": 4, "partial_rotary_factor": 0.5,
            "num_key_value_heads": 2, "index_n_heads": 2});
        config.as_object_mut().unwrap().extend(own.as_object().unwrap().clone());
        config
    };
    let published =
        json!({"sparse_attention_config": {"sparse_attention_freq": [0, 1], "sparse_block_size": 9}});
    let of_m3 = indexer(&sound(m3(published)));
    assert_eq!(of_m3.layers, [None, Full]);
    let expected = IndexChoice::Blocks { index_block_size: 9, index_topk_blocks: 16, index_local_blocks: 1 };
    assert_eq!(of_m3.choice, expected);
    let own = json!({"layer_types": ["minimax_m3_sparse", "full_attention"], "index_n_heads": 4});
    assert_eq!(unsupported(m3(own)), "index_n_heads");
}

/// What transformers does not read, or reads elsewhere, is not used in another way.
#[test]
fn rotary_keys_that_transformers_does_not_read() {
    let m3 = |rotary_dim: usize| json!({"model_type": "minimax_m3_vl_text", "head_dim": 8, "num_key_value_heads": 2, "rotary_dim": rotary_dim});
    assert_eq!(sound(m3(8)).ropes[0].rotary_dim, 8);
    assert_eq!(bad(m3(4)), "rotary_dim"); // the share is 1 where the file does not say
    let kinds = |sliding: Value| {
        json!({"model_type": "gemma3_text", "head_dim": 8, "num_key_value_heads": 2, "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 10_000}, "sliding_attention": sliding}})
    };
    let yarn = |truncate: bool| json!({"rope_type": "yarn", "rope_theta": 10_000, "factor": 4, "truncate": truncate});
    sound(kinds(yarn(true)));
    assert!(unsupported(kinds(yarn(false))).ends_with("truncate"));
    let gemma4 = |full: Value| {
        json!({"model_type": "gemma4_text", "head_dim": 8, "global_head_dim": 16, "num_key_value_heads": 2,
            "layer_types": ["sliding_attention", "full_attention"], "hidden_size_per_layer_input": 0,
            "rope_parameters": {"sliding_attention": {}, "full_attention": full}})
    };
    let of_full = |full: Value| sound(gemma4(full)).ropes.iter().map(|rope| rope.rotary_dim).max();
    assert_eq!(of_full(json!({"rope_type": "default"})), Some(16)); // the share is of proportional alone
    let partial = json!({"rope_type": "default", "partial_rotary_factor": 0.25});
    assert!(unsupported(gemma4(partial)).ends_with("partial_rotary_factor"));
}

/// What DeepSeek publishes and what transformers writes say the same.
#[test]
fn compressed_keys_in_old_words_and_new() {
    let of = |own: Value| {
        let mut config = json!({"model_type": "deepseek_v4", "num_hidden_layers": 4, "n_routed_experts": 8, "o_groups": 1,
            "moe_intermediate_size": 8, "num_experts_per_tok": 1, "head_dim": 64, "index_head_dim": 16});
        config.as_object_mut().unwrap().extend(own.as_object().unwrap().clone());
        config
    };
    let yarn = json!({"type": "yarn", "factor": 16, "original_max_position_embeddings": 64, "beta_fast": 32});
    let old =
        sound(of(json!({"compress_ratios": [128, 4, 0, 4, 0], "num_hash_layers": 2, "qk_rope_head_dim": 16,
        "compress_rope_theta": 40_000, "rope_theta": 10_000, "compress_rate_csa": 3, "rope_scaling": yarn})));
    let rope = |own: Value| {
        let mut rope = json!({"rope_type": "default", "partial_rotary_factor": 0.25, "rope_theta": 10_000});
        rope.as_object_mut().unwrap().extend(own.as_object().unwrap().clone());
        rope
    };
    let compress = rope(json!({"rope_type": "yarn", "factor": 16, "original_max_position_embeddings": 64,
        "beta_fast": 32, "rope_theta": 40_000, "attention_factor": 1}));
    let (sparse, heavy) = ("compressed_sparse_attention", "heavily_compressed_attention");
    let new = sound(of(json!({"layer_types": [heavy, sparse, "sliding_attention", sparse],
        "mlp_layer_types": ["hash_moe", "hash_moe", "moe", "moe"], "rope_parameters": {"main": rope(json!({})),
        "compress": compress}, "compress_rates": {sparse: 3, heavy: 128}})));
    assert_eq!(old.layers, new.layers);
    assert_eq!((&old.ropes, &old.mechanisms, old.recurrent), (&new.ropes, &new.mechanisms, new.recurrent));
    let attention = new.mechanisms.compression.unwrap();
    let rates: Vec<_> = attention.layers.iter().map(|keys| keys.map(|of| of.compress_rate)).collect();
    assert_eq!(rates, [Some(128), Some(3), None, Some(3)]);
    // The layer that keeps most: 127 positions of a projection and a gate.
    assert_eq!(new.recurrent.unwrap().facts().window(), (127 * 2 * 64, 1));
    for (key, value) in [
        ("o_groups", json!(3)),
        ("qk_rope_head_dim", json!(16)),
        ("index_head_dim", json!(4)),
        ("compress_ratios", json!([4])),
        ("mlp_layer_types", json!(["moe"])),
        ("layer_types", json!([sparse])),
    ] {
        let partial = json!({"partial_rotary_factor": 0.125, key: value});
        assert_eq!(bad(of(partial)), key);
    }
}

/// The layers of both stacks, run by run.
#[test]
fn stacks_that_run_in_cycles() {
    let hrm = |own: Value| {
        let mut config = json!({"model_type": "hrm_text", "H_cycles": 2, "L_cycles": 1});
        config.as_object_mut().unwrap().extend(own.as_object().unwrap().clone());
        config
    };
    let config = sound(hrm(json!({"num_hidden_layers": 1})));
    let repeats: Vec<_> = config.layers.iter().map(|layer| layer.repeats).collect();
    assert_eq!(repeats, [None, None, Some(0), Some(1)]);
    assert_eq!(config.embedding_multiplier, 50.0);
    assert_eq!(bad(hrm(json!({"num_hidden_layers": 6, "num_layers_per_stack": 1}))), "num_hidden_layers");
    assert_eq!(bad(hrm(json!({"num_hidden_layers": 2000}))), "H_cycles");
}

#[test]
fn scores_of_gpt2_by_layer() {
    let scales = |own: Value| {
        let mut config = json!({"model_type": "gpt2", "num_hidden_layers": 3});
        config.as_object_mut().unwrap().extend(own.as_object().unwrap().clone());
        let config = sound(config);
        let of_layers: Vec<f32> = config.layers.iter().map(|layer| layer.attention_scale).collect();
        (config.attention_multiplier, of_layers)
    };
    let (by_width, inverse) = (1.0 / 8f32.sqrt(), vec![1.0, 0.5, 1.0 / 3.0]);
    let by_index = "scale_attn_by_inverse_layer_idx";
    assert_eq!(scales(json!({})), (by_width, vec![1.0; 3]));
    assert_eq!(scales(json!({by_index: false, "scale_attn_weights": false})), (1.0, vec![1.0; 3]));
    assert_eq!(scales(json!({by_index: true})), (by_width, inverse.clone()));
    assert_eq!(scales(json!({by_index: true, "scale_attn_weights": false})), (1.0, inverse.clone()));
    // It says where numbers are rounded; scores and softmax are in f32 here anyway.
    let both = json!({by_index: true, "reorder_and_upcast_attn": true});
    assert_eq!(scales(both), (by_width, inverse));
    assert_eq!(
        bad(json!({"model_type": "gpt2", "reorder_and_upcast_attn": "yes"})),
        "reorder_and_upcast_attn"
    );
}

#[test]
fn windows_and_ropes_of_each_layer() {
    let masks = |changes: Value| {
        let config = sound(changes);
        config.layers.iter().map(|layer| (layer.mask, layer.rope)).collect::<Vec<_>>()
    };
    let (causal, slide) = (Mask::Causal, Mask::Sliding(24));
    let (rope, none) = (LayerRope::Rotary(0), LayerRope::None);
    let with = |model_type: &str, own: Value| {
        let mut config = json!({"model_type": model_type, "num_hidden_layers": 4, "sliding_window": 24});
        config.as_object_mut().unwrap().extend(own.as_object().unwrap().clone());
        masks(config)
    };
    assert_eq!(with("mistral", json!({"num_key_value_heads": 1})), [(slide, rope); 4]);
    assert_eq!(
        with("mistral", json!({"num_key_value_heads": 1, "sliding_window": null})),
        [(causal, rope); 4]
    );
    let qwen2 = |own: Value| with("qwen2", own);
    let used = json!({"use_sliding_window": true, "max_window_layers": 3, "num_key_value_heads": 1});
    assert_eq!(qwen2(used), [(causal, rope), (causal, rope), (causal, rope), (slide, rope)]);
    assert_eq!(qwen2(json!({"max_window_layers": 0, "num_key_value_heads": 1})), [(causal, rope); 4]);
    let gemma3 = with("gemma3_text", json!({"num_key_value_heads": 1, "sliding_window_pattern": 2}));
    let local = (slide, LayerRope::Rotary(1));
    assert_eq!(gemma3, [local, (causal, rope), local, (causal, rope)]);
    let cohere2 = with("cohere2", json!({"sliding_window_pattern": 3}));
    assert_eq!(cohere2, [(slide, rope), (slide, rope), (causal, none), (slide, rope)]);
    let exaone4 = |own: Value| with("exaone4", own);
    let of_kind = json!({"num_key_value_heads": 1, "sliding_window_pattern": "LLLG", "layer_types":
        ["sliding_attention", "full_attention", "full_attention", "sliding_attention"]});
    assert_eq!(exaone4(of_kind), [(slide, rope), (causal, none), (causal, none), (slide, rope)]);
    let usual = exaone4(json!({"num_key_value_heads": 1}));
    assert_eq!(usual, [(slide, rope), (slide, rope), (slide, rope), (causal, none)]);
    let open = json!({"num_key_value_heads": 1, "sliding_window": null, "sliding_window_pattern": null});
    assert_eq!(exaone4(open), [(causal, rope); 4]);
    let smollm3 = with("smollm3", json!({"num_key_value_heads": 1, "no_rope_layers": [1, 0, 1, 1]}));
    assert_eq!(smollm3, [(causal, rope), (causal, none), (causal, rope), (causal, rope)]);
}

#[test]
fn absent_keys_take_each_family_s_own_values() {
    let theta = |model_type: &str| {
        let mut own = json!({"model_type": model_type, "num_key_value_heads": 1});
        if ["mixtral", "gpt_oss"].contains(&model_type) {
            own["num_local_experts"] = json!(8);
        }
        let config = read(&own).0.unwrap_or_else(|error| panic!("{error}"));
        config.ropes[0].theta
    };
    for (model_type, base) in
        [("mixtral", 1e6), ("smollm3", 2e6), ("gpt_oss", 150_000.0), ("gemma3_text", 1e6)]
    {
        assert_eq!(theta(model_type), base, "{model_type}");
    }
    let cohere = sound(json!({"model_type": "cohere"}));
    assert_eq!((cohere.ropes[0].theta, cohere.logit_scale), (500_000.0, 0.0625));
    let gemma3 = sound(json!({"model_type": "gemma3_text", "num_attention_heads": null, "vocab_size": null}));
    assert_eq!((gemma3.num_attention_heads, gemma3.num_key_value_heads, gemma3.head_dim), (8, 4, 256));
    assert_eq!(gemma3.vocab_size, 262_208);
}

#[test]
fn a_text_model_inside_a_wrapper() {
    let wrapped = json!({"model_type": "gemma3", "hidden_size": null, "intermediate_size": null, "vocab_size": null,
        "num_hidden_layers": null, "num_attention_heads": null, "vision_config": {"hidden_size": 8}, "eos_token_id": [1, 106],
        "text_config": {"model_type": "gemma3_text", "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 6,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024}});
    let config = sound(wrapped.clone());
    assert_eq!((config.layers.len(), config.eos_token_id.clone()), (6, vec![1, 106]));
    assert_eq!(config.ropes[0].scaling, RopeScaling::Linear { factor: 8.0 });
    assert_eq!((config.ropes[1].theta, &config.ropes[1].scaling), (10_000.0, &RopeScaling::None));
    let mut odd = wrapped;
    odd["text_config"]["logit_scale"] = json!(3);
    assert_eq!(unsupported(odd), "text_config.logit_scale");
}
