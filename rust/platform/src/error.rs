//! What can go wrong. Every message names the file, the field, what it must be, what was found and what to do.

use std::path::PathBuf;

/// Shorthand used by the whole crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// One variant per class that a caller may treat differently; `python/` maps each to a class of `ropechat.errors`.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The model was not found.
    #[error("{path}: {what}", path = path.display())]
    NotFound {
        /// What was named.
        path: PathBuf,
        /// What was looked for.
        what: String,
    },
    /// The operating system refused: not found, no permission, a directory where a file was expected.
    #[error("{path}: {what}", path = path.display())]
    Io {
        /// File or directory.
        path: PathBuf,
        /// What happened and what to do.
        what: String,
    },
    /// A file is not what its format requires (truncated, overlapping tensors, bad JSON ...).
    #[error("{path}: {field}: {what}", path = path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// The field, tensor or byte offset.
        field: String,
        /// `must be X (got Y); <what to do>`.
        what: String,
    },
    /// A tensor is missing, has another shape or an unusable type.
    #[error("{path}: {name}: {what}", path = path.display())]
    Tensor {
        /// The file or directory.
        path: PathBuf,
        /// Hugging Face name of the tensor.
        name: String,
        /// `<what it is>; <what is expected>`.
        what: String,
    },
    /// config.json has a value that no model can have.
    #[error("{path}: {key}: {what}", path = path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
        /// `must be X (got Y); <what to do>`.
        what: String,
    },
    /// A model, key or value that is sound but that this engine does not compute.
    #[error("{path}: {key}: {what}", path = path.display())]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// The key (`model_type`, `rope_scaling.rope_type` ...).
        key: String,
        /// `must be X (got Y); <what to do>`.
        what: String,
    },
    /// A path inside a model points out of its folder, or is no regular file.
    #[error("{path}: {what}", path = path.display())]
    UnsafePath {
        /// The path.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// There is not enough memory for weights, KV cache or results.
    #[error("{what}")]
    Memory {
        /// Bytes asked for, and the flag that helps.
        what: String,
    },
    /// NaN or infinity in the logits.
    #[error("logits at position {position}: {what}")]
    NonFinite {
        /// Position in the sequence.
        position: usize,
        /// What was found, and what it usually means.
        what: String,
    },
    /// The caller asked for something impossible (an id outside the vocabulary, an unknown sequence ...).
    #[error("{0}")]
    Request(String),
    /// The sequence does not fit the context.
    #[error(
        "the context is full: {tokens} tokens are given, and {context} fit, new ones included; shorten the prompt or raise --context"
    )]
    ContextFull {
        /// Tokens wanted.
        tokens: usize,
        /// Tokens that fit.
        context: usize,
    },
    /// The cancel token was set. Every sequence is as it was before the call.
    #[error("cancelled")]
    Cancelled,
    /// A bug in ropechat.
    #[error("internal error: {0}; this is a bug in ropechat")]
    Internal(String),
}

/// Bytes with a unit and three digits, for messages.
pub fn size(bytes: u64) -> String {
    let (mut value, mut units) = (bytes as f64, ["bytes", "kB", "MB", "GB", "TB", "PB", "EB"].iter());
    let mut unit = units.next().unwrap_or(&"");
    for next in units {
        if value < 999.5 {
            break;
        }
        (value, unit) = (value / 1000.0, next);
    }
    let digits = match value {
        _ if *unit == "bytes" || value >= 99.95 => 0,
        _ if value >= 9.995 => 1,
        _ => 2,
    };
    format!("{value:.digits$} {unit}")
}

#[cfg(test)]
mod tests {
    use super::size;

    #[test]
    fn sizes_for_people() {
        for (bytes, text) in [
            (0, "0 bytes"),
            (999, "999 bytes"),
            (1000, "1.00 kB"),
            (142_953_984, "143 MB"),
            (9_996_000, "10.0 MB"),
            (1_313_000_000, "1.31 GB"),
            (u64::MAX, "18.4 EB"),
        ] {
            assert_eq!(size(bytes), text);
        }
    }
}
