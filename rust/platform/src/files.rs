//! Files of caches: only their owner can read them, they begin with a checked header, and they appear whole or not at all.

use super::limits;
use serde_json::Value;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};
use xxhash_rust::xxh3::xxh3_64;

/// Ending of the name of a file that is being written: `<file>.<process>-<number>.part`, locked by its writer.
const PART: &str = ".part";
/// Ending of the name of a file that several processes write, one after another: `<file>.partial`.
pub const PARTIAL: &str = ".partial";
/// How long a partial file waits for a process that goes on with it.
const PARTIAL_WAITS: Duration = Duration::from_secs(86_400);
/// Bytes before a header's JSON: 8 that name the format, its length, its checksum.
pub const PREFIX: usize = 24;

/// The files of a folder whose names have this ending.
pub fn entries(folder: &Path, end: &str) -> io::Result<Vec<PathBuf>> {
    let paths = fs::read_dir(folder)?.flatten().map(|entry| entry.path());
    Ok(paths
        .filter(|path| path.file_name().is_some_and(|name| name.as_encoded_bytes().ends_with(end.as_bytes())))
        .collect())
}

/// Makes a folder that only its owner can enter.
pub fn make_private(folder: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.recursive(true).create(folder)
}

/// Whether a path is a file, not a link, that only this user can write, in a folder of the same kind.
pub fn is_own_file(path: &Path) -> io::Result<bool> {
    let link = path.symlink_metadata()?;
    let folder = path.parent().unwrap_or(path).symlink_metadata()?;
    Ok(link.is_file() && limits::owned_and_private(&link) && limits::owned_and_private(&folder))
}

/// Writes a file under a temporary name, syncs it to the disk, and renames it. `write` returns false when it was stopped;
/// then, and after an error, nothing is left.
pub fn write_whole(path: &Path, write: impl FnOnce(&mut File) -> io::Result<bool>) -> io::Result<bool> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let (folder, name) = (path.parent().unwrap_or(path), path.file_name().unwrap_or_default());
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let part = folder.join(format!("{}.{}-{number}{PART}", Path::new(name).display(), std::process::id()));
    let mut options = OpenOptions::new();
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.write(true).create_new(true).open(&part)?;
    let written = file.try_lock().map_err(io::Error::from).and_then(|()| {
        if !write(&mut file)? {
            return Ok(false);
        }
        publish(&file, &part, path).map(|()| true)
    });
    if !matches!(written, Ok(true)) {
        let _ = fs::remove_file(&part);
    }
    written
}

/// The name of a file while it is partial.
pub fn partial(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(PARTIAL);
    path.with_file_name(name)
}

/// As [`write_whole`], but when `write` was stopped (or killed) the file stays under the name of [`partial`], and the next
/// call gets it as it is. Nothing is written while another process writes it; returns false only when it was stopped.
pub fn resume_whole(path: &Path, write: impl FnOnce(&mut File) -> io::Result<bool>) -> io::Result<bool> {
    let part = partial(path);
    if part.symlink_metadata().is_ok() && !is_own_file(&part)? {
        fs::remove_file(&part)?;
    }
    let mut options = OpenOptions::new();
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.read(true).write(true).create(true).truncate(false).open(&part)?;
    match file.try_lock() {
        Ok(()) if is_file_of(&file, &part) => {}
        // It is being written, or was renamed or removed meanwhile.
        Ok(()) | Err(TryLockError::WouldBlock) => return Ok(true),
        Err(TryLockError::Error(error)) => return Err(error),
    }
    let written = write(&mut file).and_then(|is_whole| {
        if is_whole {
            publish(&file, &part, path)?;
        }
        Ok(is_whole)
    });
    if written.is_err() {
        let _ = fs::remove_file(&part);
    }
    written
}

/// Whether a path still names an open file.
fn is_file_of(file: &File, path: &Path) -> bool {
    let (Ok(open), Ok(named)) = (file.metadata(), path.symlink_metadata()) else { return false };
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        (open.dev(), open.ino()) == (named.dev(), named.ino())
    }
    #[cfg(not(unix))]
    {
        open.len() == named.len()
    }
}

/// Gives a whole file its name.
fn publish(file: &File, part: &Path, path: &Path) -> io::Result<()> {
    file.sync_all()?;
    fs::rename(part, path)?;
    // The file is whole; a system that cannot sync a folder may only forget it.
    File::open(path.parent().unwrap_or(path)).and_then(|folder| folder.sync_all())
}

/// Removes partial files that nobody went on with for a day.
pub fn clear_old_partials(folder: &Path) -> io::Result<()> {
    for path in entries(folder, PARTIAL)? {
        let changed = path.symlink_metadata().and_then(|metadata| metadata.modified())?;
        if changed.elapsed().is_ok_and(|age| age > PARTIAL_WAITS) {
            fs::remove_file(&path)?;
        }
    }
    Ok(())
}

/// Removes what writers that died have left; returns false when another writer is at work on `path`.
pub fn clear_parts(path: &Path) -> io::Result<bool> {
    let (folder, name) = (path.parent().unwrap_or(path), path.file_name().unwrap_or_default());
    let mut is_free = true;
    for part in entries(folder, PART)? {
        // A part without a lock has lost its writer.
        match File::open(&part).map(|file| file.try_lock()) {
            Ok(Ok(())) => fs::remove_file(&part)?,
            Ok(Err(TryLockError::WouldBlock)) => {
                let part = part.file_name().unwrap_or_default().as_encoded_bytes();
                is_free &= !part.starts_with(name.as_encoded_bytes());
            }
            _ => {}
        }
    }
    Ok(is_free)
}

/// How much space the files of a folder may take.
#[derive(Debug, Clone, Copy)]
pub struct DiskLimits {
    /// Bytes of all files; the least recently used are removed first.
    pub total: u64,
    /// Bytes that must stay free on the disk.
    pub keep_free: u64,
}

impl DiskLimits {
    /// Removes the least recently used of `others` until `bytes` more fit. Returns false when they do not fit, or when too
    /// little of the disk would stay free.
    pub fn make_room(&self, folder: &Path, others: Vec<PathBuf>, bytes: u64) -> io::Result<bool> {
        if bytes > self.total {
            return Ok(false);
        }
        let mut by_use: Vec<(SystemTime, u64, PathBuf)> = Vec::new();
        for path in others {
            let Ok(metadata) = path.symlink_metadata() else { continue };
            by_use.push((metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH), metadata.len(), path));
        }
        by_use.sort();
        let mut used: u64 = by_use.iter().map(|(_, bytes, _)| bytes).sum();
        for (_, size, path) in &by_use {
            if used + bytes <= self.total {
                break;
            }
            fs::remove_file(path)?;
            used -= size;
        }
        let free = limits::free_disk(folder);
        Ok(free.is_none_or(|free| free >= bytes.saturating_add(self.keep_free)))
    }
}

/// A header: the format's name, length and checksum of the JSON, the JSON.
pub fn header_bytes(magic: &[u8; 8], text: &[u8]) -> Vec<u8> {
    [magic, &(text.len() as u64).to_le_bytes()[..], &xxh3_64(text).to_le_bytes(), text].concat()
}

/// The JSON of a file's header, if it is at most `longest` bytes and its checksum is right.
pub fn read_header(mut file: &File, magic: &[u8; 8], longest: u64) -> Option<Value> {
    let mut prefix = [0; PREFIX];
    file.read_exact(&mut prefix).ok()?;
    let number =
        |at: usize| -> Option<u64> { Some(u64::from_le_bytes(prefix.get(at..at + 8)?.try_into().ok()?)) };
    let (len, sum) = (number(8)?, number(16)?);
    if !prefix.starts_with(magic) || len > longest {
        return None;
    }
    let mut text = Vec::new();
    file.take(len).read_to_end(&mut text).ok()?;
    (text.len() as u64 == len && xxh3_64(&text) == sum).then(|| serde_json::from_slice(&text).ok())?
}
