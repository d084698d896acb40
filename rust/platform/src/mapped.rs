//! Read-only maps of files.

use super::sigbus::Watched;
use memmap2::{Mmap, MmapOptions};
use std::fs::File;
use std::io;
use std::ops::{Deref, Range};
use std::path::Path;
use std::sync::Arc;

/// A whole file, mapped.
#[derive(Debug)]
pub struct MappedFile(Registered<Mmap>);

/// A map and its entry in the table of `sigbus.rs`. Fields are dropped in this order: the system must not give an address
/// to another map while the table still says that it belongs to this one.
#[derive(Debug)]
struct Registered<M> {
    _watched: Option<Watched>,
    map: M,
}

impl<M: Deref<Target = [u8]>> Registered<M> {
    fn new(map: M, path: &Path) -> Self {
        Self { _watched: Watched::new(&map, path), map }
    }
}

impl MappedFile {
    /// Maps the first `len` bytes of a file; `path` is named in the message when the file is cut.
    ///
    /// # Errors
    /// The system's; `OutOfMemory` when there are no addresses left.
    pub fn open(file: &File, len: usize, path: &Path) -> io::Result<Self> {
        // SAFETY: the map is read-only and lives as long as the slices taken from it. It cannot be proven here that
        // no other process truncates or changes the file: a truncated file raises SIGBUS, which the program turns into
        // an exit, and changed bytes do no harm because they are only read as numbers; texts are copied before they are
        // checked.
        let map = unsafe { MmapOptions::new().len(len).map(file) }?;
        Ok(Self(Registered::new(map, path)))
    }

    /// Releases the memory of pages (madvise), and of those around them that share a large page; when they are read again,
    /// they come from the file.
    pub fn release_pages(&self, range: Range<usize>) {
        #[cfg(unix)]
        {
            const LARGE_PAGE: usize = 2 << 20;
            let range =
                range.start / LARGE_PAGE * LARGE_PAGE..range.end.next_multiple_of(LARGE_PAGE).min(self.len());
            let advice = memmap2::UncheckedAdvice::DontNeed;
            // SAFETY: the map is read-only and of a file: dropped pages are read from it again, with the same bytes.
            let _ = unsafe { self.0.map.unchecked_advise_range(advice, range.start, range.len()) };
        }
        #[cfg(not(unix))]
        let _ = range;
    }

    /// Reads pages into memory before they are used, where the system can.
    ///
    /// # Errors
    /// The file is shorter than the map, or cannot be read.
    pub fn populate(&self, range: Range<usize>) -> io::Result<()> {
        #[cfg(target_os = "linux")]
        match self.0.map.advise_range(memmap2::Advice::PopulateRead, range.start, range.len()) {
            // Linux before 5.14 does not know this advice.
            Err(error) if error.kind() != io::ErrorKind::InvalidInput => return Err(error),
            _ => {}
        }
        #[cfg(not(target_os = "linux"))]
        let _ = range;
        Ok(())
    }
}

impl Deref for MappedFile {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0.map
    }
}

/// Some bytes of a mapped file.
#[derive(Debug, Clone)]
pub struct FilePart {
    file: Arc<MappedFile>,
    range: Range<usize>,
}

impl FilePart {
    /// None when the range is not inside the file.
    pub fn new(file: &Arc<MappedFile>, range: Range<usize>) -> Option<Self> {
        file.get(range.clone())?;
        Some(Self { file: Arc::clone(file), range })
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.file[self.range.clone()]
    }
}

#[cfg(test)]
mod tests {
    use super::{FilePart, MappedFile};
    use std::sync::Arc;

    #[test]
    fn a_part_is_inside_its_file() {
        let path = std::env::temp_dir().join(format!("ropechat-mapped-{}", std::process::id()));
        std::fs::write(&path, [7; 100]).unwrap();
        let map = MappedFile::open(&std::fs::File::open(&path).unwrap(), 100, &path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let map = Arc::new(map);
        map.populate(0..100).unwrap();
        map.release_pages(0..100);
        assert_eq!(FilePart::new(&map, 98..100).unwrap().bytes(), [7, 7]);
        assert!(FilePart::new(&map, 98..101).is_none());
        assert!(FilePart::new(&map, usize::MAX..usize::MAX).is_none());
    }
    #[cfg(unix)]
    #[test]
    fn a_map_is_not_watched_any_more_when_its_addresses_become_free() {
        use super::Registered;
        use crate::sigbus::entry_of;
        use std::sync::atomic::{AtomicUsize, Ordering};
        static FREED: AtomicUsize = AtomicUsize::new(0);

        /// Memory in the place of a map: it checks whether it is watched at the moment when it is freed.
        struct Memory(Vec<u8>);
        impl std::ops::Deref for Memory {
            type Target = [u8];
            fn deref(&self) -> &[u8] {
                &self.0
            }
        }
        impl Drop for Memory {
            fn drop(&mut self) {
                assert!(entry_of(self.0.as_ptr() as usize).is_none());
                FREED.fetch_add(1, Ordering::Relaxed);
            }
        }
        let map = Registered::new(Memory(vec![0; 4096]), std::path::Path::new("memory"));
        assert!(entry_of(map.map.as_ptr() as usize + 4095).is_some());
        drop(map);
        assert_eq!(FREED.load(Ordering::Relaxed), 1);
    }
}
