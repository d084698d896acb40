//! The tensors that a quantized matrix consists of, found and checked.

use std::path::Path;

use crate::checkpoint::escape::escape_for_terminal;
use crate::checkpoint::shards::{Shard, Shards};
use crate::checkpoint::tensor::Entry;
use ropechat_platform::error::{Error, Result};

/// Types of scales.
pub(super) const FLOATS: &[&str] = &["F32", "F16", "BF16", "F8_E8M0"];

/// One tensor of a file as stored, of any type.
#[derive(Debug, Clone, Copy)]
pub(super) struct Part<'a> {
    pub name: &'a str,
    pub dtype: &'static str,
    pub shape: &'a [usize],
    pub bytes: &'a [u8],
    pub path: &'a Path,
}

impl Part<'_> {
    /// What is wrong with its contents.
    pub fn fault(&self, what: &str) -> Error {
        Error::Tensor {
            path: self.path.to_owned(),
            name: escape_for_terminal(self.name),
            what: format!("{what}; download the model again"),
        }
    }
}

/// A tensor of any type.
pub(super) fn part<'a>(shards: &'a Shards, name: &str) -> Option<Part<'a>> {
    let (name, (shard, entry)) = shards.tensors.get_key_value(name)?;
    let (Shard { path, map }, Entry { dtype, shape, .. }) = (&shards.files[*shard], entry);
    Some(Part { name, dtype, shape, bytes: &map[entry.begin..entry.end], path })
}

/// The parts of one matrix; remembers those that were found.
pub(super) struct Parts<'a, 's> {
    pub shards: &'a Shards,
    /// The scheme in words, for messages.
    pub scheme: &'s str,
    /// The part that says that the matrix is quantized, for messages.
    pub first: Option<Part<'a>>,
    pub found: Vec<Part<'a>>,
}

impl<'a> Parts<'a, '_> {
    /// Whether there is a tensor of that name.
    pub fn has(&self, name: &str) -> bool {
        self.shards.tensors.contains_key(name)
    }

    /// A part of any type and shape, if it is there.
    pub fn any(&mut self, name: &str) -> Option<Part<'a>> {
        let part = part(self.shards, name)?;
        self.first.get_or_insert(part);
        self.found.push(part);
        Some(part)
    }

    /// A part that must be there, of one of `types`, in one of `shapes`.
    ///
    /// Errors: `Tensor` that names it.
    pub fn require(&mut self, name: &str, types: &[&str], shapes: &[&[usize]]) -> Result<Part<'a>> {
        let Some(part) = self.any(name) else {
            let first = self.first.as_ref();
            let path = first.map_or(self.shards.listing.as_path(), |first| first.path).to_owned();
            let belongs = first.map_or_else(String::new, |first| {
                format!("; {} needs it ({})", escape_for_terminal(first.name), self.scheme)
            });
            let what = format!("the tensor is not in the file{belongs}; download the model again");
            return Err(Error::Tensor { path, name: escape_for_terminal(name), what });
        };
        let fault =
            |what: String| Error::Tensor { path: part.path.to_owned(), name: part.name.to_owned(), what };
        if !shapes.contains(&part.shape) {
            let shapes: Vec<String> = shapes.iter().map(|shape| format!("{shape:?}")).collect();
            let what = format!(
                "its shape is {:?}; {} is expected ({}); check that config.json and the weights belong together",
                part.shape,
                shapes.join(" or "),
                self.scheme
            );
            return Err(fault(what));
        }
        if !types.contains(&part.dtype) {
            let what = format!(
                "it is stored as {}; {} is expected ({}); download the model again",
                part.dtype,
                types.join(" or "),
                self.scheme
            );
            return Err(fault(what));
        }
        Ok(part)
    }
}
