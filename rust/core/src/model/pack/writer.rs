//! Writes packs, and keeps their folder within its limits.

use super::file::{Head, PIECE, UNWRITTEN, read_header};
use super::key::{Key, PACK, PackedTensor};
use ropechat_platform::files::{self, DiskLimits};
use ropechat_platform::limits;
use ropechat_platform::sync::{Condvar, Mutex};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};
use xxhash_rust::xxh3::xxh3_64;

/// Bytes that are written between two syncs: a process that ends waits for a sync that runs, so each must be short.
const SYNCED_AT_A_TIME: usize = 32 << 20;

/// Bytes of weights from which a pack is worth its place: fewer are packed in a tenth of a second.
pub const WORTH_A_PACK: usize = 32 << 20;

/// The folder of packs, and how much space they may take.
#[derive(Debug, Clone)]
pub struct PackCache {
    /// Made when the first pack is written.
    pub folder: PathBuf,
    /// Models of fewer bytes get no pack.
    pub smallest: usize,
    /// Bytes of all packs; the least recently used are removed first.
    pub total: u64,
    /// Bytes that must stay free on the disk.
    pub keep_free: u64,
}

impl PackCache {
    /// The usual limits: 32 MiB, 20 GB, 5 GB.
    pub fn new(folder: PathBuf) -> Self {
        Self { folder, smallest: WORTH_A_PACK, total: 20_000_000_000, keep_free: 5_000_000_000 }
    }
}

/// Writes the pack of a load when it is asked to. Writing stops when this is dropped.
pub struct PackWriter {
    job: Arc<Mutex<Option<Job>>>,
    shared: Arc<Shared>,
    /// Threads do not survive fork(2).
    process: u32,
}

#[derive(Default)]
struct Shared {
    is_begun: AtomicBool,
    stop: AtomicBool,
    is_over: Mutex<bool>,
    changed: Condvar,
}

impl PackWriter {
    pub(super) fn new(cache: PackCache, key: Key, tensors: Vec<PackedTensor>) -> Self {
        let job = Arc::new(Mutex::new(Some(Job { cache, key, tensors })));
        Self { job, shared: Arc::default(), process: std::process::id() }
    }

    /// Starts to write, in a thread of low priority; only the first call does anything.
    pub fn start(&self) {
        if self.shared.is_begun.swap(true, Ordering::Relaxed) {
            return;
        }
        let (job, shared) = (Arc::clone(&self.job), Arc::clone(&self.shared));
        let work = move || {
            limits::lower_priority();
            // Holds the job while it writes, and releases it (and its share of the weights) before waiting threads go on.
            write_job(&job, &|| !shared.stop.load(Ordering::Relaxed));
            shared.end();
        };
        if std::thread::Builder::new().name("ropechat-pack".to_owned()).spawn(work).is_err() {
            self.shared.end();
        }
    }

    /// Ends writing within `at_most`, if that is long enough; returns whether it is over. What is written stays, and the next
    /// load goes on with it.
    pub fn finish(&self, at_most: Duration) -> bool {
        if self.process != std::process::id() {
            return true;
        }
        let begun = Instant::now();
        self.shared.stop.store(true, Ordering::Relaxed);
        let is_begun = self.shared.is_begun.swap(true, Ordering::Relaxed);
        if at_most.is_zero() || (is_begun && !self.shared.wait_for_end(at_most)) {
            return false;
        }
        // On a busy machine the thread got little time. This one has the priority of the program.
        self.shared.end();
        write_job(&self.job, &|| begun.elapsed() < at_most)
    }
}

/// Goes on with a job until it is over, which is returned.
fn write_job(job: &Mutex<Option<Job>>, goes_on: &dyn Fn() -> bool) -> bool {
    let mut job = job.lock().unwrap_or_else(PoisonError::into_inner);
    // When a pack cannot be written (no room, no permission), the next start packs again.
    let is_over = job.as_ref().is_none_or(|job| job.write(goes_on).unwrap_or(true));
    if is_over {
        *job = None;
    }
    is_over
}

impl Shared {
    fn end(&self) {
        *self.is_over.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_all();
    }

    /// Waits for the end of the thread; returns whether it came.
    fn wait_for_end(&self, at_most: Duration) -> bool {
        let is_over = self.is_over.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(is_over, at_most, |is_over| !*is_over);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

impl Drop for PackWriter {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
    }
}

struct Job {
    cache: PackCache,
    key: Key,
    tensors: Vec<PackedTensor>,
}

impl Job {
    /// Goes on with the pack under its partial name; when it is whole, syncs it to the disk and renames it. Returns false when
    /// it was stopped before.
    fn write(&self, goes_on: &dyn Fn() -> bool) -> io::Result<bool> {
        let path = self.cache.folder.join(&self.key.file_name);
        files::make_private(&self.cache.folder)?;
        let head = Head::new(&self.key, &self.tensors);
        let partial = files::partial(&path);
        let written = partial.symlink_metadata().map_or(0, |metadata| metadata.len());
        if !self.make_room(&partial, head.file_bytes().saturating_sub(written))? {
            return Ok(true);
        }
        files::resume_whole(&path, |file| self.write_to(file, &head, goes_on))
    }

    /// Writes the pieces that the header does not name yet, at least one. Returns false when it was stopped.
    fn write_to(&self, file: &mut File, head: &Head<'_>, goes_on: &dyn Fn() -> bool) -> io::Result<bool> {
        let mut sums = head.sums_of(file);
        write_at(file, 0, &head.bytes(&sums))?; // others see whose it is
        let (mut begin, mut unsynced, mut is_stopped) = (head.len(), 0, false);
        for (index, tensor) in self.tensors.iter().enumerate() {
            for (piece, at) in tensor.data.bytes().chunks(PIECE).zip(0..) {
                let (start, sum) = (begin, &mut sums[index][at]);
                begin += piece.len();
                if *sum != UNWRITTEN {
                    continue;
                }
                if is_stopped {
                    write_at(file, 0, &head.bytes(&sums))?;
                    return Ok(false);
                }
                write_at(file, start, piece)?;
                *sum = xxh3_64(piece);
                unsynced += piece.len();
                if unsynced >= SYNCED_AT_A_TIME {
                    file.sync_data()?;
                    write_at(file, 0, &head.bytes(&sums))?;
                    unsynced = 0;
                }
                is_stopped = !goes_on();
            }
        }
        write_at(file, 0, &head.bytes(&sums))?;
        Ok(true)
    }

    /// Removes packs that this one replaces, then the least recently used until `bytes` more fit. Returns false when they
    /// do not fit, or when too little of the disk would stay free; then what is written of this pack is removed too.
    fn make_room(&self, partial: &Path, bytes: u64) -> io::Result<bool> {
        let mut others = Vec::new();
        let folder = &self.cache.folder;
        for path in [files::entries(folder, PACK)?, files::entries(folder, files::PARTIAL)?].concat() {
            if path == partial {
                continue;
            }
            if self.replaces(&path) {
                std::fs::remove_file(&path)?;
            } else {
                others.push(path);
            }
        }
        let PackCache { total, keep_free, .. } = self.cache;
        let fits = DiskLimits { total, keep_free }.make_room(folder, others, bytes)?;
        if !fits && partial.exists() {
            std::fs::remove_file(partial)?;
        }
        Ok(fits)
    }

    /// Whether this pack replaces another one: of the same model and type (from older files or another version), or
    /// unreadable (damaged, or of another layout).
    fn replaces(&self, path: &Path) -> bool {
        if path.file_name() == Some(OsStr::new(&self.key.file_name)) {
            return true;
        }
        let Ok(file) = File::open(path) else { return false };
        read_header(&file)
            .is_none_or(|header| header["model"] == self.key.model && header["dtype"] == self.key.dtype)
    }
}

fn write_at(file: &mut File, at: usize, bytes: &[u8]) -> io::Result<()> {
    file.seek(SeekFrom::Start(at as u64))?;
    file.write_all(bytes)
}
