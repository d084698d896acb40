//! Model folders: which files are opened, how the index is held against the shards, what a missing tensor says.

use std::fs;
use std::path::Path;

use crate::containers::{TestFolder, tensors};
use ropechat_core::Error;
use ropechat_core::checkpoint::Checkpoint;
use ropechat_core::family;
use ropechat_kernels::quant::StorageType;
use serde_json::{Value, json};

const EMBEDDING: &str = "model.embed_tokens.weight";
const LM_HEAD: &str = "lm_head.weight";

const INDEX: &str = "model.safetensors.index.json";

fn golden(case: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(case)
}

/// The error of opening a folder, as text.
fn refusal(folder: &TestFolder) -> (Error, String) {
    let error = Checkpoint::open(folder.path()).unwrap_err();
    let text = error.to_string();
    assert!(!text.contains('\n') && !text.contains('\u{1b}'), "{text}");
    (error, text)
}

#[test]
fn a_golden_model_is_whole() {
    let checkpoint = Checkpoint::open(&golden("llama3_old")).unwrap();
    let card = family::model_card(&checkpoint).unwrap();
    family::check_tensors(&checkpoint, &card.config).unwrap();
    assert!(card.warnings.is_empty() && checkpoint.warnings().is_empty());
    assert_eq!(card.config.eos_token_id, [2, 5]);
    assert_eq!(checkpoint.names().count(), family::required_tensors(&card.config).count());
    let embedding = checkpoint.require(EMBEDDING, &[288, 64]).unwrap();
    assert_eq!((embedding.tensor_type, embedding.bytes.len()), (StorageType::F32, 288 * 64 * 4));
    assert!(checkpoint.num_parameters() > 288 * 64 * 2);
}

#[test]
fn every_cut_of_a_file_on_disk_is_refused() {
    let folder = TestFolder::new();
    let file = tensors(&[("model.norm.weight", &[3]), ("lm_head.weight", &[2, 3])]);
    for length in 0..file.len() {
        folder.write("model.safetensors", &file[..length]);
        let (error, text) = refusal(&folder);
        assert!(
            matches!(error, Error::Format { .. }) && text.contains("model.safetensors"),
            "{length}: {text}"
        );
    }
    folder.write("model.safetensors", &file);
    assert!(Checkpoint::open(folder.path()).is_ok());
}

#[test]
fn a_required_tensor_says_what_is_wrong() {
    let folder = TestFolder::new();
    let header = r#"{"f8":{"dtype":"F8_E4M3","shape":[4],"data_offsets":[0,4]},
        "ids":{"dtype":"I64","shape":[1],"data_offsets":[4,12]},"norm":{"dtype":"F16","shape":[2],"data_offsets":[12,16]}}"#;
    folder.write("model.safetensors", crate::containers::container(header, &[0; 16]));
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let text = |name: &str, shape: &[usize]| checkpoint.require(name, shape).unwrap_err().to_string();
    assert_eq!(checkpoint.require("norm", &[2]).unwrap().tensor_type, StorageType::F16);
    assert!(text("norm", &[3]).contains("norm: its shape is [2]; [3] is expected"));
    assert!(text("q_proj", &[3]).contains("q_proj: the tensor is not in the file"));
    assert!(matches!(checkpoint.require("f8", &[4]), Err(Error::Unsupported { .. })));
    assert!(matches!(checkpoint.require("ids", &[1]), Err(Error::Tensor { .. })));
    assert!(checkpoint.contains("f8") && checkpoint.tensor("f8").is_none());
    assert_eq!(checkpoint.require_any(&["embed", "norm"], &[2]).unwrap().name, "norm");
    let both = checkpoint.require_any(&["embed", "head"], &[2]).unwrap_err().to_string();
    assert!(both.contains("embed") && both.contains("head"), "{both}");
}

fn two_shards(weight_map: serde_json::Value) -> TestFolder {
    let folder = TestFolder::new();
    folder.write("a.safetensors", tensors(&[("x", &[2])])).write("b.safetensors", tensors(&[("y", &[3])]));
    folder.write(INDEX, json!({"metadata": {"total_size": 20}, "weight_map": weight_map}).to_string());
    folder
}

#[test]
fn shards_serve_as_one() {
    let folder = two_shards(json!({"x": "a.safetensors", "y": "b.safetensors"}));
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    assert!(checkpoint.warnings().is_empty());
    assert_eq!(checkpoint.names().collect::<Vec<_>>(), ["x", "y"]);
    assert!(checkpoint.require("y", &[3]).unwrap().path.ends_with("b.safetensors"));
    let missing = checkpoint.require("z", &[1]).unwrap_err().to_string();
    assert!(missing.contains(INDEX), "{missing}");
}

#[test]
fn index_and_shards_must_agree() {
    let swapped = two_shards(json!({"x": "b.safetensors", "y": "a.safetensors"}));
    assert!(matches!(refusal(&swapped).0, Error::Tensor { name, .. } if name == "x"));
    let absent = two_shards(json!({"x": "a.safetensors", "y": "b.safetensors", "z": "b.safetensors"}));
    assert!(matches!(refusal(&absent).0, Error::Tensor { name, .. } if name == "z"));
    let missing = two_shards(json!({"x": "a.safetensors", "y": "c.safetensors"}));
    assert!(matches!(refusal(&missing).0, Error::NotFound { path, .. } if path.ends_with("c.safetensors")));
    let twice = two_shards(json!({"x": "a.safetensors", "y": "b.safetensors"}));
    twice.write("b.safetensors", tensors(&[("x", &[2]), ("y", &[3])]));
    assert!(matches!(refusal(&twice).0, Error::Tensor { name, .. } if name == "x"));
    let unlisted = two_shards(json!({"x": "a.safetensors"}));
    unlisted.write("a.safetensors", tensors(&[("x", &[2]), ("extra", &[1])]));
    let warnings = Checkpoint::open(unlisted.path()).unwrap().warnings().join("\n");
    assert!(warnings.contains("extra") && warnings.contains("total_size"), "{warnings}");
}

#[test]
fn an_index_names_plain_files_only() {
    let long = "n".repeat(300) + ".safetensors";
    let names = [
        "../b.safetensors",
        "/etc/passwd",
        "..\\b.safetensors",
        "C:\\b.safetensors",
        "sub/b.safetensors",
        "",
        ".",
        "..",
        "b\0.safetensors",
        "\u{1b}]0;x\u{7}.safetensors",
        &long,
        "pytorch_model.bin",
    ];
    for name in names {
        let folder = two_shards(json!({"x": "a.safetensors", "y": name}));
        let (error, text) = refusal(&folder);
        assert!(matches!(error, Error::UnsafePath { .. }) && text.contains(INDEX), "{name}: {text}");
    }
    for (index, field) in [
        ("", "JSON"),
        ("{}", "weight_map"),
        (r#"{"weight_map":[]}"#, "weight_map"),
        (r#"{"weight_map":{"x":1}}"#, "weight_map.x"),
        (r#"{"weight_map":{"x":"a.safetensors","x":"b.safetensors"}}"#, "weight_map.x"),
    ] {
        let folder = TestFolder::new();
        folder.write(INDEX, index);
        let (error, text) = refusal(&folder);
        assert!(matches!(&error, Error::Format { field: found, .. } if found == field), "{index}: {text}");
    }
}

#[test]
fn folders_without_readable_weights() {
    let folder = TestFolder::new();
    assert!(refusal(&folder).1.contains("the folder holds no weights"));
    folder.write("pytorch_model.bin", b"\x80\x02");
    let (error, text) = refusal(&folder);
    assert!(matches!(error, Error::Unsupported { .. }));
    assert!(text.contains("pytorch_model.bin") && text.contains("convert it"), "{text}");
    assert!(matches!(Checkpoint::open(&folder.path().join("absent")), Err(Error::NotFound { .. })));
    assert!(matches!(
        Checkpoint::open(&folder.path().join("pytorch_model.bin")),
        Err(Error::Unsupported { .. })
    ));
}

#[cfg(unix)]
mod odd_files {
    use std::os::unix::fs::symlink;
    use std::process::Command;

    use super::*;

    #[test]
    fn pipes_folders_and_devices_are_refused_at_once() {
        let pipe = TestFolder::new();
        let made = Command::new("mkfifo").arg(pipe.path().join("model.safetensors")).status().unwrap();
        assert!(made.success());
        assert!(matches!(refusal(&pipe).0, Error::UnsafePath { .. }));
        let inner = TestFolder::new();
        fs::create_dir(inner.path().join("model.safetensors")).unwrap();
        assert!(matches!(refusal(&inner).0, Error::UnsafePath { .. }));
    }

    #[test]
    fn links_stay_inside() {
        let outside = TestFolder::new();
        outside.write("w.safetensors", tensors(&[("x", &[2])]));
        for target in [
            &outside.path().join("w.safetensors"),
            Path::new("/dev/zero"),
            Path::new("nowhere"),
            Path::new("model.safetensors"),
        ] {
            let folder = TestFolder::new();
            symlink(target, folder.path().join("model.safetensors")).unwrap();
            assert!(matches!(refusal(&folder).0, Error::UnsafePath { .. }), "{target:?}");
        }
        let folder = TestFolder::new();
        folder.write("w.safetensors", tensors(&[("x", &[2])]));
        symlink("w.safetensors", folder.path().join("model.safetensors")).unwrap();
        assert!(Checkpoint::open(folder.path()).is_ok());
    }

    #[test]
    fn snapshots_of_a_cache_link_into_its_blobs() {
        let cache = TestFolder::new();
        let (blobs, snapshot) = (cache.path().join("blobs"), cache.path().join("snapshots/0abc"));
        fs::create_dir(&blobs).unwrap();
        fs::create_dir_all(&snapshot).unwrap();
        fs::write(blobs.join("f00"), tensors(&[("x", &[2])])).unwrap();
        symlink("../../blobs/f00", snapshot.join("model.safetensors")).unwrap();
        assert!(Checkpoint::open(&snapshot).is_ok());
        // A `blobs` that leads elsewhere allows nothing.
        let elsewhere = TestFolder::new();
        fs::rename(&blobs, elsewhere.path().join("blobs")).unwrap();
        symlink(elsewhere.path().join("blobs"), &blobs).unwrap();
        assert!(matches!(Checkpoint::open(&snapshot), Err(Error::UnsafePath { .. })));
    }

    #[test]
    fn snapshots_may_lead_into_the_blobs_that_repositories_share() {
        let cache = TestFolder::new();
        let (shared, repository) = (cache.path().join("blobs"), cache.path().join("models--a--b"));
        let snapshot = repository.join("snapshots/0abc");
        for folder in [&shared.join("f0"), &repository.join("blobs"), &snapshot] {
            fs::create_dir_all(folder).unwrap();
        }
        fs::write(shared.join("f0/f00"), tensors(&[("x", &[2])])).unwrap();
        symlink("../../blobs/f0/f00", repository.join("blobs/e00")).unwrap();
        symlink("../../blobs/e00", snapshot.join("model.safetensors")).unwrap();
        assert!(matches!(Checkpoint::open(&snapshot), Err(Error::UnsafePath { .. })), "not marked");
        fs::write(shared.join(".huggingface-shared-blobs"), "1").unwrap();
        assert!(Checkpoint::open(&snapshot).is_ok());
    }
}

#[test]
fn tied_embeddings_under_either_name() {
    let config = json!({
        "model_type": "llama", "hidden_size": 4, "intermediate_size": 4, "num_hidden_layers": 1,
        "num_attention_heads": 1, "vocab_size": 3, "tie_word_embeddings": true,
    });
    let square: &[usize] = &[4, 4];
    let layer = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"]
        .into_iter()
        .chain(["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"])
        .map(|part| (format!("model.layers.0.{part}.weight"), square))
        .chain(
            ["input_layernorm", "post_attention_layernorm"]
                .map(|part| (format!("model.layers.0.{part}.weight"), &square[..1])),
        )
        .chain([("model.norm.weight".to_owned(), &square[..1])]);
    let layer: Vec<_> = layer.collect();
    let check = |ends: &[(&str, &[usize])], change: bool| {
        let folder = TestFolder::new();
        let names = layer.iter().map(|(name, shape)| (name.as_str(), *shape));
        let mut file = tensors(&names.chain(ends.iter().copied()).collect::<Vec<_>>());
        if change {
            *file.last_mut().unwrap() = 1;
        }
        folder.write("config.json", config.to_string()).write("model.safetensors", file);
        let checkpoint = Checkpoint::open(folder.path()).unwrap();
        family::check_tensors(&checkpoint, &family::config(&checkpoint).unwrap())
    };
    let table: &[usize] = &[3, 4];
    assert!(check(&[(EMBEDDING, table)], false).is_ok());
    assert!(check(&[(LM_HEAD, table)], false).is_ok());
    assert!(check(&[(EMBEDDING, table), (LM_HEAD, table)], false).is_ok());
    let differ = check(&[(EMBEDDING, table), (LM_HEAD, table)], true).unwrap_err();
    assert!(differ.to_string().contains("tie_word_embeddings"), "{differ}");
    let neither = check(&[], false).unwrap_err().to_string();
    assert!(neither.contains(EMBEDDING) && neither.contains(LM_HEAD), "{neither}");
}

/// The check of a model of this config with all that it needs and these tensors, of whose numbers the last one is not 0.
fn check_with(config: &Value, more: &[(&str, &[usize])]) -> Result<Option<String>, String> {
    let folder = TestFolder::new();
    folder.write("config.json", config.to_string());
    let own = family::config_of_file(folder.path()).unwrap();
    let needed: Vec<_> = family::required_tensors(&own).collect();
    let needed = needed.iter().map(|(name, shape)| (name.as_str(), &shape[..]));
    let mut file = tensors(&needed.chain(more.iter().copied()).collect::<Vec<_>>());
    *file.last_mut().unwrap() = 1;
    folder.write("model.safetensors", file);
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let config = family::config(&checkpoint).map_err(|error| error.to_string())?;
    family::check_tensors(&checkpoint, &config).map_err(|error| error.to_string())
}

fn sizes(model_type: &str, own: Value) -> Value {
    let mut config = json!({
        "model_type": model_type, "hidden_size": 4, "intermediate_size": 4, "num_hidden_layers": 1,
        "num_attention_heads": 1, "vocab_size": 3, "tie_word_embeddings": true,
    });
    config.as_object_mut().unwrap().extend(own.as_object().unwrap().clone());
    config
}

#[test]
fn a_tensor_that_is_not_read_is_refused_by_its_name() {
    let llama = sizes("llama", json!({}));
    let refused: [(&str, &[usize]); 6] = [
        ("lm_head.bias", &[3]),
        ("model.layers.0.self_attn.q_proj.bias", &[4]),
        ("model.layers.0.self_attn.q_norm.weight", &[4]),
        ("model.layers.0.attn.bias", &[4]),
        ("model.layers.0.mlp.experts.0.up_proj.weight", &[4, 4]),
        ("model.norm.bias", &[4]),
    ];
    for tensor in refused {
        let error = check_with(&llama, &[tensor]).unwrap_err();
        assert!(error.contains(&format!("model.safetensors: {}: ", tensor.0)), "{error}");
    }
    let norm = |part: &'static str| (part, &[4][..]);
    let parts = ["model.norm.b", "model.norm.a", "model.norm.c"].map(norm);
    let error = check_with(&llama, &parts).unwrap_err();
    assert!(error.contains(" model.norm.a: ") && error.contains("nor are 2 others"), "{error}");
}

#[test]
fn what_is_no_part_of_the_model_is_told_by_its_name() {
    let llama = sizes("llama", json!({}));
    let told: [(&str, &[usize]); 4] = [
        ("extra", &[2]),
        ("model.layers.1.mlp.up_proj.weight", &[4, 4]),
        ("model.layers.1.self_attn.k_proj.weight", &[4, 4]),
        ("model.vision_tower.weight", &[4, 4]),
    ];
    for tensor in told {
        let warning = check_with(&llama, &[tensor]).unwrap().unwrap();
        assert!(
            warning.contains(&format!("model.safetensors: {}: not part of the model", tensor.0)),
            "{warning}"
        );
    }
    let warning = check_with(&llama, &[("b", &[2]), ("a", &[2]), ("c", &[2])]).unwrap().unwrap();
    assert!(warning.contains(" a and 2 more: "), "{warning}");
}

#[test]
fn what_changes_no_logit_may_be_left() {
    let llama = sizes("llama", json!({}));
    let left: [(&str, &[usize]); 10] = [
        ("model.layers.0.mlp.shared_experts.up_proj.weight", &[0, 4]),
        ("model.layers.0.self_attn.rotary_emb.inv_freq", &[2]),
        ("model.layers.0.attn.bias", &[1, 1, 4, 4]),
        ("model.layers.0.attn.masked_bias", &[]),
        ("model.layers.0.self_attn.k_scale", &[1]),
        ("mtp.fc.weight", &[4, 8]),
        ("model.mtp_layers.0.input_layernorm.weight", &[4]),
        ("vision_tower.patch_embed.weight", &[4, 4]),
        ("score.weight", &[2, 4]),
        ("v_head.summary.bias", &[1]),
    ];
    for tensor in left {
        assert_eq!(check_with(&llama, &[tensor]).unwrap(), None);
    }
    // Layers behind the last one: those that predict further tokens are known by what they project.
    let (mlp, projection) = ("model.layers.1.mlp.up_proj.weight", "model.layers.1.eh_proj.weight");
    check_with(&llama, &[(mlp, &[4, 4]), (projection, &[4, 8])]).unwrap();
    let behind = check_with(&llama, &[("model.layers.2.mlp.up_proj.weight", &[4, 4]), (projection, &[4, 8])]);
    assert!(behind.unwrap().unwrap().contains("model.layers.2."));
    // Biases of zeros, which some quantizing tools write for every matrix.
    check_with(&llama, &[("model.layers.0.self_attn.o_proj.bias", &[4]), ("score.weight", &[2, 4])]).unwrap();
    // Keys and values of layers that read those of earlier ones.
    let sharing = json!({
        "num_hidden_layers": 3, "num_kv_shared_layers": 1, "head_dim": 4, "global_head_dim": 4,
        "num_key_value_heads": 1, "hidden_size_per_layer_input": 0, "sliding_window": 8,
        "layer_types": ["sliding_attention", "full_attention", "full_attention"],
        "rope_parameters": {"sliding_attention": {}, "full_attention": {"rope_type": "proportional"}},
    });
    let gemma = sizes("gemma4_text", sharing);
    for part in ["k_proj", "v_proj", "k_norm"] {
        let name = |layer: usize| format!("model.layers.{layer}.self_attn.{part}.scales");
        check_with(&gemma, &[(&name(2), &[4])]).unwrap();
        assert!(check_with(&gemma, &[(&name(1), &[4])]).is_err());
    }
}

#[test]
fn the_head_of_a_text_part() {
    let of = |own: Value, text: Value| {
        let mut config = json!({"model_type": "gemma3", "text_config": sizes("gemma3_text", json!({"head_dim": 4, "num_key_value_heads": 1}))});
        let inner = config["text_config"].as_object_mut().unwrap();
        inner.remove("tie_word_embeddings");
        inner.extend(text.as_object().unwrap().clone());
        config.as_object_mut().unwrap().extend(own.as_object().unwrap().clone());
        config
    };
    let head: [(&str, &[usize]); 1] = [("lm_head.weight", &[3, 4])];
    let tied = json!({"tie_word_embeddings": true});
    let untied = json!({"tie_word_embeddings": false});
    // As transformers: what the file has, unless the outer key says that both are one.
    check_with(&of(json!({}), json!({})), &head).unwrap();
    check_with(&of(untied.clone(), tied.clone()), &head).unwrap();
    check_with(&of(json!({}), json!({})), &[("vision_tower.weight", &[2])]).unwrap();
    let differ = check_with(&of(tied, json!({})), &head).unwrap_err();
    assert!(differ.contains("tie_word_embeddings"), "{differ}");
    // Untied, and without a head of its own: the head is among the tensors that the model needs.
    for text in [json!({}), untied.clone()] {
        let folder = TestFolder::new();
        folder.write("config.json", of(untied.clone(), text).to_string());
        let own = family::config_of_file(folder.path()).unwrap();
        assert!(family::required_tensors(&own).any(|(name, _)| name == "lm_head.weight"));
    }
}
