//! Opening a `.gguf` file, and the other files of a split one.

use std::path::Path;

use super::split::{Split, siblings};
use super::{Contents, Keys, read, read_keys};
use crate::checkpoint::folder::{Folder, open_regular};
use crate::checkpoint::safetensors::PICKLE;
use crate::checkpoint::{Checkpoint, Shard, is_pickle, shown};
use crate::error::{Error, Result};

/// The metadata of a `.gguf` file, whose weights are not looked at.
#[derive(Debug)]
pub struct Header {
    file: Shard,
    keys: Keys,
}

impl Header {
    /// Maps a file and reads its metadata.
    ///
    /// Errors: `NotFound`, `Io`, `UnsafePath` (no regular file), `Format`, `Unsupported` (another version or byte order).
    pub fn open(path: &Path) -> Result<Header> {
        let file = Shard::map(open_regular(path)?)?;
        let keys = read_keys(&file.path, &file.map)?;
        Ok(Header { file, keys })
    }

    /// The metadata.
    pub fn metadata(&self) -> super::Metadata<'_> {
        self.keys.on(&self.file.map)
    }
}

/// Opens a model in one `.gguf` file, or in several of which this is the first.
///
/// The file itself may be a link to anywhere: whoever called named it. Its siblings must lie beside it.
pub(in crate::checkpoint) fn open(path: &Path) -> Result<Checkpoint> {
    let (parent, name) = parts(path)?;
    if is_pickle(name) {
        return Err(Error::Unsupported { path: path.to_owned(), key: shown(name), what: PICKLE.to_owned() });
    }
    let folder = Folder::open(parent)?;
    let shard = Shard::map(open_regular(path)?)?;
    let contents = read(&shard.path, &shard.map)?;
    let split = Split::read(path, contents.keys.on(&shard.map))?;
    let mut checkpoint = Checkpoint::empty(&folder, path.to_owned());
    let names = match split {
        Some(split) => siblings(path, name, split)?,
        None => Vec::new(),
    };
    add(&mut checkpoint, shard, contents, true)?;
    for (number, name) in (1..).zip(names.iter().skip(1)) {
        let shard = Shard::map(folder.open_file(name)?)?;
        let contents = read(&shard.path, &shard.map)?;
        let own = Split::read(&shard.path, contents.keys.on(&shard.map))?;
        if own.map(|own| (own.number, own.count)) != Some((number, names.len() as u64)) {
            let what = format!(
                "its split.no and split.count are not those of part {} of {}; the parts of one model are expected; \
                 download them again",
                number + 1,
                names.len()
            );
            return Err(Error::Format { path: shard.path, field: "split.no".to_owned(), what });
        }
        add(&mut checkpoint, shard, contents, false)?;
    }
    let (found, stated) = (checkpoint.tensors.len() as u64, split.and_then(|split| split.tensors));
    if let Some(stated) = stated.filter(|&stated| stated != found) {
        let what = format!("{stated}, and the parts hold {found}; download the model again");
        return Err(Error::Format { path: path.to_owned(), field: "split.tensors.count".to_owned(), what });
    }
    Ok(checkpoint)
}

/// Takes a file's tensors up.
fn add(checkpoint: &mut Checkpoint, shard: Shard, contents: Contents, first: bool) -> Result<()> {
    if contents.tensors.trailing > 0 {
        let path = shard.path.display();
        let bytes = contents.tensors.trailing;
        checkpoint.warnings.push(format!("{path}: data: {bytes} bytes follow the last tensor"));
    }
    checkpoint.add_tensors(shard, contents.tensors.entries)?;
    if first {
        checkpoint.keys = Some(contents.keys);
    }
    Ok(())
}

/// The folder and the name of a file.
fn parts(path: &Path) -> Result<(&Path, &str)> {
    let name = path.file_name().and_then(|name| name.to_str()).ok_or_else(|| Error::UnsafePath {
        path: path.to_owned(),
        what: "this is no name of a file; the path of a .gguf file in UTF-8 is expected".to_owned(),
    })?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    Ok((parent.unwrap_or(Path::new(".")), name))
}
