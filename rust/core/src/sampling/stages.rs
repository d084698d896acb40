//! What each stage of the sampler did: the recorded candidates, where they were cut, and the interval of the draw.

use super::candidates::{Candidates, Cut, Stage};
use super::readout::Logprobs;
use super::settings::{ChainStep, Sampling, biased};
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
    /// The token is drawn for every u in [start, end); `None` where a stage cut it, or no trace was asked for.
    pub interval: Option<(f64, f64)>,
    /// The uniform draw in [0, 1); `None` for greedy and for a given token.
    pub u: Option<f64>,
}

/// What the stages did to one id.
#[derive(Debug, Clone, PartialEq)]
pub struct Candidate {
    /// The id.
    pub id: u32,
    /// 1 + how many ids come before it after bias and penalty; ties by lower id.
    pub rank: usize,
    /// The stage that cut it.
    pub cut: Option<&'static str>,
    /// Whether the repetition penalty applies to it.
    pub penalized: bool,
    /// Probability at the draw; 0 if it was cut.
    pub probability: f64,
    /// Renormalized probability after each stage; 0 from the one that cut it.  // [stages]
    pub by_stage: Vec<f64>,
}

/// Takes down each stage as the sampler applies it.
pub(super) struct Recorder<'a> {
    logits: &'a [f32],
    history: &'a [u32],
    sampling: &'a Sampling,
    pub raw: &'a Logprobs,
    stages: Vec<Stage>,
    cuts: Vec<(ChainStep, Cut)>,
}

impl<'a> Recorder<'a> {
    /// `raw` is the read-out of `logits`; its most probable ids are the candidates.
    pub fn new(logits: &'a [f32], history: &'a [u32], sampling: &'a Sampling, raw: &'a Logprobs) -> Self {
        Recorder { logits, history, sampling, raw, stages: Vec::new(), cuts: Vec::new() }
    }

    /// Take down what survives `step`; `row` is the row that `candidates` are of.
    pub fn record(&mut self, step: ChainStep, candidates: &mut Candidates, row: &[f32]) {
        self.stages.push(candidates.stage(step.name(), row, self.logits, self.raw));
        self.cuts.push((step, candidates.cut(row)));
    }

    /// The record of the token `id`. `row`: biased and penalized logits, `candidates`: what survives all stages.
    pub fn finish(self, candidates: &mut Candidates, row: &[f32], id: u32, u: Option<f64>) -> Draw {
        let top = self.raw.top.iter().map(|&(id, _)| id);
        let other = (!top.clone().any(|listed| listed == id)).then_some(id);
        let last = candidates.cut(row);
        let listed: Vec<Candidate> =
            top.chain(other).map(|id| self.candidate(id, candidates, row, &last)).collect();
        let survives = listed.iter().any(|candidate| candidate.id == id && candidate.probability > 0.0);
        let interval = survives.then(|| candidates.interval(row, top_k::key(row[id as usize], id as usize)));
        Draw { id, stages: self.stages, candidates: listed, interval, u }
    }

    fn candidate(&self, id: u32, candidates: &mut Candidates, row: &[f32], last: &Cut) -> Candidate {
        let raw = self.logits[id as usize];
        let logit = row[id as usize];
        let mut cut = None;
        let mut by_stage = Vec::with_capacity(self.cuts.len());
        for (step, at) in &self.cuts {
            let logit = match step {
                _ if logit == f32::NEG_INFINITY => logit, // masked
                ChainStep::Forced | ChainStep::Grammar => raw,
                ChainStep::LogitBias => biased(raw, id, &self.sampling.logit_bias),
                _ => logit,
            };
            if cut.is_none() && !at.keeps(logit, id) && raw > f32::NEG_INFINITY {
                cut = Some(step.name());
            }
            by_stage.push(if cut.is_none() { at.probability(logit) } else { 0.0 });
        }
        Candidate {
            id,
            rank: candidates.rank_of(row, top_k::key(logit, id as usize)),
            cut,
            penalized: self.sampling.repetition_penalty != 1.0 && self.history.contains(&id),
            probability: if cut.is_none() { last.probability(logit) } else { 0.0 },
            by_stage,
        }
    }
}
