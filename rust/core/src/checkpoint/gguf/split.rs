//! Models in several files: `<name>-00001-of-0000N.gguf` has the metadata, and all of them have tensors.

use std::path::Path;

use super::metadata::{Metadata, Value};
use ropechat_platform::error::{Error, Result};

/// More files than any model has.
const MOST_FILES: u64 = 65_535;

/// What a file of a split model says about the split.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Split {
    /// `split.no`, from 0.
    pub number: u64,
    /// `split.count`.
    pub count: u64,
    /// `split.tensors.count`: tensors of all files together.
    pub tensors: Option<u64>,
}

impl Split {
    /// None for a model in one file. Errors: `Format` for numbers that no split has.
    pub fn read(path: &Path, metadata: Metadata<'_>) -> Result<Option<Split>> {
        let number = |key: &str, most: u64| match metadata.get(key) {
            None => Ok(None),
            Some(Value::Unsigned(number)) if number <= most => Ok(Some(number)),
            Some(Value::Signed(number)) if (0..=most as i64).contains(&number) => Ok(Some(number as u64)),
            Some(other) => Err(Error::Format {
                path: path.to_owned(),
                field: key.to_owned(),
                what: format!("must be a whole number up to {most} (got {other}); download the file again"),
            }),
        };
        let count = number("split.count", MOST_FILES)?.unwrap_or(0);
        let index = number("split.no", MOST_FILES)?.unwrap_or(0);
        let tensors = number("split.tensors.count", i64::MAX as u64)?;
        Ok((count > 1).then_some(Split { number: index, count, tensors }))
    }
}

/// The names of a split's files, all in the first one's folder.
///
/// Errors: `NotFound` when the name does not follow the pattern or is not the first file's.
pub(crate) fn siblings(path: &Path, name: &str, split: Split) -> Result<Vec<String>> {
    let not_found = |what: String| Error::NotFound { path: path.to_owned(), what };
    let place = |number: u64| format!("-{number:05}-of-{:05}.gguf", split.count);
    let Some(stem) = name.strip_suffix(&place(split.number + 1)) else {
        return Err(not_found(format!(
            "the model is split into {} files, and this one is not called as its part {} is: the name has to end in \
             {}; give the files their names back",
            split.count,
            split.number + 1,
            place(split.number + 1)
        )));
    };
    if split.number != 0 {
        return Err(not_found(format!(
            "this is part {} of {}, and the first has the metadata; open {stem}{}",
            split.number + 1,
            split.count,
            place(1)
        )));
    }
    Ok((1..=split.count).map(|number| format!("{stem}{}", place(number))).collect())
}
