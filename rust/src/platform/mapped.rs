//! Read-only maps of files, and an orderly end where one is cut while it is in use.
//!
//! A mapped page that its file no longer has raises SIGBUS on the thread that reads it. The command line asks for
//! [`exit_when_cut`]: one line on stderr, exit code 74. Without it (a library in somebody's process) nothing changes.

use memmap2::{Mmap, MmapOptions};
use std::fs::File;
use std::io;
use std::ops::{Deref, Range};
use std::path::Path;
use std::sync::Arc;

/// A whole file, mapped.
#[derive(Debug)]
pub struct MappedFile(Registered<Mmap>);

/// A map with its place in the table of those that are watched. Fields are dropped in this order: an address must not be
/// free for another map while the table still says that it is of this one.
#[derive(Debug)]
struct Registered<M> {
    _watched: Option<watch::Watched>,
    map: M,
}

impl<M: Deref<Target = [u8]>> Registered<M> {
    fn new(map: M, path: &Path) -> Self {
        Self { _watched: watch::Watched::new(&map, path), map }
    }
}

impl MappedFile {
    /// Maps the first `len` bytes of a file; `path` is for the message when it is cut.
    ///
    /// # Errors
    /// The system's; `OutOfMemory` when there are no addresses left.
    pub fn open(file: &File, len: usize, path: &Path) -> io::Result<Self> {
        // SAFETY: the map is read-only and lives as long as the slices taken from it. That no other process cuts or
        // changes the file meanwhile cannot be proven here: a cut file raises SIGBUS, which the program turns into an
        // exit, and changed bytes do no harm as long as they are only read as numbers: texts are copied before they are
        // checked.
        let map = unsafe { MmapOptions::new().len(len).map(file) }?;
        Ok(Self(Registered::new(map, path)))
    }

    /// Lets the memory of pages go, and of those around them that a large page may have brought along; read again, they
    /// come back from the file.
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

    /// Has pages in memory before they are read, where the system can.
    ///
    /// # Errors
    /// The file is shorter than the map, or cannot be read.
    pub fn populate(&self, range: Range<usize>) -> io::Result<()> {
        #[cfg(target_os = "linux")]
        match self.0.map.advise_range(memmap2::Advice::PopulateRead, range.start, range.len()) {
            // Before Linux 5.14 there is no such advice.
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

/// From now on this process ends with one line and exit code 74 when a file is cut that a map of ours is of. `screen`:
/// a full-screen app has the terminal, which gets its usual state back first. A SIGBUS that is not ours goes to the
/// handler that was there before.
pub fn exit_when_cut(screen: bool) {
    #[cfg(unix)]
    watch::install(screen);
    #[cfg(not(unix))]
    let _ = screen;
}

#[cfg(unix)]
mod watch {
    use super::Path;
    use std::cell::UnsafeCell;
    use std::mem::MaybeUninit;
    use std::sync::Once;
    use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

    /// Maps that are watched at a time; a handler must not wait for a lock, so the table has a fixed size.
    const MAPS: usize = 512;
    const IO_FAILED: i32 = 74;
    /// Colours, mouse, focus and paste reports, keyboard modes off; cursor on; the main screen.
    const RESTORE: &[u8] =
        b"\x1b[0m\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1004l\x1b[?1006l\x1b[?1015l\x1b[?2004l\
        \x1b[<u\x1b[?1049l\x1b[?25h\r";

    /// A place of the table: free while `begin` is 0, being filled while it is 1.
    pub(super) struct Place {
        begin: AtomicUsize,
        end: AtomicUsize,
        line: AtomicPtr<u8>,
        line_len: AtomicUsize,
    }

    static TABLE: [Place; MAPS] = [const {
        Place {
            begin: AtomicUsize::new(0),
            end: AtomicUsize::new(0),
            line: AtomicPtr::new(std::ptr::null_mut()),
            line_len: AtomicUsize::new(0),
        }
    }; MAPS];

    /// A map in the table, with what is written when its file is cut.
    #[derive(Debug)]
    pub struct Watched {
        place: usize,
        _line: Box<[u8]>,
    }

    impl Watched {
        /// None when the table is full: such a map is not watched.
        pub fn new(map: &[u8], path: &Path) -> Option<Self> {
            let free = |place: &Place| {
                place.begin.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok()
            };
            let place = TABLE.iter().position(free)?;
            let text = format!(
                "error: {}: the file was cut while it was in use; load the model again when it is whole\n",
                path.display().to_string().escape_debug()
            );
            let mut line = text.into_bytes().into_boxed_slice();
            let at = &TABLE[place];
            at.line.store(line.as_mut_ptr(), Ordering::Relaxed);
            at.line_len.store(line.len(), Ordering::Relaxed);
            at.end.store(map.as_ptr() as usize + map.len(), Ordering::Relaxed);
            at.begin.store(map.as_ptr() as usize, Ordering::Release);
            Some(Self { place, _line: line })
        }
    }

    /// The place of the map that an address is in.
    pub(super) fn place_of(address: usize) -> Option<&'static Place> {
        TABLE.iter().find(|place| {
            let begin = place.begin.load(Ordering::Acquire);
            begin > 1 && (begin..place.end.load(Ordering::Relaxed)).contains(&address)
        })
    }

    impl Drop for Watched {
        fn drop(&mut self) {
            TABLE[self.place].begin.store(0, Ordering::Release);
        }
    }

    /// The action that was there before ours.
    struct Before(UnsafeCell<MaybeUninit<libc::sigaction>>);

    // SAFETY: written once, before our handler can run; only read afterwards.
    unsafe impl Sync for Before {}

    static BEFORE: Before = Before(UnsafeCell::new(MaybeUninit::uninit()));
    static SCREEN: AtomicBool = AtomicBool::new(false);

    pub fn install(screen: bool) {
        static ONCE: Once = Once::new();
        SCREEN.store(screen, Ordering::Relaxed);
        ONCE.call_once(|| {
            // SAFETY: all-zero bytes are a valid sigaction, whose fields are then set; BEFORE is written here only, ahead
            // of the call that lets the handler run.
            unsafe {
                if libc::sigaction(libc::SIGBUS, std::ptr::null(), BEFORE.0.get().cast()) != 0 {
                    return;
                }
                let mut action: libc::sigaction = std::mem::zeroed();
                let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) = on_sigbus;
                action.sa_sigaction = handler as usize;
                action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
                libc::sigemptyset(&mut action.sa_mask);
                libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut());
            }
        });
    }

    /// Calls only what POSIX lists as safe in a signal handler.
    extern "C" fn on_sigbus(signal: i32, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
        // SAFETY: the system passes a valid siginfo; positive codes are faults, which have an address.
        let (code, address) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
        if let Some(place) = place_of(address).filter(|_| code > 0) {
            let (line, len) = (place.line.load(Ordering::Relaxed), place.line_len.load(Ordering::Relaxed));
            // SAFETY: the line lives as long as its map, which this thread was reading; the others are plain system calls.
            unsafe {
                let out = if SCREEN.load(Ordering::Relaxed) { restored_terminal() } else { 2 };
                libc::write(out, line.cast(), len);
                libc::_exit(IO_FAILED);
            }
        }
        // SAFETY: BEFORE was written before this handler was installed. The old action takes over: the instruction faults
        // again when we return, and a signal that somebody sent is sent again.
        unsafe {
            libc::sigaction(libc::SIGBUS, BEFORE.0.get().cast(), std::ptr::null_mut());
            if code <= 0 {
                libc::raise(signal);
            }
        }
    }

    /// The terminal, with echo and line editing on and the main screen shown; stderr where there is none.
    ///
    /// # Safety
    /// None but that of its system calls: it may run in a signal handler.
    unsafe fn restored_terminal() -> i32 {
        // SAFETY: plain system calls; the terminal's settings are written by tcgetattr before they are read.
        unsafe {
            let terminal = libc::open(c"/dev/tty".as_ptr(), libc::O_WRONLY | libc::O_NOCTTY);
            if terminal < 0 {
                return 2;
            }
            let mut settings: libc::termios = std::mem::zeroed();
            if libc::tcgetattr(terminal, &mut settings) == 0 {
                settings.c_lflag |= libc::ICANON | libc::ECHO | libc::ISIG | libc::IEXTEN;
                settings.c_iflag |= libc::ICRNL | libc::IXON;
                settings.c_oflag |= libc::OPOST | libc::ONLCR;
                libc::tcsetattr(terminal, libc::TCSANOW, &settings);
            }
            libc::write(terminal, RESTORE.as_ptr().cast(), RESTORE.len());
            terminal
        }
    }
}

#[cfg(not(unix))]
mod watch {
    #[derive(Debug)]
    pub struct Watched;

    impl Watched {
        pub fn new(_map: &[u8], _path: &super::Path) -> Option<Self> {
            None
        }
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
        use super::{Registered, watch::place_of};
        use std::sync::atomic::{AtomicUsize, Ordering};
        static FREED: AtomicUsize = AtomicUsize::new(0);

        /// Memory in the place of a map: it asks whether it is watched at the moment when it is given back.
        struct Memory(Vec<u8>);
        impl std::ops::Deref for Memory {
            type Target = [u8];
            fn deref(&self) -> &[u8] {
                &self.0
            }
        }
        impl Drop for Memory {
            fn drop(&mut self) {
                assert!(place_of(self.0.as_ptr() as usize).is_none());
                FREED.fetch_add(1, Ordering::Relaxed);
            }
        }
        let map = Registered::new(Memory(vec![0; 4096]), std::path::Path::new("memory"));
        assert!(place_of(map.map.as_ptr() as usize + 4095).is_some());
        drop(map);
        assert_eq!(FREED.load(Ordering::Relaxed), 1);
    }
}
