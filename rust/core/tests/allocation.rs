//! No allocation is sized by a number out of a file: measured with an allocator that remembers the largest request.

mod containers;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use containers::gguf::{Gguf, list_value, text};
use containers::{TestFolder, container, entry};
use ropechat_core::checkpoint::Checkpoint;
use ropechat_core::checkpoint::safetensors::parse;

struct Largest;

static LARGEST: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every request goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Largest {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LARGEST.fetch_max(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Largest = Largest;

/// One test: the allocator counts for all threads.
#[test]
fn the_largest_request_stays_near_the_size_of_the_file() {
    safetensors();
    gguf();
}

/// A file that claims `count` keys or tensors, texts of `count` bytes, lists of `count` values.
fn gguf() {
    let claims = |at: usize, count: u64| {
        let mut file = Gguf::llama().bytes();
        file[at..at + 8].copy_from_slice(&count.to_le_bytes());
        file
    };
    let folder = TestFolder::new();
    let path = folder.path().join("model.gguf");
    let mut files = Vec::new();
    for count in [1 << 20, 1 << 26, 1 << 32, 1 << 40, u64::MAX] {
        // Tensors, keys, the length of the first key.
        files.extend([8, 16, 24].map(|at| claims(at, count)));
        for kind in [0, 7, 8, 10, 12] {
            files.push(Gguf::llama().with("x", list_value(kind, count, &[])).bytes());
        }
    }
    let texts = text("").repeat(200_000);
    files.push(Gguf::llama().with("x", list_value(8, 200_000, &texts)).bytes());
    for file in files {
        std::fs::write(&path, &file).unwrap();
        LARGEST.store(0, Ordering::Relaxed);
        let _ = Checkpoint::open(&path);
        let largest = LARGEST.load(Ordering::Relaxed);
        assert!(largest <= 2 * file.len() + (1 << 16), "{largest} bytes for a file of {}", file.len());
    }
}

fn safetensors() {
    let many: Vec<_> = (0..50_000).map(|number| entry(&number.to_string(), &[0], 0)).collect();
    let one = |shape: &str, end: u64| {
        format!(r#"{{"w":{{"dtype":"F32","shape":{shape},"data_offsets":[0,{end}]}}}}"#)
    };
    let headers = [
        format!("{{{}}}", many.join(",")),
        one("[1099511627776]", 4 << 40),
        one("[1099511627776,0]", 0),
        one(&format!("[{}1]", "1,".repeat(100_000)), 4),
        format!("{{\"{}\":1}}", "n".repeat(1_000_000)),
    ];
    for header in headers {
        let file = container(&header, &[]);
        LARGEST.store(0, Ordering::Relaxed);
        let _ = parse(&file);
        let largest = LARGEST.load(Ordering::Relaxed);
        assert!(largest <= 2 * file.len() + (1 << 20), "{largest} bytes for a file of {}", file.len());
    }
    for length in [100_000_000u64, 100_000_001, 1 << 40, u64::MAX] {
        LARGEST.store(0, Ordering::Relaxed);
        assert!(parse(&length.to_le_bytes()).is_err());
        assert!(LARGEST.load(Ordering::Relaxed) < 1 << 16);
    }
}
