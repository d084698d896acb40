//! The types of matrices, and their panels: packed from the tensors or taken from a pack.

use super::Loader;
use super::gather::{Gathered, gathered, transpose};
use std::ops::Range;

use crate::checkpoint::quantized::{Matrix, MatrixShape};
use crate::config::{Mixer, Stored};
use crate::family::{self, Join, MatrixSpec, TensorRows};
use ropechat_kernels::compute::activations::share_activations;
use ropechat_kernels::compute::panels::{Arrangement, PanelShape, Source, pack};
use ropechat_kernels::compute::weight::{Storage, Weight};
use ropechat_kernels::kernel::LANES;
use ropechat_kernels::quant::{PackedType, SUPER_BLOCK, StorageType};
use ropechat_platform::error::Result;

impl<'a> Loader<'a> {
    /// A matrix of the layer, or of the block that it shares.
    pub(super) fn matrix_of_layer(&self, layer: usize, spec: &MatrixSpec) -> Result<Weight> {
        match self.config.layers[layer].mixer {
            Mixer::AfterShared { .. } => self.shared_matrix(spec),
            _ => self.matrix(spec),
        }
    }

    /// A matrix that several layers have.
    pub(super) fn shared_matrix(&self, spec: &MatrixSpec) -> Result<Weight> {
        let name = spec.name();
        if let Some(weight) = self.shared.borrow().get(&name) {
            return Ok(weight.clone());
        }
        let weight = self.matrix(spec)?;
        self.shared.borrow_mut().insert(name, weight.clone());
        Ok(weight)
    }

    /// The embedding, under whichever of its names it is stored (safetensors drops one of two shared tensors).
    pub fn embedding(&self, spec: &MatrixSpec) -> Result<Weight> {
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
        let stored = if is_usual { tensor.stored } else { Stored::OutIn };
        self.pack(&[(matrix, stored)], spec)
    }

    /// The loader of the embedding and lm_head, which lose too much quality in few bits: they get a finer type, as in
    /// llama.cpp.
    pub fn for_embedding(&self) -> Self {
        Self {
            dtype: self.dtype.map(|dtype| match dtype {
                PackedType::Q4_0 | PackedType::Q4_1 | PackedType::Q4K => PackedType::Q8_0,
                PackedType::Q5_1 | PackedType::Q5K => PackedType::Q6K,
                dtype => dtype,
            }),
            ..*self
        }
    }

    pub fn matrix(&self, spec: &MatrixSpec) -> Result<Weight> {
        self.matrix_with_bias(spec, 1.0)
    }

    /// The same with its biases times `factor`.
    pub(super) fn matrix_with_bias(&self, spec: &MatrixSpec, factor: f32) -> Result<Weight> {
        let take = |source: &TensorRows| {
            let (names, shape) = ([source.name.as_str()], source.matrix_shape());
            let matrix = self.checkpoint.matrix(&names, shape, &self.config.quantization)?;
            Ok((matrix, source.stored))
        };
        let parts = spec.weights.iter().map(take).collect::<Result<Vec<_>>>()?;
        let weight = self.pack(&parts, spec)?;
        if spec.biases.is_empty() {
            return Ok(weight);
        }
        let bias = |bias: &TensorRows| {
            let mut bias = self.rows(std::slice::from_ref(bias), 1)?;
            bias.iter_mut().for_each(|bias| *bias *= factor);
            Ok(bias)
        };
        let biases = spec.biases.iter().map(bias).collect::<Result<Vec<_>>>()?;
        Ok(weight.with_bias(&biases, arrangement(spec.join)))
    }

    /// The weight of `spec` out of `parts`, the tensors of its entries; from the pack if there is one. Stacked tensors that are
    /// stored as different types keep them, where a weight can have such parts.
    pub(super) fn pack(&self, parts: &[(Matrix<'a>, Stored)], spec: &MatrixSpec) -> Result<Weight> {
        let type_of = |(part, source): (&(Matrix<'a>, Stored), &TensorRows)| {
            let kept = self.packed_type(std::slice::from_ref(part));
            // The blocks of a transpose are not those of the file.
            if self.dtype.is_none() && source.transposed.is_some() { at_least_bytes(kept) } else { kept }
        };
        let mut types: Vec<PackedType> = parts.iter().zip(&spec.weights).map(type_of).collect();
        round_few(&mut types, &rows_of(&spec.weights));
        let (mut runs, mut start) = (Vec::new(), 0);
        for run in types.chunk_by(|a, b| a == b) {
            let run = start..start + run.len();
            start = run.end;
            let rows = rows_of(&spec.weights[run.clone()]);
            runs.push((
                run.clone(),
                PanelShape::new(&rows, Arrangement::Stacked, spec.in_features, types[run.start]),
            ));
        }
        let apart = spec.join == Join::Stacked && Weight::can_stack(runs.iter().map(|(_, shape)| *shape));
        if !apart {
            let shape = PanelShape::new(
                &rows_of(&spec.weights),
                arrangement(spec.join),
                spec.in_features,
                self.packed_type(parts),
            );
            runs = vec![(0..parts.len(), shape)];
        }
        let storage = |(run, shape): (Range<usize>, PanelShape)| {
            let spec =
                MatrixSpec { weights: spec.weights[run.clone()].to_vec(), biases: Vec::new(), ..*spec };
            Ok((shape, self.panels_of(&parts[run], &spec, shape)?))
        };
        Ok(Weight::stacked(runs.into_iter().map(storage).collect::<Result<_>>()?))
    }

    /// The panels of a weight of one type.
    pub(super) fn panels_of(
        &self,
        parts: &[(Matrix<'a>, Stored)],
        spec: &MatrixSpec,
        shape: PanelShape,
    ) -> Result<Storage> {
        let (dtype, rows) = (shape.dtype, rows_of(&spec.weights));
        // The values of a quantized matrix depend on the config too, which the pack's key does not know.
        let name = match parts.iter().any(|(matrix, _)| matches!(matrix, Matrix::Quantized(_))) {
            true => format!("{} {}", spec.name(), self.config.quantization.words()),
            false => spec.name(),
        };
        self.panels.storage(&name, shape, || {
            let parts = parts.iter().zip(&spec.weights);
            let parts: Vec<Gathered<'_, '_>> = parts
                .map(|((matrix, stored), source)| match matrix {
                    _ if source.transposed.is_some() => {
                        Gathered::Transposed { matrix, bytes: transpose(matrix, source) }
                    }
                    Matrix::Plain(view) if *stored == Stored::OutIn && source.rows.as_range().is_none() => {
                        Gathered::Chosen { view: *view, order: source.rows.iter().collect() }
                    }
                    Matrix::Plain(view) => {
                        Gathered::Stored(gathered(*view, *stored, source.rows, spec.in_features))
                    }
                    Matrix::Quantized(quantized) => Gathered::computed(quantized, source.rows, dtype),
                })
                .collect();
            let sources: Vec<Source<'_>> =
                parts.iter().zip(&rows).map(|(part, &out_features)| part.source(out_features)).collect();
            // Mapped pages are released as soon as they are packed: loading takes little more memory than the result.
            let row_bytes = shape.panel_bytes() / LANES;
            let done = |source: usize, rows: Range<usize>| {
                self.panels.count(rows.len() * row_bytes);
                if let Some((name, piece)) = parts[source].piece(rows, spec.in_features) {
                    self.checkpoint.release_pages(name, piece);
                }
            };
            let join = arrangement(spec.join);
            let panels = pack(&sources, join, spec.in_features, dtype, self.pool, &done)?;
            // Gathered rows were taken from anywhere in the tensor.
            for part in &parts {
                part.each_tensor(|name, bytes| self.checkpoint.release_pages(name, bytes));
            }
            Ok(panels)
        })
    }

    /// The type of a matrix: what is asked, else that of the tensors.
    pub(super) fn packed_type(&self, parts: &[(Matrix<'a>, Stored)]) -> PackedType {
        if let Some(dtype) = self.dtype {
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

fn rows_of(sources: &[TensorRows]) -> Vec<usize> {
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

fn arrangement(join: Join) -> Arrangement {
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
