//! The k-th large allocation fails, while a model is opened, loaded, and computes: an error that is named, or a result.
//! `cargo test -p ropechat-core --test alloc_faults -- --nocapture`; `ALLOC_LEAST` is what large means, in bytes.
//!
//! Small allocations may end the process: Rust's collections do not ask. So do the activations of a step, which are counted and
//! named here: `engine/fit.rs` has counted them before the model was loaded, and the rows of a step bound them. Nothing that
//! opens and loads a model may end it.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::backtrace::Backtrace;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::{SHAPES, Shape, greedy, write_model};
use ropechat_core::checkpoint::Checkpoint;
use ropechat_core::engine::{Context, Engine};
use ropechat_core::family;
use ropechat_core::model::Model;
use ropechat_kernels::compute::cancel::CancelToken;
use ropechat_kernels::compute::pool::Pool;
use ropechat_kernels::kernel::Kernels;
use ropechat_kernels::quant::PackedType;

/// Allocations of at least `LEAST` bytes until one fails; 0: none does.
struct Failing;

static LEFT: AtomicUsize = AtomicUsize::new(0);
static LEAST: AtomicUsize = AtomicUsize::new(usize::MAX);
static SEEN: AtomicUsize = AtomicUsize::new(0);

impl Failing {
    fn fails(bytes: usize) -> bool {
        if bytes < LEAST.load(Ordering::Relaxed) {
            return false;
        }
        SEEN.fetch_add(1, Ordering::Relaxed);
        let left = LEFT.load(Ordering::Relaxed);
        if left == 0 || LEFT.fetch_sub(1, Ordering::Relaxed) != 1 {
            return false;
        }
        LEAST.store(usize::MAX, Ordering::Relaxed);
        eprintln!("failed: {bytes} bytes\n{}", Backtrace::force_capture());
        true
    }
}

// SAFETY: requests go to the system's allocator unchanged, or fail as the trait allows.
unsafe impl GlobalAlloc for Failing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if Failing::fails(layout.size()) {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Failing = Failing;

/// Files and larger buffers are mapped: in this program by this function, in place of the C library's.
#[cfg(target_os = "linux")]
#[unsafe(no_mangle)]
unsafe extern "C" fn mmap64(
    address: *mut libc::c_void,
    bytes: usize,
    protection: libc::c_int,
    flags: libc::c_int,
    file: libc::c_int,
    offset: libc::off64_t,
) -> *mut libc::c_void {
    if Failing::fails(bytes) {
        // SAFETY: the place of this thread's error number.
        unsafe { *libc::__errno_location() = libc::ENOMEM };
        return libc::MAP_FAILED;
    }
    // SAFETY: the caller's promise is passed on.
    unsafe {
        libc::syscall(libc::SYS_mmap, address, bytes, protection, flags, file, offset) as *mut libc::c_void
    }
}

/// From the files to three tokens.
fn generate(folder: &Path) -> ropechat_core::Result<()> {
    let checkpoint = Checkpoint::open(folder)?;
    let config = family::config(&checkpoint)?;
    family::check_tensors(&checkpoint, &config)?;
    let kernels = Kernels::detect()?;
    let model = Model::load(&checkpoint, config, Some(PackedType::Q8_0), &Pool::new(1))?;
    println!("loading {}", SEEN.load(Ordering::Relaxed));
    let mut engine = Engine::new(Arc::new(model), kernels, Pool::new(1), Context::Stated(512));
    let ids: Vec<u32> = (0..300).map(|id| id % 90).collect();
    let number = engine.add(&ids, greedy(3))?;
    for _ in 0..16 {
        if engine.step(&[number], &CancelToken::default())?.is_empty() {
            continue;
        }
    }
    Ok(())
}

/// One test: in the process that it starts for each k, it is the program.
#[test]
fn the_kth_large_allocation_fails() {
    let least = std::env::var("ALLOC_LEAST").map_or(1 << 14, |least| least.parse().unwrap());
    if let (Ok(folder), Ok(k)) = (std::env::var("ALLOC_MODEL"), std::env::var("ALLOC_FAIL")) {
        LEFT.store(k.parse().unwrap(), Ordering::Relaxed);
        LEAST.store(least, Ordering::Relaxed);
        let result = generate(Path::new(&folder));
        LEAST.store(usize::MAX, Ordering::Relaxed);
        println!("seen {}", SEEN.load(Ordering::Relaxed));
        std::process::exit(if result.is_ok() { 0 } else { 3 });
    }
    let folder = write_model(Shape { hidden: 256, ffn: 688, vocab: 3000, ..SHAPES[0] });
    let run = |k: usize| {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--nocapture", "the_kth_large_allocation_fails"])
            .env("ALLOC_MODEL", folder.path())
            .env("ALLOC_FAIL", k.to_string())
            .env("ALLOC_LEAST", least.to_string())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&child.stdout).into_owned();
        (child.status.code(), said, String::from_utf8_lossy(&child.stderr).into_owned())
    };
    let (code, said, _) = run(0);
    assert_eq!(code, Some(0), "{said}");
    let number = |word: &str| -> usize {
        said.split(word).nth(1).unwrap().split_whitespace().next().unwrap().parse().unwrap()
    };
    let (of_loading, seen) = (number("loading "), number("seen "));
    let (mut loading, mut computing) = (BTreeMap::<_, usize>::new(), BTreeMap::<_, usize>::new());
    let mut sites = BTreeMap::<String, usize>::new();
    for k in 1..=seen {
        let (code, _, trace) = run(k);
        let end = match code {
            Some(0) => "results",
            Some(3) => "errors",
            _ => "aborts",
        };
        let phase = if k <= of_loading { &mut loading } else { &mut computing };
        *phase.entry(end).or_default() += 1;
        if end == "aborts" {
            let mut lines = trace.lines().map(str::trim).filter(|line| line.starts_with("at "));
            let ours = lines.find(|line| !line.contains("/rustc/") && !line.contains("alloc_faults"));
            *sites.entry(ours.unwrap_or("").to_owned()).or_default() += 1;
        }
    }
    for (site, count) in &sites {
        println!("  {count} aborts {site}");
    }
    println!(
        "{seen} allocations of {least} bytes or more, each failed once: loading {loading:?}, computing {computing:?}"
    );
    assert!(!loading.contains_key("aborts"));
}
