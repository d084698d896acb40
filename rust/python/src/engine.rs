//! `Engine`, `CancelToken`, `KeptPrefix`, and the facts of a model.

use super::call::call_engine;
use super::events::{PyEvent, PyRowPair};
use super::facts::{config_facts, generation_facts};
use super::grammar::PyGrammar;
use super::inside::{PyLensRow, PyReading, by_distance, captured};
use super::load::{DraftFiles, Loading};
use super::markers::PyMarkers;
use super::options::{
    context_note, context_size, new_pool, parse_dtype, parse_kv_dtype, parse_speculative, thread_count,
};
use super::rope;
use numpy::{PyArray1, PyArray2, PyArrayMethods, PyReadonlyArray2};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use ropechat_core::checkpoint::Checkpoint;
use ropechat_core::engine::fit::{self, KvRoom};
use ropechat_core::engine::inside::Capture;
use ropechat_core::engine::on_disk::KeptPrefix;
use ropechat_core::engine::{Context, Engine, Event, Generation, Goal, Speculative};
use ropechat_core::family::{self, GenerationConfig};
use ropechat_core::model::pack::{PackCache, PackWriter};
use ropechat_core::model::{Model, ModelPlan};
use ropechat_core::sampling::Sampling;
use ropechat_core::sampling::channels::Channels;
use ropechat_core::sampling::dry::Breakers;
use ropechat_kernels::compute::phases::{Jobs, Phase};
use ropechat_kernels::compute::progress::{Progress, Stage};
use ropechat_kernels::compute::{cancel::CancelToken, pool::Pool};
use ropechat_kernels::kernel::Kernels;
use ropechat_platform::error::Error;
use ropechat_platform::files::DiskLimits;
use ropechat_platform::limits::available_memory;
use ropechat_platform::sync::Mutex;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

/// Jobs of a phase: its name, parts of each, their number, seconds, bytes and products of weights.
type PhaseJobs = (&'static str, u32, usize, f64, usize, usize);

/// A flag shared between threads.
#[pyclass(frozen, name = "CancelToken", module = "ropechat.engine._core")]
pub(super) struct PyCancelToken(Arc<CancelToken>);

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

/// How far the work of an engine is, read from any thread while it runs.
#[pyclass(frozen, name = "Progress", module = "ropechat.engine._core")]
pub(super) struct PyProgress(Arc<Progress>);

#[pymethods]
impl PyProgress {
    #[new]
    fn new() -> Self {
        Self(Arc::default())
    }

    fn read(&self) -> Option<(&'static str, u64, u64)> {
        let now = self.0.read();
        let stage = match now.stage {
            Stage::Idle => return None,
            Stage::Loading => "loading",
            Stage::Packing => "packing",
            Stage::Reading => "reading",
        };
        Some((stage, now.done, now.total))
    }
}

/// The KV cache of the beginning of a text.
#[pyclass(frozen, name = "KeptPrefix", module = "ropechat.engine._core")]
pub(super) struct PyKeptPrefix(KeptPrefix);

#[pymethods]
impl PyKeptPrefix {
    #[getter]
    fn tokens(&self) -> usize {
        self.0.tokens()
    }

    #[pyo3(signature = (path, cancel, *, total, keep_free = 5_000_000_000))]
    #[allow(clippy::needless_pass_by_value)] // what PyO3 extracts is owned
    fn write(
        &self,
        py: Python<'_>,
        path: PathBuf,
        cancel: &PyCancelToken,
        total: u64,
        keep_free: u64,
    ) -> PyResult<bool> {
        let cancel = Arc::clone(&cancel.0);
        call_engine(py, || Ok(self.0.write(&path, DiskLimits { total, keep_free }, &cancel)?))
    }
}

/// A loaded model with its thread pool and KV cache.
#[pyclass(frozen, name = "Engine", module = "ropechat.engine._core")]
pub(super) struct PyEngine {
    engine: Mutex<Engine>,
    model: Arc<Model>,
    threads: usize,
    isa: &'static str,
    context: Context,
    num_parameters: usize,
    tensor_types: TensorTypes,
    generation: GenerationConfig,
    warnings: Vec<String>,
    notes: Vec<String>,
    from_pack: bool,
    /// Seconds that packing took.
    packing_seconds: f64,
    /// They write what was packed to the cache.
    pack_writers: Vec<PackWriter>,
}

/// Ends the progress of a load when it returns, fails or panics.
struct EndOfLoad<'a>(&'a Progress);

impl Drop for EndOfLoad<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// A number for each type: of values in a file, or of bytes in memory.
pub(super) type TensorTypes = BTreeMap<&'static str, usize>;

impl PyEngine {
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut Engine) -> Result<T, Error> + Send,
    ) -> PyResult<T> {
        call_engine(py, || Ok(work(&mut self.engine.lock().unwrap_or_else(PoisonError::into_inner))?))
    }
}

#[pymethods]
impl PyEngine {
    #[staticmethod]
    #[pyo3(signature = (directory, *, dtype = "auto", kv_dtype = "auto", threads = None, context = None,
        prefix_bytes = None, speculative = "auto", draft = None, pack_cache = None, pack_smallest = None, before_packing = None,
        progress = None))]
    #[allow(clippy::too_many_arguments)] // options by name; Python passes keywords
    fn load(
        py: Python<'_>,
        directory: &str,
        dtype: &str,
        kv_dtype: &str,
        threads: Option<usize>,
        context: Option<usize>,
        prefix_bytes: Option<usize>,
        speculative: &str,
        draft: Option<&str>,
        pack_cache: Option<PathBuf>,
        pack_smallest: Option<usize>,
        before_packing: Option<Py<PyAny>>,
        progress: Option<&PyProgress>,
    ) -> PyResult<Self> {
        let progress = progress.map_or_else(Arc::default, |progress| Arc::clone(&progress.0));
        call_engine(py, || {
            let _ends = EndOfLoad(&progress);
            let (dtype, kv_dtype) = (parse_dtype(dtype)?, parse_kv_dtype(kv_dtype)?);
            let speculative = parse_speculative(speculative)?;
            let kernels = Kernels::detect()?;
            let checkpoint = Checkpoint::open(Path::new(directory))?;
            let card = family::model_card(&checkpoint)?;
            let config = card.config;
            let unread = family::check_tensors(&checkpoint, &config)?;
            let mut warnings = [&card.warnings, checkpoint.warnings()].concat();
            warnings.extend(unread);
            let pool = Pool::shared(thread_count(threads)?, new_pool);
            let context = context_size(context, &config)?;
            let mut notes = Vec::from_iter(context_note(context, &config));
            let kv = KvRoom { tokens: context.tokens(), dtype: kv_dtype };
            let loading = Loading {
                pack_cache: pack_cache
                    .map(PackCache::new)
                    .map(|cache| PackCache { smallest: pack_smallest.unwrap_or(cache.smallest), ..cache }),
                before_packing,
                kernels,
                pool: &pool,
                progress: &progress,
            };
            let mut available = available_memory();
            let draft = draft.map(|path| DraftFiles::open(path, dtype, kv, &mut available)).transpose()?;
            let choice = fit::choose(&checkpoint, &config, dtype, kv, available)?;
            let loaded = loading.load(&checkpoint, config, &choice, kv_dtype)?;
            warnings.extend(loaded.warning);
            let num_parameters = family::num_parameters(&checkpoint, &loaded.model.config);
            let tensor_types = checkpoint.tensor_types();
            if choice.is_smaller { &mut warnings } else { &mut notes }.push(choice.words);
            let model = loaded.model;
            let mut engine = Engine::new(Arc::clone(&model), kernels, Arc::clone(&pool), context);
            engine.set_progress(Arc::clone(&progress));
            engine.set_speculative(speculative);
            prefix_bytes.into_iter().for_each(|bytes| engine.set_prefix_bytes(bytes));
            loaded.identity.into_iter().for_each(|identity| engine.set_identity(identity));
            let mut pack_writers = Vec::from_iter(loaded.pack_writer);
            if let Some(draft) = draft {
                let (own, choice) = draft.load(&loading, kv_dtype)?;
                warnings.extend(own.warning);
                if choice.is_smaller { &mut warnings } else { &mut notes }
                    .push(format!("draft model: {}", choice.words));
                let limit = Context::Trained(own.model.config.usable_length().min(context.tokens()));
                let mut draft = Engine::new(own.model, kernels, Arc::clone(&pool), limit);
                prefix_bytes.into_iter().for_each(|bytes| draft.set_prefix_bytes(bytes));
                engine.set_draft_model(draft);
                pack_writers.extend(own.pack_writer);
            } else if let Some(mtp) = model.mtp.as_ref().filter(|_| speculative != Speculative::Off) {
                engine.set_draft_model(Engine::new(Arc::clone(mtp), kernels, Arc::clone(&pool), context));
            }
            Ok(Self {
                engine: Mutex::new(engine),
                model,
                threads: pool.threads(),
                isa: kernels.isa().name(),
                context,
                num_parameters,
                tensor_types,
                generation: card.generation,
                warnings,
                notes,
                from_pack: loaded.from_pack,
                packing_seconds: loaded.packing_seconds,
                pack_writers,
            })
        })
    }

    #[getter]
    fn facts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let facts = config_facts(py, &self.model.config)?;
        facts.set_item("dtype", self.model.dtype().name())?;
        facts.set_item("kv_dtype", self.model.kv_layout.dtype.name())?;
        facts.set_item("mtp", self.model.mtp.is_some())?;
        facts.set_item("threads", self.threads)?;
        facts.set_item("isa", self.isa)?;
        facts.set_item("context", self.context.tokens())?;
        facts.set_item("context_is_stated", matches!(self.context, Context::Stated(_)))?;
        facts.set_item("num_parameters", self.num_parameters)?;
        facts.set_item("tensor_types", self.tensor_types.clone())?;
        facts.set_item("generation", generation_facts(py, &self.generation)?)?;
        facts.set_item("weight_bytes", self.model.weight_bytes())?;
        facts.set_item("warnings", &self.warnings)?;
        facts.set_item("notes", &self.notes)?;
        facts.set_item("from_pack", self.from_pack)?;
        facts.set_item("packing_seconds", self.packing_seconds)?;
        Ok(facts)
    }

    #[pyo3(signature = (length = 0))]
    fn rope_spec<'py>(&self, py: Python<'py>, length: usize) -> PyResult<Bound<'py, PyDict>> {
        rope::spec(py, &self.model.config, length)
    }

    fn finish_pack(&self, py: Python<'_>, seconds: f64) -> PyResult<bool> {
        let at_most = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::ZERO);
        call_engine(py, || {
            let (begun, mut left, mut is_over) = (Instant::now(), at_most, true);
            for writer in &self.pack_writers {
                is_over &= writer.finish(left);
                left = at_most.saturating_sub(begun.elapsed());
            }
            Ok(is_over)
        })
    }

    #[getter]
    fn kv_bytes(&self, py: Python<'_>) -> PyResult<usize> {
        self.with(py, |engine| Ok(engine.kv_bytes()))
    }

    #[pyo3(signature = (ids, sampling, *, seed, stream = 0, stop_ids = vec![], readout_top_k = 0, grammar = None,
        channels = None, is_open = false, reply_start = 0, breakers = None))]
    #[allow(clippy::too_many_arguments)] // Python passes keywords
    fn generate(
        &self,
        py: Python<'_>,
        ids: Vec<u32>,
        sampling: SamplingFields,
        seed: u64,
        stream: u64,
        stop_ids: Vec<u32>,
        readout_top_k: usize,
        grammar: Option<&PyGrammar>,
        channels: Option<&PyMarkers>,
        is_open: bool,
        reply_start: usize,
        breakers: Option<&PyBreakers>,
    ) -> PyResult<u64> {
        let max_tokens = sampling.max_tokens;
        let budget = usize::try_from(sampling.thinking_budget).ok(); // -1: none
        let channels = channels.map(|markers| Channels::new(Arc::clone(&markers.0), is_open, budget));
        let sampling = Sampling { seed, stream, answer_start: reply_start, ..sampling.with(breakers) };
        let goal = Goal::Generate(Generation { sampling, max_tokens, stop_ids, readout_top_k });
        self.with(py, |engine| {
            let number = engine.add(&ids, goal)?;
            if channels.is_some() || grammar.is_some() {
                let constrained =
                    engine.constrain(number, channels, grammar.map(|grammar| &grammar.0), reply_start);
                constrained.inspect_err(|_| engine.free(number))?;
            }
            Ok(number)
        })
    }

    #[pyo3(signature = (ids, *, readout_top_k, start = 0, read_next = true))]
    fn score(
        &self,
        py: Python<'_>,
        ids: Vec<u32>,
        readout_top_k: usize,
        start: usize,
        read_next: bool,
    ) -> PyResult<u64> {
        let goal = Goal::Score { readout_top_k, from: start, read_next };
        self.with(py, |engine| engine.add(&ids, goal))
    }

    #[pyo3(signature = (sequence, sampling, *, breakers = None))]
    fn explain(
        &self,
        py: Python<'_>,
        sequence: u64,
        sampling: SamplingFields,
        breakers: Option<&PyBreakers>,
    ) -> PyResult<()> {
        self.with(py, |engine| engine.explain(sequence, sampling.with(breakers)))
    }

    fn look_up(&self, py: Python<'_>, sequence: u64, ids: Vec<u32>) -> PyResult<()> {
        self.with(py, |engine| engine.look_up(sequence, ids))
    }

    fn step(&self, py: Python<'_>, sequences: Vec<u64>, cancel: &PyCancelToken) -> PyResult<Vec<PyEvent>> {
        let cancel = Arc::clone(&cancel.0);
        let events = self.with(py, |engine| engine.step(&sequences, &cancel))?;
        // The pack is written after the first token, so that it does not delay it.
        if events.iter().any(|(_, event)| !matches!(event, Event::Prefill { .. })) {
            self.pack_writers.iter().for_each(PackWriter::start);
        }
        events.into_iter().map(|(sequence, event)| PyEvent::new(py, sequence, event)).collect()
    }

    fn time_phases(&self, py: Python<'_>, wanted: bool) -> PyResult<()> {
        self.with(py, |engine| {
            engine.time_phases(wanted);
            Ok(())
        })
    }

    fn phase_times(&self, py: Python<'_>) -> PyResult<Vec<(&'static str, f64)>> {
        let times = self.with(py, |engine| Ok(engine.phase_times()))?;
        Ok(Phase::ALL.into_iter().map(|phase| (phase.name(), times.of(phase).as_secs_f64())).collect())
    }

    fn phase_jobs(&self, py: Python<'_>) -> PyResult<Vec<PhaseJobs>> {
        let times = self.with(py, |engine| Ok(engine.phase_times()))?;
        let row = |(phase, units, jobs): (Phase, u32, Jobs)| {
            (phase.name(), units, jobs.count, jobs.time.as_secs_f64(), jobs.bytes, jobs.products)
        };
        Ok(times.jobs().map(row).collect())
    }

    fn reused(&self, py: Python<'_>, sequence: u64) -> PyResult<usize> {
        self.with(py, |engine| engine.reused(sequence))
    }

    fn cache_key(&self, py: Python<'_>) -> PyResult<Option<String>> {
        self.with(py, |engine| Ok(engine.cache_key()))
    }

    fn cached(&self, py: Python<'_>, ids: Vec<u32>) -> PyResult<usize> {
        self.with(py, |engine| Ok(engine.cached(&ids)))
    }

    fn kept_prefix(&self, py: Python<'_>, ids: Vec<u32>) -> PyResult<Option<PyKeptPrefix>> {
        self.with(py, |engine| Ok(engine.kept_prefix(&ids).map(PyKeptPrefix)))
    }

    #[allow(clippy::needless_pass_by_value)] // what PyO3 extracts is owned
    fn take_prefix(
        &self,
        py: Python<'_>,
        ids: Vec<u32>,
        path: PathBuf,
        cancel: &PyCancelToken,
    ) -> PyResult<Option<String>> {
        let cancel = Arc::clone(&cancel.0);
        self.with(py, |engine| engine.take_prefix(&ids, &path, &cancel))
    }

    fn free(&self, py: Python<'_>, sequence: u64) -> PyResult<()> {
        self.with(py, |engine| {
            engine.free(sequence);
            Ok(())
        })
    }

    #[pyo3(signature = (ids, cancel, *, start_position = 0))]
    fn logits<'py>(
        &self,
        py: Python<'py>,
        ids: Vec<u32>,
        cancel: &PyCancelToken,
        start_position: usize,
    ) -> PyResult<Bound<'py, PyArray2<f32>>> {
        let cancel = Arc::clone(&cancel.0);
        let all = self.with(py, |engine| engine.logits_at(&ids, start_position, &cancel))?;
        PyArray1::from_vec(py, all).reshape([ids.len(), self.model.config.vocab_size])
    }

    fn open_rows(&self, py: Python<'_>, ids: Vec<u32>, first: usize) -> PyResult<u64> {
        self.with(py, |engine| engine.open_rows(&ids, first))
    }

    fn next_rows<'py>(
        &self,
        py: Python<'py>,
        sequence: u64,
        cancel: &PyCancelToken,
    ) -> PyResult<Bound<'py, PyArray2<f32>>> {
        let cancel = Arc::clone(&cancel.0);
        let block = self.with(py, |engine| engine.next_rows(sequence, &cancel))?;
        let (rows, vocab_size) = (block.len(), self.model.config.vocab_size);
        PyArray1::from_vec(py, block).reshape([rows / vocab_size, vocab_size])
    }

    #[pyo3(signature = (a, b, next, *, readout_top_k, position = 0))]
    #[allow(clippy::needless_pass_by_value)] // what PyO3 extracts is owned
    fn compare_rows(
        &self,
        py: Python<'_>,
        a: PyReadonlyArray2<'_, f32>,
        b: PyReadonlyArray2<'_, f32>,
        next: Vec<u32>,
        readout_top_k: usize,
        position: usize,
    ) -> PyResult<Vec<PyRowPair>> {
        // Copies: another thread may write to the arrays while the GIL is released.
        let (a, b) = (a.as_slice()?.to_vec(), b.as_slice()?.to_vec());
        let pairs = self.with(py, |engine| engine.compare_rows(&a, &b, &next, readout_top_k, position))?;
        pairs.into_iter().map(|pair| PyRowPair::new(py, pair)).collect()
    }

    fn read(&self, py: Python<'_>, ids: Vec<u32>) -> PyResult<PyReading> {
        self.with(py, |engine| engine.read(&ids, 0)).map(PyReading::new)
    }

    #[pyo3(signature = (reading, layers, cancel, *, top_k, look_up = Vec::new()))]
    fn lens(
        &self,
        py: Python<'_>,
        reading: &PyReading,
        layers: Vec<usize>,
        cancel: &PyCancelToken,
        top_k: usize,
        look_up: Vec<u32>,
    ) -> PyResult<Vec<PyLensRow>> {
        let cancel = Arc::clone(&cancel.0);
        let read =
            |engine: &mut Engine| reading.with(|text| engine.lens(text, &layers, &look_up, top_k, &cancel));
        let rows = self.with(py, read)?;
        rows.into_iter().map(|row| PyLensRow::new(py, row)).collect()
    }

    #[pyo3(signature = (ids, layers, heads, rows, cancel, *, what, start_position = 0))]
    #[allow(clippy::too_many_arguments)] // what is wanted by name; Python passes keywords
    fn capture<'py>(
        &self,
        py: Python<'py>,
        ids: Vec<u32>,
        layers: Vec<usize>,
        heads: Vec<usize>,
        rows: Vec<usize>,
        cancel: &PyCancelToken,
        what: Vec<String>,
        start_position: usize,
    ) -> PyResult<Bound<'py, PyDict>> {
        let cancel = Arc::clone(&cancel.0);
        let wants = |name: &str| what.iter().any(|wanted| wanted == name);
        let wanted = Capture {
            layers,
            heads,
            rows,
            q_pre: wants("q_pre"),
            k_pre: wants("k_pre"),
            scores: wants("attn_logit"),
            weights: wants("attn_row"),
        };
        let found = self.with(py, |engine| engine.capture(&ids, start_position, &wanted, &cancel))?;
        captured(py, found, ids.len(), self.model.config.widest_head_dim())
    }

    fn attention_by_distance<'py>(
        &self,
        py: Python<'py>,
        ids: Vec<u32>,
        layers: Vec<usize>,
        distances: usize,
        cancel: &PyCancelToken,
    ) -> PyResult<Bound<'py, PyDict>> {
        let cancel = Arc::clone(&cancel.0);
        let found =
            self.with(py, |engine| engine.attention_by_distance(&ids, &layers, distances, &cancel))?;
        by_distance(py, found, self.model.config.most_attention_heads())
    }
}

/// The numbers of `ropechat.sampling.Sampling`, without its seed.
#[derive(FromPyObject)]
struct SamplingFields {
    max_tokens: usize,
    thinking_budget: i64,
    logit_bias: Vec<(u32, f32)>,
    repetition_penalty: f32,
    presence_penalty: f32,
    frequency_penalty: f32,
    dry_multiplier: f32,
    dry_base: f32,
    dry_allowed_length: usize,
    dry_penalty_last_n: i64,
    temperature: f32,
    top_n_sigma: f32,
    top_k: usize,
    top_p: f32,
    min_p: f32,
    xtc_probability: f32,
    xtc_threshold: f32,
}

impl SamplingFields {
    fn with(self, breakers: Option<&PyBreakers>) -> Sampling {
        Sampling {
            logit_bias: self.logit_bias,
            repetition_penalty: self.repetition_penalty,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            dry_multiplier: self.dry_multiplier,
            dry_base: self.dry_base,
            dry_allowed_length: self.dry_allowed_length,
            dry_penalty_last_n: usize::try_from(self.dry_penalty_last_n).ok(), // -1: all
            dry_breakers: breakers.map(|breakers| Arc::clone(&breakers.0)).unwrap_or_default(),
            temperature: self.temperature,
            top_n_sigma: self.top_n_sigma,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            xtc_probability: self.xtc_probability,
            xtc_threshold: self.xtc_threshold,
            ..Sampling::default()
        }
    }
}

/// Token sequences that a repetition must not contain.
#[pyclass(frozen, name = "Breakers", module = "ropechat.engine._core")]
pub(super) struct PyBreakers(Arc<Breakers>);

#[pymethods]
impl PyBreakers {
    #[new]
    fn new(sequences: Vec<Vec<u32>>) -> Self {
        Self(Arc::new(Breakers::new(sequences)))
    }
}

/// Validates the metadata and every tensor's name, shape, type and extent.
#[pyfunction]
pub(super) fn check<'py>(py: Python<'py>, directory: &str) -> PyResult<Bound<'py, PyDict>> {
    let (config, generation, num_parameters, tensor_types, warnings) = call_engine(py, || {
        let checkpoint = Checkpoint::open(Path::new(directory))?;
        let card = family::model_card(&checkpoint)?;
        let unread = family::check_tensors(&checkpoint, &card.config)?;
        let mut warnings = [&card.warnings, checkpoint.warnings()].concat();
        warnings.extend(unread);
        let num_parameters = family::num_parameters(&checkpoint, &card.config);
        Ok((card.config, card.generation, num_parameters, checkpoint.tensor_types(), warnings))
    })?;
    let facts = config_facts(py, &config)?;
    facts.set_item("num_parameters", num_parameters)?;
    facts.set_item("tensor_types", tensor_types)?;
    facts.set_item("quantization", config.quantization.words())?;
    facts.set_item("generation", generation_facts(py, &generation)?)?;
    facts.set_item("warnings", warnings)?;
    Ok(facts)
}

/// Bytes in memory of each type that the weights are computed in with dtype "auto".
#[pyfunction]
pub(super) fn packed_types(py: Python<'_>, directory: &str) -> PyResult<TensorTypes> {
    call_engine(py, || {
        let checkpoint = Checkpoint::open(Path::new(directory))?;
        let config = family::config(&checkpoint)?;
        let plans = ModelPlan::of_types(&checkpoint, &config, &[None])?;
        Ok(plans
            .iter()
            .flat_map(|plan| &plan.bytes_by_type)
            .map(|&(dtype, bytes)| (dtype.name(), bytes))
            .collect())
    })
}

/// The facts of `Engine.facts` that are in the config; no tensor is read.
#[pyfunction]
pub(super) fn read_config<'py>(py: Python<'py>, directory: &str) -> PyResult<Bound<'py, PyDict>> {
    let config = call_engine(py, || Ok(family::config(&Checkpoint::open(Path::new(directory))?)?))?;
    config_facts(py, &config)
}
