//! GGUF metadata as Python values.

use std::path::Path;

use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString};

use super::door;
use crate::checkpoint::gguf::{Header, Value};

/// All metadata of a `.gguf` file, by key. The weights are not looked at.
#[pyfunction]
pub(super) fn gguf_metadata<'py>(py: Python<'py>, path: &str) -> PyResult<Bound<'py, PyDict>> {
    let header = door(py, || Header::open(Path::new(path)))?;
    let metadata = PyDict::new(py);
    for (key, value) in header.metadata().iter() {
        metadata.set_item(key, python(py, value)?)?;
    }
    Ok(metadata)
}

/// A text that is not UTF-8 stays bytes: the caller knows what it means that it is none.
fn python<'py>(py: Python<'py>, value: Value<'_>) -> PyResult<Bound<'py, PyAny>> {
    match value {
        Value::Unsigned(number) => number.into_bound_py_any(py),
        Value::Signed(number) => number.into_bound_py_any(py),
        Value::Float(number) => number.into_bound_py_any(py),
        Value::Bool(flag) => flag.into_bound_py_any(py),
        Value::Text(bytes) => Ok(match std::str::from_utf8(bytes) {
            Ok(text) => PyString::new(py, text).into_any(),
            Err(_) => PyBytes::new(py, bytes).into_any(),
        }),
        Value::List(list) => {
            let values = list.iter().map(|value| python(py, value)).collect::<PyResult<Vec<_>>>()?;
            Ok(PyList::new(py, values)?.into_any())
        }
    }
}
