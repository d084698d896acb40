//! Grammars that an answer must match: their check, and the compiled ones of a vocabulary.

use super::call::call_engine;
use pyo3::prelude::*;
use ropechat_core::sampling::grammar::{Grammar, Source, Vocabulary};
use ropechat_platform::error::Error;

/// A compiled grammar.
#[pyclass(frozen, name = "Grammar", module = "ropechat.engine._core")]
pub(super) struct PyGrammar(pub Grammar);

/// A tokenizer's tokens, for grammars.
#[pyclass(frozen, name = "Vocabulary", module = "ropechat.engine._core")]
pub(super) struct PyVocabulary(Vocabulary);

#[pymethods]
impl PyVocabulary {
    #[new]
    fn new(
        py: Python<'_>,
        tokens: Vec<Vec<u8>>,
        special: Vec<(u32, String)>,
        stop_ids: Vec<u32>,
    ) -> PyResult<Self> {
        call_engine(py, || Ok(Self(Vocabulary::new(tokens, &special, &stop_ids)?)))
    }

    #[pyo3(signature = (kind, text, *, flexible = false))]
    fn compile(&self, py: Python<'_>, kind: &str, text: Vec<String>, flexible: bool) -> PyResult<PyGrammar> {
        call_engine(py, || Ok(PyGrammar(self.0.compile(&source(kind, text, flexible)?)?)))
    }
}

/// Refuses a grammar that cannot be honoured, without a vocabulary.
#[pyfunction]
#[pyo3(signature = (kind, text, *, flexible = false))]
pub(super) fn check_grammar(py: Python<'_>, kind: &str, text: Vec<String>, flexible: bool) -> PyResult<()> {
    call_engine(py, || Ok(source(kind, text, flexible)?.check()?))
}

fn source(kind: &str, mut text: Vec<String>, flexible: bool) -> Result<Source, Error> {
    let one = |text: &mut Vec<String>| text.pop().unwrap_or_default();
    match kind {
        "json_schema" => Ok(Source::JsonSchema { text: one(&mut text), flexible }),
        "regex" => Ok(Source::Regex(one(&mut text))),
        "choices" => Ok(Source::Choices(text)),
        "lark" => Ok(Source::Lark(one(&mut text))),
        _ => Err(Error::Request(format!(
            "grammar: must be json_schema, regex, choices or lark (got {kind:?})"
        ))),
    }
}
