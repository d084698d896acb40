//! Tensors by name out of a model folder (one `model.safetensors`, or an index and its shards) or a `.gguf` file (with
//! its siblings, when it is split).
//!
//! [`Checkpoint::open`] reads and checks every header and maps the files; no weight is read. A tensor's bytes are
//! then a slice of the map. The files are untrusted: see `folder.rs` for which files may be opened, `safetensors/` and
//! `gguf/` for what a header may say.

mod escape;
mod faults;
mod folder;
pub mod gguf;
pub(crate) mod json;
pub mod quantized;
pub mod safetensors;
mod shards;
mod tensor;

use std::collections::BTreeMap;
use std::fs::Metadata;
use std::path::Path;
use std::time::UNIX_EPOCH;

pub(crate) use escape::escape_for_terminal;
pub(crate) use folder::Folder;
pub use tensor::TensorView;

use faults::{unusable_type, unusable_vector};
use quantized::{Matrix, MatrixShape, Scheme};
use ropechat_platform::error::{Error, Result};
use shards::{Shard, Shards};
use xxhash_rust::xxh3::xxh3_64;

/// A model's weight files, mapped, with checked headers.
#[derive(Debug)]
pub struct Checkpoint {
    shards: Shards,
    /// Metadata of the first file, when it is GGUF.
    keys: Option<gguf::Keys>,
}

impl Checkpoint {
    /// Opens a model folder (`model.safetensors`, or `model.safetensors.index.json` and the shards that it names) or a
    /// `.gguf` file.
    ///
    /// Errors: `NotFound`, `Io` (not readable), `UnsafePath` (a link out of the folder, a pipe, a device), `Format` (a
    /// malformed or truncated file), `Tensor` (the index and the shards disagree), `Unsupported` (only pickles there).
    pub fn open(model: &Path) -> Result<Checkpoint> {
        if !model.is_dir() && model.symlink_metadata().is_ok() {
            let (shards, keys) = gguf::open(model)?;
            return Ok(Checkpoint { shards, keys: Some(keys) });
        }
        Ok(Checkpoint { shards: safetensors::open(&Folder::open(model)?)?, keys: None })
    }

    /// A tensor by name; None when it is not there or has a type that the engine does not compute with.
    pub fn tensor(&self, name: &str) -> Option<TensorView<'_>> {
        let (name, (shard, entry)) = self.shards.tensors.get_key_value(name)?;
        let tensor_type = entry.tensor_type()?;
        let Shard { path, map } = &self.shards.files[*shard];
        Some(TensorView { name, tensor_type, shape: &entry.shape, bytes: &map[entry.begin..entry.end], path })
    }

    /// A tensor that the model needs, with its shape.
    ///
    /// Errors: `Tensor` (missing, another shape, integers, a vector in blocks), `Unsupported` (other types of floats).
    pub fn require(&self, name: &str, shape: &[usize]) -> Result<TensorView<'_>> {
        self.require_any(&[name], shape)
    }

    /// The first of several names that is there: tied embeddings may be stored under either of their two.
    ///
    /// Errors: as [`Checkpoint::require`]; a missing tensor is reported with all the names.
    pub fn require_any(&self, names: &[&str], shape: &[usize]) -> Result<TensorView<'_>> {
        let name = self.require_shape(names, shape)?;
        let (shard, entry) = &self.shards.tensors[name];
        let path = &self.shards.files[*shard].path;
        let view = self.tensor(name).ok_or_else(|| unusable_type(path, name, entry.dtype))?;
        if shape.len() == 1 && !view.tensor_type.is_float() {
            return Err(unusable_vector(path, name, entry.dtype));
        }
        Ok(view)
    }

    /// A tensor of integers that the model needs, I32 or I64, with its shape: its name and its values.
    ///
    /// Errors: `Tensor` (missing, another shape or type).
    pub fn require_integers(&self, name: &str, shape: &[usize]) -> Result<(&str, Vec<i64>)> {
        let name = self.require_shape(&[name], shape)?;
        let (shard, entry) = &self.shards.tensors[name];
        let Shard { path, map } = &self.shards.files[*shard];
        let bytes = &map[entry.begin..entry.end];
        let values = match entry.dtype {
            "I32" => bytes.as_chunks().0.iter().map(|&value| i64::from(i32::from_le_bytes(value))).collect(),
            "I64" => bytes.as_chunks().0.iter().map(|&value| i64::from_le_bytes(value)).collect(),
            other => {
                let what =
                    format!("it is stored as {other}; I32 or I64 is expected; use another copy of the model");
                return Err(Error::Tensor { path: path.clone(), name: name.to_owned(), what });
            }
        };
        Ok((name, values))
    }

    /// The first of several names that is there, with this shape.
    fn require_shape(&self, names: &[&str], shape: &[usize]) -> Result<&str> {
        let Some(name) = names.iter().find_map(|name| self.shards.tensors.get_key_value(*name)) else {
            let (first, others) = names.split_first().unwrap_or((&"", &[]));
            let others: String = others.iter().map(|other| format!(" ({other} is missing too)")).collect();
            return Err(self.tensor_error(
                first,
                format!(
                    "the tensor is not in the file{others}; \
                     {shape:?} is expected; download the model again, or correct {}",
                    self.described_in()
                ),
            ));
        };
        let (name, (shard, entry)) = name;
        let is_gguf = self.keys.is_some();
        if *entry.shape != *shape && !(is_gguf && have_same_dimensions(&entry.shape, shape)) {
            return Err(Error::Tensor {
                path: self.shards.files[*shard].path.clone(),
                name: name.clone(),
                what: format!(
                    "its shape is {:?}; {shape:?} is expected (from {}); check that the two belong together",
                    entry.shape,
                    self.described_in()
                ),
            });
        }
        Ok(name)
    }

    /// The first of several matrices that is there, stored plainly or in the parts of `scheme`.
    ///
    /// Errors: as [`Checkpoint::require`]; `Tensor` for a part of it that is missing or wrong.
    pub fn matrix(&self, names: &[&str], shape: MatrixShape<'_>, scheme: &Scheme) -> Result<Matrix<'_>> {
        if *scheme == Scheme::Plain {
            return self.require_any(names, shape.stored).map(Matrix::Plain);
        }
        for name in names {
            if let Some(quantized) = quantized::find(&self.shards, name, shape, scheme)? {
                return Ok(Matrix::Quantized(quantized));
            }
        }
        let others: Vec<String> = names.iter().filter_map(|name| quantized::names_of(scheme, name)).collect();
        let names = names.iter().copied().chain(others.iter().map(String::as_str));
        self.require_any(&names.collect::<Vec<_>>(), shape.stored).map(Matrix::Plain)
    }

    /// Where the shapes come from.
    pub(crate) fn described_in(&self) -> &'static str {
        if self.keys.is_some() { "the file's metadata" } else { "config.json" }
    }

    /// The metadata of a `.gguf` file.
    pub fn gguf(&self) -> Option<gguf::Metadata<'_>> {
        self.keys.as_ref().zip(self.shards.files.first()).map(|(keys, shard)| keys.on(&shard.map))
    }

    /// Releases the mapped pages of a piece of the tensor `name`, once its values are packed. When they are read again, they
    /// come from the file again.
    pub fn release_pages(&self, name: &str, piece: &[u8]) {
        if let Some((shard, _)) = self.shards.tensors.get(name) {
            let map = &self.shards.files[*shard].map;
            let begin = (piece.as_ptr() as usize).saturating_sub(map.as_ptr() as usize);
            map.release_pages(begin.min(map.len())..begin.saturating_add(piece.len()).min(map.len()));
        }
    }

    /// Whether there is a tensor of that name, of any type.
    pub fn contains(&self, name: &str) -> bool {
        self.shards.tensors.contains_key(name)
    }

    /// Every tensor's name, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.shards.tensors.keys().map(String::as_str)
    }

    /// The file that lists the tensors: `model.safetensors`, or the index.
    pub fn path(&self) -> &Path {
        &self.shards.listing
    }

    /// The model folder, for the metadata in it.
    pub(crate) fn folder(&self) -> &Folder {
        &self.shards.folder
    }

    /// What identifies these files and their present state, one line each: the path with its links resolved, the size, the
    /// time of the last write, the state that the system itself notes ([`state_of`]), and a checksum of everything before
    /// the first tensor.
    pub fn identity(&self) -> Result<Vec<String>> {
        let mut data_begin: Vec<usize> = self.shards.files.iter().map(|shard| shard.map.len()).collect();
        for (shard, entry) in self.shards.tensors.values() {
            data_begin[*shard] = data_begin[*shard].min(entry.begin);
        }
        let lines = self.shards.files.iter().zip(data_begin).map(|(shard, data_begin)| {
            let refused = |error| folder::io_error(&shard.path, &error);
            let real = shard.path.canonicalize().map_err(refused)?;
            let metadata = real.metadata().map_err(refused)?;
            let written = metadata.modified().map_err(refused)?.duration_since(UNIX_EPOCH);
            let written = written.map_or(0, |since| since.as_nanos());
            let (size, state) = (metadata.len(), state_of(&metadata));
            let header = xxh3_64(&shard.map[..data_begin]);
            Ok(format!("{real:?} {size} {written} {state} {header:016x}"))
        });
        lines.collect()
    }

    /// Bytes of all files together.
    pub fn bytes(&self) -> usize {
        self.shards.files.iter().map(|shard| shard.map.len()).sum()
    }

    /// Numbers in all tensors together, as model cards count them.
    pub fn num_parameters(&self) -> usize {
        self.shards.tensors.values().map(|(_, entry)| entry.shape.iter().product::<usize>()).sum()
    }

    /// Numbers in the tensors of each type, by the type's name in the file.
    pub fn tensor_types(&self) -> BTreeMap<&'static str, usize> {
        let mut types = BTreeMap::new();
        for (_, entry) in self.shards.tensors.values() {
            *types.entry(entry.dtype).or_default() += entry.shape.iter().product::<usize>();
        }
        types
    }

    /// The types of the tensors that are neither vectors nor integers, those of most numbers first.
    pub fn matrix_types(&self) -> Vec<&'static str> {
        let mut types = BTreeMap::<_, usize>::new();
        let is_number = |dtype: &str| !matches!(dtype, "I8" | "I16" | "I32" | "I64" | "U8" | "BOOL");
        let matrices = self.shards.tensors.values().filter(|(_, entry)| entry.shape.len() > 1);
        for (_, entry) in matrices.filter(|(_, entry)| is_number(entry.dtype)) {
            *types.entry(entry.dtype).or_default() += entry.shape.iter().product::<usize>();
        }
        let mut names: Vec<_> = types.keys().copied().collect();
        names.sort_by_key(|name| std::cmp::Reverse(types[name]));
        names
    }

    /// What is unusual but harmless, one line each, in the form of the errors.
    pub fn warnings(&self) -> &[String] {
        &self.shards.warnings
    }

    fn tensor_error(&self, name: &str, what: String) -> Error {
        Error::Tensor { path: self.shards.listing.clone(), name: name.to_owned(), what }
    }
}

/// The inode and the time of its last change, which no program sets: images of containers and reproducible builds give
/// files of one size one time of writing.
#[cfg(unix)]
fn state_of(metadata: &Metadata) -> String {
    use std::os::unix::fs::MetadataExt;
    format!("{} {}.{:09}", metadata.ino(), metadata.ctime(), metadata.ctime_nsec())
}

/// The time of creation, the most that the standard library tells elsewhere.
#[cfg(not(unix))]
fn state_of(metadata: &Metadata) -> String {
    let since = metadata.created().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    since.map_or(0, |since| since.as_nanos()).to_string()
}

/// Whether two shapes are the same but for dimensions of length one, which programs that write GGUF drop or add.
fn have_same_dimensions(one: &[usize], other: &[usize]) -> bool {
    let longer = |shape: &[usize]| shape.iter().copied().filter(|&length| length != 1).collect::<Vec<_>>();
    longer(one) == longer(other)
}
