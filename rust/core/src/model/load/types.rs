//! The types of matrices, and the shapes of their panels.

use std::ops::Range;

use crate::checkpoint::quantized::{Matrix, MatrixShape};
use crate::checkpoint::{Checkpoint, escape_for_terminal};
use crate::config::{Config, Stored};
use crate::family;
use crate::parts::{Join, MatrixSpec, Packing, TensorRows};
use ropechat_kernels::compute::activations::share_activations;
use ropechat_kernels::compute::panels::{Arrangement, PanelShape};
use ropechat_kernels::compute::weight::{Storage, Weight};
use ropechat_kernels::quant::{PackedType, SUPER_BLOCK, StorageType};
use ropechat_platform::error::{Error, Result};
use ropechat_platform::memory::Buffer;
use std::sync::Arc;

/// What the types of a model's matrices follow from.
#[derive(Clone, Copy)]
pub(crate) struct MatrixTypes<'a> {
    pub checkpoint: &'a Checkpoint,
    pub config: &'a Config,
    /// What is asked for; None: each as it is stored.
    pub dtype: Option<PackedType>,
}

impl<'a> MatrixTypes<'a> {
    /// The weight of `spec` without panels: its types and sizes.
    pub fn measure(&self, spec: &MatrixSpec) -> Result<Weight> {
        let shapes = self.shapes(&self.tensors(spec)?, spec)?;
        let empty = Arc::new(Buffer::zeroed(0, "a weight that is measured")?);
        let storage = |(_, shape)| (shape, Storage::Memory(Arc::clone(&empty)));
        Ok(Weight::stacked(shapes.into_iter().map(storage).collect()))
    }

    /// The tensors of a matrix's entries.
    pub fn tensors(&self, spec: &MatrixSpec) -> Result<Vec<(Matrix<'a>, Stored)>> {
        if let Packing::TokenEmbedding = spec.packing {
            return Ok(vec![self.embedding(spec)?]);
        }
        let take = |source: &TensorRows| {
            let (names, shape) = ([source.name.as_str()], source.matrix_shape());
            Ok((self.checkpoint.matrix(&names, shape, &self.config.quantization)?, source.stored))
        };
        let parts: Vec<(Matrix<'a>, Stored)> = spec.weights.iter().map(take).collect::<Result<_>>()?;
        let roundings = || parts.iter().map(|(matrix, _)| matrix.rounding());
        if roundings().all(|rounding| Some(rounding) == roundings().next()) {
            return Ok(parts);
        }
        Err(Error::Unsupported {
            path: self.checkpoint.path().to_owned(),
            key: escape_for_terminal(&spec.weights[0].name),
            what: "some of these matrices that read the same rows are ternary and some are not \
                   (modules_to_not_convert of bitnet): all or none must be; use another copy of the model"
                .to_owned(),
        })
    }

    /// The embedding, under whichever of its names it is stored (safetensors drops one of two shared tensors).
    fn embedding(&self, spec: &MatrixSpec) -> Result<(Matrix<'a>, Stored)> {
        let names = family::embedding_names(self.config);
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let tensor = &spec.weights[0];
        let scheme = &self.config.quantization;
        let shape = [self.config.vocab_size, spec.in_features];
        let matrix = match self.checkpoint.contains(names[0]) {
            true => self.checkpoint.matrix(&names[..1], tensor.matrix_shape(), scheme)?,
            // Under the name of lm_head it is [vocab_size, hidden_size].
            false => {
                let shape = MatrixShape { stored: &shape, columns: spec.in_features, in_out: false };
                self.checkpoint.matrix(&names, shape, scheme)?
            }
        };
        let is_usual = matches!(&matrix, Matrix::Plain(view) if view.name == tensor.name);
        Ok((matrix, if is_usual { tensor.stored } else { Stored::OutIn }))
    }

    /// The type that a matrix is asked for in.
    fn asked(&self, spec: &MatrixSpec) -> Result<Option<PackedType>> {
        Ok(match &spec.packing {
            Packing::AsAsked | Packing::Shared => self.dtype,
            Packing::Exact => Some(PackedType::F32),
            // The embedding and lm_head lose too much quality in few bits: they get a finer type, as in llama.cpp.
            Packing::Finer | Packing::TokenEmbedding => self.dtype.map(|dtype| match dtype {
                PackedType::Q4_0 | PackedType::Q4_1 | PackedType::Q4K => PackedType::Q8_0,
                PackedType::Q5_1 | PackedType::Q5K | PackedType::Q3K | PackedType::Q2K => PackedType::Q6K,
                dtype => dtype,
            }),
            Packing::Like(other) => Some(self.measure(other)?.dtype()),
        })
    }

    /// The shapes of the panels of `spec`, whose entries are in the tensors `parts`, each with the entries that are in it. Stacked
    /// tensors that are stored as different types keep them, where a weight can have such parts.
    pub fn shapes(
        &self,
        parts: &[(Matrix<'a>, Stored)],
        spec: &MatrixSpec,
    ) -> Result<Vec<(Range<usize>, PanelShape)>> {
        let asked = self.asked(spec)?;
        let type_of = |(part, source): (&(Matrix<'a>, Stored), &TensorRows)| {
            let kept = self.packed_type(asked, std::slice::from_ref(part));
            // The blocks of a transpose are not those of the file.
            if asked.is_none() && source.transposed.is_some() { at_least_bytes(kept) } else { kept }
        };
        let mut types: Vec<PackedType> = parts.iter().zip(&spec.weights).map(type_of).collect();
        round_few(&mut types, &rows_of(&spec.weights));
        let (mut runs, mut start) = (Vec::new(), 0);
        for run in types.chunk_by(|a, b| a == b) {
            let run = start..start + run.len();
            start = run.end;
            let rows = rows_of(&spec.weights[run.clone()]);
            let shape = PanelShape::new(&rows, Arrangement::Stacked, spec.in_features, types[run.start]);
            runs.push((run, shape));
        }
        let apart = spec.join == Join::Stacked && Weight::can_stack(runs.iter().map(|(_, shape)| *shape));
        if apart {
            return Ok(runs);
        }
        let dtype = self.packed_type(asked, parts);
        let rows = rows_of(&spec.weights);
        let shape = PanelShape::new(&rows, arrangement(spec.join), spec.in_features, dtype);
        Ok(vec![(0..parts.len(), shape)])
    }

    /// The type of a matrix: what is asked, else that of the tensors.
    fn packed_type(&self, asked: Option<PackedType>, parts: &[(Matrix<'a>, Stored)]) -> PackedType {
        if let Some(dtype) = asked {
            return dtype;
        }
        let kinds: Vec<StorageType> = parts.iter().map(|(matrix, _)| matrix.tensor_type()).collect();
        for (matrix, _) in parts {
            // The type of a quantized matrix follows from its scales, which were read for that.
            if let Matrix::Quantized(quantized) = matrix {
                quantized.parts().for_each(|(name, bytes)| self.checkpoint.release_pages(name, bytes));
            }
        }
        packed_together(&kinds)
    }
}

pub(super) fn rows_of(sources: &[TensorRows]) -> Vec<usize> {
    sources.iter().map(|source| source.rows.count()).collect()
}

/// Makes bytes of a few plain rows beside blocks, which would else make plain numbers of all: the steps of a recurrent mixer.
fn round_few(types: &mut [PackedType], rows: &[usize]) {
    const FEW: usize = 16; // one in so many rows
    let is_blocks = |dtype: PackedType| share_activations(dtype, PackedType::Q8_0);
    let all: usize = rows.iter().sum();
    if types.iter().any(|&dtype| is_blocks(dtype)) {
        for (dtype, _) in
            types.iter_mut().zip(rows).filter(|(dtype, rows)| !is_blocks(**dtype) && **rows * FEW <= all)
        {
            *dtype = PackedType::Q8_0;
        }
    }
}

/// The type of a matrix out of several tensors: that of the finest one, but at least a byte per value when others would
/// be rounded again.
fn packed_together(kinds: &[StorageType]) -> PackedType {
    let finest = kinds.iter().map(|kind| kind.packed()).max_by_key(bits).unwrap_or(PackedType::F32);
    if kinds.iter().all(|kind| kind.is_kept_in(finest)) { finest } else { at_least_bytes(finest) }
}

/// The finer one of a type and bytes: what rounds blocks again without much loss.
fn at_least_bytes(dtype: PackedType) -> PackedType {
    if bits(&dtype) < bits(&PackedType::Q8_0) { PackedType::Q8_0 } else { dtype }
}

/// How fine a type is.
fn bits(dtype: &PackedType) -> usize {
    dtype.panel_bytes(dtype.steps(SUPER_BLOCK))
}

pub(super) fn arrangement(join: Join) -> Arrangement {
    match join {
        Join::Stacked => Arrangement::Stacked,
        Join::Interleaved => Arrangement::Interleaved,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_together_keeps_its_integers_or_becomes_bytes() {
        use StorageType::{F16, F32, Q4_0, Q4_1, Q4_K, Q5_K, Q6_K, Q8_0};
        for (types, dtype) in [
            (vec![Q6_K, Q6_K, Q6_K], PackedType::Q6K),
            (vec![Q4_K, Q4_1], PackedType::Q8_0),
            (vec![Q4_K, Q4_K, Q5_K], PackedType::Q5K),
            (vec![Q4_K, Q4_K, Q6_K], PackedType::Q8_0),
            (vec![Q5_K, Q6_K], PackedType::Q8_0),
            (vec![Q4_0, Q4_1], PackedType::Q4_1),
            (vec![Q4_0, Q5_K], PackedType::Q8_0),
            (vec![Q8_0, Q6_K], PackedType::Q8_0),
            (vec![F16, Q6_K], PackedType::F16),
            (vec![F16, F32], PackedType::F32),
        ] {
            assert_eq!(packed_together(&types), dtype, "{types:?}");
        }
    }

    #[test]
    fn a_few_plain_rows_beside_blocks_become_bytes() {
        use PackedType::{BF16, F32, Q4K, Q5K, Q8_0};
        for (mut types, rows, expected) in [
            ([Q5K, Q4K, F32], [6144, 2048, 16], [Q5K, Q4K, Q8_0]),
            ([Q4K, Q4K, BF16], [64, 64, 16], [Q4K, Q4K, BF16]),
            ([BF16, BF16, F32], [6144, 2048, 16], [BF16, BF16, F32]),
        ] {
            round_few(&mut types, &rows);
            assert_eq!(types, expected);
        }
    }
}
