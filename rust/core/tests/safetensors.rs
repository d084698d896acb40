//! Whatever bytes a container has: an error that says what is wrong, or tensors inside the file. Never a panic.

use crate::containers::{container, entry, tensors};
use ropechat_core::checkpoint::safetensors::{Malformed, parse};

fn fault(header: &str, data: &[u8]) -> Malformed {
    parse(&container(header, data)).unwrap_err()
}

fn assert_fault(header: &str, data: &[u8], field: &str, words: &str) {
    let fault = fault(header, data);
    assert!(
        fault.field == field && fault.what.contains(words),
        "{header}: {fault:?} (wanted {field}: {words})"
    );
}

#[test]
fn reads_names_types_shapes_and_places() {
    let header = r#"{"__metadata__":{"format":"pt"},
        "b":{"dtype":"BF16","shape":[2,3],"data_offsets":[4,16]},"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}   "#;
    let file = container(header, &[7; 16]);
    let tensors = parse(&file).unwrap();
    let (a, b) = (&tensors["a"], &tensors["b"]);
    assert_eq!((a.dtype, &*a.shape, a.end - a.begin), ("F32", &[][..], 4));
    assert_eq!((b.dtype, &*b.shape, b.begin, b.end), ("BF16", &[2, 3][..], file.len() - 12, file.len()));
}

#[test]
fn every_cut_of_a_valid_file_is_refused() {
    let file = tensors(&[("model.norm.weight", &[3]), ("model.embed_tokens.weight", &[5, 3])]);
    assert!(parse(&file).is_ok());
    for length in 0..file.len() {
        let fault = parse(&file[..length]).unwrap_err();
        assert!(fault.what.contains("download"), "cut at {length}: {fault:?}");
    }
    let fault = parse(&file[..file.len() - 5]).unwrap_err();
    assert!(fault.what.starts_with("the file is 5 bytes short"), "{fault:?}");
}

#[test]
fn damaged_bytes_never_panic_and_never_lead_out_of_the_file() {
    let valid = tensors(&[("model.norm.weight", &[3]), ("lm_head.weight", &[5, 3]), ("x", &[0, 9])]);
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for _ in 0..50_000 {
        let mut file = valid.clone();
        for _ in 0..1 + next() % 4 {
            let at = (next() % file.len() as u64) as usize;
            // Half of the time a byte that JSON gives a meaning to.
            file[at] =
                if next() % 2 == 0 { next() as u8 } else { b"{}[]\",:0919-.e"[(next() % 14) as usize] };
        }
        for entry in parse(&file).into_iter().flatten() {
            assert!(entry.1.begin <= entry.1.end && entry.1.end <= file.len());
        }
    }
}

#[test]
fn lengths_of_the_header() {
    for length in [0, 1, 1000, 100_000_001, 1 << 63, u64::MAX] {
        let mut file = length.to_le_bytes().to_vec();
        file.extend_from_slice(b"{}");
        assert_eq!(parse(&file).unwrap_err().field, "header", "{length}");
    }
    assert!(parse(&container("{}", &[])).unwrap().is_empty());
}

#[test]
fn duplicates_are_named() {
    let twice = format!("{{{},{}}}", entry("w", &[1], 0), entry("w", &[1], 4));
    assert_fault(&twice, &[0; 8], "w", "twice");
    let metadata = r#"{"__metadata__":{},"__metadata__":{}}"#;
    assert_fault(metadata, &[], "__metadata__", "twice");
    let shape = r#"{"w":{"dtype":"F32","shape":[1],"shape":[1],"data_offsets":[0,4]}}"#;
    assert_fault(shape, &[0; 4], "w", "shape is there twice");
}

#[test]
fn tensors_cover_the_data_once() {
    let gap = format!("{{{},{}}}", entry("a", &[1], 0), entry("b", &[1], 8));
    assert_fault(&gap, &[0; 12], "b", "leaves a gap");
    let overlap = format!("{{{},{}}}", entry("a", &[2], 0), entry("b", &[1], 4));
    assert_fault(&overlap, &[0; 8], "b", "overlaps the tensor");
    let trailing = format!("{{{}}}", entry("a", &[1], 0));
    assert_fault(&trailing, &[0; 5], "data", "1 bytes after its last tensor");
}

#[test]
fn sizes_that_overflow_or_disagree() {
    let with = |dtype: &str, shape: &str, offsets: &str| {
        format!(r#"{{"w":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}}}"#)
    };
    assert_fault(
        &with("F32", "[4294967296,4294967296]", "[0,0]"),
        &[],
        "w",
        "must be a whole number of bytes",
    );
    assert_fault(
        &with("F32", "[4611686018427387904,4]", "[0,0]"),
        &[],
        "w",
        "must be a whole number of bytes",
    );
    assert_fault(&with("F32", "[4611686018427387904]", "[0,0]"), &[], "w", "must be a whole number of bytes");
    assert_fault(&with("F4", "[3]", "[0,2]"), &[0; 2], "w", "must be a whole number of bytes");
    assert_fault(&with("F32", "[2]", "[0,4]"), &[0; 4], "w", "takes 8 bytes");
    assert_fault(&with("F32", "[1]", "[8,4]"), &[0; 4], "w", "takes 4 bytes");
    assert_fault(&with("F32", "[1]", "[18446744073709551612,0]"), &[0; 4], "w", "takes 4 bytes");
    assert_fault(&with("F32", "[1]", "[18446744073709551616,4]"), &[0; 4], "w", "invalid type");
    assert_fault(&with("FP17", "[1]", "[0,4]"), &[0; 4], "w", "unknown dtype FP17");
    assert_fault(&with("F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]"), &[0; 4], "w", "more than 8 dimensions");
    for shape in ["[-1]", "[1.0]", "[true]", "[\"1\"]", "null", "1"] {
        assert_eq!(fault(&with("F32", shape, "[0,4]"), &[0; 4]).field, "w", "{shape}");
    }
    for offsets in ["[0]", "[0,4,8]", "[0.0,4.0]", "[-4,0]", "{}"] {
        assert_eq!(fault(&with("F32", "[1]", offsets), &[0; 4]).field, "w", "{offsets}");
    }
    for missing in [r#"{"w":{}}"#, r#"{"w":{"dtype":"F32","shape":[1]}}"#, r#"{"w":"F32"}"#] {
        assert_eq!(fault(missing, &[0; 4]).field, "w", "{missing}");
    }
}

#[test]
fn empty_tensors_may_lie_anywhere_on_the_seam() {
    let header =
        format!("{{{},{},{}}}", entry("z", &[0, 1 << 40], 4), entry("a", &[1], 0), entry("b", &[1], 4));
    let tensors = parse(&container(&header, &[0; 8])).unwrap();
    assert_eq!((tensors["z"].end - tensors["z"].begin, tensors.len()), (0, 3));
}

#[test]
fn says_what_a_wrong_file_is() {
    let what = |bytes: &[u8]| parse(bytes).unwrap_err().what;
    assert!(what(b"\x80\x04\x95\x2a\0\0\0\0\0\0\0\x8c").contains("pickle"));
    assert!(what(b"PK\x03\x04\x14\0\0\0 and so on").contains("pickle"));
    assert!(what(b"GGUF\x03\0\0\0\x01\0\0\0").contains("GGUF"));
    assert!(what(b"version https://git-lfs.github.com/spec/v1").contains("LFS pointer"));
    assert!(what(b"<!DOCTYPE html><html>").contains("web page"));
}

#[test]
fn names_are_fit_for_a_terminal() {
    let header = r#"{"\u001b]52;c;AA\u0007":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}"#;
    let fault = fault(header, &[0; 4]);
    assert!(!fault.field.contains('\u{1b}') && fault.field.contains("\\u{1b}"), "{fault:?}");
    let long = format!("{{{}}}", entry(&"n".repeat(100_000), &[1], 0));
    assert!(self::fault(&long, &[0; 3]).field.len() < 400);
}

/// What is checked must be what is read, whoever writes to the file meanwhile: no name comes out that is not UTF-8.
#[cfg(unix)]
#[test]
fn names_are_utf_8_while_others_write_to_the_file() {
    use ropechat_platform::mapped::MappedFile;
    use std::os::unix::fs::FileExt;
    use std::sync::atomic::{AtomicBool, Ordering};
    let names: Vec<String> = (0..5000).map(|number| format!("layer {number} weight")).collect();
    let list: Vec<(&str, &[usize])> = names.iter().map(|name| (name.as_str(), &[1][..])).collect();
    let (folder, bytes) = (crate::containers::TestFolder::new(), tensors(&list));
    folder.write("model.safetensors", &bytes);
    let path = folder.path().join("model.safetensors");
    let file = std::fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let map = MappedFile::open(&file, bytes.len(), &path).unwrap();
    let place = bytes.windows(10).rposition(|window| window == b"layer 4999").unwrap() as u64;
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..50_000 {
                file.write_all_at(&[0xff], place).unwrap();
                file.write_all_at(b"l", place).unwrap();
            }
            done.store(true, Ordering::Relaxed);
        });
        while !done.load(Ordering::Relaxed) {
            // A text that was damaged when it was read is an error, as it should be.
            let tensors = parse(&map).unwrap_or_default();
            assert!(tensors.keys().all(|name| std::str::from_utf8(name.as_bytes()).is_ok()));
        }
    });
    assert_eq!(parse(&map).unwrap().len(), names.len());
}
