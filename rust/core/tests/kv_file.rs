//! Keys and values on disk: the same bits as read again, and no harm from whatever happens to the files.

use crate::common::{Folder, Noise, SHAPES, engine_with_kv, greedy, write_model};
use ropechat_core::checkpoint::Checkpoint;
use ropechat_core::engine::{Engine, Event};
use ropechat_core::model::pack::Key;
use ropechat_kernels::compute::cancel::CancelToken;
use ropechat_kernels::kernel::Isa;
use ropechat_kernels::quant::PackedType;
use ropechat_platform::error::Error;
use ropechat_platform::files::DiskLimits;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

const VOCAB: usize = SHAPES[0].vocab;
const ROOMY: DiskLimits = DiskLimits { total: u64::MAX, keep_free: 0 };

fn make(model: &Folder, kv: PackedType) -> Engine {
    let mut engine = engine_with_kv(model.path(), PackedType::F32, Some(kv), Isa::Scalar, 2).unwrap();
    engine.set_identity(Key::new(&Checkpoint::open(model.path()).unwrap(), None).unwrap());
    engine
}

/// The ids that follow a text, with the bits of their log probabilities.
fn generate(engine: &mut Engine, ids: &[u32], count: usize) -> Vec<(u32, u64)> {
    let number = engine.add(ids, greedy(count)).unwrap();
    let mut found = Vec::new();
    loop {
        let events = engine.step(&[number], &CancelToken::default()).unwrap();
        if events.is_empty() {
            break;
        }
        for (_, event) in events {
            if let Event::Token { scored, .. } = event {
                found.push((scored.id, scored.logprob_and_rank.unwrap().0.to_bits()));
            }
        }
    }
    engine.free(number);
    found
}

fn write(engine: &mut Engine, ids: &[u32], path: &Path) -> usize {
    let kept = engine.kept_prefix(ids).unwrap();
    assert!(kept.write(path, ROOMY, &CancelToken::default()).unwrap());
    kept.tokens()
}

fn take(engine: &mut Engine, ids: &[u32], path: &Path) -> Option<String> {
    engine.take_prefix(ids, path, &CancelToken::default()).unwrap()
}

#[test]
fn texts_that_begin_alike_take_what_they_share() {
    for kv in [PackedType::F32, PackedType::F16, PackedType::BF16, PackedType::Q8_0] {
        let model = write_model(SHAPES[0]);
        let path = model.path().join("kv").join("text.kv");
        let ids = Noise(5).ids(150, VOCAB);
        let mut first = make(&model, kv);
        generate(&mut first, &ids, 9);
        assert_eq!(write(&mut first, &ids, &path), 150);
        for (common, cached) in [(150, 149), (149, 149), (128, 128), (100, 100), (31, 31), (1, 1), (0, 0)] {
            let mut other = ids.clone();
            other[common..].iter_mut().for_each(|id| *id = (*id + 1) % VOCAB as u32);
            other.truncate(common.max(140));
            let mut fresh = make(&model, kv);
            let expected = generate(&mut fresh, &other, 9);
            let mut second = make(&model, kv);
            assert_eq!(take(&mut second, &other, &path), None);
            let number = second.add(&other, greedy(1)).unwrap();
            assert_eq!(second.reused(number).unwrap(), cached.min(other.len() - 1), "{common}");
            second.free(number);
            assert!(generate(&mut second, &other, 9) == expected, "{kv:?} {common} tokens in common");
        }
    }
}

#[test]
fn what_is_cached_is_not_read_and_what_is_missing_is_added() {
    let model = write_model(SHAPES[0]);
    let path = model.path().join("text.kv");
    let ids = Noise(6).ids(100, VOCAB);
    let mut first = make(&model, PackedType::F16);
    let expected = generate(&mut first, &ids, 5);
    write(&mut first, &ids, &path);
    let mut second = make(&model, PackedType::F16);
    generate(&mut second, &ids[..70], 1);
    let bytes = second.kv_bytes();
    take(&mut second, &ids[..64], &path);
    assert_eq!(second.kv_bytes(), bytes, "all of it is cached");
    take(&mut second, &ids, &path);
    assert_eq!(second.cached(&ids), 100);
    assert!(generate(&mut second, &ids, 5) == expected);
}

#[test]
fn a_longer_text_takes_the_place_of_its_beginning_and_a_shorter_one_leaves_it() {
    let model = write_model(SHAPES[0]);
    let path = model.path().join("text.kv");
    let ids = Noise(16).ids(100, VOCAB);
    let mut engine = make(&model, PackedType::F16);
    let on_disk = || {
        let mut fresh = make(&model, PackedType::F16);
        assert_eq!(take(&mut fresh, &ids, &path), None);
        fresh.cached(&ids)
    };
    for (length, expected) in [(40, 40), (100, 100), (64, 100), (100, 100)] {
        generate(&mut engine, &ids[..length], 1);
        write(&mut engine, &ids[..length], &path);
        assert_eq!(on_disk(), expected, "after {length} tokens");
    }
    let mut other = ids.clone();
    other[70] = (other[70] + 1) % VOCAB as u32;
    generate(&mut engine, &other, 1);
    write(&mut engine, &other, &path);
    assert_eq!(on_disk(), 70, "of a text that goes on in another way");
}

#[test]
fn a_damaged_file_is_noticed_wherever_it_is_damaged() {
    let model = write_model(SHAPES[0]);
    let path = model.path().join("text.kv");
    let ids = Noise(7).ids(77, VOCAB);
    let mut first = make(&model, PackedType::F16);
    let expected = generate(&mut first, &ids, 5);
    write(&mut first, &ids, &path);
    let whole = fs::read(&path).unwrap();
    let mut damages: Vec<Vec<u8>> = vec![
        [&whole[..], b"x"].concat(),
        vec![0; whole.len()],
        vec![],
        [&whole[..8], &u64::MAX.to_le_bytes(), &whole[16..]].concat(),
    ];
    for at in (0..whole.len()).step_by(whole.len() / 300) {
        let mut flipped = whole.clone();
        flipped[at] ^= 1 << (at % 8);
        damages.extend([flipped, whole[..at].to_vec()]);
    }
    let mut second = make(&model, PackedType::F16);
    for (number, damage) in damages.iter().enumerate() {
        fs::write(&path, damage).unwrap();
        second.set_prefix_bytes(0); // nothing is cached
        second.set_prefix_bytes(1 << 20);
        let note = take(&mut second, &ids, &path);
        assert!(note.is_some_and(|note| note.ends_with("; the text is read again")), "damage {number}");
        assert!(generate(&mut second, &ids, 5) == expected, "damage {number}");
    }
    fs::write(&path, &whole).unwrap();
    second.set_prefix_bytes(0);
    second.set_prefix_bytes(1 << 20);
    assert_eq!((take(&mut second, &ids, &path), second.cached(&ids)), (None, 77));
}

/// A header of the right checksum that says something else.
fn with_header(whole: &[u8], change: impl Fn(&str) -> String) -> Vec<u8> {
    let len = u64::from_le_bytes(whole[8..16].try_into().unwrap()) as usize;
    let text = change(std::str::from_utf8(&whole[24..24 + len]).unwrap());
    let sum = xxhash_rust::xxh3::xxh3_64(text.as_bytes());
    let (length, sum) = ((text.len() as u64).to_le_bytes(), sum.to_le_bytes());
    [&whole[..8], &length, &sum, text.as_bytes(), &whole[24 + len..]].concat()
}

#[test]
fn sizes_are_checked_before_anything_is_allocated() {
    let model = write_model(SHAPES[0]);
    let path = model.path().join("text.kv");
    let ids = Noise(8).ids(70, VOCAB);
    let mut engine = make(&model, PackedType::F16);
    generate(&mut engine, &ids, 1);
    write(&mut engine, &ids, &path);
    let whole = fs::read(&path).unwrap();
    let tokens = "\"tokens\":70";
    assert!(
        std::str::from_utf8(&whole[24..1000]).is_err() || whole.windows(11).any(|at| at == tokens.as_bytes())
    );
    for wrong in
        ["0", "69", "71", "1e9", "-1", "4611686018427387904", "18446744073709551615", "null", "\"70\""]
    {
        let changed = with_header(&whole, |text| text.replace(tokens, &format!("\"tokens\":{wrong}")));
        assert_ne!(changed, whole);
        fs::write(&path, changed).unwrap();
        engine.set_prefix_bytes(0);
        assert!(take(&mut engine, &ids, &path).is_some(), "{wrong}");
    }
    for (name, value) in [("blocks", "0"), ("blocks", "18446744073709551615"), ("state", "1"), ("index", "1")]
    {
        let changed = with_header(&whole, |text| {
            let at = text.find(&format!("\"{name}\":")).unwrap() + name.len() + 3;
            let end = at + text[at..].find([',', '}']).unwrap();
            format!("{}{value}{}", &text[..at], &text[end..])
        });
        fs::write(&path, changed).unwrap();
        assert!(take(&mut engine, &ids, &path).is_some(), "{name} {value}");
    }
    fs::write(&path, with_header(&whole, str::to_owned)).unwrap();
    assert_eq!(take(&mut engine, &ids, &path), None);
}

#[test]
fn a_file_of_another_model_type_or_instruction_set_is_not_used() {
    let (model, other) = (write_model(SHAPES[0]), write_model(SHAPES[0]));
    let path = model.path().join("text.kv");
    let ids = Noise(9).ids(40, VOCAB);
    let mut first = make(&model, PackedType::F16);
    generate(&mut first, &ids, 1);
    write(&mut first, &ids, &path);
    let is_refused = |mut engine: Engine| {
        let note = take(&mut engine, &ids, &path);
        assert_eq!(engine.cached(&ids), 0);
        note.is_some_and(|note| note.contains("from another model, version, type or instruction set"))
    };
    assert!(is_refused(make(&other, PackedType::F16)));
    assert!(is_refused(make(&model, PackedType::F32)));
    for isa in Isa::ALL.into_iter().filter(|&isa| isa != Isa::Scalar) {
        if let Some(mut engine) = engine_with_kv(model.path(), PackedType::F32, Some(PackedType::F16), isa, 1)
        {
            engine.set_identity(Key::new(&Checkpoint::open(model.path()).unwrap(), None).unwrap());
            assert!(is_refused(engine), "{isa:?}");
        }
    }
    let mut nameless = engine_with_kv(model.path(), PackedType::F32, None, Isa::Scalar, 1).unwrap();
    assert_eq!(take(&mut nameless, &ids, &path), None);
    assert!(nameless.kept_prefix(&ids).is_none() && nameless.cached(&ids) == 0);
    assert_eq!(take(&mut first, &ids, &model.path().join("missing.kv")), None);
}

/// All bytes of a text that was read before must be gone from the blocks that another one uses now.
#[test]
fn positions_without_a_token_are_zero() {
    for kv in [PackedType::F32, PackedType::F16, PackedType::BF16, PackedType::Q8_0] {
        let model = write_model(SHAPES[0]);
        let (clean, reused) = (model.path().join("clean.kv"), model.path().join("reused.kv"));
        let ids = Noise(10).ids(37, VOCAB);
        let mut engine = make(&model, kv);
        engine.set_rows_per_step(40);
        generate(&mut engine, &ids, 1);
        write(&mut engine, &ids, &clean);
        let mut engine = make(&model, kv);
        engine.set_prefix_bytes(0);
        generate(&mut engine, &Noise(11).ids(96, VOCAB), 1);
        engine.set_prefix_bytes(1 << 20);
        generate(&mut engine, &Noise(12).ids(64, VOCAB), 1);
        generate(&mut engine, &ids, 1);
        write(&mut engine, &ids, &reused);
        assert!(fs::read(&clean).unwrap() == fs::read(&reused).unwrap(), "{kv:?}");
    }
}

#[test]
fn the_cache_goes_on_while_a_file_is_written() {
    let model = write_model(SHAPES[0]);
    let path = model.path().join("text.kv");
    let ids = Noise(13).ids(90, VOCAB);
    let mut engine = make(&model, PackedType::F16);
    let expected = generate(&mut engine, &ids, 5);
    let kept = engine.kept_prefix(&ids).unwrap();
    engine.set_prefix_bytes(0);
    engine.set_prefix_bytes(1 << 20);
    generate(&mut engine, &Noise(14).ids(200, VOCAB), 5);
    assert!(kept.write(&path, ROOMY, &CancelToken::default()).unwrap());
    let mut second = make(&model, PackedType::F16);
    take(&mut second, &ids, &path);
    assert_eq!(second.cached(&ids), 90);
    assert!(generate(&mut second, &ids, 5) == expected);
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> =
        fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

#[test]
fn limits_hold_and_what_was_not_used_for_longest_goes() {
    let model = write_model(SHAPES[0]);
    let folder = model.path().join("kv");
    let at = |name: usize| folder.join(format!("{name}.kv"));
    let mut engine = make(&model, PackedType::F16);
    let texts: Vec<Vec<u32>> = (0..4).map(|seed| Noise(20 + seed).ids(64, VOCAB)).collect();
    for text in &texts {
        generate(&mut engine, text, 1);
    }
    write(&mut engine, &texts[0], &at(0));
    let size = fs::metadata(at(0)).unwrap().len();
    let tight = DiskLimits { total: 3 * size - size / 2, keep_free: 0 };
    let write = |engine: &mut Engine, number: usize, limits| {
        engine
            .kept_prefix(&texts[number])
            .unwrap()
            .write(&at(number), limits, &CancelToken::default())
            .unwrap()
    };
    let used = |number, days: u64| {
        let time = SystemTime::now() - Duration::from_secs(days * 86_400);
        fs::File::open(at(number)).unwrap().set_modified(time).unwrap();
    };
    assert!(write(&mut engine, 1, tight));
    used(0, 3);
    used(1, 2);
    take(&mut engine, &texts[0], &at(0)); // which marks it as used
    assert!(write(&mut engine, 2, tight));
    assert_eq!(files(&folder), [at(0), at(2)]);
    assert!(write(&mut engine, 2, tight), "what a file replaces does not count");
    assert_eq!(files(&folder), [at(0), at(2)]);
    assert!(!write(&mut engine, 3, DiskLimits { total: size / 2, keep_free: 0 }));
    assert!(!write(&mut engine, 3, DiskLimits { total: u64::MAX, keep_free: u64::MAX }), "a full disk");
    assert_eq!(files(&folder), [at(0), at(2)]);
}

#[test]
fn a_writer_that_stops_or_fails_leaves_nothing() {
    let model = write_model(SHAPES[0]);
    let folder = model.path().join("kv");
    let path = folder.join("text.kv");
    let ids = Noise(30).ids(64, VOCAB);
    let mut engine = make(&model, PackedType::F16);
    generate(&mut engine, &ids, 1);
    let kept = engine.kept_prefix(&ids).unwrap();
    let cancelled = CancelToken::default();
    cancelled.cancel();
    assert!(!kept.write(&path, ROOMY, &cancelled).unwrap());
    assert!(files(&folder).is_empty());
    fs::write(folder.join("text.kv.1-0.part"), "half of one").unwrap();
    assert!(kept.write(&path, ROOMY, &CancelToken::default()).unwrap());
    assert_eq!(files(&folder), std::slice::from_ref(&path), "what a dead writer left goes");
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    let refused = kept.write(&path, ROOMY, &CancelToken::default());
    assert!(matches!(refused, Err(Error::Io { .. })));
    assert_eq!(files(&folder), [path]);
}

#[cfg(unix)]
#[test]
fn files_are_private() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let model = write_model(SHAPES[0]);
    let folder = model.path().join("kv");
    let path = folder.join("text.kv");
    let ids = Noise(31).ids(64, VOCAB);
    let mut engine = make(&model, PackedType::F16);
    generate(&mut engine, &ids, 1);
    write(&mut engine, &ids, &path);
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&folder), mode(&path)), (0o700, 0o600));
    let mut second = make(&model, PackedType::F16);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o620)).unwrap();
    assert!(take(&mut second, &ids, &path).is_some(), "others could have written it");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    fs::rename(&path, model.path().join("elsewhere")).unwrap();
    symlink(model.path().join("elsewhere"), &path).unwrap();
    assert!(take(&mut second, &ids, &path).is_some(), "a link");
    assert_eq!(second.cached(&ids), 0);
}
