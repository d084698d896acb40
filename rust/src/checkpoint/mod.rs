//! Tensors by name out of a model folder (one `model.safetensors`, or an index and its shards) or a `.gguf` file (with
//! its siblings, when it is split).
//!
//! [`Checkpoint::open`] reads and checks every header and maps the files; no weight is touched. A tensor's bytes are
//! then a slice of the map. The files are untrusted: see `folder.rs` for what may be opened, `safetensors.rs` and
//! `gguf/` for what a header may say.

mod folder;
pub mod gguf;
mod header;
mod index;
pub(crate) mod json;
pub mod safetensors;
mod shown;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

pub(crate) use folder::Folder;
use folder::OpenFile;
use index::{INDEX, Index};
use safetensors::{Entry, PICKLE};
pub(crate) use shown::shown;

use crate::error::{Error, Result};
use crate::platform::checksum::checksum;
use crate::platform::mapped::MappedFile;
use crate::quant::TensorType;

/// Name of an unsharded model's weights.
const SINGLE: &str = "model.safetensors";

/// A model's weight files, mapped and checked.
#[derive(Debug)]
pub struct Checkpoint {
    folder: Folder,
    shards: Vec<Shard>,
    /// Tensor name to its shard and entry.
    tensors: BTreeMap<String, (usize, Entry)>,
    /// The file that says which tensors there are: for messages about a missing one.
    listing: PathBuf,
    /// Metadata of the first shard, when it is GGUF.
    keys: Option<gguf::Keys>,
    warnings: Vec<String>,
}

#[derive(Debug)]
struct Shard {
    path: PathBuf,
    map: MappedFile,
}

/// One tensor in a mapped file.
#[derive(Debug, Clone, Copy)]
pub struct TensorView<'a> {
    /// The file's name for it.
    pub name: &'a str,
    /// How the values are stored.
    pub tensor_type: TensorType,
    /// Dimensions, outermost first.
    pub shape: &'a [usize],
    /// Values in row-major order, little endian; no alignment is promised.
    pub bytes: &'a [u8],
    /// The file, for messages.
    pub path: &'a Path,
}

impl Checkpoint {
    /// Opens a model folder (`model.safetensors`, or `model.safetensors.index.json` and the shards that it names) or a
    /// `.gguf` file.
    ///
    /// Errors: `NotFound`, `Io` (not readable), `UnsafePath` (a link out of the folder, a pipe, a device), `Format` (a
    /// malformed or truncated file), `Tensor` (the index and the shards disagree), `Unsupported` (only pickles there).
    pub fn open(model: &Path) -> Result<Checkpoint> {
        if !model.is_dir() && model.symlink_metadata().is_ok() {
            return gguf::open(model);
        }
        let folder = Folder::open(model)?;
        if folder.has(SINGLE) {
            let mut checkpoint = Checkpoint::empty(&folder, folder.join(SINGLE));
            checkpoint.add_shard(&folder, SINGLE)?;
            return Ok(checkpoint);
        }
        if !folder.has(INDEX) {
            return Err(no_weights(&folder));
        }
        let index = Index::read(&folder)?;
        let mut checkpoint = Checkpoint::empty(&folder, folder.join(INDEX));
        for shard in index.shards() {
            checkpoint.add_shard(&folder, shard)?;
        }
        checkpoint.compare(&folder, &index)?;
        Ok(checkpoint)
    }

    /// A tensor by name; None when it is not there or has a type that the engine does not compute with.
    pub fn tensor(&self, name: &str) -> Option<TensorView<'_>> {
        let (name, (shard, entry)) = self.tensors.get_key_value(name)?;
        let tensor_type = entry.tensor_type()?;
        let Shard { path, map } = &self.shards[*shard];
        Some(TensorView { name, tensor_type, shape: &entry.shape, bytes: &map[entry.begin..entry.end], path })
    }

    /// A tensor that the model cannot do without.
    ///
    /// Errors: `Tensor` (missing, another shape, integers, a vector in blocks), `Unsupported` (other types of floats).
    pub fn require(&self, name: &str, shape: &[usize]) -> Result<TensorView<'_>> {
        self.require_any(&[name], shape)
    }

    /// The first of several names that is there: tied embeddings may be stored under either of their two.
    ///
    /// Errors: as [`Checkpoint::require`]; a missing tensor is reported with all the names.
    pub fn require_any(&self, names: &[&str], shape: &[usize]) -> Result<TensorView<'_>> {
        let Some(&name) = names.iter().find(|name| self.contains(name)) else {
            let (first, others) = names.split_first().unwrap_or((&"", &[]));
            let others: String = others.iter().map(|other| format!(" (nor is {other})")).collect();
            return Err(self.tensor_error(
                first,
                format!(
                    "the tensor is not in the file{others}; \
                     {shape:?} is expected; download the model again, or correct {}",
                    self.described_in()
                ),
            ));
        };
        let (shard, entry) = &self.tensors[name];
        let path = &self.shards[*shard].path;
        if *entry.shape != *shape {
            return Err(Error::Tensor {
                path: path.clone(),
                name: name.to_owned(),
                what: format!(
                    "its shape is {:?}; {shape:?} is expected (from {}); check that the two belong together",
                    entry.shape,
                    self.described_in()
                ),
            });
        }
        let view = self.tensor(name).ok_or_else(|| unusable(path, name, entry.dtype))?;
        if shape.len() == 1 && !view.tensor_type.is_float() {
            return Err(unusable_vector(path, name, entry.dtype));
        }
        Ok(view)
    }

    /// Where the shapes come from.
    fn described_in(&self) -> &'static str {
        if self.keys.is_some() { "the file's metadata" } else { "config.json" }
    }

    /// The metadata of a `.gguf` file.
    pub fn gguf(&self) -> Option<gguf::Metadata<'_>> {
        self.keys.as_ref().zip(self.shards.first()).map(|(keys, shard)| keys.on(&shard.map))
    }

    /// Lets the memory of mapped pages go, those of a piece of a tensor's bytes, once its values are packed. Read again,
    /// the pages come back from the file.
    pub fn let_go(&self, view: &TensorView<'_>, piece: &[u8]) {
        if let Some((shard, _)) = self.tensors.get(view.name) {
            let map = &self.shards[*shard].map;
            let begin = (piece.as_ptr() as usize).saturating_sub(map.as_ptr() as usize);
            map.let_go(begin.min(map.len())..begin.saturating_add(piece.len()).min(map.len()));
        }
    }

    /// Is there a tensor of that name, of whatever type?
    pub fn contains(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// Every tensor's name, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// The file that lists the tensors: `model.safetensors`, or the index.
    pub fn path(&self) -> &Path {
        &self.listing
    }

    /// The model folder, for the metadata in it.
    pub(crate) fn folder(&self) -> &Folder {
        &self.folder
    }

    /// What tells these files from others and from what they were before, one line each: where the file lies with its
    /// links resolved, its size and time of change, and a checksum of what stands before its first tensor.
    pub fn identity(&self) -> Result<Vec<String>> {
        let mut data_begin: Vec<usize> = self.shards.iter().map(|shard| shard.map.len()).collect();
        for (shard, entry) in self.tensors.values() {
            data_begin[*shard] = data_begin[*shard].min(entry.begin);
        }
        let lines = self.shards.iter().zip(data_begin).map(|(shard, data_begin)| {
            let refused = |error| folder::io_error(&shard.path, &error);
            let real = shard.path.canonicalize().map_err(refused)?;
            let metadata = real.metadata().map_err(refused)?;
            let changed = metadata.modified().map_err(refused)?.duration_since(UNIX_EPOCH);
            let changed = changed.map_or(0, |since| since.as_nanos());
            let header = checksum(&shard.map[..data_begin]);
            Ok(format!("{:?} {} {changed} {header:016x}", real, metadata.len()))
        });
        lines.collect()
    }

    /// Numbers in all tensors together, as model cards count them.
    pub fn num_parameters(&self) -> usize {
        self.tensors.values().map(|(_, entry)| entry.shape.iter().product::<usize>()).sum()
    }

    /// Numbers in the tensors of each type, by the type's name in the file.
    pub fn tensor_types(&self) -> BTreeMap<&'static str, usize> {
        let mut types = BTreeMap::new();
        for (_, entry) in self.tensors.values() {
            *types.entry(entry.dtype).or_default() += entry.shape.iter().product::<usize>();
        }
        types
    }

    /// What is odd but harmless, one line each, in the form of the errors.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    fn empty(folder: &Folder, listing: PathBuf) -> Checkpoint {
        Checkpoint {
            folder: folder.clone(),
            shards: Vec::new(),
            tensors: BTreeMap::new(),
            listing,
            keys: None,
            warnings: Vec::new(),
        }
    }

    fn add_shard(&mut self, folder: &Folder, name: &str) -> Result<()> {
        let shard = Shard::map(folder.open_file(name)?)?;
        let entries = safetensors::parse(&shard.map).map_err(|bad| Error::Format {
            path: shard.path.clone(),
            field: bad.field,
            what: bad.what,
        })?;
        self.add_tensors(shard, entries)
    }

    fn add_tensors(&mut self, shard: Shard, entries: BTreeMap<String, Entry>) -> Result<()> {
        let place = self.shards.len();
        for (name, entry) in entries {
            if let Some((other, _)) = self.tensors.get(&name) {
                let other = self.shards[*other].path.display();
                return Err(Error::Tensor {
                    path: shard.path,
                    name: shown(&name),
                    what: format!(
                        "it is in {other} too; a tensor must be in one shard; download the model again"
                    ),
                });
            }
            self.tensors.insert(name, (place, entry));
        }
        self.shards.push(shard);
        Ok(())
    }

    /// Does the index say what the shards hold?
    fn compare(&mut self, folder: &Folder, index: &Index) -> Result<()> {
        for (name, shard) in &index.weight_map {
            let found = self.tensors.get(name).map(|(place, _)| &self.shards[*place].path);
            if found != Some(&folder.join(shard)) {
                let found = found.map_or_else(|| "no shard".to_owned(), |path| path.display().to_string());
                return Err(self.tensor_error(
                    &shown(name),
                    format!(
                        "weight_map says {shard}, and it is in {found}; \
                         index and shards must agree; download the model again"
                    ),
                ));
            }
        }
        let unlisted = self.names().find(|name| !index.weight_map.contains_key(*name)).map(shown);
        let listing = self.listing.display();
        if let Some(name) = unlisted {
            self.warnings
                .push(format!("{listing}: {name}: a shard holds it and weight_map does not list it"));
        }
        let bytes: u64 = self.tensors.values().map(|(_, entry)| (entry.end - entry.begin) as u64).sum();
        if let Some(total_size) = index.total_size.filter(|&total_size| total_size != bytes) {
            let what = format!("it is {total_size}, and the tensors take {bytes} bytes");
            self.warnings.push(format!("{listing}: metadata.total_size: {what}"));
        }
        Ok(())
    }

    fn tensor_error(&self, name: &str, what: String) -> Error {
        Error::Tensor { path: self.listing.clone(), name: name.to_owned(), what }
    }
}

impl Shard {
    fn map(opened: OpenFile) -> Result<Shard> {
        let len = usize::try_from(opened.len).map_err(|_| Error::Memory {
            what: format!(
                "{}: {} bytes do not fit this machine's addresses",
                opened.path.display(),
                opened.len
            ),
        })?;
        let map = MappedFile::open(&opened.file, len, &opened.path).map_err(|error| match error.kind() {
            std::io::ErrorKind::OutOfMemory => Error::Memory {
                what: format!(
                    "{}: no addresses for {len} bytes are to be had; raise the limit (ulimit -v)",
                    opened.path.display()
                ),
            },
            _ => folder::io_error(&opened.path, &error),
        })?;
        Ok(Shard { path: opened.path, map })
    }
}

/// Types of weights that the engine reads, for messages.
fn readable() -> String {
    TensorType::ALL.map(TensorType::name).join(", ")
}

/// Another type of floats is something to add one day; an integer type means that the file is broken.
fn unusable(path: &Path, name: &str, dtype: &str) -> Error {
    let (path, name) = (path.to_owned(), name.to_owned());
    let is_integer =
        dtype == "BOOL" || dtype.strip_prefix(['I', 'U']).is_some_and(|bits| bits.parse::<u32>().is_ok());
    if is_integer {
        let what = format!("it is stored as {dtype}; F32, F16 or BF16 is expected; download the model again");
        return Error::Tensor { path, name, what };
    }
    let what = format!("it is stored as {dtype}; {} are supported; use a copy in one of these", readable());
    Error::Unsupported { path, key: name, what }
}

/// Norms and biases are not stored in blocks.
fn unusable_vector(path: &Path, name: &str, dtype: &str) -> Error {
    let what = format!(
        "it is stored as {dtype}; F32, F16 or BF16 is expected of a vector; use another copy of the model"
    );
    Error::Tensor { path: path.to_owned(), name: name.to_owned(), what }
}

/// Is that the name of a pickle?
fn is_pickle(name: &str) -> bool {
    [".bin", ".pt", ".pth", ".ckpt", ".pkl"].iter().any(|end| name.ends_with(end))
}

/// No weights that can be read: a pickle gets the recipe, everything else the list of what is expected.
fn no_weights(folder: &Folder) -> Error {
    if let Some(name) = folder.names_like(is_pickle).first() {
        let what = format!("{PICKLE}; look for a safetensors version of the model first");
        return Error::Unsupported { path: folder.path().to_owned(), key: shown(name), what };
    }
    let others: Vec<String> =
        folder.names_like(|name| name.ends_with(".safetensors") || name.ends_with(".gguf"));
    let found = if others.is_empty() { "no weights".to_owned() } else { shown(&others.join(", ")) };
    let advice = match others.iter().any(|name| name.ends_with(".gguf")) {
        true => "name the .gguf file itself",
        false => "download the model again",
    };
    Error::NotFound {
        path: folder.path().to_owned(),
        what: format!(
            "the folder holds {found}; {SINGLE}, or {INDEX} with its shards, is expected; {advice}"
        ),
    }
}
