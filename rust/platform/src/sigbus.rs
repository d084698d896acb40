//! An orderly end when a mapped file is truncated while it is in use.
//!
//! Reading a mapped page that its file no longer has raises SIGBUS. The command line calls [`exit_when_cut`]: one line on
//! stderr, exit code 74. Without it (a library in another program) nothing changes.

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::path::Path;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

/// Maps that are watched at the same time. A signal handler must not take a lock, so the table has a fixed size.
const MAPS: usize = 512;
const IO_FAILED: i32 = 74;
/// Colours, mouse, focus and paste reports, keyboard modes off; cursor on; the main screen.
const RESTORE: &[u8] =
    b"\x1b[0m\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1004l\x1b[?1006l\x1b[?1015l\x1b[?2004l\
    \x1b[<u\x1b[?1049l\x1b[?25h\r";

/// An entry of the table: free while `begin` is 0, being filled while it is 1.
pub struct Entry {
    begin: AtomicUsize,
    end: AtomicUsize,
    line: AtomicPtr<u8>,
    line_len: AtomicUsize,
}

static TABLE: [Entry; MAPS] = [const {
    Entry {
        begin: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        line: AtomicPtr::new(std::ptr::null_mut()),
        line_len: AtomicUsize::new(0),
    }
}; MAPS];

/// A map in the table. The table owns the line that is written when its file is truncated.
#[derive(Debug)]
pub struct Watched {
    entry: usize,
}

impl Watched {
    /// None when the table is full: such a map is not watched.
    pub fn new(map: &[u8], path: &Path) -> Option<Self> {
        let free =
            |entry: &Entry| entry.begin.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok();
        let entry = TABLE.iter().position(free)?;
        let text = format!(
            "error: {}: the file was truncated while it was in use; load the model again when it is complete\n",
            path.display().to_string().escape_debug()
        );
        let line = text.into_bytes().into_boxed_slice();
        let at = &TABLE[entry];
        at.line_len.store(line.len(), Ordering::Relaxed);
        at.line.store(Box::into_raw(line).cast(), Ordering::Relaxed);
        at.end.store(map.as_ptr() as usize + map.len(), Ordering::Relaxed);
        at.begin.store(map.as_ptr() as usize, Ordering::Release);
        Some(Self { entry })
    }
}

/// The entry of the map that an address belongs to.
pub fn entry_of(address: usize) -> Option<&'static Entry> {
    TABLE.iter().find(|entry| {
        let begin = entry.begin.load(Ordering::Acquire);
        begin > 1 && (begin..entry.end.load(Ordering::Relaxed)).contains(&address)
    })
}

impl Drop for Watched {
    fn drop(&mut self) {
        let at = &TABLE[self.entry];
        let (line, len) = (at.line.load(Ordering::Relaxed), at.line_len.load(Ordering::Relaxed));
        // No address is in the entry any more, and no other map takes it yet.
        at.begin.store(1, Ordering::SeqCst);
        // SAFETY: `new` made both from one box, and only this drops it.
        drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(line, len)) });
        at.begin.store(0, Ordering::Release);
    }
}

/// The action that was set before ours.
struct PreviousAction(UnsafeCell<MaybeUninit<libc::sigaction>>);

// SAFETY: written once, before our handler can run; only read afterwards.
unsafe impl Sync for PreviousAction {}

static PREVIOUS: PreviousAction = PreviousAction(UnsafeCell::new(MaybeUninit::uninit()));
static SCREEN: AtomicBool = AtomicBool::new(false);

/// Installs the handler. `screen`: a full-screen app has the terminal, which gets its usual state back first. A SIGBUS for
/// another address goes to the handler that was set before.
pub fn exit_when_cut(screen: bool) {
    static ONCE: Once = Once::new();
    SCREEN.store(screen, Ordering::Relaxed);
    ONCE.call_once(|| {
        // SAFETY: all-zero bytes are a valid sigaction, whose fields are then set; PREVIOUS is written here only, ahead
        // of the call that lets the handler run.
        unsafe {
            if libc::sigaction(libc::SIGBUS, std::ptr::null(), PREVIOUS.0.get().cast()) != 0 {
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

/// Calls only functions that POSIX lists as safe in a signal handler.
extern "C" fn on_sigbus(signal: i32, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    // SAFETY: the system passes a valid siginfo; positive codes are faults, which have an address.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
    if let Some(entry) = entry_of(address).filter(|_| code > 0) {
        let (line, len) = (entry.line.load(Ordering::Relaxed), entry.line_len.load(Ordering::Relaxed));
        // SAFETY: the line lives as long as its map, which this thread was reading; the others are plain system calls.
        unsafe {
            let out = if SCREEN.load(Ordering::Relaxed) { restored_terminal() } else { 2 };
            libc::write(out, line.cast(), len);
            libc::_exit(IO_FAILED);
        }
    }
    // SAFETY: PREVIOUS was written before this handler was installed. The old action takes over: the instruction faults
    // again when we return, and a signal that another process sent is raised again.
    unsafe {
        libc::sigaction(libc::SIGBUS, PREVIOUS.0.get().cast(), std::ptr::null_mut());
        if code <= 0 {
            libc::raise(signal);
        }
    }
}

/// Opens the terminal and restores it: echo, line editing, the main screen. Stderr where there is no terminal.
///
/// # Safety
/// It only makes system calls that may run in a signal handler.
unsafe fn restored_terminal() -> i32 {
    // SAFETY: system calls only; the terminal's settings are written by tcgetattr before they are read.
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
