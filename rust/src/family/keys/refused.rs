//! Models that are known but not supported, and what each would need.

/// What computing a model of this type would need.
pub(crate) fn reason(model_type: &str) -> Option<&'static str> {
    Some(match model_type {
        "mamba" | "mamba2" | "falcon_mamba" | "codestral_mamba" => {
            "a state space model (Mamba) has no attention; it would need selective scans and their state"
        }
        "jamba" | "zamba" | "zamba2" | "plamo2" => "some of its layers are Mamba; they would need selective scans and their state",
        "kimi_linear" => {
            "some of its layers are linear attention (Gated DeltaNet); they would need a recurrent state"
        }
        "minimax" | "minimax_text_01" | "bailing_moe_linear" => {
            "some of its layers are linear attention (lightning attention); they would need a recurrent state"
        }
        "lfm2_vl" => {
            "some of its layers are short convolutions; they would need a convolution and its state"
        }
        "rwkv" | "rwkv5" | "rwkv6" | "rwkv7" | "recurrent_gemma" | "xlstm" => {
            "a recurrent model; it would need a state in place of keys and values"
        }
        "bert" | "roberta" | "xlm-roberta" | "distilbert" | "albert" | "electra" | "deberta"
        | "deberta-v2" | "modernbert" | "nomic_bert" | "roformer" | "camembert" | "esm" | "mpnet" => {
            "an encoder sees later tokens too and writes no text; a decoder is needed"
        }
        "t5" | "mt5" | "umt5" | "t5gemma" | "bart" | "mbart" | "pegasus" | "marian" | "m2m_100"
        | "blenderbot" | "whisper" | "led" | "prophetnet" => {
            "an encoder-decoder; it would need cross-attention to a second text"
        }
        "bloom" | "mpt" => "its positions are ALiBi biases; they would need a slope per head",
        "opt" | "xglm" | "gpt_bigcode" | "codegen" | "persimmon" | "fuyu" => {
            "this decoder has no family file; CONTRIBUTING says how to add one"
        }
        "gemma3n" | "gemma3n_text" => {
            "its maths (per-layer embeddings, keys and values that layers share, AltUp, LAuReL) is not computed here"
        }
        "gemma4" | "gemma4_text" | "gemma4_unified" | "gemma4_unified_text" => {
            "its maths (per-layer embeddings, keys and values that layers share, heads of two widths, a norm on \
             values) is not computed here"
        }
        "llama4" | "llama4_text" => {
            "its maths (chunked attention, norms without weights on q and k) is not computed here"
        }
        "mllama" | "llava" | "llava_next" | "qwen2_vl" | "qwen2_5_vl" | "qwen3_vl" | "mistral3"
        | "pixtral" | "paligemma" | "idefics3" | "smolvlm" | "internvl" | "phi3_v" | "phi4_multimodal"
        | "exaone4_5" => {
            "a model of pictures and text; only the text part of gemma3 is computed; a text model is needed"
        }
        _ => return None,
    })
}
