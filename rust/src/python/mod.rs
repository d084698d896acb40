//! The module `ropechat.engine._core`: bindings only. Every call into the engine goes through [`door`], which releases the
//! GIL, turns panics into `InternalError` and maps each [`Error`] to its class in `ropechat.errors`.

mod events;
mod gguf;

use crate::checkpoint::Checkpoint;
use crate::compute::{cancel::CancelToken, pool::Pool};
use crate::config::Config;
use crate::engine::fit::{self, KvRoom};
use crate::engine::{Context, Engine, Event, Generation, Goal};
use crate::error::Error;
use crate::family;
use crate::kernel::Kernels;
use crate::model::Model;
use crate::model::pack::{PackCache, PackWriter, PanelSource, WORTH_A_PACK};
use crate::platform::limits::available_memory;
use crate::platform::mapped;
use crate::quant::PackedType;
use crate::sampling::Sampling;
use events::{PyEvent, PyRow, PyStage};
use numpy::{PyArray1, PyArray2, PyArrayMethods};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Most tokens of a sequence unless the caller says otherwise: the KV cache grows to it, no more.
const DEFAULT_CONTEXT: usize = 8192;

/// Why work behind the [`door`] ends without a result.
enum Failure {
    Engine(Error),
    /// An exception of a function that was called back: it is raised as it is.
    Callback(PyErr),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::Engine(error)
    }
}

/// Runs `work` without the GIL; errors and panics become Python exceptions.
fn door<T: Send>(py: Python<'_>, work: impl FnOnce() -> Result<T, Failure> + Send) -> PyResult<T> {
    let result = py.detach(|| {
        catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("panic");
            Err(Error::Internal(text.to_owned()).into())
        })
    });
    result.map_err(|failure| match failure {
        Failure::Engine(error) => exception(py, &error),
        Failure::Callback(error) => error,
    })
}

/// The exception of `ropechat.errors` for an error.
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

/// A flag shared between threads.
#[pyclass(frozen, name = "CancelToken", module = "ropechat.engine._core")]
struct PyCancelToken(Arc<CancelToken>);

#[pymethods]
impl PyCancelToken {
    #[new]
    fn new() -> Self {
        Self(Arc::new(CancelToken::default()))
    }

    fn cancel(&self) {
        self.0.cancel();
    }

    #[getter]
    fn cancelled(&self) -> bool {
        self.0.is_cancelled()
    }
}

/// A loaded model with its thread pool and KV cache.
#[pyclass(frozen, name = "Engine", module = "ropechat.engine._core")]
struct PyEngine {
    engine: Mutex<Engine>,
    model: Arc<Model>,
    threads: usize,
    isa: &'static str,
    context: Context,
    num_parameters: usize,
    tensor_types: TensorTypes,
    warnings: Vec<String>,
    notes: Vec<String>,
    from_pack: bool,
    /// Writes what was packed to the cache.
    keeper: Option<PackWriter>,
}

/// Numbers stored as each type.
type TensorTypes = BTreeMap<&'static str, usize>;

impl PyEngine {
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut Engine) -> Result<T, Error> + Send,
    ) -> PyResult<T> {
        door(py, || Ok(work(&mut self.engine.lock().unwrap_or_else(PoisonError::into_inner))?))
    }
}

#[pymethods]
impl PyEngine {
    #[staticmethod]
    #[pyo3(signature = (directory, *, dtype = "auto", kv_dtype = "auto", threads = None, context = None,
        pack_cache = None, pack_smallest = None, before_packing = None))]
    #[allow(clippy::too_many_arguments)] // options by name; Python passes keywords
    fn load(
        py: Python<'_>,
        directory: &str,
        dtype: &str,
        kv_dtype: &str,
        threads: Option<usize>,
        context: Option<usize>,
        pack_cache: Option<PathBuf>,
        pack_smallest: Option<usize>,
        before_packing: Option<Py<PyAny>>,
    ) -> PyResult<Self> {
        door(py, || {
            let (dtype, kv_dtype) = (parse_dtype(dtype)?, parse_kv_dtype(kv_dtype)?);
            let kernels = Kernels::detect()?;
            let checkpoint = Checkpoint::open(Path::new(directory))?;
            let card = family::model_card(&checkpoint)?;
            let config = card.config;
            let mut warnings = [&card.warnings, checkpoint.warnings()].concat();
            let pool = Pool::new(thread_count(threads)?);
            let context = context_size(context, &config)?;
            let (num_parameters, tensor_types) = (checkpoint.num_parameters(), checkpoint.tensor_types());
            let tokens = context.tokens();
            let kv = KvRoom { tokens, dtype: kv_dtype };
            let choice = fit::choose(&checkpoint, &config, dtype, kv, &pool, available_memory())?;
            let packs = match pack_cache.map(PackCache::new) {
                Some(cache) => {
                    let smallest = pack_smallest.unwrap_or(cache.smallest);
                    PanelSource::open(&PackCache { smallest, ..cache }, &checkpoint, choice.dtype, &pool)
                }
                None => PanelSource::none(),
            };
            if !packs.is_found() && choice.weights >= WORTH_A_PACK as u64 {
                before_packing.map_or(Ok(()), call).map_err(Failure::Callback)?;
            }
            let model = Model::load_with(&packs, &checkpoint, config, choice.dtype, &pool)?;
            let model = Arc::new(model.with_kv(kv_dtype));
            warnings.extend(packs.note().map(str::to_owned));
            let mut notes = Vec::new();
            if choice.is_smaller { &mut warnings } else { &mut notes }.push(choice.words);
            let (threads, from_pack) = (pool.threads(), packs.is_warm());
            let engine = Mutex::new(Engine::new(Arc::clone(&model), kernels, pool, context));
            Ok(Self {
                engine,
                model,
                threads,
                isa: kernels.isa().name(),
                context,
                num_parameters,
                tensor_types,
                warnings,
                notes,
                from_pack,
                keeper: packs.writer(),
            })
        })
    }

    #[getter]
    fn facts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let facts = config_facts(py, &self.model.config)?;
        facts.set_item("dtype", self.model.dtype().name())?;
        facts.set_item("kv_dtype", self.model.kv_layout.dtype.name())?;
        facts.set_item("threads", self.threads)?;
        facts.set_item("isa", self.isa)?;
        facts.set_item("context", self.context.tokens())?;
        facts.set_item("num_parameters", self.num_parameters)?;
        facts.set_item("tensor_types", self.tensor_types.clone())?;
        facts.set_item("weight_bytes", self.model.weight_bytes())?;
        facts.set_item("warnings", &self.warnings)?;
        facts.set_item("notes", &self.notes)?;
        facts.set_item("from_pack", self.from_pack)?;
        Ok(facts)
    }

    fn finish_pack(&self, py: Python<'_>, seconds: f64) -> PyResult<bool> {
        let at_most = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::ZERO);
        door(py, || Ok(self.keeper.as_ref().is_none_or(|keeper| keeper.wait(at_most))))
    }

    #[getter]
    fn kv_bytes(&self, py: Python<'_>) -> PyResult<usize> {
        self.with(py, |engine| Ok(engine.kv_bytes()))
    }

    #[pyo3(signature = (ids, *, max_tokens, temperature, top_k, top_p, min_p, repetition_penalty, seed, stream = 0,
        stop_ids = vec![], readout_top_k = 0, logit_bias = vec![]))]
    #[allow(clippy::too_many_arguments)] // the sampler's settings by name; Python passes keywords
    fn generate(
        &self,
        py: Python<'_>,
        ids: Vec<u32>,
        max_tokens: usize,
        temperature: f32,
        top_k: usize,
        top_p: f32,
        min_p: f32,
        repetition_penalty: f32,
        seed: u64,
        stream: u64,
        stop_ids: Vec<u32>,
        readout_top_k: usize,
        logit_bias: Vec<(u32, f32)>,
    ) -> PyResult<u64> {
        let sampling =
            Sampling { logit_bias, temperature, top_k, top_p, min_p, repetition_penalty, seed, stream };
        let goal = Goal::Generate(Generation { sampling, max_tokens, stop_ids, readout_top_k });
        self.with(py, |engine| engine.add(&ids, goal))
    }

    #[pyo3(signature = (ids, *, readout_top_k))]
    fn score(&self, py: Python<'_>, ids: Vec<u32>, readout_top_k: usize) -> PyResult<u64> {
        self.with(py, |engine| engine.add(&ids, Goal::Score { readout_top_k }))
    }

    fn step(&self, py: Python<'_>, sequences: Vec<u64>, cancel: &PyCancelToken) -> PyResult<Vec<PyEvent>> {
        let cancel = Arc::clone(&cancel.0);
        let events = self.with(py, |engine| engine.step(&sequences, &cancel))?;
        // Not before there is something to show for the wait.
        if events.iter().any(|(_, event)| !matches!(event, Event::Prefill { .. })) {
            self.keeper.iter().for_each(PackWriter::start);
        }
        events.into_iter().map(|(sequence, event)| PyEvent::new(py, sequence, event)).collect()
    }

    fn reused(&self, py: Python<'_>, sequence: u64) -> PyResult<usize> {
        self.with(py, |engine| engine.reused(sequence))
    }

    fn free(&self, py: Python<'_>, sequence: u64) -> PyResult<()> {
        self.with(py, |engine| {
            engine.free(sequence);
            Ok(())
        })
    }

    fn logits<'py>(
        &self,
        py: Python<'py>,
        ids: Vec<u32>,
        cancel: &PyCancelToken,
    ) -> PyResult<Bound<'py, PyArray2<f32>>> {
        let cancel = Arc::clone(&cancel.0);
        let all = self.with(py, |engine| engine.logits(&ids, &cancel))?;
        PyArray1::from_vec(py, all).reshape([ids.len(), self.model.config.vocab_size])
    }
}

/// Validates the metadata and every tensor's name, shape, type and extent.
#[pyfunction]
fn check<'py>(py: Python<'py>, directory: &str) -> PyResult<Bound<'py, PyDict>> {
    let (config, num_parameters, tensor_types, warnings) = door(py, || {
        let checkpoint = Checkpoint::open(Path::new(directory))?;
        let card = family::model_card(&checkpoint)?;
        let unused = family::check_tensors(&checkpoint, &card.config)?;
        let warnings = [&card.warnings, checkpoint.warnings(), &unused].concat();
        Ok((card.config, checkpoint.num_parameters(), checkpoint.tensor_types(), warnings))
    })?;
    let facts = config_facts(py, &config)?;
    facts.set_item("num_parameters", num_parameters)?;
    facts.set_item("tensor_types", tensor_types)?;
    facts.set_item("warnings", warnings)?;
    Ok(facts)
}

/// The facts of `Engine.facts` that the config says; no tensor is looked at.
#[pyfunction]
fn read_config<'py>(py: Python<'py>, directory: &str) -> PyResult<Bound<'py, PyDict>> {
    let config = door(py, || Ok(family::config(&Checkpoint::open(Path::new(directory))?)?))?;
    config_facts(py, &config)
}

fn config_facts<'py>(py: Python<'py>, config: &Config) -> PyResult<Bound<'py, PyDict>> {
    let facts = PyDict::new(py);
    facts.set_item("model_type", &config.model_type)?;
    facts.set_item("vocab_size", config.vocab_size)?;
    facts.set_item("hidden_size", config.hidden_size)?;
    facts.set_item("intermediate_size", config.intermediate_size)?;
    facts.set_item("num_hidden_layers", config.layers.len())?;
    facts.set_item("num_attention_heads", config.num_attention_heads)?;
    facts.set_item("num_key_value_heads", config.num_key_value_heads)?;
    facts.set_item("head_dim", config.head_dim)?;
    facts.set_item("max_position_embeddings", config.max_position_embeddings)?;
    facts.set_item("bos_token_id", config.bos_token_id)?;
    facts.set_item("eos_token_id", &config.eos_token_id)?;
    Ok(facts)
}

/// Calls back, from where the GIL is released.
fn call(function: Py<PyAny>) -> PyResult<()> {
    Python::attach(|py| function.call0(py).map(|_| ()))
}

fn parse_dtype(name: &str) -> Result<Option<PackedType>, Error> {
    let found = PackedType::ALL.into_iter().find(|dtype| dtype.name() == name);
    if found.is_none() && name != "auto" {
        let [others @ .., last] = PackedType::ALL.map(PackedType::name);
        let others = others.join(", ");
        return Err(Error::Request(format!("dtype: {name:?}; allowed are auto, {others} and {last}")));
    }
    Ok(found)
}

fn parse_kv_dtype(name: &str) -> Result<Option<PackedType>, Error> {
    match name {
        "auto" => Ok(None),
        "f32" => Ok(Some(PackedType::F32)),
        "f16" => Ok(Some(PackedType::F16)),
        "q8_0" => Ok(Some(PackedType::Q8_0)),
        _ => Err(Error::Request(format!("kv_dtype: {name:?}; allowed are auto, f32, f16 and q8_0"))),
    }
}

fn thread_count(threads: Option<usize>) -> Result<usize, Error> {
    match threads {
        Some(n @ 1..=1024) => Ok(n),
        Some(n) => Err(Error::Request(format!("threads: {n}; allowed are 1 to 1024"))),
        None => Ok(std::thread::available_parallelism().map_or(1, |n| n.get())),
    }
}

fn context_size(context: Option<usize>, config: &Config) -> Result<Context, Error> {
    match context {
        // How many are too many depends on the memory there is: `fit` refuses those.
        Some(n @ 2..) => Ok(Context::Stated(n)),
        Some(n) => Err(Error::Request(format!("context: {n}; allowed are 2 tokens or more"))),
        None => Ok(Context::Trained(config.usable_length().min(DEFAULT_CONTEXT))),
    }
}

/// Bytes that the process may still use; None where the system does not say.
#[pyfunction]
fn free_memory() -> Option<u64> {
    available_memory().map(|available| available.bytes)
}

/// From now on the process ends with exit code 74 when a mapped file is cut.
#[pyfunction]
#[pyo3(signature = (*, screen = false))]
fn exit_when_cut(screen: bool) {
    mapped::exit_when_cut(screen);
}

#[pymodule]
mod _core {
    #[pymodule_export]
    use super::gguf::gguf_metadata;
    #[pymodule_export]
    use super::{
        PyCancelToken, PyEngine, PyEvent, PyRow, PyStage, check, exit_when_cut, free_memory, read_config,
    };
    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        // Panics are raised as InternalError; the default hook would write into the user's screen (law 4).
        std::panic::set_hook(Box::new(|_| ()));
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
