//! Zeroed memory that starts at a cache line and, when it is large, may use huge pages.

use crate::error::{Error, Result};
use memmap2::MmapMut;

/// From this size on memory comes from the system in pages of its own (and goes back to it at once).
const OWN_PAGES: usize = 2 << 20;

/// 64 bytes, so that every step of a panel starts at a cache line.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub struct Line([u8; 64]);

impl Default for Line {
    fn default() -> Self {
        Self([0; 64])
    }
}

/// Lines as bytes.
pub fn line_bytes(lines: &[Line]) -> &[u8] {
    // SAFETY: a Line is 64 plain bytes without padding.
    unsafe { std::slice::from_raw_parts(lines.as_ptr().cast(), size_of_val(lines)) }
}

/// Lines as bytes, to write.
pub fn line_bytes_mut(lines: &mut [Line]) -> &mut [u8] {
    // SAFETY: a Line is 64 plain bytes without padding, any value valid.
    unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), size_of_val(lines)) }
}

/// A block of zeroed memory of fixed size.
pub struct Buffer(Memory);

enum Memory {
    Lines(Vec<Line>),
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
                "{bytes} bytes for {what} are not to be had; a smaller model, --dtype or --context needs less"
            ),
        };
        let lines = bytes.div_ceil(64);
        if bytes >= OWN_PAGES {
            let pages = MmapMut::map_anon(lines * 64).map_err(|_| refused())?;
            #[cfg(target_os = "linux")]
            let _ = pages.advise(memmap2::Advice::HugePage); // a wish; without it the memory is only slower
            return Ok(Self(Memory::Pages(pages)));
        }
        let mut memory = Vec::new();
        memory.try_reserve_exact(lines).map_err(|_| refused())?;
        memory.resize(lines, Line::default());
        Ok(Self(Memory::Lines(memory)))
    }

    /// The memory.
    pub fn bytes(&self) -> &[u8] {
        match &self.0 {
            Memory::Lines(lines) => line_bytes(lines),
            Memory::Pages(pages) => pages,
        }
    }

    /// The memory, to write.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        match &mut self.0 {
            Memory::Lines(lines) => line_bytes_mut(lines),
            Memory::Pages(pages) => pages,
        }
    }
}

/// Number types of at most 4 bytes, without padding, any bits valid.
pub trait Plain: private::Sealed {}
impl Plain for f32 {}
impl Plain for u16 {}

mod private {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for u16 {}
}

/// Bytes that are whole, aligned numbers, as such.
pub fn numbers<T: Plain>(bytes: &[u8]) -> &[T] {
    // SAFETY: a `Plain` type has any bits valid; `align_to` sees to alignment and length.
    let (before, numbers, after) = unsafe { bytes.align_to::<T>() };
    assert!(before.is_empty() && after.is_empty());
    numbers
}

/// The same, to write.
pub fn numbers_mut<T: Plain>(bytes: &mut [u8]) -> &mut [T] {
    // SAFETY: a `Plain` type has any bits valid; `align_to_mut` sees to alignment and length.
    let (before, numbers, after) = unsafe { bytes.align_to_mut::<T>() };
    assert!(before.is_empty() && after.is_empty());
    numbers
}

/// The bytes of a slice of numbers.
pub fn plain_bytes<T: Plain>(values: &[T]) -> &[u8] {
    // SAFETY: `Plain` types have no padding.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}
