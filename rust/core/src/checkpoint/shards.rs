//! The files of a model, mapped, with the tensors that their headers list.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::escape::escape_for_terminal;
use super::folder::{Folder, OpenFile, io_error};
use super::tensor::Entry;
use ropechat_platform::error::{Error, Result, size};
use ropechat_platform::mapped::MappedFile;

/// One mapped file.
#[derive(Debug)]
pub(super) struct Shard {
    pub path: PathBuf,
    pub map: MappedFile,
}

impl Shard {
    /// Maps a file.
    pub fn map(opened: OpenFile) -> Result<Shard> {
        let len = usize::try_from(opened.len).map_err(|_| Error::Memory {
            what: format!(
                "{}: {} do not fit this machine's addresses",
                opened.path.display(),
                size(opened.len)
            ),
        })?;
        let map = MappedFile::open(&opened.file, len, &opened.path).map_err(|error| match error.kind() {
            std::io::ErrorKind::OutOfMemory => Error::Memory {
                what: format!(
                    "{}: the system has no address space for {}; raise the limit (ulimit -v)",
                    opened.path.display(),
                    size(opened.len)
                ),
            },
            _ => io_error(&opened.path, &error),
        })?;
        Ok(Shard { path: opened.path, map })
    }
}

/// All files of a model.
#[derive(Debug)]
pub(super) struct Shards {
    pub folder: Folder,
    pub files: Vec<Shard>,
    /// Tensor name to the index of its file and its entry.
    pub tensors: BTreeMap<String, (usize, Entry)>,
    /// The file that lists the tensors, for messages about a missing one.
    pub listing: PathBuf,
    pub warnings: Vec<String>,
}

impl Shards {
    /// No files yet.
    pub fn new(folder: &Folder, listing: PathBuf) -> Self {
        let folder = folder.clone();
        Self { folder, files: Vec::new(), tensors: BTreeMap::new(), listing, warnings: Vec::new() }
    }

    /// Adds a file and its tensors. Errors: `Tensor` when another file has one of them.
    pub fn add(&mut self, shard: Shard, entries: BTreeMap<String, Entry>) -> Result<()> {
        let index = self.files.len();
        for (name, entry) in entries {
            if let Some((other, _)) = self.tensors.get(&name) {
                let other = self.files[*other].path.display();
                return Err(Error::Tensor {
                    path: shard.path,
                    name: escape_for_terminal(&name),
                    what: format!(
                        "it is in {other} too; a tensor must be in one shard; download the model again"
                    ),
                });
            }
            self.tensors.insert(name, (index, entry));
        }
        self.files.push(shard);
        Ok(())
    }
}
