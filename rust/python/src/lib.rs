//! The module `ropechat.engine._core`: bindings only. Every call into the engine goes through `call.rs`, which releases the
//! GIL, turns panics into `InternalError` and maps each [`Error`](ropechat_core::Error) to its class in `ropechat.errors`.

mod call;
mod engine;
mod events;
mod facts;
mod gguf;
mod grammar;
mod inside;
mod load;
mod markers;
mod options;
mod rope;

use engine::{
    PyBreakers, PyCancelToken, PyEngine, PyKeptPrefix, PyProgress, check, packed_types, read_config,
};
use events::{PyEvent, PyRow, PyRowPair, PyStage};
use grammar::{PyGrammar, PyVocabulary, check_grammar};
use inside::{PyLensRow, PyReading};
use markers::PyMarkers;
use pyo3::prelude::*;
use rope::rope_spec;
use ropechat_core::sampling::philox;
use ropechat_platform::limits::available_memory;
use ropechat_platform::sigbus;

/// Bytes that the process may still use; None where the system does not say.
#[pyfunction]
fn free_memory() -> Option<u64> {
    available_memory().map(|available| available.bytes)
}

/// Makes the process end with exit code 74 when a mapped file is cut.
#[pyfunction]
#[pyo3(signature = (*, screen = false))]
fn exit_when_cut(screen: bool) {
    sigbus::exit_when_cut(screen);
}

/// The uniform numbers in [0, 1) of a position: the one that draws the token, and XTC's.
#[pyfunction]
fn uniforms(seed: u64, stream: u64, position: u64) -> [f64; 2] {
    philox::uniforms(seed, stream, position)
}

/// The model types that are computed, in the registry's order.
#[pyfunction]
fn model_types() -> Vec<&'static str> {
    ropechat_core::family::families().flat_map(|family| family.model_types).copied().collect()
}

/// The architectures of GGUF files that are computed, with the model types whose files have each.
#[pyfunction]
fn gguf_architectures() -> Vec<(&'static str, Vec<&'static str>)> {
    ropechat_core::family::gguf_architectures().collect()
}

#[pymodule]
mod _core {
    #[pymodule_export]
    use super::gguf::gguf_metadata;
    #[pymodule_export]
    use super::{
        PyBreakers, PyCancelToken, PyEngine, PyEvent, PyGrammar, PyKeptPrefix, PyLensRow, PyMarkers,
        PyProgress, PyReading, PyRow, PyRowPair, PyStage, PyVocabulary, check, check_grammar, exit_when_cut,
        free_memory, gguf_architectures, model_types, packed_types, read_config, rope_spec, uniforms,
    };
    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        // Panics are raised as InternalError; the default hook would write on the user's screen (law 4).
        std::panic::set_hook(Box::new(|panic| super::call::note_place(panic.location())));
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
