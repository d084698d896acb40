//! What to tell the user about weights that cannot be read.

use std::path::Path;

use super::escape::escape_for_terminal;
use super::folder::Folder;
use ropechat_kernels::quant::StorageType;
use ropechat_platform::error::Error;

/// What to do with a pickle. Nothing in this program reads one: reading a pickle runs the code in it.
pub(super) const PICKLE: &str = "this is a pickle (or a zip of one), which can run code when it is read; only safetensors \
     is read; convert it on a machine that you trust: safetensors.torch.save_file(torch.load(FILE, weights_only=True), \
     'model.safetensors')";

/// Types of weights that the engine reads, for messages.
fn readable() -> String {
    StorageType::ALL.map(StorageType::name).join(", ")
}

/// A tensor of a type that the engine does not read: other floats are unsupported, integers mean a damaged file.
pub(super) fn unusable_type(path: &Path, name: &str, dtype: &str) -> Error {
    let (path, name) = (path.to_owned(), name.to_owned());
    let is_integer =
        dtype == "BOOL" || dtype.strip_prefix(['I', 'U']).is_some_and(|bits| bits.parse::<u32>().is_ok());
    if is_integer {
        let what = format!("it is stored as {dtype}; F32, F16 or BF16 is expected; download the model again");
        return Error::Tensor { path, name, what };
    }
    let what = format!("its type must be one of {} (got {dtype}); use a copy in one of these", readable());
    Error::Unsupported { path, key: name, what }
}

/// Norms and biases are not stored in blocks.
pub(super) fn unusable_vector(path: &Path, name: &str, dtype: &str) -> Error {
    let what = format!(
        "it is stored as {dtype}; F32, F16 or BF16 is expected of a vector; use another copy of the model"
    );
    Error::Tensor { path: path.to_owned(), name: name.to_owned(), what }
}

/// Whether a file of this name is a pickle.
pub(super) fn is_pickle(name: &str) -> bool {
    [".bin", ".pt", ".pth", ".ckpt", ".pkl"].iter().any(|end| name.ends_with(end))
}

/// A folder without readable weights: for a pickle the message says how to convert it, else what is expected.
pub(super) fn no_weights(folder: &Folder) -> Error {
    if let Some(name) = folder.names_like(is_pickle).first() {
        let what = format!("{PICKLE}; look for a safetensors version of the model first");
        return Error::Unsupported { path: folder.path().to_owned(), key: escape_for_terminal(name), what };
    }
    let others: Vec<String> =
        folder.names_like(|name| name.ends_with(".safetensors") || name.ends_with(".gguf"));
    let found =
        if others.is_empty() { "no weights".to_owned() } else { escape_for_terminal(&others.join(", ")) };
    let advice = match others.iter().any(|name| name.ends_with(".gguf")) {
        true => "name the .gguf file itself",
        false => "download the model again",
    };
    Error::NotFound {
        path: folder.path().to_owned(),
        what: format!(
            "the folder holds {found}; model.safetensors, or model.safetensors.index.json with its shards, is expected; {advice}"
        ),
    }
}
