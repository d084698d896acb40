//! Packs on disk: the same bits as packed fresh, and no harm from whatever happens to the files.

use crate::common::{Folder, Noise, SHAPES, write_model};
use ropechat_core::checkpoint::Checkpoint;
use ropechat_core::engine::{Context, Engine};
use ropechat_core::family;
use ropechat_core::model::Model;
use ropechat_core::model::pack::{PackCache, PackWriter, PanelSource};
use ropechat_kernels::compute::{cancel::CancelToken, pool::Pool, progress::Progress};
use ropechat_kernels::kernel::{Isa, Kernels};
use ropechat_kernels::quant::PackedType;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

const LONG: Duration = Duration::from_secs(60);

/// A cache in a folder of its own, beside the model's files, for models of any size.
fn cache(model: &Folder, name: &str) -> PackCache {
    PackCache { smallest: 0, keep_free: 0, ..PackCache::new(model.path().join(name)) }
}

struct Loaded {
    engine: Engine,
    is_warm: bool,
    note: Option<String>,
    writer: Option<PackWriter>,
}

fn load(model: &Folder, cache: &PackCache, dtype: Option<PackedType>, isa: Isa) -> Option<Loaded> {
    let kernels = Kernels::of(isa).ok()?;
    let pool = Pool::new(2);
    let checkpoint = Checkpoint::open(model.path()).unwrap();
    let config = family::config(&checkpoint).unwrap();
    let packs = PanelSource::open(cache, &checkpoint, dtype, &pool, &Progress::default());
    let loaded = Arc::new(Model::load_with(&packs, &checkpoint, config, dtype, &pool).unwrap());
    let (is_warm, note) = (packs.is_warm(), packs.note().map(str::to_owned));
    let engine = Engine::new(loaded, kernels, pool, Context::Stated(400));
    Some(Loaded { engine, is_warm, note, writer: packs.writer() })
}

fn load_q8(model: &Folder, cache: &PackCache) -> Loaded {
    load(model, cache, Some(PackedType::Q8_0), Isa::Scalar).unwrap()
}

/// Loads, and writes the pack if there is one to write.
fn keep(model: &Folder, cache: &PackCache) -> Loaded {
    let loaded = load_q8(model, cache);
    assert!(loaded.writer.as_ref().is_none_or(|writer| writer.finish(LONG)));
    loaded
}

fn logits(engine: &mut Engine, vocab: usize) -> Vec<u32> {
    let ids = Noise(21).ids(40, vocab);
    engine.logits(&ids, &CancelToken::default()).unwrap().iter().map(|x| x.to_bits()).collect()
}

fn files(cache: &PackCache) -> Vec<PathBuf> {
    let entries = fs::read_dir(&cache.folder).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

#[test]
fn weights_from_a_pack_have_the_same_bits() {
    for shape in SHAPES {
        let model = write_model(shape);
        for dtype in [None].into_iter().chain(PackedType::ALL.map(Some)) {
            for isa in Isa::ALL {
                let cache = cache(&model, &format!("{dtype:?} {isa:?}"));
                let Some(mut fresh) = load(&model, &cache, dtype, isa) else { continue };
                assert!(!fresh.is_warm && fresh.writer.as_ref().unwrap().finish(LONG));
                let mut warm = load(&model, &cache, dtype, isa).unwrap();
                assert!(warm.is_warm && warm.writer.is_none() && warm.note.is_none());
                assert!(
                    logits(&mut fresh.engine, shape.vocab) == logits(&mut warm.engine, shape.vocab),
                    "{dtype:?} {isa:?} head_dim {}",
                    shape.head_dim
                );
            }
        }
    }
}

#[test]
fn a_damaged_pack_is_noticed_and_made_again() {
    let (model, vocab) = (write_model(SHAPES[1]), SHAPES[1].vocab);
    let cache = cache(&model, "packs");
    let expected = logits(&mut keep(&model, &cache).engine, vocab);
    let path = files(&cache).remove(0);
    let whole = fs::read(&path).unwrap();
    let mut damages: Vec<Vec<u8>> = Vec::new();
    for at in (0..whole.len()).step_by(whole.len() / 40) {
        damages.push(whole[..at].to_vec());
        let mut flipped = whole.clone();
        flipped[at] ^= 1 << (at % 8);
        // Between the header and the panels there is nothing to be damaged.
        let is_padding = whole[at..].iter().take(64).all(|&byte| byte == 0) && at < 3 * 4096;
        if !is_padding {
            damages.push(flipped);
        }
    }
    damages.push([&whole[..], b"x"].concat());
    damages.push(vec![0; whole.len()]);
    damages.push([&whole[..8], &u64::MAX.to_le_bytes(), &whole[16..]].concat());
    assert!(damages.len() > 60);
    for (number, damage) in damages.iter().enumerate() {
        fs::remove_file(&path).unwrap(); // an engine may have the old one mapped
        fs::write(&path, damage).unwrap();
        let mut loaded = load_q8(&model, &cache);
        assert!(!loaded.is_warm, "damage {number}");
        assert!(loaded.note.as_ref().is_some_and(|note| note.contains("packed again")), "damage {number}");
        assert!(logits(&mut loaded.engine, vocab) == expected, "damage {number}");
        if number % 10 == 0 {
            assert!(loaded.writer.unwrap().finish(LONG));
            assert!(fs::read(&path).unwrap() == whole, "damage {number}: not repaired");
            assert!(load_q8(&model, &cache).is_warm);
        }
    }
}

#[test]
fn a_changed_model_has_a_pack_of_its_own_and_the_old_one_goes() {
    let model = write_model(SHAPES[0]);
    let cache = cache(&model, "packs");
    let before = logits(&mut keep(&model, &cache).engine, SHAPES[0].vocab);
    let weights = model.path().join("model.safetensors");
    let mut bytes = fs::read(&weights).unwrap();
    let end = bytes.len();
    bytes[end - 4..].copy_from_slice(&0.5_f32.to_le_bytes());
    fs::write(&weights, bytes).unwrap();
    fs::File::open(&weights).unwrap().set_modified(SystemTime::now() + Duration::from_secs(5)).unwrap();
    let old = files(&cache);
    let mut loaded = keep(&model, &cache);
    assert!(!loaded.is_warm && loaded.note.is_none());
    assert!(logits(&mut loaded.engine, SHAPES[0].vocab) != before);
    assert_eq!(files(&cache).len(), 1);
    assert_ne!(files(&cache), old);
    assert!(load_q8(&model, &cache).is_warm);
}

#[test]
fn small_models_and_what_is_mapped_already_are_not_kept() {
    let model = write_model(SHAPES[0]);
    let usual = PackCache::new(model.path().join("packs"));
    assert!(load_q8(&model, &usual).writer.is_none());
    assert!(!usual.folder.exists());
}

#[test]
fn limits_hold() {
    let model = write_model(SHAPES[0]);
    let full = PackCache { keep_free: u64::MAX, ..cache(&model, "full disk") };
    keep(&model, &full);
    assert!(files(&full).is_empty(), "the disk would get too full");
    let small = PackCache { total: 1000, ..cache(&model, "small") };
    keep(&model, &small);
    assert!(files(&small).is_empty(), "larger than all packs may be");

    let roomy = cache(&model, "packs");
    keep(&model, &roomy);
    let first = files(&roomy).remove(0);
    let size = fs::metadata(&first).unwrap().len();
    let others: Vec<Folder> = (0..3).map(|_| write_model(SHAPES[0])).collect();
    let tight = PackCache { total: 2 * size + size / 2, ..roomy.clone() };
    let used = |days: u64| SystemTime::now() - Duration::from_secs(days * 86_400);
    fs::File::open(&first).unwrap().set_modified(used(2)).unwrap();
    keep(&others[0], &tight);
    assert_eq!(files(&tight).len(), 2);
    let second = files(&tight).into_iter().find(|path| *path != first).unwrap();
    fs::File::open(&second).unwrap().set_modified(used(1)).unwrap();
    assert!(load_q8(&model, &tight).is_warm, "which marks the first one as used");
    keep(&others[1], &tight);
    assert_eq!(files(&tight).len(), 2);
    assert!(first.exists() && !second.exists(), "what was not used for longest goes");
}

#[test]
fn writers_at_the_same_time_leave_one_good_pack() {
    let model = write_model(SHAPES[2]);
    let cache = cache(&model, "packs");
    let loaded: Vec<Loaded> = (0..6).map(|_| load_q8(&model, &cache)).collect();
    loaded.iter().for_each(|loaded| loaded.writer.as_ref().unwrap().start());
    assert!(loaded.iter().all(|loaded| loaded.writer.as_ref().unwrap().finish(LONG)));
    assert_eq!(files(&cache).len(), 1, "{:?}", files(&cache));
    assert!(load_q8(&model, &cache).is_warm);
}

/// Begins the pack of a model; returns the file.
fn begin(model: &Folder, cache: &PackCache) -> PathBuf {
    assert!(!load_q8(model, cache).writer.unwrap().finish(Duration::from_nanos(1)), "one piece is written");
    let found = files(cache);
    assert!(found.len() == 1 && found[0].extension().is_some_and(|end| end == "partial"), "{found:?}");
    found.into_iter().next().unwrap()
}

#[test]
fn a_pack_that_takes_too_long_is_gone_on_with_by_the_next_load() {
    let model = write_model(SHAPES[2]);
    let cache = cache(&model, "packs");
    keep(&model, &cache);
    let (path, whole) = (files(&cache).remove(0), fs::read(&files(&cache)[0]).unwrap());
    fs::remove_file(&path).unwrap();
    assert!(!load_q8(&model, &cache).writer.unwrap().finish(Duration::ZERO));
    assert!(files(&cache).is_empty(), "no time, nothing begun");
    let partial = begin(&model, &cache);
    let mut loads = 1;
    while !path.exists() {
        let before = fs::read(&partial).unwrap();
        let loaded = load_q8(&model, &cache);
        assert!(!loaded.is_warm && loaded.note.is_none());
        let is_over = loaded.writer.unwrap().finish(Duration::from_nanos(1));
        assert_eq!(is_over, path.exists());
        assert!(is_over || fs::read(&partial).unwrap().len() > before.len(), "each load writes some of it");
        loads += 1;
    }
    assert!(loads > 3 && files(&cache).len() == 1, "{loads} loads");
    assert!(fs::read(&path).unwrap() == whole);
    assert!(load_q8(&model, &cache).is_warm);
}

#[test]
fn a_partial_pack_that_was_cut_or_changed_does_no_harm() {
    let model = write_model(SHAPES[2]);
    let (packs, vocab) = (cache(&model, "packs"), SHAPES[2].vocab);
    let expected = logits(&mut keep(&model, &packs).engine, vocab);
    let path = files(&packs).remove(0);
    fs::remove_file(&path).unwrap();
    let partial = begin(&model, &packs);
    let begun = fs::read(&partial).unwrap();
    for at in (0..begun.len()).step_by(begun.len() / 16) {
        let mut flipped = begun.clone();
        flipped[at] ^= 1;
        for damage in [&begun[..at], &flipped] {
            fs::write(&partial, damage).unwrap();
            let mut loaded = load_q8(&model, &packs);
            assert!(!loaded.is_warm && loaded.writer.unwrap().finish(LONG));
            assert!(logits(&mut loaded.engine, vocab) == expected);
            let mut next = keep(&model, &packs);
            assert!(next.is_warm || next.note.is_some(), "damage at {at} is seen");
            assert!(logits(&mut next.engine, vocab) == expected);
            assert!(load_q8(&model, &packs).is_warm);
            assert_eq!(files(&packs), std::slice::from_ref(&path));
            fs::remove_file(&path).unwrap();
        }
    }
}

#[test]
fn partial_packs_go_with_their_model_after_a_day_and_when_the_disk_is_full() {
    let model = write_model(SHAPES[2]);
    let packs = cache(&model, "packs");
    let old = fs::File::open(begin(&model, &packs)).unwrap();
    old.set_modified(SystemTime::now() - Duration::from_secs(90_000)).unwrap();
    drop(load_q8(&model, &packs));
    assert!(files(&packs).is_empty(), "nobody went on with it for a day");

    begin(&model, &packs);
    let full = PackCache { keep_free: u64::MAX, ..packs.clone() };
    assert!(load_q8(&model, &full).writer.unwrap().finish(LONG));
    assert!(files(&packs).is_empty(), "the disk would get too full");

    let partial = begin(&model, &packs);
    let weights = fs::File::open(model.path().join("model.safetensors")).unwrap();
    weights.set_modified(SystemTime::now() + Duration::from_secs(5)).unwrap();
    keep(&model, &packs);
    assert!(!partial.exists() && files(&packs).len() == 1, "the model is another one");
}

#[test]
fn a_partial_pack_that_another_process_writes_is_left_to_it() {
    let model = write_model(SHAPES[2]);
    let packs = cache(&model, "packs");
    let partial = begin(&model, &packs);
    let begun = fs::read(&partial).unwrap();
    let other = fs::File::open(&partial).unwrap();
    other.lock().unwrap();
    assert!(load_q8(&model, &packs).writer.unwrap().finish(LONG));
    assert!(fs::read(&partial).unwrap() == begun && files(&packs) == [partial]);
    drop(other);
    assert!(keep(&model, &packs).note.is_none() && load_q8(&model, &packs).is_warm);
}

#[cfg(unix)]
#[test]
fn packs_are_private() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let model = write_model(SHAPES[2]);
    let cache = cache(&model, "packs");
    keep(&model, &cache);
    let path = files(&cache).remove(0);
    let mode = |path: &PathBuf| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&cache.folder), mode(&path)), (0o700, 0o600));

    fs::set_permissions(&path, fs::Permissions::from_mode(0o620)).unwrap();
    assert!(!load_q8(&model, &cache).is_warm, "others could have written it");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    assert!(load_q8(&model, &cache).is_warm);

    let elsewhere = model.path().join("elsewhere");
    fs::rename(&path, &elsewhere).unwrap();
    symlink(&elsewhere, &path).unwrap();
    assert!(!load_q8(&model, &cache).is_warm, "a link");
    keep(&model, &cache);
    assert!(fs::symlink_metadata(&path).unwrap().is_file(), "the link was replaced, not followed");
    assert!(load_q8(&model, &cache).is_warm);
}
