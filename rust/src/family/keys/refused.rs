//! Models that are known but not supported, and what each would need.

/// What computing a model of this type would need.
pub(crate) fn reason(model_type: &str) -> Option<&'static str> {
    Some(match model_type {
        "mamba" | "mamba2" | "falcon_mamba" | "codestral_mamba" => {
            "a state space model (Mamba) has no attention; it would need selective scans and their state"
        }
        "zamba" | "plamo2" => "some of its layers are Mamba; they would need selective scans and their state",
        "bailing_moe_linear" => {
            "some of its layers are linear attention (lightning attention); they would need a recurrent state"
        }
        "lfm2_vl" => "some of its layers are short convolutions; they would need a convolution and its state",
        "inkling_text" | "inkling" | "inkling2_text" | "inkling2" => {
            "its attention adds learned scores by distance, and its branches pass convolutions; both would need their own code"
        }
        "rwkv" | "rwkv5" | "rwkv6" | "rwkv7" | "xlstm" => {
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
        "opt" | "xglm" | "gpt_bigcode" => "this decoder has no family file; CONTRIBUTING says how to add one",
        "gemma4_assistant" | "gemma4_unified_assistant" => {
            "a draft model; it would need keys and values of the model that it drafts for"
        }
        "deepseek_v4" => {
            "its attention reads compressed keys beside a window; it would need their cache and its mixing of streams"
        }
        "doge" => "its attention keeps the keys with the highest learned scores; it would need that choice",
        "jetmoe" => "its query and output projections are experts; it would need attention over chosen heads",
        "blt" => "a model of bytes in patches; it would need two more decoders and a patcher",
        "phi4_multimodal" | "mllama" | "paligemma" | "pixtral" | "phi3_v" | "fuyu" | "exaone4_5"
        | "qwen3_vl_moe" | "glm4v" | "glm4v_moe" | "ernie4_5_vl_moe" | "got_ocr2" => {
            "a model of pictures and text whose text part is not computed here; a text model is needed"
        }
        _ => return None,
    })
}
