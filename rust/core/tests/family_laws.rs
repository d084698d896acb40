//! Law 1 for every family: a row's logits have the same bits alone and in company, in one chunk and in many, scored and
//! generated, from the cache and computed again.

use crate::common::{
    Folder, Noise, engine, engine_of, engine_with_kv, few_ids, greedy, model, write_model_of,
};
use ropechat_core::checkpoint::Checkpoint;
use ropechat_core::config::{
    Config, EmbeddingPosition, LayerRope, Mask, QkNormPlace, QueryScaling, RopeFrequencies, RopeLayout, Sinks,
};
use ropechat_core::engine::inside::Capture;
use ropechat_core::engine::{Engine, Event, Goal, Speculative};
use ropechat_core::family;
use ropechat_core::mechanisms::indexer::config::LayerIndexer;
use ropechat_core::model::Model;
use ropechat_core::model::pack::Key;
use ropechat_kernels::compute::cancel::CancelToken;
use ropechat_kernels::kernel::{Isa, Kernels};
use ropechat_kernels::quant::PackedType;
use ropechat_platform::files::DiskLimits;
use std::sync::{Arc, OnceLock};

const VOCAB: usize = 103;
const LENGTH: usize = 75; // more than two blocks of the cache, and beyond every window and trained length below

/// Awkward sizes: nothing is a multiple of 16.
const SIZES: &str = r#""vocab_size": 103, "hidden_size": 36, "intermediate_size": 50, "num_hidden_layers": 3,
    "num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 512"#;

/// What each family has that others have not, in the words of config.json.
const FAMILIES: &[(&str, &str)] = &[
    ("mistral", r#""head_dim": 12, "sliding_window": 33"#),
    (
        "ministral3",
        r#""head_dim": 10, "rope_parameters": {"type": "yarn", "rope_theta": 1e4, "factor": 4,
        "original_max_position_embeddings": 16, "llama_4_scaling_beta": 0.1, "mscale": 1, "mscale_all_dim": 1}"#,
    ),
    ("mixtral", r#""num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": 7"#),
    ("qwen2", r#""use_sliding_window": true, "sliding_window": 9, "max_window_layers": 1"#),
    (
        "qwen2_moe",
        r#""num_experts": 5, "moe_intermediate_size": 18, "shared_expert_intermediate_size": 22,
        "num_experts_per_tok": 3, "decoder_sparse_step": 2"#,
    ),
    ("qwen3", r#""head_dim": 14"#),
    ("qwen3_moe", r#""head_dim": 14, "num_experts": 9, "moe_intermediate_size": 18, "norm_topk_prob": true"#),
    ("gemma", r#""head_dim": 20"#),
    ("gemma2", r#""head_dim": 12, "sliding_window": 31, "query_pre_attn_scalar": 9"#),
    ("gemma3_text", r#""head_dim": 12, "sliding_window": 5, "sliding_window_pattern": 2"#),
    ("phi", r#""qk_layernorm": true, "partial_rotary_factor": 0.7"#),
    (
        "phi3",
        r#""original_max_position_embeddings": 50, "rope_scaling": {"type": "longrope",
        "short_factor": [1, 1.1, 1.2], "long_factor": [1, 2, 3.5]}"#,
    ),
    ("gpt_neox", r#""use_parallel_residual": true, "rotary_pct": 0.4, "num_key_value_heads": 6"#),
    ("gpt_neox", r#""use_parallel_residual": false, "rotary_pct": 1.0, "num_key_value_heads": 6"#),
    ("gptj", r#""rotary_dim": 4, "num_key_value_heads": 6"#),
    ("stablelm", r#""qk_layernorm": true, "use_parallel_residual": true, "partial_rotary_factor": 0.4"#),
    ("olmo", r#""clip_qkv": 1.5"#),
    ("olmo2", r#""rms_norm_eps": 1e-6"#),
    ("smollm3", r#""no_rope_layer_interval": 2"#),
    (
        "granite",
        r#""attention_multiplier": 0.2, "embedding_multiplier": 3, "residual_multiplier": 0.3, "logits_scaling": 2"#,
    ),
    ("cohere", r#""use_qk_norm": true"#),
    ("cohere2", r#""sliding_window": 6, "sliding_window_pattern": 3"#),
    ("starcoder2", r#""sliding_window": 40"#),
    ("exaone4", r#""head_dim": 10, "sliding_window": 9, "sliding_window_pattern": 2"#),
    ("falcon", r#""new_decoder_architecture": true"#),
    ("falcon", r#""multi_query": true, "bias": true"#),
    ("glm", r#""head_dim": 12"#),
    ("glm4", r#""head_dim": 12, "attention_bias": false"#),
    ("nemotron", r#""head_dim": 12"#),
    ("gpt_oss", r#""head_dim": 10, "num_local_experts": 6, "num_experts_per_tok": 2, "sliding_window": 11"#),
    (
        "deepseek_v2",
        r#""q_lora_rank": 13, "kv_lora_rank": 9, "qk_nope_head_dim": 5, "qk_rope_head_dim": 6, "v_head_dim": 7,
        "num_key_value_heads": 6, "n_routed_experts": 6, "moe_intermediate_size": 10, "num_experts_per_tok": 2,
        "n_group": 3, "topk_group": 2, "topk_method": "group_limited_greedy", "first_k_dense_replace": 1"#,
    ),
    (
        "deepseek_v3",
        r#""q_lora_rank": null, "kv_lora_rank": 9, "qk_nope_head_dim": 5, "qk_rope_head_dim": 6, "v_head_dim": 7,
        "num_key_value_heads": 6, "n_routed_experts": 8, "moe_intermediate_size": 10, "num_experts_per_tok": 3,
        "n_group": 4, "topk_group": 2, "first_k_dense_replace": 1"#,
    ),
    ("gpt2", r#""num_key_value_heads": 6"#),
    (
        "gpt2",
        r#""num_key_value_heads": 6, "scale_attn_by_inverse_layer_idx": true, "reorder_and_upcast_attn": true"#,
    ),
    ("gpt_neo", r#""attention_types": [[["global", "local"], 1], [["local"], 1]], "window_size": 8"#),
    ("arcee", ""),
    ("helium", r#""head_dim": 12"#),
    ("bitnet", ""),
    (
        "bitnet",
        r#""quantization_config": {"quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "online"}"#,
    ),
    ("nanochat", ""),
    ("persimmon", r#""partial_rotary_factor": 0.7"#),
    ("codegen", r#""rotary_dim": 4, "num_key_value_heads": 6"#),
    ("gpt_neox_japanese", r#""num_key_value_heads": 6, "rotary_pct": 0.4"#),
    ("apertus", r#""rope_scaling": {"type": "linear", "factor": 2}"#),
    ("olmo3", r#""sliding_window": 9"#),
    ("hunyuan_v1_dense", r#""head_dim": 10, "rope_scaling": {"type": "dynamic", "alpha": 9, "factor": 1}"#),
    ("phimoe", r#""num_local_experts": 5, "router_jitter_noise": 0.3"#),
    ("olmoe", r#""num_experts": 5, "num_experts_per_tok": 3, "clip_qkv": 1.5"#),
    (
        "ernie4_5_moe",
        r#""moe_num_experts": 5, "moe_intermediate_size": 18, "moe_k": 2, "moe_num_shared_experts": 1"#,
    ),
    (
        "granitemoeshared",
        r#""num_local_experts": 5, "shared_intermediate_size": 22, "attention_multiplier": 0.3"#,
    ),
    ("granite_swa", r#""sliding_window": 7, "layer_rope_theta": [10000, 0, 500]"#),
    (
        "llama4_text",
        r#""head_dim": 10, "attention_chunk_size": 11, "no_rope_layer_interval": 3, "floor_scale": 7, "attn_scale": 0.3,
        "intermediate_size_mlp": 30, "num_local_experts": 3, "interleave_moe_layer_step": 2"#,
    ),
    (
        "gemma4_text",
        r#""head_dim": 10, "global_head_dim": 14, "num_key_value_heads": 1, "sliding_window": 9,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
        "num_hidden_layers": 4, "num_kv_shared_layers": 2, "use_double_wide_mlp": true, "hidden_size_per_layer_input": 7,
        "vocab_size_per_layer_input": 90, "final_logit_softcapping": 9,
        "rope_parameters": {"sliding_attention": {}, "full_attention": {"rope_type": "proportional"}}"#,
    ),
    (
        "gemma4_text",
        r#""head_dim": 10, "global_head_dim": 14, "num_global_key_value_heads": 1, "attention_k_eq_v": true,
        "layer_types": ["sliding_attention", "full_attention", "full_attention"], "sliding_window": 9,
        "hidden_size_per_layer_input": 0, "enable_moe_block": true, "num_experts": 5, "top_k_experts": 2,
        "moe_intermediate_size": 12, "rope_parameters": {"sliding_attention": {},
        "full_attention": {"rope_type": "proportional"}}"#,
    ),
    (
        "laguna",
        r#""head_dim": 12, "num_attention_heads_per_layer": [6, 2, 4], "sliding_window": 9, "num_experts": 5,
        "layer_types": ["full_attention", "sliding_attention", "full_attention"], "num_experts_per_tok": 2,
        "moe_intermediate_size": 12, "shared_expert_intermediate_size": 14, "moe_router_logit_softcapping": 2"#,
    ),
    (
        "mimo_v2_flash",
        r#""head_dim": 18, "v_head_dim": 10, "num_key_value_heads": 3, "sliding_window": 9, "n_routed_experts": 5,
        "num_experts_per_tok": 2, "moe_intermediate_size": 12"#,
    ),
    (
        "afmoe",
        r#""head_dim": 10, "sliding_window": 9, "global_attn_every_n_layers": 2, "num_experts": 5,
        "num_experts_per_tok": 2, "moe_intermediate_size": 12, "num_shared_experts": 1, "mup_enabled": true"#,
    ),
    (
        "beam",
        r#""head_dim": 10, "sliding_window": 9, "num_experts": 6, "num_experts_per_tok": 2, "n_group": 3,
        "topk_group": 2, "moe_intermediate_size": 12, "mlp_layer_types": ["dense", "sparse", "sparse"]"#,
    ),
    (
        "kolibri1",
        r#""head_dim": 10, "sliding_window": 9, "num_local_experts": 5, "num_experts_per_tok": 2,
        "moe_intermediate_size": 12, "shared_expert_intermediate_size": 14"#,
    ),
    (
        "cohere2_moe",
        r#""head_dim": 10, "sliding_window": 9, "sliding_window_pattern": 2, "num_experts": 5, "num_shared_experts": 1,
        "prefix_dense_intermediate_size": 30, "first_k_dense_replace": 1"#,
    ),
    (
        "mistral4",
        r#""q_lora_rank": 13, "kv_lora_rank": 9, "qk_nope_head_dim": 5, "qk_rope_head_dim": 6, "v_head_dim": 7,
        "num_key_value_heads": 6, "n_routed_experts": 6, "moe_intermediate_size": 10, "num_experts_per_tok": 2,
        "n_group": 3, "topk_group": 2, "first_k_dense_replace": 1, "rope_parameters": {"type": "yarn", "factor": 4,
        "original_max_position_embeddings": 16, "llama_4_scaling_beta": 0.1}"#,
    ),
    (
        "deepseek_v32",
        r#""q_lora_rank": 13, "kv_lora_rank": 9, "qk_nope_head_dim": 5, "qk_rope_head_dim": 6, "v_head_dim": 7,
        "num_key_value_heads": 6, "n_routed_experts": 6, "moe_intermediate_size": 10, "num_experts_per_tok": 2,
        "n_group": 3, "topk_group": 2, "first_k_dense_replace": 1, "attention_bias": true, "index_n_heads": 3,
        "index_head_dim": 11, "index_topk": 13"#,
    ),
    (
        "glm_moe_dsa",
        r#""q_lora_rank": 13, "kv_lora_rank": 9, "qk_nope_head_dim": 5, "qk_rope_head_dim": 6, "v_head_dim": 7,
        "num_key_value_heads": 6, "n_routed_experts": 5, "moe_intermediate_size": 10, "num_experts_per_tok": 2,
        "first_k_dense_replace": 2, "index_n_heads": 5, "index_head_dim": 7, "index_topk": 34,
        "indexer_types": ["full", "shared", "full"]"#,
    ),
    (
        "axk2",
        r#""q_lora_rank": 13, "kv_lora_rank": 9, "qk_nope_head_dim": 5, "qk_rope_head_dim": 6, "v_head_dim": 7,
        "num_key_value_heads": 6, "n_routed_experts": 6, "moe_intermediate_size": 10, "num_experts_per_tok": 3,
        "n_group": 3, "topk_group": 2, "gated_norm_rank": 3, "index_n_heads": 4, "index_head_dim": 9, "index_topk": 5"#,
    ),
    (
        "dots3_note_text",
        r#""q_lora_rank": 13, "kv_lora_rank": 9, "qk_nope_head_dim": 5, "qk_rope_head_dim": 6, "v_head_dim": 7,
        "head_dim": 11, "num_key_value_heads": 6, "n_routed_experts": 5, "moe_intermediate_size": 10,
        "num_experts_per_tok": 2, "shared_experts_intermediate_size": 14, "sliding_window": 9, "index_n_heads": 3,
        "layer_types": ["indexed_attention", "sliding_attention", "full_attention"], "index_head_dim": 8,
        "index_topk": 7, "swa_num_attention_heads": 4, "swa_num_key_value_heads": 4, "swa_q_lora_rank": 10,
        "swa_kv_lora_rank": 11, "swa_head_dim": 9, "swa_qk_nope_head_dim": 5, "swa_v_head_dim": 6, "use_dsa": true"#,
    ),
    (
        "minimax_m3_vl_text",
        r#""head_dim": 10, "rotary_dim": 4, "partial_rotary_factor": 0.4, "num_local_experts": 5, "num_experts_per_tok": 2,
        "dense_intermediate_size": 30, "shared_intermediate_size": 14, "index_n_heads": 2, "index_head_dim": 9,
        "index_block_size": 7, "index_topk_blocks": 3, "mlp_layer_types": ["dense", "sparse", "sparse"],
        "layer_types": ["full_attention", "minimax_m3_sparse", "minimax_m3_sparse"]"#,
    ),
    (
        "hrm_text",
        r#""head_dim": 10, "num_layers_per_stack": 2, "H_cycles": 2, "L_cycles": 1, "num_hidden_layers": 8,
        "embedding_scale": 3, "prefix_lm": false, "num_key_value_heads": 6"#,
    ),
    (
        "hy_v4",
        r#""q_lora_rank": 13, "kv_lora_rank": 9, "qk_nope_head_dim": 5, "qk_rope_head_dim": 6, "v_head_dim": 7,
        "num_key_value_heads": 6, "n_routed_experts": 5, "moe_intermediate_size": 10, "num_experts_per_tok": 2,
        "hc_mult": 3, "index_n_heads": 5, "index_head_dim": 9, "index_topk": 11, "swiglu_limit": 0.5,
        "indexer_types": ["full", "shared", "full"]"#,
    ),
    (
        "lfm2_moe",
        r#""layer_types": ["conv", "full_attention", "conv"], "num_experts": 5, "num_experts_per_tok": 2,
        "moe_intermediate_size": 12, "num_dense_layers": 1"#,
    ),
    (
        "lfm3",
        r#""layer_types": ["sliding_attention", "conv", "full_attention"], "sliding_window": 9, "head_dim": 10,
        "rope_parameters": {"sliding_attention": {}, "full_attention": {"rope_type": "proportional"}}"#,
    ),
    (
        "olmo_hybrid",
        r#""layer_types": ["linear_attention", "full_attention", "linear_attention"], "linear_num_key_heads": 2,
        "linear_num_value_heads": 4, "linear_key_head_dim": 6, "linear_value_head_dim": 20, "rope_parameters": null"#,
    ),
    (
        "bamba",
        r#""attn_layer_indices": [1], "mamba_n_heads": 9, "mamba_n_groups": 3, "mamba_d_state": 5, "mamba_d_conv": 3,
        "partial_rotary_factor": 0.4"#,
    ),
    (
        "granitemoehybrid",
        r#""layer_types": ["mamba", "attention", "mamba"], "mamba_n_heads": 8, "mamba_d_state": 33,
        "num_local_experts": 5, "num_experts_per_tok": 2, "shared_intermediate_size": 22, "residual_multiplier": 0.3,
        "attention_multiplier": 0.2, "mamba_proj_bias": true"#,
    ),
    (
        "falcon_h1",
        r#""head_dim": 10, "mamba_d_ssm": 42, "mamba_n_heads": 6, "mamba_n_groups": 2, "mamba_d_state": 7,
        "mamba_rms_norm": true, "attention_in_multiplier": 1.3, "attention_out_multiplier": 0.7, "key_multiplier": 0.6,
        "ssm_in_multiplier": 0.8, "ssm_out_multiplier": 1.4, "ssm_multipliers": [0.5, 2, 0.7, 1.5, 0.9],
        "mlp_multipliers": [1.2, 0.4], "lm_head_multiplier": 0.5"#,
    ),
    (
        "nemotron_h",
        r#""layers_block_type": ["linear_attention", "full_attention", "moe"], "head_dim": 10, "mamba_num_heads": 6,
        "mamba_head_dim": 7, "n_groups": 2, "ssm_state_size": 5, "n_routed_experts": 5, "num_experts_per_tok": 2,
        "moe_intermediate_size": 12, "moe_shared_expert_intermediate_size": 14, "moe_latent_size": 21"#,
    ),
    ("lfm2", r#""layer_types": ["conv", "full_attention", "conv"], "conv_L_cache": 4, "conv_bias": true"#),
    (
        "qwen3_next",
        r#""head_dim": 10, "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 7, "linear_value_head_dim": 9,
        "num_experts": 5, "moe_intermediate_size": 18, "shared_expert_intermediate_size": 22,
        "num_experts_per_tok": 3, "mlp_only_layers": [1]"#,
    ),
    (
        "qwen3_5_text",
        r#""head_dim": 10, "layer_types": ["linear_attention", "linear_attention", "full_attention"],
        "linear_num_key_heads": 3, "linear_num_value_heads": 3, "linear_key_head_dim": 17, "linear_value_head_dim": 18,
        "linear_conv_kernel_dim": 2, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4,
        "partial_rotary_factor": 0.4, "mrope_section": [1, 1, 0]}"#,
    ),
    (
        "qwen4_exp_text",
        r#""head_dim": 10, "layer_types": ["linear_attention", "indexed_attention", "linear_attention"],
        "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 7, "linear_value_head_dim": 9,
        "num_experts": 5, "moe_intermediate_size": 18, "shared_expert_intermediate_size": 22,
        "num_experts_per_tok": 2, "hc_count": 3, "hc_lowrank": 7, "output_gate_type": "sigmoid",
        "attention_bias": true, "indexer_n_heads": 3, "indexer_kv_heads": 1, "indexer_head_dim": 9,
        "indexer_budget": 15, "indexer_compress_ratio": 5, "ple_layer_ids": [3, 1], "ple_embed_dim": 18,
        "ple_conv_kernel_size": 3, "ngram_size": 4, "heads_per_ngram": 3, "ngram_vocab_size_base": 60,
        "make_ngram_vocab_size_divisible_by": 9, "split_ngram_parts": 4, "eos_token_id": 2,
        "rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.6}"#,
    ),
    (
        "jamba",
        r#""attn_layer_period": 3, "attn_layer_offset": 1, "num_experts": 5, "num_experts_per_tok": 2,
        "mamba_d_state": 5, "mamba_d_conv": 3, "mamba_expand": 3, "mamba_dt_rank": 7, "mamba_proj_bias": true"#,
    ),
    (
        "minimax",
        r#""head_dim": 10, "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        "num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": 9, "full_attn_alpha_factor": 1.3,
        "full_attn_beta_factor": 0.8, "linear_attn_alpha_factor": 1.2, "mlp_beta_factor": 0.9"#,
    ),
    (
        "kimi_linear",
        r#""num_key_value_heads": 6, "kv_lora_rank": 9, "qk_nope_head_dim": 5, "qk_rope_head_dim": 6, "v_head_dim": 7,
        "num_experts": 6, "moe_intermediate_size": 10, "num_experts_per_token": 2, "num_expert_group": 3,
        "topk_group": 2, "linear_attn_config": {"full_attn_layers": [2], "kda_layers": [1, 3], "head_dim": 17,
        "num_heads": 2, "short_conv_kernel_size": 3}"#,
    ),
    (
        "bailing_hybrid",
        r#""num_key_value_heads": 6, "kv_lora_rank": 9, "qk_nope_head_dim": 5, "qk_rope_head_dim": 6, "v_head_dim": 7,
        "num_experts": 6, "moe_intermediate_size": 10, "num_experts_per_token": 2, "num_expert_group": 3,
        "topk_group": 2, "first_k_dense_replace": 1, "layer_group_size": 3, "linear_head_dim": 9,
        "linear_num_heads": 3, "kda_lower_bound": -4"#,
    ),
    (
        "zamba2",
        r#""num_hidden_layers": 4, "layers_block_type": ["hybrid", "mamba", "hybrid", "hybrid"], "num_mem_blocks": 2,
        "num_key_value_heads": 6, "n_mamba_heads": 8, "mamba_ngroups": 2, "mamba_d_state": 5, "adapter_rank": 5,
        "use_shared_attention_adapter": true, "use_mem_rope": true, "add_bias_linear": true"#,
    ),
    (
        "zaya",
        r#""head_dim": 10, "layer_types": ["hybrid", "hybrid_sliding", "hybrid"], "sliding_window": 9, "cca_time0": 3,
        "num_experts": 5, "moe_intermediate_size": 12, "router_hidden_size": 9,
        "rope_parameters": {"hybrid": {"rope_theta": 1e5, "partial_rotary_factor": 0.6}, "hybrid_sliding": {"partial_rotary_factor": 0.4}}"#,
    ),
    (
        "doge",
        r#""head_dim": 10, "keep_window_size": 11, "sliding_window": 40, "attention_bias": true, "mlp_bias": true"#,
    ),
    (
        "jetmoe",
        r#""num_attention_heads": 6, "kv_channels": 10, "num_local_experts": 5, "num_experts_per_tok": 3, "rms_norm_eps": 1e-3"#,
    ),
    (
        "inkling_text",
        r#""vocab_size": 110, "unpadded_vocab_size": 103, "head_dim": 10, "swa_num_attention_heads": 4, "swa_num_key_value_heads": 1, "swa_head_dim": 9,
        "sliding_window_size": 9, "layer_types": ["hybrid_sliding", "hybrid", "hybrid_sliding"], "d_rel": 5,
        "rel_extent": 21, "log_scaling_n_floor": 13, "conv_kernel_size": 3, "n_routed_experts": 5,
        "n_shared_experts": 2, "num_experts_per_tok": 2, "moe_intermediate_size": 12,
        "mlp_layer_types": ["dense", "sparse", "sparse"]"#,
    ),
    (
        "deepseek_v4",
        r#""num_key_value_heads": 1, "head_dim": 14, "qk_rope_head_dim": 6, "q_lora_rank": 13, "o_groups": 3,
        "o_lora_rank": 5, "sliding_window": 9, "num_hash_layers": 1, "n_routed_experts": 5, "num_experts_per_tok": 2,
        "moe_intermediate_size": 10, "swiglu_limit": 0.5, "hc_mult": 3, "hc_sinkhorn_iters": 4, "index_n_heads": 5,
        "index_head_dim": 9, "index_topk": 4, "compress_rates": {"compressed_sparse_attention": 3,
        "heavily_compressed_attention": 7}, "layer_types": ["sliding_attention", "compressed_sparse_attention",
        "heavily_compressed_attention"]"#,
    ),
    (
        "recurrent_gemma",
        r#""num_key_value_heads": 1, "lru_width": 42, "conv1d_width": 3, "partial_rotary_factor": 0.7,
        "attention_window_size": 9, "block_types": ["recurrent", "attention"]"#,
    ),
    ("llama", r#""rope_scaling": {"type": "proportional"}, "partial_rotary_factor": 0.5"#),
    ("llama", r#""rope_scaling": {"type": "dynamic", "factor": 2}, "max_position_embeddings": 50"#),
];

/// The pseudo-code's own letters.
const DTRANSFORMER: &str = r#"{"model_type": "dtransformer_rope", "L": 2, "H": 3, "d_e": 38, "d_head": 11, "d_mlp": 50,
    "N_V": 103}"#;

fn config(model_type: &str, own: &str) -> String {
    // A key that both state is the family's.
    let own_key = |line: &&str| !own.contains(line.trim().split(':').next().unwrap());
    let sizes: Vec<&str> = SIZES.split(',').filter(own_key).collect();
    let own = if own.is_empty() { String::new() } else { format!(", {own}") };
    format!(r#"{{"model_type": "{model_type}", {}{own}}}"#, sizes.join(","))
}

/// Name and config.json of every model.
fn all_configs() -> Vec<(String, String)> {
    let mut all: Vec<(String, String)> =
        FAMILIES.iter().map(|(name, own)| ((*name).to_owned(), config(name, own))).collect();
    all.push(("dtransformer_rope".to_owned(), DTRANSFORMER.to_owned()));
    all
}

/// A model in a weight type, for the kernels that read it.
struct Case {
    name: String,
    model: Arc<Model>,
    kernels: Kernels,
}

/// Every family in four pairs of types, loaded once for all tests.
fn cases() -> &'static [Case] {
    static CASES: OnceLock<Vec<Case>> = OnceLock::new();
    CASES.get_or_init(|| {
        let fastest = Isa::ALL.into_iter().rev().find_map(|isa| Kernels::of(isa).ok()).unwrap();
        let scalar = Kernels::of(Isa::Scalar).unwrap();
        let mut cases = Vec::new();
        for (name, config) in &all_configs() {
            let folder: Folder = write_model_of(config);
            for (dtype, kv, kernels) in [
                (PackedType::F32, None, scalar),
                (PackedType::BF16, Some(PackedType::BF16), fastest),
                (PackedType::Q8_0, Some(PackedType::F16), fastest),
                (PackedType::Q8_0, Some(PackedType::Q8_0), fastest),
            ] {
                let name = format!("{name} {dtype:?} {kv:?} {:?}", kernels.isa());
                cases.push(Case { name, model: model(folder.path(), dtype, kv, kernels), kernels });
            }
        }
        cases
    })
}

fn for_all(test: impl Fn(&dyn Fn(usize) -> Engine, &[u32], &str)) {
    for case in cases() {
        let make = |threads| engine_of(case.model.clone(), case.kernels, threads);
        test(&make, &Noise(9).ids(LENGTH, VOCAB), &case.name);
    }
}

fn bits(all: &[f32]) -> Vec<u32> {
    assert!(all.iter().all(|x| x.is_finite()));
    all.iter().map(|x| x.to_bits()).collect()
}

fn logits(engine: &mut Engine, ids: &[u32]) -> Vec<u32> {
    bits(&engine.logits(ids, &CancelToken::default()).unwrap())
}

/// Position, id and logprob in bits of every token that the sequences' rows say something of.
fn run(engine: &mut Engine, numbers: &[u64]) -> Vec<Vec<(usize, u32, u64)>> {
    let mut records = vec![Vec::new(); numbers.len()];
    loop {
        let events = engine.step(numbers, &CancelToken::default()).unwrap();
        if events.is_empty() {
            return records;
        }
        for (number, event) in &events {
            let (Event::Score(scored) | Event::Token { scored, .. }) = event else { continue };
            let Some((logprob, _)) = scored.logprob_and_rank else { continue };
            let index = numbers.iter().position(|n| n == number).unwrap();
            records[index].push((scored.position, scored.id, logprob.to_bits()));
        }
    }
}

#[test]
fn chunks_threads_and_company_do_not_change_a_bit() {
    for_all(|make, ids, name| {
        let expected = logits(&mut make(1), ids);
        for chunk in [3, 32] {
            let mut engine = make(2);
            engine.set_rows_per_step(chunk);
            assert!(logits(&mut engine, ids) == expected, "{name}: chunks of {chunk}");
        }
        let mut engine = make(2);
        let alone = engine.add(ids, Goal::score(3)).unwrap();
        let expected = run(&mut engine, &[alone]).remove(0);
        let mut engine = make(2);
        let numbers: Vec<u64> = [&ids[5..50], ids, &ids[20..23], &ids[1..60]]
            .iter()
            .map(|prompt| engine.add(prompt, Goal::score(3)).unwrap())
            .collect();
        assert!(run(&mut engine, &numbers)[1] == expected, "{name}: in company");
    });
}

#[test]
fn drafted_tokens_do_not_change_a_bit() {
    for_all(|make, ids, name| {
        let repeated = ids[..7].repeat(6);
        let [one_by_one, drafted] = [Speculative::Off, Speculative::Always].map(|mode| {
            let mut engine = make(2);
            engine.set_speculative(mode);
            let numbers = [(&repeated[..], 0.0), (&ids[..30], 1.0)].map(|(prompt, temperature)| {
                engine.add(prompt, few_ids(24, &ids[..3], temperature)).unwrap()
            });
            run(&mut engine, &numbers)
        });
        assert!(drafted == one_by_one, "{name}");
    });
}

#[test]
fn generated_tokens_score_the_same_and_a_cached_prefix_changes_nothing() {
    for_all(|make, ids, name| {
        let mut engine = make(2);
        let first = engine.add(&ids[..20], greedy(18)).unwrap();
        let generated = run(&mut engine, &[first]).remove(0);
        let whole: Vec<u32> = ids[..20].iter().copied().chain(generated.iter().map(|r| r.1)).collect();
        let scored = engine.add(&whole, Goal::score(3)).unwrap();
        assert!(run(&mut engine, &[scored])[0][19..] == generated[..], "{name}: scored against generated");
        let again = engine.add(&whole[..30], greedy(8)).unwrap();
        // A recurrent state is taken up again at the end of a block only.
        let known = if is_hybrid(name) { 0 } else { 29 };
        assert_eq!(engine.reused(again).unwrap(), known, "{name}");
        assert!(run(&mut engine, &[again])[0] == generated[10..], "{name}: from a cached prefix");
    });
}

/// Families with a recurrent state.
fn is_hybrid(name: &str) -> bool {
    let family = name.split(' ').next().unwrap();
    let (_, config) = all_configs().into_iter().find(|(of, _)| of == family).unwrap();
    hybrid_config(&config)
}

fn hybrid_config(config: &str) -> bool {
    let folder = write_model_of(config);
    family::config(&Checkpoint::open(folder.path()).unwrap()).unwrap().recurrent.is_some()
}

#[test]
fn a_recurrent_sequence_goes_on_from_the_last_state_that_is_known() {
    for_all(|make, ids, name| {
        if !is_hybrid(name) {
            return;
        }
        let score = |engine: &mut Engine, ids: &[u32]| {
            let number = engine.add(ids, Goal::score(3)).unwrap();
            run(engine, &[number]).remove(0)
        };
        let mut other = ids.to_vec();
        other[70] = (other[70] + 1) % VOCAB as u32;
        let (expected, of_other) = (score(&mut make(1), ids), score(&mut make(1), &other));
        let mut engine = make(2);
        engine.set_rows_per_step(23);
        let prompt = engine.add(ids, greedy(3)).unwrap();
        let generated = run(&mut engine, &[prompt]);
        // The same prompt again, and one that differs at its 70th token: both from the 64th on.
        for (ids, expected) in [(ids, &expected), (&other[..], &of_other)] {
            let goal = Goal::Score { readout_top_k: 3, from: 70, read_next: true };
            let again = engine.add(ids, goal).unwrap();
            assert_eq!(engine.reused(again).unwrap(), 64, "{name}");
            let found = run(&mut engine, &[again]).remove(0);
            assert!(found[..] == expected[expected.len() - found.len()..], "{name}: from a snapshot");
        }
        // The snapshots of a sequence that ended, and generation in the middle of a block.
        engine.free(prompt);
        let again = engine.add(ids, greedy(3)).unwrap();
        assert!(engine.reused(again).unwrap() >= 64, "{name}");
        assert!(run(&mut engine, &[again]) == generated, "{name}: generated from a snapshot");
        // A cancelled step leaves the state as it was.
        let mut engine = make(2);
        engine.set_rows_per_step(23);
        let number = engine.add(ids, Goal::score(3)).unwrap();
        engine.step(&[number], &CancelToken::default()).unwrap();
        let cancelled = CancelToken::default();
        cancelled.cancel();
        assert!(engine.step(&[number], &cancelled).is_err());
        let rest = run(&mut engine, &[number]).remove(0);
        assert!(rest[..] == expected[expected.len() - rest.len()..], "{name}: after a cancel");
    });
}

#[test]
fn what_comes_from_a_file_has_the_same_bits() {
    for_all(|make, ids, name| {
        let mut first = make(2);
        let prompt = first.add(ids, greedy(4)).unwrap();
        let expected = run(&mut first, &[prompt]).remove(0);
        first.free(prompt);
        let folder = write_model_of(&all_configs()[0].1);
        let key = Key::new(&Checkpoint::open(folder.path()).unwrap(), None).unwrap();
        let path = folder.path().join("text.kv");
        first.set_identity(key.clone());
        let Some(kept) = first.kept_prefix(ids) else {
            // A dynamic rope rotates all keys again when the text grows.
            let again = first.add(ids, greedy(4)).unwrap();
            assert_eq!(first.reused(again).unwrap(), 0, "{name}");
            return;
        };
        let tokens = if is_hybrid(name) { 64 } else { 75 };
        assert_eq!(kept.tokens(), tokens, "{name}");
        let limits = DiskLimits { total: u64::MAX, keep_free: 0 };
        assert!(kept.write(&path, limits, &CancelToken::default()).unwrap(), "{name}");
        let mut second = make(1);
        second.set_identity(key);
        assert_eq!(second.take_prefix(ids, &path, &CancelToken::default()).unwrap(), None, "{name}");
        let prompt = second.add(ids, greedy(4)).unwrap();
        assert_eq!(second.reused(prompt).unwrap(), tokens.min(ids.len() - 1), "{name}");
        assert!(run(&mut second, &[prompt])[0] == expected, "{name}: from a file");
    });
}

#[test]
fn prompts_that_begin_alike_wait_for_the_first_and_have_the_same_bits() {
    for_all(|make, ids, name| {
        let other = Noise(4).ids(12, VOCAB);
        let prompts =
            [ids.to_vec(), [&ids[..66], &other].concat(), [&ids[..40], &other].concat(), ids[..33].to_vec()];
        let mut alone = make(1);
        alone.set_prefix_bytes(0);
        let expected = prompts.each_ref().map(|prompt| {
            let number = alone.add(prompt, greedy(5)).unwrap();
            let found = run(&mut alone, &[number]).remove(0);
            alone.free(number);
            found
        });
        let mut engine = make(2);
        let numbers = prompts.each_ref().map(|prompt| engine.add(prompt, greedy(5)).unwrap());
        assert!(run(&mut engine, &numbers)[..] == expected, "{name}");
        let lengths_matter = ["phi3", "llama"].iter().any(|family| name.starts_with(family));
        assert!(lengths_matter || engine.reused(numbers[1]).unwrap() >= 64, "{name}: not shared");
    });
}

#[test]
fn a_window_hides_what_is_so_far_back_and_no_more() {
    let folder = write_model_of(&config("mistral", ""));
    let window = |window: usize| {
        let config = config("mistral", &format!(r#""sliding_window": {window}"#));
        std::fs::write(folder.path().join("config.json"), config).unwrap();
        let mut engine = engine(folder.path(), PackedType::F32, Isa::Scalar, 1).unwrap();
        logits(&mut engine, &Noise(9).ids(40, VOCAB))
    };
    let (narrow, wide, wider) = (window(20), window(21), window(40));
    let first_difference = |a: &[u32], b: &[u32]| a.iter().zip(b).take_while(|(a, b)| a == b).count() / VOCAB;
    assert_eq!(first_difference(&narrow, &wide), 20);
    assert_eq!(first_difference(&wide, &wider), 21);
    assert_eq!(window(40), window(500));
}

// ---- Inside the model

#[test]
fn the_last_layer_of_the_lens_predicts_what_the_model_does() {
    for_all(|make, ids, name| {
        let mut engine = make(2);
        let alone = engine.add(ids, Goal::score(3)).unwrap();
        let expected = run(&mut engine, &[alone]).remove(0);
        let mut is_layer = |layer: &usize| {
            let mut first_token = engine.read(&ids[..1], 0).unwrap();
            engine.lens(&mut first_token, &[*layer], &[], 1, &CancelToken::default()).is_ok()
        };
        let last = (1..).take_while(&mut is_layer).last().unwrap();
        let (mut reading, mut found, mut layers) = (engine.read(ids, 0).unwrap(), Vec::new(), [0; 8]);
        loop {
            let rows = engine.lens(&mut reading, &[last, 0], &[], 3, &CancelToken::default()).unwrap();
            if rows.is_empty() {
                break;
            }
            for row in rows {
                layers[row.layer] += 1;
                let Some((logprob, rank)) = row.token.filter(|_| row.layer == last) else { continue };
                assert!(rank >= 1 && row.row.top.len() == 3, "{name}");
                found.push((row.position, ids[row.position], logprob.to_bits()));
            }
        }
        assert!(found == expected, "{name}");
        assert!(layers[0] == ids.len() && layers[last] == ids.len(), "{name}: {layers:?}");
    });
}

/// A head rotated at its position in f64, in the definition's words.
fn rotated(head: &[f32], rope: Option<(RopeLayout, &RopeFrequencies)>, position: usize) -> Vec<f64> {
    let mut out: Vec<f64> = head.iter().map(|&x| f64::from(x)).collect();
    let Some((layout, frequencies)) = rope else { return out };
    let pairs = frequencies.inv_freq().len();
    for (i, frequency) in frequencies.inv_freq().iter().enumerate() {
        let (a, b) = match layout {
            RopeLayout::Neox => (i, i + pairs),
            RopeLayout::Interleaved => (2 * i, 2 * i + 1),
        };
        let (sin, cos) = (position as f64 * frequency).sin_cos();
        let (x, y) = (out[a], out[b]);
        out[a] = (x * cos - y * sin) * frequencies.attention_factor();
        out[b] = (x * sin + y * cos) * frequencies.attention_factor();
    }
    out
}

fn query_factor(config: &Config, rope: LayerRope, position: usize) -> f64 {
    let next = (position + 1) as f64;
    match config.query_scaling {
        QueryScaling::None => 1.0,
        QueryScaling::Llama4 { beta, original_max_position_embeddings: trained } => {
            1.0 + beta * ((position / trained) as f64).ln_1p()
        }
        QueryScaling::LogWhereUnwindowed { .. } => unreachable!("scores of such layers hold more than q k"),
        _ if rope != LayerRope::None => 1.0,
        QueryScaling::WhereUnrotated { attn_scale, floor_scale } => {
            1.0 + attn_scale * (1.0 + (next / floor_scale).floor()).ln()
        }
        QueryScaling::PowerWhereUnrotated { exponent, length } => {
            (exponent * (1.0 + next / length).ln()).exp()
        }
    }
}

#[test]
fn captured_heads_rebuild_scores_weights_and_distances() {
    const TOKENS: usize = 40; // more than a block, and beyond most windows
    for (name, text) in &all_configs() {
        let folder = write_model_of(text);
        let config = family::config(&Checkpoint::open(folder.path()).unwrap()).unwrap();
        let mut engine = engine_with_kv(folder.path(), PackedType::F32, None, Isa::Scalar, 2).unwrap();
        let (ids, cancel) = (Noise(9).ids(TOKENS, VOCAB), CancelToken::default());
        let heads = config.most_attention_heads();
        let has_attention = |&layer: &usize| config.layers[layer].mixer.has_attention();
        let attending: Vec<usize> = (0..config.layers.len()).filter(has_attention).collect();
        let layers = attending.len();
        let everything = Capture {
            layers: attending.clone(),
            heads: (0..heads).collect(),
            rows: (0..TOKENS).collect(),
            q_pre: true,
            k_pre: true,
            scores: true,
            weights: true,
        };
        for start in [0, 1000] {
            if start > 0 && config.position == EmbeddingPosition::Learned {
                assert!(engine.capture(&ids, start, &everything, &cancel).is_err(), "{name}");
                continue;
            }
            engine.set_rows_per_step(7);
            let chunked = engine.capture(&ids, start, &everything, &cancel).unwrap();
            engine.set_rows_per_step(64);
            let found = engine.capture(&ids, start, &everything, &cancel).unwrap();
            for (one, other) in [(&found.q_pre, &chunked.q_pre), (&found.k_pre, &chunked.k_pre)] {
                assert!(bits(one) == bits(other), "{name}: in chunks");
            }
            assert!(bits(&found.weights) == bits(&chunked.weights), "{name}: in chunks");

            let frequencies = config.frequencies(config.rope_variant(start + TOKENS));
            for (index, &layer) in attending.iter().enumerate() {
                let spec = &config.layers[layer];
                // q and k are seen before the norm that follows rotation; a layer that reads others' keys shows none.
                if config.qk_norm_place == QkNormPlace::AfterRotation || spec.shares_kv_of.is_some() {
                    continue;
                }
                // Scores hold more than q k.
                let mechanisms = &config.mechanisms;
                let adds = mechanisms.dynamic_mask.is_some() || mechanisms.further_heads(layer) > 0;
                if adds || config.relative_scores.is_some() {
                    continue;
                }
                let rope = match spec.rope {
                    LayerRope::None => None,
                    LayerRope::Rotary(rope) => Some((config.ropes[rope].layout, &frequencies[rope])),
                };
                let scale = f64::from(config.attention_multiplier) * f64::from(spec.attention_scale);
                for head in 0..config.heads(spec).num_attention_heads {
                    let list = index * heads + head;
                    let of_token = |all: &[f32], t: usize| {
                        let dim = config.widest_head_dim();
                        rotated(&all[(list * TOKENS + t) * dim..][..dim], rope, start + t)
                    };
                    let keys: Vec<_> = (0..TOKENS).map(|t| of_token(&found.k_pre, t)).collect();
                    for t in 0..TOKENS {
                        let query = of_token(&found.q_pre, t);
                        let factor = scale * query_factor(&config, spec.rope, start + t);
                        let row = (list * TOKENS + t) * TOKENS;
                        let (scores, weights) =
                            (&found.scores[row..][..TOKENS], &found.weights[row..][..TOKENS]);
                        let window = match spec.mask {
                            Mask::Causal => TOKENS,
                            Mask::Sliding(window) => window,
                            Mask::Chunked(chunk) => t % chunk + 1,
                        };
                        let mut total = 0.0;
                        let mut numerators = Vec::new();
                        for s in 0..TOKENS {
                            // An indexer leaves out some of what the mask allows.
                            let chooses = mechanisms.indexer.as_ref().map(|indexer| indexer.layers[layer]);
                            let left_out = chooses.is_some_and(|kind| kind != LayerIndexer::None)
                                && scores[s] == f32::NEG_INFINITY;
                            if s > t || s + window <= t || left_out {
                                assert!(
                                    scores[s] == f32::NEG_INFINITY && weights[s] == 0.0,
                                    "{name} {t} {s}"
                                );
                                continue;
                            }
                            let dot: f64 = query.iter().zip(&keys[s]).map(|(q, k)| q * k).sum();
                            let (expected, got) = (factor * dot, f64::from(scores[s]));
                            let error = (got - expected).abs();
                            assert!(
                                error <= 1e-4,
                                "{name} layer {index} head {head} {t} {s}: {got} {expected}"
                            );
                            let capped = config.attn_logit_softcapping.map_or(got, |cap| {
                                let cap = f64::from(cap);
                                cap * (got / cap).tanh()
                            });
                            numerators.push((s, capped.exp()));
                            total += f64::from(weights[s]);
                        }
                        let windowed = matches!(spec.mask, Mask::Sliding(_));
                        if config.sinks == Sinks::PerHead
                            || config.sinks == Sinks::PerHeadInWindows && windowed
                        {
                            assert!(0.0 < total && total < 1.0, "{name}: {total}");
                        } else {
                            assert!((total - 1.0).abs() < 1e-5, "{name}: {total}");
                        }
                        let sum: f64 = numerators.iter().map(|(_, numerator)| numerator).sum();
                        for (s, numerator) in numerators {
                            let expected = numerator / sum * total;
                            assert!((f64::from(weights[s]) - expected).abs() < 1e-5, "{name} {t} {s}");
                        }
                    }
                }
            }
            if start == 0 {
                let summed = engine.attention_by_distance(&ids, &everything.layers, TOKENS, &cancel).unwrap();
                // A layer with fewer heads than another shows zeros in place of the others.
                let is_head = |list: &usize| {
                    let spec = &config.layers[attending[list / heads]];
                    list % heads < config.heads(spec).num_attention_heads
                };
                for list in (0..layers * heads).filter(is_head) {
                    let weight =
                        |t: usize, s: usize| f64::from(found.weights[(list * TOKENS + t) * TOKENS + s]);
                    let mean = |of: &dyn Fn(usize) -> f64, from: usize| {
                        (from..TOKENS).map(of).sum::<f64>() / (TOKENS - from) as f64
                    };
                    for distance in 0..TOKENS {
                        let expected = mean(&|t| weight(t, t - distance), distance);
                        let got = summed.mean[list * TOKENS + distance];
                        assert!((got - expected).abs() < 1e-12, "{name}: {distance}: {got} {expected}");
                    }
                    assert!((summed.first[list] - mean(&|t| weight(t, 0), 1)).abs() < 1e-12, "{name}");
                    assert!((summed.previous[list] - mean(&|t| weight(t, t - 1), 1)).abs() < 1e-12, "{name}");
                    let total = |t: usize| (0..=t).map(|s| weight(t, s)).sum::<f64>();
                    let far =
                        |t: usize| (0..=t).map(|s| weight(t, s) * (t - s) as f64).sum::<f64>() / total(t);
                    assert!((summed.distance[list] - mean(&far, 0)).abs() < 1e-9, "{name}");
                    assert!((summed.sink[list] - mean(&|t| 1.0 - total(t), 0)).abs() < 1e-5, "{name}");
                }
            }
        }
    }
}
