//! The head of a file whose text part has a config of its own.

use super::metadata::Metadata;
use crate::config::LmHead;
use ropechat_platform::error::Result;

/// Where the head comes from. The outer `tie_word_embeddings` decides, in older files that of the text part, `text`. Where
/// the outer key does not say that both are one, a head in the file is used, as transformers does.
pub(crate) fn lm_head(metadata: &Metadata<'_>, text: LmHead, is_usual: bool) -> Result<LmHead> {
    const KEY: &str = "tie_word_embeddings";
    let stated = metadata.get(KEY).is_some();
    let tied = metadata.flag_or(KEY, is_usual)?;
    let text_ties = match metadata.object_if_any("text_config")? {
        Some(inner) if stated => inner.flag_or(KEY, false)?,
        _ => text == LmHead::Tied,
    };
    Ok(match (stated, tied || text_ties) {
        (true, _) if tied => LmHead::Tied,
        (_, true) => LmHead::OwnIfStored,
        (_, false) => LmHead::Own,
    })
}
