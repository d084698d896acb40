//! The markers between the thought of a reply and its answer.

use super::call::call_engine;
use pyo3::prelude::*;
use ropechat_core::sampling::channels::{Marker, Markers};
use ropechat_platform::error::Error;
use std::sync::Arc;

/// What separates a thought from an answer.
#[pyclass(frozen, name = "Markers", module = "ropechat.engine._core")]
pub(super) struct PyMarkers(pub Arc<Markers>);

#[pymethods]
impl PyMarkers {
    /// start, end: ids, the first of which is a control token. texts: both as bytes, where they have no ids of their own; then
    /// token_bytes are the bytes of each id.
    #[new]
    #[pyo3(signature = (start, end, *, answer = vec![], close = vec![], texts = None, token_bytes = vec![]))]
    fn new(
        py: Python<'_>,
        start: Vec<u32>,
        end: Vec<u32>,
        answer: Vec<u32>,
        close: Vec<u32>,
        texts: Option<(Vec<u8>, Vec<u8>)>,
        token_bytes: Vec<Vec<u8>>,
    ) -> PyResult<Self> {
        call_engine(py, || {
            let (start, end, is_empty) = match texts {
                Some((start, end)) => (Marker::Text(start), Marker::Text(end.clone()), end.is_empty()),
                None => (Marker::Ids(start), Marker::Ids(end.clone()), end.is_empty()),
            };
            if is_empty {
                return Err(Error::Request("end: must have at least one id or byte".into()).into());
            }
            Ok(Self(Arc::new(Markers { start, end, answer, close, token_bytes })))
        })
    }

    /// The channel of each id of a whole reply. is_open: whether the prompt ends inside a thought.
    #[pyo3(signature = (ids, *, is_open = false))]
    fn label(&self, ids: Vec<u32>, is_open: bool) -> Vec<&'static str> {
        self.0.label(&ids, is_open).into_iter().map(|channel| channel.name()).collect()
    }
}
