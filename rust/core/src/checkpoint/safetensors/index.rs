//! `model.safetensors.index.json`: which shard holds which tensor.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::checkpoint::escape::escape_for_terminal;
use crate::checkpoint::folder::{Folder, check_file_name};
use crate::checkpoint::json::{self, describe};
use ropechat_platform::error::{Error, Result};

/// Name of the index file.
pub(crate) const INDEX: &str = "model.safetensors.index.json";
/// Longest index read. The largest published ones have about 10 MB.
const LONGEST: u64 = 32 << 20;

/// The index, with every shard name checked.
#[derive(Debug)]
pub(crate) struct Index {
    /// Tensor name to shard.
    pub weight_map: BTreeMap<String, String>,
    /// `metadata.total_size`: bytes of all tensors, when it is stated.
    pub total_size: Option<u64>,
}

impl Index {
    /// Errors: `Format` when it is not an index; `UnsafePath` when a shard is no plain `.safetensors` name.
    pub fn read(folder: &Folder) -> Result<Index> {
        let text = folder.read_text(INDEX, LONGEST)?;
        let format = |field: &str, what: String| Error::Format {
            path: folder.join(INDEX),
            field: field.to_owned(),
            what,
        };
        let root = json::parse(&text).map_err(|bad| {
            format(&bad.field, format!("{}; plain JSON is expected; download the file again", bad.what))
        })?;
        let expected = "an object of tensor names and shard names is expected; download the file again";
        let weight_map = match root.get("weight_map") {
            Some(Value::Object(entries)) => entries,
            Some(other) => return Err(format("weight_map", format!("{}; {expected}", describe(other)))),
            None => return Err(format("weight_map", format!("it is missing; {expected}"))),
        };
        let mut map = BTreeMap::new();
        for (tensor, shard) in weight_map.iter().collect::<BTreeMap<_, _>>() {
            let Value::String(shard) = shard else {
                let what =
                    format!("{}; the name of a shard is expected; download the file again", describe(shard));
                return Err(format(&format!("weight_map.{}", escape_for_terminal(tensor)), what));
            };
            check_shard_name(folder, tensor, shard)?;
            map.insert(tensor.clone(), shard.clone());
        }
        let total_size =
            root.get("metadata").and_then(|metadata| metadata.get("total_size")).and_then(Value::as_u64);
        Ok(Index { weight_map: map, total_size })
    }

    /// Every shard once, in order.
    pub fn shards(&self) -> BTreeSet<&str> {
        self.weight_map.values().map(String::as_str).collect()
    }
}

fn check_shard_name(folder: &Folder, tensor: &str, shard: &str) -> Result<()> {
    let fault = match check_file_name(shard) {
        Err(fault) => fault,
        Ok(()) if !shard.ends_with(".safetensors") => {
            "not a .safetensors file (a .bin is a pickle, which can run code)"
        }
        Ok(()) => return Ok(()),
    };
    Err(Error::UnsafePath {
        path: folder.join(INDEX),
        what: format!(
            "weight_map.{}: \"{}\" is {fault}; the plain name of a .safetensors file in the same folder is \
             allowed; do not use this model, or get it from its publisher",
            escape_for_terminal(tensor),
            escape_for_terminal(shard)
        ),
    })
}
