//! Which tensors a [`Config`] asks for, under Hugging Face's names: one list for loading and for checking.

use crate::checkpoint::{Checkpoint, shown};
use crate::config::{Bias, Config, LmHead};
use crate::error::{Error, Result};

/// Name of the embedding.
pub const EMBEDDING: &str = "model.embed_tokens.weight";
/// Name of the unembedding.
pub const LM_HEAD: &str = "lm_head.weight";

/// Every tensor that the model needs, with its shape. The embedding is listed under [`EMBEDDING`]; when it is tied,
/// [`embedding_names`] says where else it may be.
pub fn required_tensors(config: &Config) -> impl Iterator<Item = (String, Vec<usize>)> {
    let embedding = vec![config.vocab_size, config.hidden_size]; // [vocab_size, hidden_size]
    let mut ends = vec![
        (EMBEDDING.to_owned(), embedding.clone()),
        ("model.norm.weight".to_owned(), vec![config.hidden_size]),
    ];
    if config.lm_head == LmHead::Own {
        ends.push((LM_HEAD.to_owned(), embedding));
    }
    let layer = layer_tensors(config);
    let layers = (0..config.layers.len()).flat_map(move |number| {
        let name = move |(tail, shape): &(String, Vec<usize>)| {
            (format!("model.layers.{number}.{tail}"), shape.clone())
        };
        layer.iter().map(name).collect::<Vec<_>>()
    });
    ends.into_iter().chain(layers)
}

/// Names under which the embedding may be stored, the usual one first.
pub fn embedding_names(config: &Config) -> &'static [&'static str] {
    match config.lm_head {
        LmHead::Tied => &[EMBEDDING, LM_HEAD],
        LmHead::Own => &[EMBEDDING],
    }
}

/// Tensors of one layer, without the layer's prefix.
fn layer_tensors(config: &Config) -> Vec<(String, Vec<usize>)> {
    let (hidden, intermediate) = (config.hidden_size, config.intermediate_size);
    let query = config.num_attention_heads * config.head_dim;
    let key = config.num_key_value_heads * config.head_dim;
    let projections = [
        ("self_attn.q_proj", query, hidden, config.attention_bias),
        ("self_attn.k_proj", key, hidden, config.attention_bias),
        ("self_attn.v_proj", key, hidden, config.attention_bias),
        ("self_attn.o_proj", hidden, query, config.attention_bias),
        ("mlp.gate_proj", intermediate, hidden, config.mlp_bias),
        ("mlp.up_proj", intermediate, hidden, config.mlp_bias),
        ("mlp.down_proj", hidden, intermediate, config.mlp_bias),
    ];
    let mut tensors = Vec::new();
    for (name, rows, columns, bias) in projections {
        tensors.push((format!("{name}.weight"), vec![rows, columns])); // [out, in]
        if bias == Bias::Added {
            tensors.push((format!("{name}.bias"), vec![rows]));
        }
    }
    for norm in ["input_layernorm.weight", "post_attention_layernorm.weight"] {
        tensors.push((norm.to_owned(), vec![hidden]));
    }
    tensors
}

/// Holds the whole checkpoint against the config before a weight is read.
///
/// Returns warnings: tensors that the model does not use. Errors: `Tensor` or `Unsupported` for the first tensor that
/// is missing, misshapen or of an unusable type; `Config` when tied embeddings are stored twice and differ.
pub fn check_tensors(checkpoint: &Checkpoint, config: &Config) -> Result<Vec<String>> {
    let mut used = std::collections::BTreeSet::new();
    for (name, shape) in required_tensors(config) {
        let names = if name == EMBEDDING { embedding_names(config) } else { &[name.as_str()] };
        used.insert(checkpoint.require_any(names, &shape)?.name);
    }
    if config.lm_head == LmHead::Tied {
        check_tied(checkpoint)?;
        used.insert(LM_HEAD);
    }
    // Frequencies that old files carry along; rope.rs computes them.
    let unused = |name: &&str| !used.contains(name) && !name.ends_with(".rotary_emb.inv_freq");
    let mut unused = checkpoint.names().filter(unused);
    let Some(first) = unused.next() else {
        return Ok(Vec::new());
    };
    let others = match unused.count() {
        0 => String::new(),
        count => format!(" (and {count} more)"),
    };
    Ok(vec![format!("{}: {}{others}: the model does not use it", checkpoint.path().display(), shown(first))])
}

/// Both names of a tied embedding in the file: transformers 4 takes the embedding for both, 5 unties them when they
/// differ. Equal ones are no question; for others config.json has to say.
fn check_tied(checkpoint: &Checkpoint) -> Result<()> {
    let (Some(embedding), Some(lm_head)) = (checkpoint.tensor(EMBEDDING), checkpoint.tensor(LM_HEAD)) else {
        return Ok(());
    };
    if (embedding.dtype, embedding.shape, embedding.bytes) == (lm_head.dtype, lm_head.shape, lm_head.bytes) {
        return Ok(());
    }
    Err(Error::Config {
        path: checkpoint.path().with_file_name("config.json"),
        key: "tie_word_embeddings".to_owned(),
        what: format!(
            "true, and {LM_HEAD} differs from {EMBEDDING}; tied embeddings are one matrix; \
             set it to false to use both"
        ),
    })
}
