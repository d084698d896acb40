//! The containers: safetensors, its index, config.json, GGUF.

use ropechat_core::checkpoint::{Checkpoint, safetensors};
use ropechat_core::family;
use std::path::PathBuf;
use std::sync::LazyLock;

/// A folder in memory where the system has one, removed by whoever runs the fuzzer.
pub static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
    let base = std::env::var_os("FUZZ_FOLDER").map_or_else(std::env::temp_dir, PathBuf::from);
    let folder = base.join(format!("ropechat-fuzz-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder
});

/// A header, and as many bytes behind it as its last number says, if these are few.
pub fn container(header: &[u8], data: usize) -> Vec<u8> {
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(header);
    file.resize(file.len() + data, 0);
    file
}

/// The largest number after "data_offsets" in a header.
fn end_of_data(header: &[u8]) -> usize {
    let text = String::from_utf8_lossy(header);
    let ends = text.split("data_offsets").skip(1).filter_map(|part| {
        part.split([',', ']']).nth(1).and_then(|number| number.trim().parse::<usize>().ok())
    });
    ends.max().unwrap_or(0).min(1 << 16)
}

/// Bytes that begin with `{` are a header, whose length and data are made; others are a whole file.
pub fn safetensors(data: &[u8]) {
    let file = match data.first() {
        Some(b'{') => container(data, end_of_data(data)),
        _ => data.to_vec(),
    };
    for (name, entry) in safetensors::parse(&file).into_iter().flatten() {
        assert!(entry.begin <= entry.end && entry.end <= file.len(), "{name}");
    }
}

/// Errors are one line that a terminal can show.
fn check_text(text: &str) {
    let is_bad = |c: char| c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    assert!(!text.contains(is_bad), "{text:?}");
}

/// All that `models check` does with a model.
pub fn check(path: &std::path::Path) {
    let checked = || {
        let checkpoint = Checkpoint::open(path)?;
        let card = family::model_card(&checkpoint)?;
        let unread = family::check_tensors(&checkpoint, &card.config)?;
        let _ = family::num_parameters(&checkpoint, &card.config);
        card.warnings.iter().chain(checkpoint.warnings()).chain(&unread).for_each(|text| check_text(text));
        checkpoint.identity()
    };
    if let Err(error) = checked() {
        check_text(&error.to_string());
    }
}

/// `model.safetensors.index.json` beside two shards.
pub fn index(data: &[u8]) {
    static READY: LazyLock<()> = LazyLock::new(|| {
        for (shard, name) in [("a.safetensors", "a"), ("b.safetensors", "b")] {
            let header = format!(r#"{{"{name}":{{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}}}"#);
            std::fs::write(FOLDER.join(shard), container(header.as_bytes(), 4)).unwrap();
        }
        std::fs::write(FOLDER.join("config.json"), r#"{"model_type":"llama"}"#).unwrap();
    });
    *READY;
    std::fs::write(FOLDER.join("model.safetensors.index.json"), data).unwrap();
    check(&FOLDER);
}

/// config.json of any family, with all the tensors that it asks for, until there are too many.
pub fn config(data: &[u8]) {
    let path = FOLDER.join("config.json");
    std::fs::write(&path, data).unwrap();
    match family::config_of_file(&path) {
        // The names of all tensors are made at once: `check_experts` bounds them by the files, which are not here.
        Ok(config) if config.moe.as_ref().is_none_or(|moe| moe.num_experts * config.layers.len() < 1000) => {
            for (name, shape) in family::required_tensors(&config).take(5000) {
                assert!(!name.is_empty() && !shape.is_empty());
            }
        }
        Ok(_) => {}
        Err(error) => check_text(&error.to_string()),
    }
}

/// A `.gguf` file: container, metadata of every architecture, tensors.
pub fn gguf(data: &[u8]) {
    let path = FOLDER.join("m.gguf");
    std::fs::write(&path, data).unwrap();
    check(&path);
}

/// Two parts of a split file: the first number says where the second part begins.
pub fn gguf_split(data: &[u8]) {
    let Some((cut, rest)) = data.split_first_chunk::<2>() else { return };
    let (first, second) = rest.split_at((u16::from_le_bytes(*cut) as usize).min(rest.len()));
    std::fs::write(FOLDER.join("m-00001-of-00002.gguf"), first).unwrap();
    std::fs::write(FOLDER.join("m-00002-of-00002.gguf"), second).unwrap();
    check(&FOLDER.join("m-00001-of-00002.gguf"));
}
