//! Models that are known but not supported, and what each would need.

/// What computing a model of this type would need.
pub(crate) fn reason(model_type: &str) -> Option<&'static str> {
    Some(match model_type {
        "mamba" | "mamba2" | "falcon_mamba" | "codestral_mamba" => {
            "it has no attention; only hybrids of Mamba and attention are computed"
        }
        "zamba" | "plamo2" => {
            "this hybrid of Mamba and attention has no family file; CONTRIBUTING says how to add one"
        }
        "bailing_moe_linear" => {
            "of the hybrids of lightning attention only bailing_hybrid and minimax are computed; CONTRIBUTING says how to \
             add a family"
        }
        "inkling_mm_model" => {
            "its tensors have other names and orders of rows than inkling_text, the text model that is computed"
        }
        "inkling2_text" | "inkling2" => {
            "it has mixers that inkling_text does not have; they would need their own code"
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
        "blt" => "a model of bytes in patches; it would need two more decoders and a patcher",
        "phi4_multimodal" | "mllama" | "paligemma" | "pixtral" | "phi3_v" | "fuyu" | "exaone4_5"
        | "glm4v" | "glm4v_moe" | "ernie4_5_vl_moe" | "got_ocr2" => {
            "a model of pictures and text whose text part is not computed here; a text model is needed"
        }
        "qwen3_vl_moe" => {
            "a model of pictures and text whose text part is computed from GGUF files only; one of those is needed"
        }
        _ => return None,
    })
}
