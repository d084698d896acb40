//! `.gguf` files that strangers wrote: whatever their bytes are, an error that names the place, and never a panic.

use std::path::Path;

use crate::containers::TestFolder;
use crate::containers::gguf::{Gguf, Tensor, f32_value, list_value, text, text_value, u32_value};
use ropechat_core::checkpoint::Checkpoint;
use ropechat_core::checkpoint::gguf::{Header, Kind, Value};
use ropechat_core::config::{HeadRows, LmHead, RopeScaling};
use ropechat_core::{Error, Result, family};

/// Everything that is checked before weights are read.
fn check(path: &Path) -> Result<family::ModelCard> {
    let checkpoint = Checkpoint::open(path)?;
    let card = family::model_card(&checkpoint)?;
    family::check_tensors(&checkpoint, &card.config)?;
    Ok(card)
}

/// What is said about a file of these bytes.
fn of_bytes(bytes: &[u8]) -> Result<family::ModelCard> {
    let folder = TestFolder::new();
    folder.write("model.gguf", bytes);
    check(&folder.path().join("model.gguf"))
}

fn refusal(file: &Gguf) -> String {
    of_bytes(&file.bytes()).expect_err("this file is refused").to_string()
}

#[test]
fn a_sound_file_is_understood() {
    let config = of_bytes(&Gguf::llama().bytes()).unwrap().config;
    assert_eq!((config.hidden_size, config.head_dim, config.vocab_size), (32, 16, 8));
    assert_eq!(config.lm_head, LmHead::Tied);
    assert_eq!(config.names.head_rows, HeadRows::Paired);
}

#[test]
fn a_file_cut_anywhere_is_refused() {
    let (folder, bytes) = (TestFolder::new(), Gguf::llama().bytes());
    let path = folder.path().join("model.gguf");
    std::fs::write(&path, &bytes).unwrap();
    check(&path).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    for end in (0..bytes.len()).rev() {
        file.set_len(end as u64).unwrap();
        let error = check(&path).expect_err("a cut file is refused");
        assert!(matches!(error, Error::Format { .. }), "cut at {end}: {error}");
        assert!(error.to_string().contains("model.gguf"), "{error}");
    }
}

#[test]
fn damaged_bytes_never_panic() {
    let (folder, sound) = (
        TestFolder::new(),
        Gguf::llama().with("x", list_value(8, 2, &[text("a"), text("b")].concat())).bytes(),
    );
    let path = folder.path().join("model.gguf");
    let header = 1200.min(sound.len());
    let mut state = 7u64;
    let mut next = |below: usize| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as usize % below
    };
    for _ in 0..1500 {
        let mut bytes = sound.clone();
        for _ in 0..=next(3) {
            let at = next(header);
            bytes[at] = [0, 1, 0x7f, 0x80, 0xff, bytes[at] ^ 1 << next(8)][next(6)];
        }
        std::fs::write(&path, &bytes).unwrap();
        // An error or a model: damage may hit a number that is as good as another.
        let _ = check(&path);
    }
}

#[test]
fn faults_are_named() {
    let with = |key: &str, value| Gguf::llama().with(key, value);
    let tensor = |change: fn(&mut Tensor)| {
        let mut file = Gguf::llama();
        change(&mut file.tensors[3]);
        file
    };
    let q = "blk.0.attn_q.weight";
    for (file, named) in [
        (with("llama.block_count", u32_value(1)), "llama.block_count: the key is there twice"),
        (with("", u32_value(1)), "key 8: its name must have 1 to 65535 bytes (got 0)"),
        (with("x", 13u32.to_le_bytes().to_vec()), "x: its type must be 0 to 12 (got 13)"),
        (with("x", list_value(9, 1, &[])), "x: must be a list of numbers or texts (got a list of lists)"),
        (with("x", list_value(8, 1 << 40, &[])), "x: must have at most 67108864 values (got 1099511627776)"),
        (with("x", list_value(10, 1 << 25, &[])), "x: 33554432, and the"),
        (with("x", [&7u32.to_le_bytes()[..], &[2]].concat()), "x: a bool must be 0 or 1 (got 2)"),
        (with("general.alignment", u32_value(0)), "general.alignment: must be … (got 0)"),
        (with("general.alignment", u32_value(1 << 21)), "general.alignment: must be … (got 2097152)"),
        (
            with("general.alignment", text_value("32")),
            "general.alignment: must be a power of two up to 1048576 of type u32 (got the text \"32\")",
        ),
        (with("general.alignment", u32_value(1 << 12)), "must be a multiple of the alignment 4096"),
        (with("llama.rope.freq_base", f32_value(f32::NAN)), "llama.rope.freq_base: must be … (got NaN)"),
        (with("llama.rope.freq_base", f32_value(-1.0)), "llama.rope.freq_base: must be … (got -1.0)"),
        (
            with("llama.attention.key_length", u32_value(15)),
            "llama.rope.dimension_count: must be the head's width (15) (got 16)",
        ),
        (with("llama.swing", u32_value(1)), "llama.swing: 1; this key is not known"),
        (
            with("llama.rope.scaling.type", text_value("swirl")),
            "llama.rope.scaling.type: must be … (got the text \"swirl\")",
        ),
        (with("llama.rope.scaling.factor", f32_value(0.0)), "llama.rope.scaling.factor: must be … (got 0.0)"),
        (
            with("general.type", text_value("adapter")),
            "general.type: must be \"model\" (got the text \"adapter\")",
        ),
        (with("tokenizer.ggml.eos_token_id", u32_value(8)), "tokenizer.ggml.eos_token_id: must be … (got 8)"),
        (
            with("tokenizer.ggml.token_type", list_value(0, 1, &[1])),
            "tokenizer.ggml.token_type: must be a list of i32 (got a list of u8)",
        ),
        (tensor(|q| q.1 = vec![32; 5]), &format!("{q}: must have at most 4 dimensions (got 5)")),
        (
            tensor(|q| q.1 = vec![1 << 62, 8]),
            &format!(
                "{q}: its size must be a whole number of bytes in the file (got F32 x [8, 4611686018427387904])"
            ),
        ),
        (
            tensor(|q| q.1 = vec![16, 64]),
            &format!("{q}: its shape is [64, 16]; [32, 32] is expected (from the file's"),
        ),
        (
            tensor(|q| q.2 = 99),
            &format!("{q}: its type must be one of F32, F16, BF16, Q8_0, Q4_0 and others (got number 99)"),
        ),
        (
            tensor(|q| q.2 = 36),
            &format!("{q}: its type must be one of …(got I2_S of bitnet.cpp, …TQ1_0 or TQ2_0"),
        ),
        (tensor(|q| q.2 = 32), &format!("{q}: its type must be …(got Q4_0_4_8, …; use a copy in Q4_0")),
        (
            tensor(|q| (q.2, q.1) = (8, vec![40, 8])),
            &format!("{q}: a row of Q8_0 must be whole blocks of 32 values (got 40)"),
        ),
        (tensor(|q| (q.2, q.1) = (19, vec![256, 4])), &format!("data, and {q} ends at")),
        (tensor(|q| (q.2, q.1) = (26, vec![32, 32])), &format!("{q}: it is stored as I32; F32, F16 or BF16")),
        (tensor(|q| q.2 = 27), &format!("data, and {q} ends at")),
        (tensor(|q| q.0 = "output_norm.weight".to_owned()), "output_norm.weight: the name is there twice"),
        (tensor(|q| q.0 = "x".to_owned()), &format!("{q}: the tensor is not in the file")),
    ] {
        let text = refusal(&file);
        assert!(named.split('…').all(|part| text.contains(part)), "{named:?} is not in {text:?}");
    }
}

#[test]
fn other_files_say_what_they_are() {
    let mut big = Gguf::llama().bytes();
    big[4..8].copy_from_slice(&3u32.to_be_bytes());
    let mut first = Gguf::llama().bytes();
    first[4] = 1;
    for (bytes, said) in [
        (&b""[..], "the file is empty"),
        (b"<!DOCTYPE html>", "a web page"),
        (b"version https://git-lfs.github.com/spec/v1", "Git LFS pointer"),
        (b"tjgg\x03\0\0\0", "the format before GGUF"),
        (b"PK\x03\x04....", "\"GGUF\" is expected"),
        (&big, "big endian"),
        (&first, "version: must be 2 or 3 (got 1)"),
    ] {
        let text = of_bytes(bytes).unwrap_err().to_string();
        assert!(text.contains(said), "{said:?} is not in {text:?}");
    }
    let mut second = Gguf::llama().bytes();
    second[4] = 2; // the same layout
    of_bytes(&second).unwrap();
}

#[test]
fn architectures_are_told_by_name() {
    let mut file = Gguf::llama();
    file.keys[0].1 = text_value("spiral9");
    let text = refusal(&file);
    assert!(text.contains("general.architecture: \"spiral9\"; supported: llama, qwen2"), "{text}");
    file.keys.remove(0);
    assert!(refusal(&file).contains("general.architecture: it is missing"));
    file.keys.clear();
    assert!(matches!(of_bytes(&file.bytes()), Err(Error::Config { .. })));
}

#[test]
fn values_come_out_as_they_went_in() {
    let file = Gguf::llama()
        .with("list", list_value(6, 2, &[1.5f32.to_le_bytes(), 2.5f32.to_le_bytes()].concat()))
        .with("texts", list_value(8, 3, &[text("a"), text(""), text("ü")].concat()))
        .with("bytes", [&8u32.to_le_bytes()[..], &1u64.to_le_bytes(), &[0xff]].concat())
        .with("small", [&1u32.to_le_bytes()[..], &[0x80]].concat());
    let folder = TestFolder::new();
    folder.write("model.gguf", file.bytes());
    let header = Header::open(&folder.path().join("model.gguf")).unwrap();
    let metadata = header.metadata();
    let list = |key| match metadata.get(key) {
        Some(Value::List(list)) => list,
        other => panic!("{key} is {other:?}"),
    };
    assert_eq!(list("list").iter().collect::<Vec<_>>(), [Value::Float(1.5), Value::Float(2.5)]);
    assert_eq!((list("texts").kind(), list("texts").len()), (Kind::Text, 3));
    let texts: Vec<_> = list("texts").iter().map(|text| text.text()).collect();
    assert_eq!(texts, ["a", "", "ü"].map(|text| Some(text.to_owned())));
    assert_eq!(metadata.get("bytes").map(|bytes| (bytes, bytes.text())), Some((Value::Text(&[0xff]), None)));
    assert_eq!(metadata.get("small"), Some(Value::Signed(-128)));
    assert_eq!(metadata.get("absent"), None);
    assert_eq!(metadata.iter().count(), file.keys.len());
}

#[test]
fn a_text_stays_what_it_was_when_others_write_to_the_file() {
    use std::io::{Seek, SeekFrom, Write};
    let (folder, bytes) = (TestFolder::new(), Gguf::llama().bytes());
    let path = folder.path().join("model.gguf");
    std::fs::write(&path, &bytes).unwrap();
    let header = Header::open(&path).unwrap();
    let arch = header.metadata().get("general.architecture").unwrap();
    let text = arch.text().unwrap();
    let place = bytes.windows(5).position(|window| window == b"llama").unwrap();
    let mut file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.seek(SeekFrom::Start(place as u64)).unwrap();
    file.write_all(&[0xff; 5]).unwrap();
    // The map shows what was written, the text is of before.
    assert_eq!((text.as_str(), arch.text()), ("llama", None));
}

#[test]
fn divisors_make_the_rotation() {
    let mut file = Gguf::llama();
    let bytes = |values: [f32; 8]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>();
    let divisors = [1.0, 1.0, 1.5, 2.0, 4.0, 8.0, 8.0, 8.0];
    file.tensors.push(("rope_freqs.weight".to_owned(), vec![8], 0, bytes(divisors)));
    let card = of_bytes(&file.bytes()).unwrap();
    let factors = divisors.map(f64::from).to_vec();
    assert_eq!(card.config.ropes[0].scaling, RopeScaling::Divided { factors });
    let linear = file.clone().with("llama.rope.scaling.factor", f32_value(2.0));
    assert!(refusal(&linear).contains("rope_freqs.weight: must not stand beside rope.scaling"));
    file.tensors.last_mut().unwrap().3 = bytes([0.0; 8]);
    assert!(refusal(&file).contains("rope_freqs.weight: must hold numbers above 0 (got 0)"));
    file.tensors.last_mut().unwrap().1 = vec![7];
    file.tensors.last_mut().unwrap().3 = bytes([1.0; 8])[..28].to_vec();
    assert!(refusal(&file).contains("rope_freqs.weight: must have one number per pair, 8 (got 7)"));
}

/// What no key says: in the 27B models scores are divided by the root of hidden_size / heads, not of the head's width.
#[test]
fn gemma_of_46_layers_has_a_scale_of_its_own() {
    let scale = |layers: u32| {
        let mut file = Gguf::llama().with("gemma2.attention.key_length", u32_value(16));
        for (key, value) in &mut file.keys {
            *key = key.replace("llama.", "gemma2.");
            match key.as_str() {
                "general.architecture" => *value = text_value("gemma2"),
                "gemma2.block_count" => *value = u32_value(layers),
                "gemma2.embedding_length" => *value = u32_value(64),
                _ => {}
            }
        }
        let embedding = ("token_embd.weight".to_owned(), vec![64, 1], 8, vec![0; 68]);
        let last = (format!("blk.{}.attn_norm.weight", layers - 1), vec![64], 0, vec![0; 256]);
        file.tensors = vec![embedding, last];
        let folder = TestFolder::new();
        folder.write("model.gguf", file.bytes());
        let checkpoint = Checkpoint::open(&folder.path().join("model.gguf")).unwrap();
        family::model_card(&checkpoint).unwrap().config.attention_multiplier
    };
    assert_eq!(scale(42), 1.0 / 16f32.sqrt());
    assert_eq!(scale(46), 1.0 / 32f32.sqrt());
}

#[test]
fn vectors_in_blocks_are_refused() {
    let mut file = Gguf::llama();
    (file.tensors[1].2, file.tensors[1].3) = (8, vec![0; 34]);
    let text = refusal(&file);
    assert!(text.contains("output_norm.weight: it is stored as Q8_0"), "{text}");
}

mod split {
    use super::*;

    /// A model in two parts, and the names of both.
    fn parts() -> [(String, Gguf); 2] {
        let numbered = |file: Gguf, number: u32| {
            file.with("split.no", u32_value(number))
                .with("split.count", u32_value(2))
                .with("split.tensors.count", u32_value(11))
        };
        let (mut first, mut second) = (Gguf::llama(), Gguf::llama());
        second.keys.clear();
        second.tensors = first.tensors.split_off(4);
        [first, second]
            .map(|file| (file.keys.is_empty() as u32, file))
            .map(|(number, file)| (format!("m-0000{}-of-00002.gguf", number + 1), numbered(file, number)))
    }

    #[test]
    fn the_first_finds_the_rest() {
        let folder = TestFolder::new();
        for (name, part) in parts() {
            folder.write(&name, part.bytes());
        }
        let checkpoint = Checkpoint::open(&folder.path().join("m-00001-of-00002.gguf")).unwrap();
        assert_eq!(checkpoint.names().count(), 11);
        check(&folder.path().join("m-00001-of-00002.gguf")).unwrap();
        let second = check(&folder.path().join("m-00002-of-00002.gguf")).unwrap_err().to_string();
        assert!(second.contains("open m-00001-of-00002.gguf"), "{second}");
    }

    #[test]
    fn a_missing_or_foreign_part_is_named() {
        let ([(first, part), (second, other)], folder) = (parts(), TestFolder::new());
        let refusal = || check(&folder.path().join(&first)).unwrap_err();
        folder.write(&first, part.bytes());
        let error = refusal();
        assert!(matches!(&error, Error::NotFound { .. }) && error.to_string().contains(&second), "{error}");
        folder.write(&second, part.bytes());
        assert!(refusal().to_string().contains("split.no"));
        let mut short = other;
        short.tensors.pop();
        folder.write(&second, short.bytes());
        assert!(refusal().to_string().contains("split.tensors.count: 11, and the parts hold 10"));
        folder.write("renamed.gguf", part.bytes());
        let error = check(&folder.path().join("renamed.gguf")).unwrap_err().to_string();
        assert!(error.contains("-00001-of-00002.gguf"), "{error}");
    }
}
