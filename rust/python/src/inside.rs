//! What a look inside the model found, as Python values and arrays.

use super::events::PyRow;
use numpy::{Element, PyArray, PyArray1, PyArrayMethods};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use ropechat_core::engine::inside::{AttentionByDistance, Captured, LensRow, Reading};
use ropechat_platform::sync::Mutex;
use std::sync::PoisonError;

/// A text that is read chunk by chunk.
#[pyclass(frozen, name = "Reading", module = "ropechat.engine._core")]
pub(super) struct PyReading(Mutex<Reading>);

impl PyReading {
    pub fn new(reading: Reading) -> Self {
        Self(Mutex::new(reading))
    }

    pub fn with<T>(&self, work: impl FnOnce(&mut Reading) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// What one layer would predict, were it the last one.
#[pyclass(frozen, get_all, name = "LensRow", module = "ropechat.engine._core")]
pub(super) struct PyLensRow {
    position: usize,
    layer: usize,
    logprob: Option<f64>,
    rank: Option<usize>,
    row: Py<PyRow>,
    looked_up: Vec<(f64, usize)>,
}

impl PyLensRow {
    pub fn new(py: Python<'_>, found: LensRow) -> PyResult<Self> {
        let LensRow { position, layer, token, row, looked_up } = found;
        let (logprob, rank) = token.unzip();
        Ok(Self { position, layer, logprob, rank, row: Py::new(py, PyRow(row))?, looked_up })
    }
}

/// The arrays of a capture by name; those that were not asked for are not there.
pub(super) fn captured(
    py: Python<'_>,
    found: Captured,
    tokens: usize,
    head_dim: usize,
) -> PyResult<Bound<'_, PyDict>> {
    let Captured { layers, heads, rows, q_pre, k_pre, scores, weights } = found;
    let (of_layers, of_heads, of_rows) = (layers.len(), heads.len(), rows.len());
    let arrays = PyDict::new(py);
    arrays.set_item("layers", layers)?;
    arrays.set_item("heads", heads)?;
    arrays.set_item("rows", rows)?;
    let add = |name: &str, values: Vec<f32>, shape: [usize; 4]| match values.is_empty() {
        true => Ok(()),
        false => arrays.set_item(name, array(py, values, shape)?),
    };
    add("q_pre", q_pre, [of_layers, of_heads, tokens, head_dim])?;
    add("k_pre", k_pre, [of_layers, of_heads, tokens, head_dim])?;
    add("attn_logit", scores, [of_layers, of_heads, of_rows, tokens])?;
    add("attn_row", weights, [of_layers, of_heads, of_rows, tokens])?;
    Ok(arrays)
}

/// Means by layer and head.
pub(super) fn by_distance(
    py: Python<'_>,
    found: AttentionByDistance,
    heads: usize,
) -> PyResult<Bound<'_, PyDict>> {
    let AttentionByDistance { layers, mean, first, previous, distance, sink } = found;
    let arrays = PyDict::new(py);
    let of_heads = [layers.len(), heads];
    let distances = mean.len() / (layers.len() * heads);
    arrays.set_item("mean", array(py, mean, [layers.len(), heads, distances])?)?;
    arrays.set_item("sink", array(py, first, of_heads)?)?;
    arrays.set_item("previous", array(py, previous, of_heads)?)?;
    arrays.set_item("distance", array(py, distance, of_heads)?)?;
    arrays.set_item("learned_sink", array(py, sink, of_heads)?)?;
    arrays.set_item("layers", layers)?;
    Ok(arrays)
}

fn array<T: Element, const N: usize>(
    py: Python<'_>,
    values: Vec<T>,
    shape: [usize; N],
) -> PyResult<Bound<'_, PyArray<T, numpy::ndarray::Dim<[usize; N]>>>>
where
    numpy::ndarray::Dim<[usize; N]>: numpy::ndarray::Dimension,
    [usize; N]: numpy::ndarray::IntoDimension<Dim = numpy::ndarray::Dim<[usize; N]>>,
{
    PyArray1::from_vec(py, values).reshape(shape)
}
