//! Models that read pictures or sound and text: their text part is a model of another family, and only it is
//! computed.
//!
//! Its keys are in `text_config` (older files: next to those of the other parts), its tensors below their own path.
//! A text has one position per token, so positions of pictures (`mrope`) do not differ from those of a text.

use super::keys::base::Family;
use super::keys::head::lm_head;
use super::keys::known::refuse_unknown;
use super::keys::metadata::Metadata;
use super::keys::quantization::scheme;
use super::models::FAMILIES;
use crate::checkpoint::escape_for_terminal;
use crate::config::{Config, Names};
use ropechat_platform::error::Result;

/// Model types with parts for pictures or sound.
pub(crate) static COMPOSITE: Family = Family {
    model_types: &[
        "aria",
        "aya_vision",
        "cohere2_vision",
        "cohere_compass",
        "dots3_note",
        "emu3",
        "gemma3",
        "gemma3n",
        "gemma4",
        "gemma4_unified",
        "idefics3",
        "internvl",
        "lfm2_vl",
        "llama4",
        "llava",
        "llava_next",
        "llava_onevision",
        "mistral3",
        "qwen2_5_vl",
        "qwen2_audio",
        "qwen2_vl",
        "qwen3_vl",
        "smolvlm",
        "voxtral",
    ],
    aliases: &[],
    config,
};

/// Names of text parts that are models of other families.
const SAME_AS: &[(&str, &str)] = &[
    ("dots3_note", "dots3_note_text"),
    ("emu3_text_model", "llama"),
    ("qwen2_5_vl", "qwen2"),
    ("qwen2_5_vl_text", "qwen2"),
    ("qwen2_vl", "qwen2"),
    ("qwen2_vl_text", "qwen2"),
    ("qwen3_vl_text", "qwen3"),
];

/// The text part's type where its config does not say.
const USUALLY: &[(&str, &str)] = &[
    ("aria", "aria_text"),
    ("cohere_compass", "cohere_compass_text"),
    ("dots3_note", "dots3_note_text"),
    ("gemma3", "gemma3_text"),
    ("gemma3n", "gemma3n_text"),
    ("gemma4", "gemma4_text"),
    ("gemma4_unified", "gemma4_unified_text"),
    ("idefics3", "llama"),
    ("llama4", "llama4_text"),
    ("llava", "llama"),
    ("llava_next", "llama"),
    ("mistral3", "mistral"),
    ("smolvlm", "llama"),
];

/// Paths of the text part's tensors.
const BASES: &[&str] = &["model.language_model.", "language_model.model.", "model.text_model.", "model."];

fn config(metadata: &Metadata<'_>) -> Result<Config> {
    let model_type = metadata.text_if_any("model_type")?.unwrap_or_default();
    let config = match metadata.object_if_any("text_config")? {
        Some(inner) => {
            let usual = USUALLY.iter().find(|(name, _)| *name == model_type).map(|(_, usual)| *usual);
            let Some(kind) = inner.text_if_any("model_type")?.or(usual) else {
                return Err(inner.bad("model_type", "it is missing; that of the text part is needed"));
            };
            let inner = inner.with_aliases(family_of(metadata, kind)?.aliases);
            let quantization = scheme(&inner)?;
            let config = (family_of(metadata, kind)?.config)(&inner)?;
            refuse_unknown(&inner)?;
            Config { quantization, ..config }
        }
        None => (family_of(metadata, model_type)?.config)(metadata)?,
    };
    let lm_head = lm_head(metadata, config.lm_head, TIED.contains(&model_type))?;
    let eos_token_id = metadata.token_ids("eos_token_id", config.vocab_size)?;
    let bos_token_id = metadata.token_ids("bos_token_id", config.vocab_size)?.first().copied();
    metadata.warn(
        "model_type",
        &format!(
            "{model_type} has parts for pictures or sound; they are ignored, only text is read and written"
        ),
    );
    // Everything else says how pictures and sound become embeddings.
    let others: Vec<&str> = metadata.unread().map(|(key, _)| key).collect();
    others.into_iter().filter(|key| !QUANTIZATION.contains(key)).for_each(|key| {
        metadata.get(key);
    });
    Ok(Config {
        model_type: model_type.to_owned(),
        names: Names { bases: BASES, base: BASES[0], ..config.names },
        eos_token_id: if eos_token_id.is_empty() { config.eos_token_id } else { eos_token_id },
        bos_token_id: bos_token_id.or(config.bos_token_id),
        lm_head,
        ..config
    })
}

/// Those whose class ties the head to the embedding where `tie_word_embeddings` is absent (`configuration_*.py`).
const TIED: &[&str] = &[
    "aya_vision",
    "cohere2_vision",
    "cohere_compass",
    "gemma3",
    "gemma3n",
    "gemma4",
    "gemma4_unified",
    "internvl",
    "lfm2_vl",
    "mistral3",
];

/// Keys that concern the text part too.
const QUANTIZATION: [&str; 3] = ["quantization_config", "compression_config", "quantization"];

/// The family of a text part.
fn family_of(metadata: &Metadata<'_>, kind: &str) -> Result<&'static Family> {
    let same = SAME_AS.iter().find(|(name, _)| *name == kind).map_or(kind, |(_, same)| *same);
    FAMILIES.iter().find(|family| family.model_types.contains(&same)).copied().ok_or_else(|| {
        let what =
            format!("its text part is of the type \"{}\", which is not computed", escape_for_terminal(kind));
        metadata.unsupported("text_config.model_type", &what)
    })
}
