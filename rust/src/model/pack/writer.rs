//! Writes packs, and keeps their folder within its limits.

use super::file::{Head, PIECE, read_header};
use super::key::{Key, PACK, PackedTensor};
use crate::platform::limits;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime};
use xxhash_rust::xxh3::xxh3_64;

/// Ending of the name of a pack that is being written: `<pack>.<process>-<number>.part`, locked by its writer.
const PART: &str = ".part";

/// Bytes that are written between two syncs: a process that ends waits for a sync that runs, so each must be short.
const SYNCED_AT_A_TIME: usize = 32 << 20;
/// How long a caller waits, in all, for a pack that is given up.
const GIVEN_UP_WITHIN: Duration = Duration::from_secs(1);
/// Bytes that are written in a second, as long as it is not known better.
const USUAL_RATE: f64 = 4e8;

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
    job: Mutex<Option<Job>>,
    shared: Arc<Shared>,
    /// Of the weights.
    bytes: u64,
    /// Threads do not survive fork(2).
    process: u32,
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    /// Bytes that are written, and since when.
    written: AtomicU64,
    begun: OnceLock<Instant>,
    is_over: Mutex<bool>,
    changed: Condvar,
}

impl PackWriter {
    pub(super) fn new(cache: PackCache, key: Key, tensors: Vec<PackedTensor>) -> Self {
        let bytes = tensors.iter().map(|tensor| tensor.shape.bytes() as u64).sum();
        let job = Mutex::new(Some(Job { cache, key, tensors }));
        Self { job, shared: Arc::default(), bytes, process: std::process::id() }
    }

    /// Starts to write, in a thread of low priority; only the first call does anything.
    pub fn start(&self) {
        let Some(job) = self.job.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
        let shared = Arc::clone(&self.shared);
        let work = move || {
            limits::lower_priority();
            let _ = shared.begun.set(Instant::now());
            // When a pack cannot be written (no room, no permission), the next start packs again.
            let _ = job.write(&|bytes| {
                shared.written.fetch_add(bytes as u64, Ordering::Relaxed);
                !shared.stop.load(Ordering::Relaxed)
            });
            drop(job); // releases its share of the weights before waiting threads go on
            shared.end();
        };
        if std::thread::Builder::new().name("ropechat-pack".to_owned()).spawn(work).is_err() {
            self.shared.end();
        }
    }

    /// Waits until writing is over, for `at_most` at the longest; returns whether it is. Starts it if needed.
    pub fn wait(&self, at_most: Duration) -> bool {
        if self.process != std::process::id() {
            return true;
        }
        self.start();
        self.wait_for_end(at_most)
    }

    /// As [`PackWriter::wait`] where `at_most` will do, as far as is known; else gives the pack up, and waits until what is
    /// written of it is removed.
    pub fn finish(&self, at_most: Duration) -> bool {
        if self.process != std::process::id() {
            return true;
        }
        let begun = Instant::now();
        if self.rest() <= at_most && self.wait(at_most) {
            return true;
        }
        self.shared.stop.store(true, Ordering::Relaxed);
        let is_idle = self.job.lock().unwrap_or_else(PoisonError::into_inner).take().is_some();
        is_idle || self.wait_for_end(GIVEN_UP_WITHIN.saturating_sub(begun.elapsed()))
    }

    /// How long writing the rest takes, at the rate so far.
    fn rest(&self) -> Duration {
        let written = self.shared.written.load(Ordering::Relaxed);
        let since = self.shared.begun.get().map_or(0.0, |begun| begun.elapsed().as_secs_f64());
        let rate = if written > 0 { written as f64 / since.max(1e-3) } else { USUAL_RATE };
        Duration::try_from_secs_f64(self.bytes.saturating_sub(written) as f64 / rate).unwrap_or(Duration::MAX)
    }

    fn wait_for_end(&self, at_most: Duration) -> bool {
        let is_over = self.shared.is_over.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.shared.changed.wait_timeout_while(is_over, at_most, |is_over| !*is_over);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

impl Shared {
    fn end(&self) {
        *self.is_over.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_all();
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
    /// Writes the pack under a temporary name, syncs it to the disk, and renames it.
    ///
    /// goes_on: told the bytes of each piece that is written; returns false to stop.
    fn write(&self, goes_on: &dyn Fn(usize) -> bool) -> io::Result<()> {
        let folder = &self.cache.folder;
        make_private(folder)?;
        if !clear_parts(folder, &self.key)? {
            return Ok(()); // another process is writing it
        }
        let head = Head::new(&self.key, &self.tensors);
        if !self.make_room(head.file_bytes())? {
            return Ok(());
        }
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = folder.join(&self.key.file_name);
        let part = folder.join(format!("{}.{}-{number}{PART}", self.key.file_name, std::process::id()));
        let mut file = new_private(&part)?;
        let written = file.try_lock().map_err(io::Error::from).and_then(|()| {
            if !self.write_to(&mut file, &head, goes_on)? {
                return Ok(false);
            }
            file.sync_all()?;
            fs::rename(&part, &path).map(|()| true)
        });
        if !matches!(written, Ok(true)) {
            let _ = fs::remove_file(&part);
            return written.map(|_| ());
        }
        File::open(folder).and_then(|folder| folder.sync_all())
    }

    /// Returns false when it was stopped.
    fn write_to(
        &self,
        file: &mut File,
        head: &Head<'_>,
        goes_on: &dyn Fn(usize) -> bool,
    ) -> io::Result<bool> {
        file.seek(SeekFrom::Start(head.len() as u64))?;
        let (mut sums, mut unsynced) = (Vec::with_capacity(self.tensors.len()), 0);
        for tensor in &self.tensors {
            let mut of_tensor = Vec::new();
            for piece in tensor.data.bytes().chunks(PIECE) {
                if !goes_on(piece.len()) {
                    return Ok(false);
                }
                of_tensor.push(xxh3_64(piece));
                file.write_all(piece)?;
                unsynced += piece.len();
                if unsynced >= SYNCED_AT_A_TIME {
                    file.sync_data()?;
                    unsynced = 0;
                }
            }
            sums.push(of_tensor);
        }
        file.seek(SeekFrom::Start(0))?;
        file.write_all(&head.bytes(&sums))?;
        Ok(true)
    }

    /// Removes packs that this one replaces, then the least recently used until `bytes` more fit. Returns false when they
    /// do not fit, or when too little of the disk would stay free.
    fn make_room(&self, bytes: u64) -> io::Result<bool> {
        let mut others: Vec<(SystemTime, u64, PathBuf)> = Vec::new();
        for path in entries(&self.cache.folder, PACK)? {
            let Ok(metadata) = path.symlink_metadata() else { continue };
            if self.replaces(&path) {
                fs::remove_file(&path)?;
            } else {
                others.push((metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH), metadata.len(), path));
            }
        }
        if bytes > self.cache.total {
            return Ok(false);
        }
        others.sort();
        let mut used: u64 = others.iter().map(|(_, bytes, _)| bytes).sum();
        for (_, size, path) in &others {
            if used + bytes <= self.cache.total {
                break;
            }
            fs::remove_file(path)?;
            used -= size;
        }
        let free = limits::free_disk(&self.cache.folder);
        Ok(free.is_none_or(|free| free >= bytes.saturating_add(self.cache.keep_free)))
    }

    /// Whether a pack is useless beside this one: of the same model and type (from older files or another version), or
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

/// Removes the files of writers that died; returns false when another process is writing the pack of `key`.
pub(super) fn clear_parts(folder: &Path, key: &Key) -> io::Result<bool> {
    let mut is_free = true;
    for path in entries(folder, PART)? {
        // A part without a lock has lost its writer.
        match File::open(&path).map(|file| file.try_lock()) {
            Ok(Ok(())) => fs::remove_file(&path)?,
            Ok(Err(TryLockError::WouldBlock)) => {
                let name = path.file_name().unwrap_or_default().as_encoded_bytes();
                is_free &= !name.starts_with(key.file_name.as_bytes());
            }
            _ => {}
        }
    }
    Ok(is_free)
}

/// The files of a folder whose names have this ending.
fn entries(folder: &Path, end: &str) -> io::Result<Vec<PathBuf>> {
    let paths = fs::read_dir(folder)?.flatten().map(|entry| entry.path());
    Ok(paths
        .filter(|path| path.file_name().is_some_and(|name| name.as_encoded_bytes().ends_with(end.as_bytes())))
        .collect())
}

/// Makes a folder that only its owner can enter.
fn make_private(folder: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.recursive(true).create(folder)
}

/// Makes a file that only its owner can read.
fn new_private(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.write(true).create_new(true).open(path)
}
