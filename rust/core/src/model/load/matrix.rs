//! The panels of matrices: packed from the tensors or taken from a pack.

use super::CheckpointLoader;
use super::gather::{Gathered, gathered, transpose};
use super::types::{arrangement, rows_of};
use std::ops::Range;

use crate::checkpoint::quantized::Matrix;
use crate::config::Stored;
use crate::parts::{MatrixSpec, TensorRows};
use ropechat_kernels::compute::panels::{PanelShape, Source, pack};
use ropechat_kernels::compute::weight::{Storage, Weight};
use ropechat_kernels::kernel::LANES;
use ropechat_platform::error::Result;

impl CheckpointLoader<'_> {
    /// The weight of `spec`, from the pack if there is one.
    pub(super) fn pack(&self, spec: &MatrixSpec) -> Result<Weight> {
        let parts = self.types.tensors(spec)?;
        let storage = |(run, shape): (Range<usize>, PanelShape)| {
            let spec = MatrixSpec {
                weights: spec.weights[run.clone()].to_vec(),
                biases: Vec::new(),
                ..spec.clone()
            };
            Ok((shape, self.panels_of(&parts[run], &spec, shape)?))
        };
        let shapes = self.types.shapes(&parts, spec)?;
        let weight = Weight::stacked(shapes.into_iter().map(storage).collect::<Result<_>>()?);
        let weight =
            weight.with_rounding(parts.first().map_or_else(Default::default, |part| part.0.rounding()));
        if spec.biases.is_empty() {
            return Ok(weight);
        }
        let bias = |bias: &TensorRows| {
            let mut bias = self.rows([(bias, 1)])?;
            bias.iter_mut().for_each(|bias| *bias *= spec.bias_factor);
            Ok(bias)
        };
        let biases = spec.biases.iter().map(bias).collect::<Result<Vec<_>>>()?;
        Ok(weight.with_bias(&biases, arrangement(spec.join)))
    }

    /// The panels of a weight of one type.
    fn panels_of(
        &self,
        parts: &[(Matrix<'_>, Stored)],
        spec: &MatrixSpec,
        shape: PanelShape,
    ) -> Result<Storage> {
        let (dtype, rows) = (shape.dtype, rows_of(&spec.weights));
        // The values of a quantized matrix depend on the config too, which the pack's key does not know.
        let name = match parts.iter().any(|(matrix, _)| matches!(matrix, Matrix::Quantized(_))) {
            true => format!("{} {}", spec.name(), self.types.config.quantization.words()),
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
                    self.types.checkpoint.release_pages(name, piece);
                }
            };
            let join = arrangement(spec.join);
            let panels = pack(&sources, join, spec.in_features, dtype, self.pool, &done)?;
            // Gathered rows were taken from anywhere in the tensor.
            for part in &parts {
                part.each_tensor(|name, bytes| self.types.checkpoint.release_pages(name, bytes));
            }
            Ok(panels)
        })
    }
}
