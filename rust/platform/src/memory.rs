//! Zeroed memory that starts at a cache line; large blocks may use huge pages.

use crate::error::{Error, Result, size};
use bytemuck::{Pod, Zeroable};
use memmap2::MmapMut;

/// From this size on, memory is mapped from the system directly, and goes back to it at once when it is dropped. A block of the
/// KV cache lives long: in the heap, whatever is allocated beside one for a moment would leave holes between them.
///
/// Not under AddressSanitizer, which only watches the ends of what is in the heap (`make asan`).
const OWN_PAGES: usize = if cfg!(asan) { usize::MAX } else { 16 << 10 };
/// From this size on, huge pages are asked for.
const HUGE_PAGES: usize = 2 << 20;

/// 64 bytes, so that every step of a panel starts at a cache line.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
pub struct CacheLine([u8; 64]);

/// A block of zeroed memory of fixed size.
pub struct Buffer(Memory);

enum Memory {
    Lines(Vec<CacheLine>),
    Pages(MmapMut),
}

impl Buffer {
    /// `bytes` zero bytes (rounded up to a cache line), for `what`.
    ///
    /// # Errors
    /// Memory: the system has no room.
    pub fn zeroed(bytes: usize, what: &str) -> Result<Self> {
        let refused = || Error::Memory {
            what: format!(
                "{what} needs {}, more than the system gives; choose a smaller model, --dtype or --context",
                size(bytes as u64)
            ),
        };
        let lines = bytes.div_ceil(64);
        // A system has a limit of mappings: what is not huge is then taken from the heap.
        match (bytes >= OWN_PAGES).then(|| MmapMut::map_anon(lines * 64)) {
            Some(Ok(pages)) => {
                #[cfg(target_os = "linux")]
                if bytes >= HUGE_PAGES {
                    let _ = pages.advise(memmap2::Advice::HugePage); // a hint; without it the memory is only slower
                }
                return Ok(Self(Memory::Pages(pages)));
            }
            Some(Err(_)) if bytes >= HUGE_PAGES => return Err(refused()),
            _ => (),
        }
        let mut memory = Vec::new();
        memory.try_reserve_exact(lines).map_err(|_| refused())?;
        memory.resize(lines, CacheLine::zeroed());
        Ok(Self(Memory::Lines(memory)))
    }

    /// All of it.
    pub fn bytes(&self) -> &[u8] {
        match &self.0 {
            Memory::Lines(lines) => bytemuck::cast_slice(lines),
            Memory::Pages(pages) => pages,
        }
    }

    /// All of it, to write.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        match &mut self.0 {
            Memory::Lines(lines) => bytemuck::cast_slice_mut(lines),
            Memory::Pages(pages) => pages,
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    /// Resident bytes of this process.
    fn resident() -> usize {
        let fields = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = fields.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
    }

    /// As blocks of the KV cache are: in the heap, what is allocated between them would keep their memory.
    #[test]
    fn memory_goes_back_whatever_is_allocated_between() {
        const BYTES: usize = 48 << 10;
        let before = resident();
        let allocate = |_| {
            let mut buffer = Buffer::zeroed(BYTES, "a test").unwrap();
            buffer.bytes_mut().fill(1);
            (buffer, vec![1u8; 200])
        };
        let (buffers, _between): (Vec<_>, Vec<_>) = (0..1000).map(allocate).unzip();
        assert!(resident() > before + 900 * BYTES);
        drop(buffers);
        assert!(resident() < before + 200 * BYTES);
    }
}
