//! Law 6: a config key that changes the maths and is not understood is an error that names the key.
//!
//! The rule, for every key of config.json that the family file has not read:
//!
//! 1. `null` is "not set": it passes.
//! 2. A key in [`NO_MATHS`] never changes what inference computes: bookkeeping, training, generation defaults
//!    (those are read from generation_config.json), cache and library settings. It passes with any value.
//! 3. A key in [`is_inert`] changes the maths at some values and does nothing at others: the latter pass.
//! 4. Anything else is refused, also a key that no one has ever seen: it may be the one that scales the logits.
//!
//! A harmless key of a published model is added to one of the two lists, with a test where the case is subtle.

use serde_json::Value;

use super::metadata::Metadata;
use crate::checkpoint::json::describe;
use ropechat_platform::error::Result;

/// Keys that do not change what inference computes, sorted.
const NO_MATHS: &[&str] = &[
    "_attn_implementation",
    "_attn_implementation_autoset",
    "_commit_hash",
    "_experts_implementation",
    "_flash_attn_2_enabled",
    "_model_name_or_path", // transformers, of a model that it loaded from GGUF
    "_name_or_path",
    "architectures",
    "attention_dropout",
    "attn_implementation",
    "attn_pdrop",
    "auto_map",
    "bad_words_ids",
    "begin_suppress_tokens",
    "cache_implementation",
    "chunk_size_feed_forward",
    "classifier_dropout",
    "cross_attention_hidden_size",
    "custom_pipelines",
    "decoder_start_token_id",
    "diversity_penalty",
    "do_sample",
    "dropout",
    "dtype",
    "early_stopping",
    "embd_pdrop",
    "embed_dropout",
    "embedding_dropout",
    "encoder_no_repeat_ngram_size",
    "exponential_decay_length_penalty",
    "finetuning_task",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "gradient_checkpointing",
    "hidden_dropout",
    "hidden_dropout_prob",
    "id2label",
    "initializer_factor",
    "initializer_range",
    "is_bitnet_config",
    "is_decoder",
    "is_llama_config",
    "keys_to_ignore_at_inference",
    "label2id",
    "length_penalty",
    "max_length",
    "max_new_tokens",
    "max_sequence_length",
    "max_window_layers",
    "min_length",
    "model_max_length",
    "name_or_path",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_labels",
    "num_return_sequences",
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
    "output_scores",
    "pad_token_id",
    "prefix",
    "problem_type",
    "remove_invalid_values",
    "repetition_penalty",
    "resid_dropout",
    "resid_pdrop",
    "residual_dropout",
    "return_dict",
    "return_dict_in_generate",
    "router_aux_loss_coef",
    "router_jitter_noise",
    "sep_token_id",
    "summary_activation",
    "summary_first_dropout",
    "summary_proj_to_labels",
    "summary_type",
    "summary_use_proj",
    "suppress_tokens",
    "task_specific_params",
    "temperature",
    "tf_legacy_loss",
    "tokenizer_class",
    "top_k",
    "top_p",
    "torch_dtype",
    "torchscript",
    "transformers.js_config",
    "transformers_version",
    "transformers_weights",
    "typical_p",
    "unk_token_id",
    "unsloth_fixed",
    "unsloth_version",
    "use_bfloat16",
    "use_cache",
    "use_flash_attention_2",
];

/// Whether this key has no effect on the maths at this value.
fn is_inert(key: &str, value: &Value) -> bool {
    match key {
        // Features that are off.
        "add_cross_attention"
        | "alibi"
        | "attention_bias"
        | "bias"
        | "is_encoder_decoder"
        | "mlp_bias"
        | "parallel_attn"
        | "qk_layernorm"
        | "reorder_and_upcast_attn"
        | "rope_interleaved"
        | "scale_attn_by_inverse_layer_idx"
        | "tie_encoder_decoder"
        | "use_bidirectional_attention"
        | "use_parallel_residual"
        | "use_qk_norm" => value == &Value::Bool(false),
        // Multipliers of one.
        "embedding_multiplier" | "logit_scale" | "logits_scaling" | "residual_multiplier" => {
            value.as_f64() == Some(1.0)
        }
        // Tensor-parallel slicing of the training code: more than one slice changes the order of sums.
        "pretraining_tp" => value.as_u64() == Some(1),
        // No experts.
        "num_experts" | "num_local_experts" => value.as_u64() == Some(0),
        "pruned_heads" => value.as_object().is_some_and(|heads| heads.is_empty()),
        "layer_types" => {
            value.as_array().is_some_and(|types| types.iter().all(|kind| kind == "full_attention"))
        }
        _ => false,
    }
}

/// Refuses every key that neither the family nor the two lists understand.
///
/// Errors: `Unsupported` naming the key and its value.
pub(crate) fn refuse_unknown(metadata: &Metadata<'_>) -> Result<()> {
    if metadata.has("auto_map") {
        metadata.warn(
            "auto_map",
            "the model requires its own Python code; ropechat never runs code from a model",
        );
    }
    for (key, value) in metadata.unread() {
        if NO_MATHS.binary_search(&key).is_err() && !is_inert(key, value) {
            return Err(metadata.unsupported(
                key,
                &format!(
                    "{}; this key is not known and may change what the model \
                     computes; if you know that it does not, remove it from the file",
                    describe(value)
                ),
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::NO_MATHS;

    #[test]
    fn the_list_is_sorted_for_binary_search() {
        assert!(NO_MATHS.is_sorted_by(|a, b| a < b));
    }
}
