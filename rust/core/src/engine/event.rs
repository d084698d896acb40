//! What the engine is asked for and what it reports.

use crate::sampling::channels::Channel;
use crate::sampling::readout::Logprobs;
use crate::sampling::{Draw, Sampling};

/// How long a sequence may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Context {
    /// What the user asked for: no sequence is longer.
    Stated(usize),
    /// What the model was trained for: generation ends there, but a scored text may be longer, which shows what a model
    /// does at positions that it was not trained on.
    Trained(usize),
}

impl Context {
    /// Tokens at which generation ends.
    pub fn tokens(self) -> usize {
        match self {
            Context::Stated(tokens) | Context::Trained(tokens) => tokens,
        }
    }
}

/// What a sequence is for.
#[derive(Debug, Clone)]
pub enum Goal {
    /// Continue it.
    Generate(Generation),
    /// Score a given text.
    Score {
        /// Alternatives per row.
        readout_top_k: usize,
        /// The position of the first token that is scored. Those before it are its context: their rows are not read out,
        /// and may come from another sequence's cache.
        from: usize,
        /// Whether the row of the last token is computed too, which predicts the token after the text.
        read_next: bool,
    },
}

impl Goal {
    /// Scores all of a text and predicts the token after it.
    pub fn score(readout_top_k: usize) -> Self {
        Goal::Score { readout_top_k, from: 0, read_next: true }
    }

    /// How many of a text's `tokens` go through the forward pass: without `read_next` the last one is only compared.
    pub(super) fn rows(&self, tokens: usize) -> usize {
        match self {
            Goal::Score { read_next: false, .. } => tokens - 1,
            Goal::Score { .. } | Goal::Generate(_) => tokens,
        }
    }

    /// The first of a text's `tokens` whose row is read out; all rows before it may come from a cache.
    pub(super) fn first_row(&self, tokens: usize) -> usize {
        match self {
            Goal::Score { from, .. } => from.saturating_sub(1),
            Goal::Generate(_) => tokens - 1,
        }
    }
}

/// How a sequence is continued.
#[derive(Debug, Clone)]
pub struct Generation {
    /// The sampler's settings.
    pub sampling: Sampling,
    /// New tokens of the answer at most; those of a thought do not count.
    pub max_tokens: usize,
    /// Ids that end the sequence.
    pub stop_ids: Vec<u32>,
    /// Alternatives per row.
    pub readout_top_k: usize,
}

/// Why a generated token is the last one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishReason {
    /// It is one of `stop_ids`.
    Stop,
    /// `max_tokens` are generated.
    Length,
    /// The context is full.
    Context,
    /// The answer matches its grammar, and nothing can follow.
    Grammar,
}

/// What happened to one sequence in a step.
#[derive(Debug, Clone)]
pub enum Event {
    /// Part of the prompt is cached.
    Prefill {
        /// Cached tokens.
        done: usize,
        /// Tokens of the prompt.
        total: usize,
    },
    /// The given token at `position`, under the row before it.
    Score(Scored),
    /// The row after the last given token: the distribution of the token at `position`.
    Next {
        /// The position of the next token.
        position: usize,
        /// Its distribution.
        row: Logprobs,
    },
    /// A token was generated.
    Token {
        /// The token and its row.
        scored: Scored,
        /// How it was drawn.
        draw: Draw,
        /// Whether it is part of the thought or of the answer.
        channel: Channel,
        /// Whether it was drafted: then its row and the next one were computed in the same step.
        drafted: bool,
        /// Set on the last one.
        finish_reason: Option<FinishReason>,
    },
}

/// A token and the distribution that it was scored under or drawn from.
#[derive(Debug, Clone)]
pub struct Scored {
    /// Its position.
    pub position: usize,
    /// The token.
    pub id: u32,
    /// Raw log probability (nats) and rank; None at position 0, which has no context.
    pub logprob_and_rank: Option<(f64, usize)>,
    /// The row at `position - 1`.
    pub row: Option<Logprobs>,
    /// What the settings of [`super::Engine::explain`] do to a given token; None where they were not given.
    pub explained: Option<Draw>,
    /// Log probability (nats) and rank here of each id of [`super::Engine::look_up`]; empty at position 0.
    pub looked_up: Vec<(f64, usize)>,
}
