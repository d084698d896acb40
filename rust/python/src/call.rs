//! The only way from Python into the engine: without the GIL, with panics and errors as exceptions.

use pyo3::prelude::*;
use ropechat_platform::error::Error;
use ropechat_platform::sync::Mutex;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::sync::PoisonError;

/// Where the last panic was, in any thread: those of the pool end in the thread that called it.
static PLACE: Mutex<Option<String>> = Mutex::new(None);

/// Keeps the place of a panic for the error that it becomes.
pub(super) fn note_place(place: Option<&Location<'_>>) {
    let place = place.map(|place| format!("{}:{}", place.file(), place.line()));
    *PLACE.lock().unwrap_or_else(PoisonError::into_inner) = place;
}

/// Why a call into the engine has no result.
pub(super) enum Failure {
    Engine(Error),
    /// An exception of a callback, raised unchanged.
    Callback(PyErr),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::Engine(error)
    }
}

/// Runs `work` without the GIL; errors and panics become Python exceptions.
pub(super) fn call_engine<T: Send>(
    py: Python<'_>,
    work: impl FnOnce() -> Result<T, Failure> + Send,
) -> PyResult<T> {
    let result = py.detach(|| {
        catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("panic");
            let place = PLACE.lock().unwrap_or_else(PoisonError::into_inner).take();
            Err(Error::Internal(format!("{text} ({})", place.unwrap_or_default())).into())
        })
    });
    result.map_err(|failure| match failure {
        Failure::Engine(error) => exception(py, &error),
        Failure::Callback(error) => error,
    })
}

/// The exception class of `ropechat.errors` for an error, with its message.
fn exception(py: Python<'_>, error: &Error) -> PyErr {
    let class = match error {
        Error::NotFound { .. } => "ModelPathError",
        Error::Io { .. } => "FileAccessError",
        Error::Format { .. } => "ModelFileError",
        Error::Tensor { .. } => "TensorError",
        Error::Config { .. } => "ConfigError",
        Error::Unsupported { .. } => "UnsupportedModelError",
        Error::UnsafePath { .. } => "UnsafePathError",
        Error::Memory { .. } => "MemoryLimitError",
        Error::NonFinite { .. } => "NonFiniteError",
        Error::Request(_) => "RequestError",
        Error::ContextFull { .. } => "ContextFullError",
        Error::Cancelled => "CancelledError",
        Error::Internal(_) => "InternalError",
    };
    let made = py
        .import("ropechat.errors")
        .and_then(|module| module.getattr(class))
        .and_then(|class| class.call1((error.to_string(),)));
    made.map_or_else(|failure| failure, PyErr::from_value)
}
