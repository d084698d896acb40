//! GGUF metadata as Python values.

use std::path::Path;

use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString};

use super::call::call_engine;
use ropechat_core::checkpoint::gguf::{Header, Kind, Value};

/// All metadata of a `.gguf` file, by key. The weights are not read.
#[pyfunction]
pub(super) fn gguf_metadata<'py>(py: Python<'py>, path: &str) -> PyResult<Bound<'py, PyDict>> {
    let header = call_engine(py, || Ok(Header::open(Path::new(path))?))?;
    let (metadata, mut copy) = (PyDict::new(py), Vec::new());
    for (key, value) in header.metadata().iter() {
        metadata.set_item(key, python(py, value, &mut copy)?)?;
    }
    Ok(metadata)
}

/// A text that is not UTF-8 becomes bytes, for the caller to judge.
///
/// `copy` holds a text while it is checked and converted, because other processes may write to a mapped file.
fn python<'py>(py: Python<'py>, value: Value<'_>, copy: &mut Vec<u8>) -> PyResult<Bound<'py, PyAny>> {
    match value {
        Value::Unsigned(number) => number.into_bound_py_any(py),
        Value::Signed(number) => number.into_bound_py_any(py),
        Value::Float(number) => number.into_bound_py_any(py),
        Value::Bool(flag) => flag.into_bound_py_any(py),
        Value::Text(bytes) => {
            copy.clear();
            copy.extend_from_slice(bytes);
            Ok(match std::str::from_utf8(copy) {
                Ok(text) => PyString::new(py, text).into_any(),
                Err(_) => PyBytes::new(py, copy).into_any(),
            })
        }
        // Python's own type, so that the caller can tell bytes from numbers.
        Value::List(list) if list.kind() == Kind::U8 => {
            let bytes = list.iter().filter_map(|value| match value {
                Value::Unsigned(byte) => u8::try_from(byte).ok(),
                _ => None,
            });
            Ok(PyBytes::new(py, &bytes.collect::<Vec<_>>()).into_any())
        }
        Value::List(list) => {
            let values = list.iter().map(|value| python(py, value, copy)).collect::<PyResult<Vec<_>>>()?;
            Ok(PyList::new(py, values)?.into_any())
        }
    }
}
