//! What a step reports, as frozen Python values.

use pyo3::prelude::*;
use ropechat_core::engine::{Event, FinishReason};
use ropechat_core::sampling::channels::Channel;
use ropechat_core::sampling::compare::RowPair;
use ropechat_core::sampling::readout::Logprobs;
use ropechat_core::sampling::{Candidate, Draw, Stage};

/// What one logit row says.
#[pyclass(frozen, name = "Row", module = "ropechat.engine._core")]
pub struct PyRow(pub(super) Logprobs);

#[pymethods]
impl PyRow {
    #[getter]
    fn logsumexp(&self) -> f64 {
        self.0.logsumexp
    }
    #[getter]
    fn entropy(&self) -> f64 {
        self.0.entropy
    }
    #[getter]
    fn varentropy(&self) -> Option<f64> {
        self.0.varentropy
    }
    #[getter]
    fn top_ids(&self) -> Vec<u32> {
        self.0.top.iter().map(|&(id, _)| id).collect()
    }
    #[getter]
    fn top_logprobs(&self) -> Vec<f64> {
        self.0.top.iter().map(|&(_, logprob)| logprob).collect()
    }
    #[getter]
    fn top_mass(&self) -> f64 {
        self.0.top_mass
    }
}

/// The candidates that survive one stage of the sampler.
#[pyclass(frozen, name = "Stage", module = "ropechat.engine._core")]
#[derive(Clone)]
pub struct PyStage(Stage);

#[pymethods]
impl PyStage {
    #[getter]
    fn name(&self) -> &'static str {
        self.0.name
    }
    #[getter]
    fn kept(&self) -> usize {
        self.0.kept
    }
    #[getter]
    fn mass(&self) -> f64 {
        self.0.mass
    }
    #[getter]
    fn entropy(&self) -> f64 {
        self.0.entropy
    }
    #[getter]
    fn value(&self) -> Option<f64> {
        self.0.value
    }
}

/// (id, rank, cut, penalized, probability, by_stage) of a candidate.
type PyCandidate = (u32, usize, Option<&'static str>, bool, f64, Vec<f64>);

fn candidate(one: Candidate) -> PyCandidate {
    (one.id, one.rank, one.cut, one.penalized, one.probability, one.by_stage)
}

/// Two models' rows at the same place of a text.
#[pyclass(frozen, get_all, name = "RowPair", module = "ropechat.engine._core")]
pub struct PyRowPair {
    kl: f64,
    kl_back: f64,
    js: f64,
    a: Py<PyRow>,
    b: Py<PyRow>,
    logprobs: (f64, f64),
    ranks: (usize, usize),
}

impl PyRowPair {
    /// The Python value of a pair.
    ///
    /// # Errors
    /// Python's memory.
    pub fn new(py: Python<'_>, RowPair { divergence, a, b }: RowPair) -> PyResult<Self> {
        Ok(Self {
            kl: divergence.kl,
            kl_back: divergence.kl_back,
            js: divergence.js,
            logprobs: (a.logprob, b.logprob),
            ranks: (a.rank, b.rank),
            a: Py::new(py, PyRow(a.readout))?,
            b: Py::new(py, PyRow(b.readout))?,
        })
    }
}

/// What happened to one sequence in a step.
#[pyclass(frozen, get_all, name = "Event", module = "ropechat.engine._core")]
pub struct PyEvent {
    sequence: u64,
    kind: &'static str,
    position: usize,
    id: Option<u32>,
    logprob: Option<f64>,
    rank: Option<usize>,
    row: Option<Py<PyRow>>,
    stages: Vec<PyStage>,
    candidates: Vec<PyCandidate>,
    interval: Option<(f64, f64)>,
    u: Option<f64>,
    drafted: bool,
    channel: &'static str,
    looked_up: Vec<(f64, usize)>,
    finish_reason: Option<&'static str>,
    done: usize,
    total: usize,
}

impl PyEvent {
    /// The Python value of an event.
    ///
    /// # Errors
    /// Python's memory.
    pub fn new(py: Python<'_>, sequence: u64, event: Event) -> PyResult<Self> {
        let blank = Self {
            sequence,
            kind: "prefill",
            position: 0,
            id: None,
            logprob: None,
            rank: None,
            row: None,
            stages: Vec::new(),
            candidates: Vec::new(),
            interval: None,
            u: None,
            drafted: false,
            channel: Channel::Answer.name(),
            looked_up: Vec::new(),
            finish_reason: None,
            done: 0,
            total: 0,
        };
        let row = |readout: Option<Logprobs>| readout.map(|readout| Py::new(py, PyRow(readout))).transpose();
        let (kind, mut scored, finish_reason, drawn, drafted, channel) = match event {
            Event::Prefill { done, total } => return Ok(Self { done, total, ..blank }),
            Event::Next { position, row: next } => {
                return Ok(Self { kind: "next", position, row: row(Some(next))?, ..blank });
            }
            Event::Score(scored) => ("score", scored, None, None, false, Channel::Answer),
            Event::Token { scored, draw, channel, drafted, finish_reason } => {
                ("token", scored, finish_reason.map(finish_name), Some(draw), drafted, channel)
            }
        };
        let rest = match drawn.or(scored.explained.take()) {
            Some(Draw { stages, candidates, interval, u, .. }) => {
                let stages = stages.into_iter().map(PyStage).collect();
                let candidates = candidates.into_iter().map(candidate).collect();
                Self { stages, candidates, interval, u, ..blank }
            }
            None => blank,
        };
        Ok(Self {
            kind,
            drafted,
            channel: channel.name(),
            finish_reason,
            position: scored.position,
            id: Some(scored.id),
            logprob: scored.logprob_and_rank.map(|(logprob, _)| logprob),
            rank: scored.logprob_and_rank.map(|(_, rank)| rank),
            row: row(scored.row)?,
            looked_up: scored.looked_up,
            ..rest
        })
    }
}

fn finish_name(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
        FinishReason::Context => "context",
        FinishReason::Grammar => "grammar",
    }
}
