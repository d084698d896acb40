//! From a checkpoint's tensors to packed weights, leaf by leaf.

mod gather;
mod matrix;
mod types;

pub(super) use types::MatrixTypes;

use gather::gathered;

use crate::config::NormWeight;
use crate::model::pack::PanelSource;
use crate::parts::{
    IntegerSpec, Loader, MatrixSpec, NormGate, NormSpec, NormWeights, NumberSpec, Packing, TensorRows,
};
use ropechat_kernels::compute::pool::Pool;
use ropechat_kernels::compute::weight::Weight;
use ropechat_platform::error::{Error, Result};
use std::cell::RefCell;
use std::collections::BTreeMap;

/// Loads the leaves of a model from its checkpoint.
pub(super) struct CheckpointLoader<'a> {
    /// The types of its matrices.
    pub types: MatrixTypes<'a>,
    pub panels: &'a PanelSource,
    pub pool: &'a Pool,
    /// Weights of blocks that layers share, by the names of their specs.
    pub shared: RefCell<BTreeMap<String, Weight>>,
}

impl Loader for CheckpointLoader<'_> {
    fn matrix(&self, spec: &MatrixSpec) -> Result<Weight> {
        if !matches!(spec.packing, Packing::Shared) {
            return self.pack(spec);
        }
        let name = spec.name();
        if let Some(weight) = self.shared.borrow().get(&name) {
            return Ok(weight.clone());
        }
        let weight = self.pack(spec)?;
        self.shared.borrow_mut().insert(name, weight.clone());
        Ok(weight)
    }

    fn norm(&self, spec: &NormSpec) -> Result<NormWeights> {
        let values = |sources: &[TensorRows], absent: f32| match sources {
            [] => Ok(vec![absent; spec.width]),
            sources => self.rows(sources.iter().map(|source| (source, 1))),
        };
        let (mut weight, bias) = (values(&spec.weight, 1.0)?, values(&spec.bias, 0.0)?);
        let is_stored = !spec.is_plain && !spec.weight.is_empty();
        if is_stored && self.types.config.norm_weight == NormWeight::MinusOne {
            weight.iter_mut().for_each(|weight| *weight += 1.0);
        }
        let weight = spec.prepare.iter().fold(weight, |weight, prepare| prepare(weight));
        let gate = match &spec.gate[..] {
            [down, up] => {
                let table = |source: &TensorRows| self.rows([(source, source.shape[1])]);
                Some(Box::new(NormGate { down: table(down)?, up: table(up)? }))
            }
            _ => None,
        };
        Ok(NormWeights { weight, bias, gate })
    }

    fn numbers(&self, spec: &NumberSpec) -> Result<Vec<f32>> {
        let stored = self.rows(spec.rows.iter().map(|(source, width)| (source, *width)))?;
        Ok(spec.prepare.iter().fold(stored, |values, prepare| prepare(values)))
    }

    fn integers(&self, IntegerSpec { table, below }: &IntegerSpec) -> Result<Vec<u32>> {
        let checkpoint = self.types.checkpoint;
        let (name, values) = checkpoint.require_integers(&table.name, &table.shape)?;
        let valid = |&value: &i64| u32::try_from(value).ok().filter(|&index| (index as usize) < *below);
        let all: Option<Vec<u32>> = values.iter().map(valid).collect();
        all.ok_or_else(|| Error::Tensor {
            path: checkpoint.path().to_owned(),
            name: name.to_owned(),
            what: format!(
                "its entries must be experts from 0 to {} (got {}); download the model again",
                below - 1,
                values.iter().find(|value| valid(value).is_none()).copied().unwrap_or(-1)
            ),
        })
    }
}

impl CheckpointLoader<'_> {
    /// Rows of some tensors, each with its values per row, as numbers one after another.
    fn rows<'s>(&self, sources: impl IntoIterator<Item = (&'s TensorRows, usize)>) -> Result<Vec<f32>> {
        let mut all = Vec::new();
        for (source, width) in sources {
            let first = all.len();
            all.resize(first + source.rows.count() * width, 0.0);
            if source.is_zeros() {
                continue;
            }
            let checkpoint = self.types.checkpoint;
            let view = checkpoint.require(&source.name, &source.shape)?;
            let kind = view.tensor_type;
            if !width.is_multiple_of(kind.block_values()) {
                let what = format!("it is stored as {}; F32, F16 or BF16 is expected here", kind.name());
                return Err(Error::Tensor { path: view.path.to_owned(), name: view.name.to_owned(), what });
            }
            kind.dequantize(&gathered(view, source.stored, source.rows, width).bytes, &mut all[first..]);
            checkpoint.release_pages(view.name, view.bytes);
        }
        Ok(all)
    }
}
