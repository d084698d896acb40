//! What each stage of the sampler did: the recorded candidates, where they were cut, and the interval of the draw.

use super::candidates::{Candidates, Cut, Stage};
use super::readout::Logprobs;
use super::settings::ChainStep;
use super::top_k;

/// A token, sampled or given, and what the settings did to it and to the recorded candidates.
#[derive(Debug, Clone, PartialEq)]
pub struct Draw {
    /// The token.
    pub id: u32,
    /// One per stage that is switched on, in order; empty when no trace was asked for. Temperature 0 keeps the best
    /// candidate and ends the list.
    pub stages: Vec<Stage>,
    /// The most probable ids of the trace, then `id` if it is not among them; empty when no trace was asked for.
    pub candidates: Vec<Candidate>,
    /// The token is drawn for every u in [start, end); `None` where a stage cut it, where XTC may remove others before a given
    /// token, or where no trace was asked for.
    pub interval: Option<(f64, f64)>,
    /// The uniform draw in [0, 1); `None` for greedy and for a given token.
    pub u: Option<f64>,
}

/// What the stages did to one id.
#[derive(Debug, Clone, PartialEq)]
pub struct Candidate {
    /// The id.
    pub id: u32,
    /// 1 + how many ids come before it after bias and penalties; ties by lower id.
    pub rank: usize,
    /// The stage that cut it.
    pub cut: Option<&'static str>,
    /// Whether a penalty applies to it.
    pub penalized: bool,
    /// Probability at the draw; 0 if it was cut.
    pub probability: f64,
    /// Renormalized probability after each stage; 0 from the one that cut it.  // [stages]
    pub by_stage: Vec<f64>,
}

/// Takes down each stage as the sampler applies it.
pub(super) struct Recorder<'a> {
    logits: &'a [f32],
    pub raw: &'a Logprobs,
    stages: Vec<Stage>,
    cuts: Vec<RecordedStep>,
}

/// The state after a step, and the logits that it changed, by id.
struct RecordedStep {
    step: ChainStep,
    cut: Cut,
    changed: Vec<(u32, f32)>,
}

impl RecordedStep {
    /// The id's logit after this step, if the step applies to the id.
    fn changed(&self, id: u32) -> Option<f32> {
        let at = self.changed.binary_search_by_key(&id, |&(id, _)| id).ok()?;
        Some(self.changed[at].1)
    }
}

impl<'a> Recorder<'a> {
    /// `raw` is the read-out of `logits`; its most probable ids are the candidates.
    pub fn new(logits: &'a [f32], raw: &'a Logprobs) -> Self {
        Recorder { logits, raw, stages: Vec::new(), cuts: Vec::new() }
    }

    /// Take down what survives `step`; `row` is the row that `candidates` are of, `changed` the ids to which a bias or
    /// penalty applied, `value` what [`Stage::value`] says.
    pub fn record(
        &mut self,
        step: ChainStep,
        candidates: &mut Candidates,
        row: &[f32],
        changed: &[u32],
        value: Option<f64>,
    ) {
        self.stages.push(Stage { value, ..candidates.stage(step.name(), row, self.logits, self.raw) });
        let mut changed: Vec<(u32, f32)> = changed.iter().map(|&id| (id, row[id as usize])).collect();
        changed.sort_unstable_by_key(|&(id, _)| id);
        self.cuts.push(RecordedStep { step, cut: candidates.cut(row), changed });
    }

    /// The record of the token `id`. `row`: biased and penalized logits, `candidates`: what survives all stages.
    pub fn finish(self, candidates: &mut Candidates, row: &[f32], id: u32, u: Option<f64>) -> Draw {
        let top = self.raw.top.iter().map(|&(id, _)| id);
        let other = (!top.clone().any(|listed| listed == id)).then_some(id);
        let last = candidates.cut(row);
        let listed: Vec<Candidate> =
            top.chain(other).map(|id| self.candidate(id, candidates, row, &last)).collect();
        let survives = listed.iter().any(|candidate| candidate.id == id && candidate.probability > 0.0);
        let key = top_k::key(row[id as usize], id as usize);
        let interval = if survives { candidates.interval(row, key) } else { None };
        Draw { id, stages: self.stages, candidates: listed, interval, u }
    }

    fn candidate(&self, id: u32, candidates: &mut Candidates, row: &[f32], last: &Cut) -> Candidate {
        let raw = self.logits[id as usize];
        let logit = row[id as usize];
        let mut now = if logit == f32::NEG_INFINITY { logit } else { raw }; // masked, or as before the first step
        let (mut cut, mut penalized) = (None, false);
        let mut by_stage = Vec::with_capacity(self.cuts.len());
        for recorded in &self.cuts {
            if let Some(changed) = recorded.changed(id) {
                now = changed;
                penalized |= recorded.step.is_penalty();
            }
            if cut.is_none() && !recorded.cut.keeps(now, id) && raw > f32::NEG_INFINITY {
                cut = Some(recorded.step.name());
            }
            by_stage.push(if cut.is_none() { recorded.cut.probability(now, id) } else { 0.0 });
        }
        Candidate {
            id,
            rank: candidates.rank_of(row, top_k::key(logit, id as usize)),
            cut,
            penalized,
            probability: if cut.is_none() { last.probability(logit, id) } else { 0.0 },
            by_stage,
        }
    }
}
