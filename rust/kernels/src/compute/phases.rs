//! Where the time of a step goes: a clock on the thread that runs it, which is off unless somebody asks.
//!
//! Phases follow each other on that thread, so the times of all of them are the time of the step. Work that threads share
//! is counted by the part that this thread does, and its wait for the others is a separate phase.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// What the thread of a step is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Choosing rows, reserving the cache, committing, events.
    Schedule,
    /// Angles and embeddings.
    Embed,
    /// Norms, and the output of attention or the MLP on its way to the next matmul.
    Norm,
    /// Activations are rounded to the type of the next matmul.
    Round,
    /// The products of q, k and v.
    QkvProj,
    /// Norms and rotation of q and k; keys and values into the cache.
    RopeAndCache,
    /// Scores, softmax, weighted sums.
    Attention,
    /// The product of attention's output.
    OProj,
    /// The products of gate and up.
    GateUpProj,
    /// The product of down.
    DownProj,
    /// Routers and experts.
    Experts,
    /// Layers with a recurrent state.
    Recurrent,
    /// The products of the logits.
    LmHead,
    /// The use of finished products: stored, added, gated.
    Epilogue,
    /// Masks of grammars.
    Grammar,
    /// Log-sum-exp, entropy, the most probable ids.
    ReadOut,
    /// The stages and the draw.
    Sample,
    /// Waiting for other threads.
    Wait,
}

impl Phase {
    /// All phases, in the order of a step.
    pub const ALL: [Phase; 18] = [
        Phase::Schedule,
        Phase::Embed,
        Phase::Norm,
        Phase::Round,
        Phase::QkvProj,
        Phase::RopeAndCache,
        Phase::Attention,
        Phase::OProj,
        Phase::GateUpProj,
        Phase::DownProj,
        Phase::Experts,
        Phase::Recurrent,
        Phase::LmHead,
        Phase::Epilogue,
        Phase::Grammar,
        Phase::ReadOut,
        Phase::Sample,
        Phase::Wait,
    ];

    /// Its name in Python.
    pub fn name(self) -> &'static str {
        match self {
            Phase::Schedule => "schedule",
            Phase::Embed => "embed",
            Phase::Norm => "norm",
            Phase::Round => "round",
            Phase::QkvProj => "qkv_proj",
            Phase::RopeAndCache => "rope_and_cache",
            Phase::Attention => "attention",
            Phase::OProj => "o_proj",
            Phase::GateUpProj => "gate_up_proj",
            Phase::DownProj => "down_proj",
            Phase::Experts => "experts",
            Phase::Recurrent => "recurrent",
            Phase::LmHead => "lm_head",
            Phase::Epilogue => "epilogue",
            Phase::Grammar => "grammar",
            Phase::ReadOut => "read_out",
            Phase::Sample => "sample",
            Phase::Wait => "wait",
        }
    }
}

/// Times by phase, and the jobs of the pool.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PhaseTimes {
    times: [Duration; Phase::ALL.len()],
    /// By phase and units.
    jobs: BTreeMap<(Phase, u32), Jobs>,
}

/// Jobs of the pool of one phase and one number of units.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Jobs {
    /// How many.
    pub count: usize,
    /// Of all of them, each from its beginning until all of it was done.
    pub time: Duration,
    /// Bytes of weights that they read, where they are products with weights.
    pub bytes: usize,
    /// Products of two numbers.
    pub products: usize,
}

impl Jobs {
    fn add(&mut self, other: &Self) {
        self.count += other.count;
        self.time += other.time;
        self.bytes += other.bytes;
        self.products += other.products;
    }
}

impl PhaseTimes {
    /// The time of a phase.
    pub fn of(&self, phase: Phase) -> Duration {
        self.times[phase as usize]
    }

    /// The jobs of each phase by their units: parts that a thread can take. A job of one unit leaves all but one thread
    /// without work.
    pub fn jobs(&self) -> impl Iterator<Item = (Phase, u32, Jobs)> + '_ {
        self.jobs.iter().map(|(&(phase, units), &jobs)| (phase, units, jobs))
    }

    /// Adds the times of another step.
    pub fn add(&mut self, other: &Self) {
        self.times.iter_mut().zip(&other.times).for_each(|(sum, time)| *sum += *time);
        other.jobs.iter().for_each(|(key, jobs)| self.jobs.entry(*key).or_default().add(jobs));
    }
}

/// A clock that runs.
struct Clock {
    times: PhaseTimes,
    /// The end of the last phase.
    last: Instant,
    /// Jobs of the phase that has not ended.
    jobs: Vec<(u32, Jobs)>,
    /// Bytes and products of the next job.
    announced: (usize, usize),
    is_in_job: bool,
}

thread_local! {
    static CLOCK: RefCell<Option<Clock>> = const { RefCell::new(None) };
}

/// Starts the clock of this thread.
pub fn start() {
    CLOCK.set(Some(Clock {
        times: PhaseTimes::default(),
        last: Instant::now(),
        jobs: Vec::new(),
        announced: (0, 0),
        is_in_job: false,
    }));
}

/// Stops the clock of this thread; what is not counted yet belongs to `rest`. None if it was off.
pub fn stop(rest: Phase) -> Option<PhaseTimes> {
    lap(rest);
    CLOCK.take().map(|clock| clock.times)
}

/// Does a job of so many units, and counts it unless it is a part of another one.
pub fn job(units: u32, work: impl FnOnce()) {
    let enter = |clock: &mut Clock| !std::mem::replace(&mut clock.is_in_job, true);
    if !CLOCK.with_borrow_mut(|clock| clock.as_mut().is_some_and(enter)) {
        return work();
    }
    let begun = Instant::now();
    work();
    let time = begun.elapsed();
    CLOCK.with_borrow_mut(|clock| {
        if let Some(clock) = clock {
            let (bytes, products) = std::mem::take(&mut clock.announced);
            clock.jobs.push((units, Jobs { count: 1, time, bytes, products }));
            clock.is_in_job = false;
        }
    });
}

/// Says how much work the next job is.
pub fn announce(bytes: usize, products: usize) {
    CLOCK.with_borrow_mut(|clock| {
        if let Some(clock) = clock.as_mut().filter(|clock| !clock.is_in_job) {
            clock.announced = (bytes, products);
        }
    });
}

/// The time since the last call was spent in `phase`.
pub fn lap(phase: Phase) {
    CLOCK.with_borrow_mut(|clock| {
        if let Some(Clock { times, last, jobs, .. }) = clock {
            let now = Instant::now();
            times.times[phase as usize] += now.saturating_duration_since(*last);
            *last = now;
            for (units, job) in jobs.drain(..) {
                times.jobs.entry((phase, units)).or_default().add(&job);
            }
        }
    });
}

/// Does a part of the current phase that is counted as `phase`.
pub fn within<T>(phase: Phase, work: impl FnOnce() -> T) -> T {
    if CLOCK.with_borrow(Option::is_none) {
        return work();
    }
    let begun = Instant::now();
    let result = work();
    let time = begun.elapsed();
    CLOCK.with_borrow_mut(|clock| {
        if let Some(Clock { times, last, .. }) = clock {
            times.times[phase as usize] += time;
            *last += time;
        }
    });
    result
}
