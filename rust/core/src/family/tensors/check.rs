//! Every tensor of a model by name, and the check of a checkpoint against them; loading uses the same list.

use std::collections::BTreeMap;

use super::layout::{layer, mtp_layer, outside_layers};
use super::unread::unread;
use crate::checkpoint::Checkpoint;
use crate::checkpoint::quantized::{Matrix, Scheme};
use crate::config::{
    Config, GateUp, LayerMlp, LayerSpec, LmHead, MoeNames, Names, NormPlacement, Tensor, tensor,
};
use crate::parts::{LeafRef, NormSpec, Part, Spec, TensorRows};
use ropechat_platform::error::{Error, Result};

/// Most experts of all layers together; the largest published models have some 30,000.
const MOST_EXPERTS: u128 = 1 << 20;

/// Every tensor that the model needs, with its shape. The embedding is listed under its usual name; when it is tied,
/// [`embedding_names`] says where else it may be.
pub fn required_tensors(config: &Config) -> impl Iterator<Item = (String, Vec<usize>)> + use<> {
    let mut all = BTreeMap::new();
    for part in required(config) {
        all.extend(part.into_values().map(|(source, _)| (source.name, source.shape)));
    }
    all.into_iter()
}

/// Numbers in all tensors together, as model cards count them; of quantized ones those that they represent. The tensors
/// must have been found: only then their number is bounded.
pub fn num_parameters(checkpoint: &Checkpoint, config: &Config) -> usize {
    match config.quantization {
        Scheme::Plain => checkpoint.num_parameters(),
        _ => required_tensors(config).map(|(_, shape)| shape.iter().product::<usize>()).sum(),
    }
}

/// Every tensor that the model needs, by name, with some rows of it, and whether they are integers: those outside the layers,
/// then layer by layer, made when they are asked for. A config of a few hundred bytes can describe more tensors than memory
/// holds.
fn required(config: &Config) -> impl Iterator<Item = BTreeMap<String, (TensorRows, bool)>> {
    fn part(part: &impl Part<Spec>) -> BTreeMap<String, (TensorRows, bool)> {
        let mut all = BTreeMap::new();
        part.visit(&mut |leaf| {
            let is_integers = matches!(leaf, LeafRef::Integers(_));
            leaf.tensors(|rows| drop(all.insert(rows.name.clone(), (rows.clone(), is_integers))));
        });
        all
    }
    let layers = 0..config.layers.len();
    let outside = std::iter::once_with(move || part(&outside_layers(config)));
    let layers = layers.map(move |index| part(&layer(config, index)));
    let mtp = std::iter::once_with(move || part(&mtp_layer(config)));
    outside.chain(layers).chain(mtp)
}

/// Refuses more experts than the files can hold, before anything is made of each.
///
/// Errors: `Config`.
pub fn check_experts(checkpoint: &Checkpoint, config: &Config) -> Result<()> {
    let Some(moe) = &config.moe else { return Ok(()) };
    let is_mixed = |layer: &&LayerSpec| !matches!(layer.mlp, LayerMlp::None | LayerMlp::Dense);
    let layers = config.layers.iter().filter(is_mixed).count();
    let experts = layers as u128 * moe.num_experts as u128;
    // Each expert has two matrices or three, and no number takes less than a bit.
    let hidden = moe.latent_size.unwrap_or(config.hidden_size);
    let bits = experts * 2 * hidden as u128 * moe.intermediate_size as u128;
    let held = 8 * checkpoint.bytes() as u128;
    if bits <= held && experts <= MOST_EXPERTS {
        return Ok(());
    }
    let experts = moe.num_experts;
    let what = match bits > held {
        true => format!(
            "{layers} layers of {experts} experts have at least {bits} numbers, and the weight files hold \
             {} bytes; check that the two belong together",
            checkpoint.bytes()
        ),
        false => format!("{layers} layers of {experts} experts are more than {MOST_EXPERTS} experts"),
    };
    let path = match checkpoint.gguf() {
        Some(_) => checkpoint.path().to_owned(),
        None => checkpoint.path().with_file_name("config.json"),
    };
    Err(Error::Config { path, key: "num_hidden_layers".to_owned(), what })
}

/// Names under which the embedding may be stored, the usual one first.
pub fn embedding_names(config: &Config) -> Vec<String> {
    let mut names = vec![config.names.embedding()];
    if config.lm_head == LmHead::Tied {
        names.push(config.names.lm_head.weight.to_owned());
    }
    names
}

/// The names with the base that the checkpoint uses: some files leave it out, or nest the model in another.
fn with_base_of(names: Names, checkpoint: &Checkpoint) -> Names {
    let found = names.bases.iter().find(|base| checkpoint.contains(&Names { base, ..names }.embedding()));
    let names = Names { base: found.copied().unwrap_or(names.base), ..names };
    // Models of pictures and text may have the head next to the text model.
    const NESTED: Tensor = tensor!("language_model.lm_head");
    let nested = names.lm_head == Names::LLAMA.lm_head && checkpoint.contains(NESTED.weight);
    Names { lm_head: if nested { NESTED } else { names.lm_head }, ..names }
}

/// The names of DeepSeek's own files, if those that transformers writes differ.
fn as_published(names: Names, checkpoint: &Checkpoint) -> Names {
    const EMBEDDING: &str = "embed.weight";
    if names.lm_head.weight != "head.weight" || !checkpoint.contains(EMBEDDING) {
        return names;
    }
    Names { embed_tokens: EMBEDDING, ..names }
}

/// The config with what the names and shapes of the checkpoint's own tensors decide.
pub fn as_in(checkpoint: &Checkpoint, mut config: Config) -> Config {
    config.names = with_base_of(as_published(config.names, checkpoint), checkpoint);
    config.mechanisms.use_names_of(checkpoint);
    let names = config.names;
    if config.lm_head == LmHead::OwnIfStored {
        let is_stored = checkpoint.contains(names.lm_head.weight);
        config.lm_head = if is_stored { LmHead::Own } else { LmHead::Tied };
    }
    let name = |layer: usize, name: &str| format!("{}{}.{layer}.{name}", names.base, names.layers);
    let layers = || config.layers.iter().map(|layer| layer.mixer).enumerate();
    if let [q, k, v] = names.recurrent.conv
        && let Some((layer, _)) = layers().find(|(_, mixer)| mixer.is_recurrent())
    {
        let channels = |tensor: &crate::config::Tensor| {
            checkpoint.tensor(&name(layer, tensor.weight)).and_then(|view| view.shape.first().copied())
        };
        if let (Some(q), Some(k), Some(v)) = (channels(q), channels(k), channels(v)) {
            config.names.recurrent.conv_split = Some([q, k, v]);
        }
    }
    if let Some(fused @ MoeNames::Fused { gate_up, .. }) = names.moe.fused()
        && let Some(layer) = config.layers.iter().position(|layer| layer.mlp == LayerMlp::Moe)
        && checkpoint.contains(&name(layer, gate_up.weight))
    {
        config.names.moe = fused;
    }
    if let (Some(recurrent), Some((layer, _))) =
        (&mut config.recurrent, layers().find(|(_, mixer)| mixer.is_recurrent()))
    {
        let shape = |tensor: &str| Some(checkpoint.tensor(&name(layer, tensor))?.shape.to_vec());
        recurrent.facts_mut().use_shapes_of(&shape);
    }
    // transformers 5 writes the dense MLPs of kimi_linear below the path of its mixtures.
    const BELOW: (GateUp, Tensor) = (
        GateUp::Separate {
            gate: tensor!("block_sparse_moe.gate_proj"),
            up: tensor!("block_sparse_moe.up_proj"),
        },
        tensor!("block_sparse_moe.down_proj"),
    );
    let dense = config.layers.iter().position(|layer| layer.mlp == LayerMlp::Dense);
    if config.moe.is_some() && dense.is_some_and(|layer| checkpoint.contains(&name(layer, BELOW.1.weight))) {
        (config.names.gate_up_proj, config.names.down_proj) = BELOW;
    }
    // transformers 5 writes one name for two norms of olmo_hybrid.
    if config.norm_placement == NormPlacement::AfterAttention
        && let Some((layer, _)) = layers().find(|(_, mixer)| mixer.has_attention())
        && !checkpoint.contains(&name(layer, names.attention_out_norm.weight))
    {
        config.names.attention_out_norm = names.mlp_norm;
    }
    // Many files leave out the layer for multi-token prediction.
    let has = |norm: &NormSpec| norm.weight.iter().all(|weight| checkpoint.contains(&weight.name));
    if let Some(mtp) = mtp_layer(&config)
        && ![&mtp.input.embedding_norm, &mtp.input.hidden_norm, &mtp.norm].into_iter().all(has)
    {
        config.mtp = None;
    }
    config
}

/// Checks the whole checkpoint against the config before a weight is read.
///
/// Returns a warning where the file holds what is no part of the model. Errors: `Tensor` or `Unsupported` for the first tensor
/// that is missing, misshapen, of an unusable type or not read though it belongs to the model; `Config` when tied embeddings
/// are stored twice and differ.
pub fn check_tensors(checkpoint: &Checkpoint, config: &Config) -> Result<Option<String>> {
    let mut used = std::collections::BTreeSet::new();
    let embedding = embedding_names(config);
    let embedding: Vec<&str> = embedding.iter().map(String::as_str).collect();
    for (name, (source, is_integers)) in required(config).flatten() {
        let names = if name == embedding[0] { &embedding[..] } else { &[name.as_str()] };
        if is_integers {
            used.insert(checkpoint.require_integers(&name, &source.shape)?.0);
            continue;
        }
        if source.shape.len() == 1 {
            used.insert(checkpoint.require_any(names, &source.shape)?.name);
            continue;
        }
        match checkpoint.matrix(names, source.matrix_shape(), &config.quantization)? {
            Matrix::Plain(view) => {
                used.insert(view.name);
            }
            Matrix::Quantized(quantized) => used.extend(quantized.parts().map(|(part, _)| part)),
        }
    }
    if let [embed_tokens, lm_head] = embedding[..] {
        check_tied(checkpoint, embed_tokens, lm_head)?;
        used.extend(checkpoint.tensor(lm_head).map(|tensor| tensor.name));
    }
    unread(checkpoint, config, &used)
}

/// When the file holds both names of a tied embedding, transformers 4 uses the embedding for both, 5 unties them when they
/// differ. So equal tensors are accepted, and different ones need a decision in config.json.
fn check_tied(checkpoint: &Checkpoint, embed_tokens: &str, head: &str) -> Result<()> {
    let (Some(embedding), Some(lm_head)) = (checkpoint.tensor(embed_tokens), checkpoint.tensor(head)) else {
        return Ok(());
    };
    if (embedding.tensor_type, embedding.shape, embedding.bytes)
        == (lm_head.tensor_type, lm_head.shape, lm_head.bytes)
    {
        return Ok(());
    }
    Err(Error::Config {
        path: checkpoint.path().with_file_name("config.json"),
        key: "tie_word_embeddings".to_owned(),
        what: format!(
            "true, and {head} differs from {embed_tokens}; tied embeddings are one matrix; \
             set it to false to use both"
        ),
    })
}
