//! A model folder that strangers wrote: which of its files may be opened, and how.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::escape::escape_for_terminal;
use ropechat_platform::error::{Error, Result};

/// Longest name that file systems take.
const LONGEST_NAME: usize = 255;
/// What huggingface_hub puts into the folder of bytes that repositories share.
const SHARED_MARK: &str = ".huggingface-shared-blobs";

/// A folder whose files are opened by plain name only, and never outside of it.
#[derive(Debug, Clone)]
pub(crate) struct Folder {
    /// As the user wrote it: what messages show.
    given: PathBuf,
    /// With every link resolved.
    real: PathBuf,
    /// Folders of the Hugging Face cache that contains the folder: snapshots link into them.
    blobs: Vec<PathBuf>,
}

/// A regular file inside a [`Folder`], opened.
#[derive(Debug)]
pub(crate) struct OpenFile {
    /// As messages show it.
    pub path: PathBuf,
    /// The handle.
    pub file: File,
    /// Its length at the time of opening.
    pub len: u64,
}

impl Folder {
    /// Errors: `NotFound` when the folder is not there or is no folder, `Io` when it cannot be entered.
    pub fn open(dir: &Path) -> Result<Folder> {
        let real = dir.canonicalize().map_err(|error| io_error(dir, &error))?;
        if !real.is_dir() {
            return Err(Error::NotFound {
                path: dir.to_owned(),
                what: "this is not a folder; a model folder has config.json and *.safetensors".to_owned(),
            });
        }
        let blobs = cache_blobs(&real);
        Ok(Folder { given: dir.to_owned(), real, blobs })
    }

    /// The folder as the user wrote it.
    pub fn path(&self) -> &Path {
        &self.given
    }

    /// Where messages say that `name` is.
    pub fn join(&self, name: &str) -> PathBuf {
        self.given.join(name)
    }

    /// Whether there is anything of that name, a broken link included.
    pub fn has(&self, name: &str) -> bool {
        self.real.join(name).symlink_metadata().is_ok()
    }

    /// Opens a regular file.
    ///
    /// Errors: `NotFound` when it is missing; `Io` when it is not readable; `UnsafePath` when it is no regular file, or a link that leads
    /// out of the folder (into the `blobs/` of a Hugging Face cache is allowed).
    pub fn open_file(&self, name: &str) -> Result<OpenFile> {
        let path = self.join(name);
        let unsafe_path = |what: &str| Error::UnsafePath { path: path.clone(), what: what.to_owned() };
        let real = self.real.join(name).canonicalize().map_err(|error| self.unresolved(name, &error))?;
        let inside = |root: &Path| real.starts_with(root);
        if !inside(&self.real) && !self.blobs.iter().any(|blobs| inside(blobs)) {
            return Err(unsafe_path(
                "this link leads out of the model folder; its target must be inside; \
                 replace the link with the file",
            ));
        }
        regular(path, &real)
    }

    /// Reads a whole text file, without its byte order mark.
    ///
    /// Errors: those of [`Folder::open_file`]; `Format` when it is longer than `limit` bytes or not UTF-8.
    pub fn read_text(&self, name: &str, limit: u64) -> Result<String> {
        let opened = self.open_file(name)?;
        let format =
            |what: String| Error::Format { path: opened.path.clone(), field: "text".to_owned(), what };
        let mut bytes = Vec::new();
        (&opened.file)
            .take(limit + 1)
            .read_to_end(&mut bytes)
            .map_err(|error| io_error(&opened.path, &error))?;
        if bytes.len() as u64 > limit {
            return Err(format(format!(
                "the file is longer than {limit} bytes; files of a model are shorter; check what it is"
            )));
        }
        let text = String::from_utf8(bytes).map_err(|error| {
            format(format!(
                "byte {} is not UTF-8; JSON in UTF-8 is expected; save the file as UTF-8",
                error.utf8_error().valid_up_to()
            ))
        })?;
        Ok(text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text))
    }

    /// Names of the folder's files that pass `wanted`, sorted; at most ten.
    pub fn names_like(&self, wanted: fn(&str) -> bool) -> Vec<String> {
        let entries = std::fs::read_dir(&self.real).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let mut names: Vec<String> = names.filter(|name| wanted(name)).take(10).collect();
        names.sort_unstable();
        names
    }

    fn unresolved(&self, name: &str, error: &io::Error) -> Error {
        let path = self.join(name);
        let is_link = self.real.join(name).symlink_metadata().is_ok_and(|metadata| metadata.is_symlink());
        if is_link {
            let what = format!(
                "this link is broken ({error}); the file itself is expected; \
                 download it again"
            );
            return Error::UnsafePath { path, what };
        }
        io_error(&path, error)
    }
}

/// Opens a file that the user named: a link may lead anywhere.
///
/// Errors: `NotFound` when it is missing; `Io` when it is not readable; `UnsafePath` when it is no regular file.
pub(crate) fn open_regular(path: &Path) -> Result<OpenFile> {
    let real = path.canonicalize().map_err(|error| io_error(path, &error))?;
    regular(path.to_owned(), &real)
}

/// Opens `real` when it is a regular file; messages name `path`.
fn regular(path: PathBuf, real: &Path) -> Result<OpenFile> {
    let file = open_without_waiting(real).map_err(|error| io_error(&path, &error))?;
    let metadata = file.metadata().map_err(|error| io_error(&path, &error))?;
    if !metadata.is_file() {
        let what =
            "this is a folder, pipe or device; a regular file is expected; replace it with the model's file";
        return Err(Error::UnsafePath { path, what: what.to_owned() });
    }
    Ok(OpenFile { path, file, len: metadata.len() })
}

/// Checks that `name`, which comes out of a file, names something directly in the folder; says what is wrong if not.
///
/// Both kinds of separator and drive letters are refused on every system: a folder made on one is opened on another.
pub(crate) fn check_file_name(name: &str) -> Result<(), &'static str> {
    match name {
        "" => Err("an empty name"),
        "." | ".." => Err("a folder"),
        _ if name.len() > LONGEST_NAME => Err("longer than 255 bytes"),
        _ if name.contains(['/', '\\', ':']) => Err("a path"),
        _ if escape_for_terminal(name) != name => Err("a name with control characters"),
        _ => Ok(()),
    }
}

/// `<cache>/models--x/blobs` when the folder is in `<cache>/models--x/snapshots/<revision>`; and `<cache>/blobs`, which
/// repositories share since huggingface_hub 2.4, when it has that library's marker file.
fn cache_blobs(real: &Path) -> Vec<PathBuf> {
    let is_snapshots = |folder: &&Path| folder.file_name().is_some_and(|name| name == "snapshots");
    let repository = real.ancestors().skip(1).find(is_snapshots).and_then(Path::parent);
    let shared = repository.and_then(Path::parent).map(|cache| cache.join("blobs"));
    let shared = shared.filter(|blobs| blobs.join(SHARED_MARK).is_file());
    let own = repository.map(|repository| repository.join("blobs"));
    // A `blobs` that is itself a link could point at the root: then everything would be "inside".
    let is_itself = |blobs: &PathBuf| blobs.canonicalize().is_ok_and(|real| real == *blobs);
    own.into_iter().chain(shared).filter(is_itself).collect()
}

/// Opening a pipe waits for its writer, which may never come: O_NONBLOCK makes it return. Regular files ignore it.
#[cfg(unix)]
fn open_without_waiting(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    const O_NONBLOCK: i32 = if cfg!(any(target_os = "linux", target_os = "android")) { 0o4000 } else { 0x4 };
    OpenOptions::new().read(true).custom_flags(O_NONBLOCK).open(path)
}

#[cfg(not(unix))]
fn open_without_waiting(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).open(path)
}

/// What an operating system's error means for a model.
pub(crate) fn io_error(path: &Path, error: &io::Error) -> Error {
    let (path, what) = (path.to_owned(), error.to_string());
    match error.kind() {
        io::ErrorKind::NotFound => {
            let what =
                "there is no file or folder of this name; check the name, or download the model".to_owned();
            Error::NotFound { path, what }
        }
        io::ErrorKind::PermissionDenied => {
            Error::Io { path, what: format!("{what}; reading must be permitted; change the permissions") }
        }
        _ => Error::Io { path, what },
    }
}

#[cfg(test)]
mod tests {
    use super::check_file_name;

    #[test]
    fn only_plain_names() {
        for name in ["model-00001-of-00002.safetensors", "modèle.safetensors", "..x"] {
            assert_eq!(check_file_name(name), Ok(()), "{name}");
        }
        for name in
            ["", ".", "..", "../x", "/etc/passwd", "a\\b", "C:x", "a\0b", "\u{1b}]0;x\u{7}", &"x".repeat(256)]
        {
            assert!(check_file_name(name).is_err(), "{name:?}");
        }
    }
}
