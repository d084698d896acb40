//! Safetensors files and model folders made for one test.
#![allow(dead_code)] // each test file uses its own part

pub mod gguf;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A container with this header text and this data.
pub fn container(header: &str, data: &[u8]) -> Vec<u8> {
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(header.as_bytes());
    file.extend_from_slice(data);
    file
}

/// One header entry of F32 values that begins at `begin`.
pub fn entry(name: &str, shape: &[usize], begin: usize) -> String {
    let end = begin + 4 * shape.iter().product::<usize>();
    format!(r#""{name}":{{"dtype":"F32","shape":{shape:?},"data_offsets":[{begin},{end}]}}"#)
}

/// A container of F32 tensors.
pub fn tensors(list: &[(&str, &[usize])]) -> Vec<u8> {
    let mut entries = Vec::new();
    let mut end = 0;
    for (name, shape) in list {
        entries.push(entry(name, shape, end));
        end += 4 * shape.iter().product::<usize>();
    }
    container(&format!("{{{}}}", entries.join(",")), &vec![0; end])
}

/// A folder that is removed at the end of the test.
pub struct TestFolder(PathBuf);

impl TestFolder {
    pub fn new() -> TestFolder {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name =
            format!("ropechat-container-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).unwrap();
        TestFolder(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> &TestFolder {
        fs::write(self.0.join(name), bytes).unwrap();
        self
    }
}

impl Drop for TestFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
