//! Grammars that an answer must match: JSON schemas, regexes, choices and Lark grammars, by the crate `llguidance`.
//!
//! A [`Vocabulary`] compiles a [`Source`] to a [`Grammar`]; each sequence has a [`Matcher`] of its own, so that the masks
//! of a sequence do not depend on others (law 1). [`Matcher::mask`] has no visible effect; [`Matcher::commit`] is
//! called when a token is (law 3).

use crate::sampling::mask::Mask;
use crate::{Error, Result};
use llguidance::ParserFactory;
use llguidance::api::{GrammarInit, ParserLimits, TopLevelGrammar};
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};
use ropechat_platform::sync::Mutex;
use serde_json::{Value, json};
use std::sync::{Arc, PoisonError};

/// Most bytes of a grammar's text.
pub const MAX_BYTES: usize = 1 << 20;
/// Most bytes of a regex.
pub const MAX_REGEX: usize = 1 << 16;
/// Work to build the lexer; llguidance's default is 1,000,000, and the largest schemas in use take half of that.
const LEXER_FUEL: u64 = 600_000;
/// Longer tokens are never allowed; the trie holds at most 1024 levels.
const MAX_TOKEN_BYTES: usize = 512;
/// Of the thread that compiles: parsers of nested grammars recurse.
const STACK_BYTES: usize = 64 << 20;
/// Most characters of an error in a message.
const MAX_ERROR: usize = 300;

/// What an answer must match.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// The text of a JSON schema; `flexible` allows whitespace between the tokens of JSON.
    JsonSchema {
        /// The schema, JSON.
        text: String,
        /// Whether whitespace is allowed.
        flexible: bool,
    },
    /// A regex of the crate `regex`, for the whole answer.
    Regex(String),
    /// One of these texts.
    Choices(Vec<String>),
    /// A Lark grammar, in llguidance's dialect.
    Lark(String),
}

impl Source {
    fn bytes(&self) -> usize {
        match self {
            Source::JsonSchema { text, .. } | Source::Regex(text) | Source::Lark(text) => text.len(),
            Source::Choices(choices) => choices.iter().map(String::len).sum(),
        }
    }

    fn parse(&self) -> Result<TopLevelGrammar> {
        let most = if matches!(self, Source::Regex(_)) { MAX_REGEX } else { MAX_BYTES };
        if self.bytes() > most {
            return Err(refused(&format!("must be at most {most} bytes (got {})", self.bytes())));
        }
        Ok(match self {
            Source::JsonSchema { text, flexible } => {
                TopLevelGrammar::from_json_schema(schema(text, *flexible)?)
            }
            Source::Regex(regex) => TopLevelGrammar::from_regex(regex),
            Source::Choices(choices) => {
                if choices.is_empty() || choices.iter().any(String::is_empty) {
                    return Err(refused("must have choices with at least one character each"));
                }
                let escaped: Vec<String> = choices.iter().map(|choice| escape(choice)).collect();
                TopLevelGrammar::from_regex(&escaped.join("|"))
            }
            Source::Lark(text) => TopLevelGrammar::from_lark(text.clone()),
        })
    }

    /// Refuses what cannot be honoured, without a vocabulary; of a Lark grammar, special tokens are not checked.
    ///
    /// # Errors
    /// Request: in llguidance's words.
    pub fn check(&self) -> Result<()> {
        let grammar = self.parse()?;
        let is_lark = matches!(self, Source::Lark(_));
        in_thread(move || {
            if is_lark {
                let init = GrammarInit::Serialized(grammar);
                return init
                    .validate(None, limits())
                    .into_error()
                    .map_or(Ok(()), |error| Err(refused(&error)));
            }
            compile(&factory(&ApproximateTokEnv::single_byte_env())?, grammar).map(|_| ())
        })
    }
}

/// A schema with the options of this program; those that it states itself stay.
fn schema(text: &str, flexible: bool) -> Result<Value> {
    let mut schema: Value = serde_json::from_str(text).map_err(|error| refused(&format!("JSON: {error}")))?;
    if let Value::Bool(_) = schema {
        schema = json!({ "allOf": [schema] });
    }
    let Value::Object(object) = &mut schema else {
        return Err(refused("must be a JSON object, true or false"));
    };
    let options = object.entry("x-guidance").or_insert_with(|| json!({}));
    if let Value::Object(options) = options {
        options.entry("whitespace_flexible").or_insert(Value::Bool(flexible));
    }
    Ok(schema)
}

/// A regex that matches `text` only.
fn escape(text: &str) -> String {
    let mut regex = String::new();
    for character in text.chars() {
        if character.is_ascii_punctuation() || character.is_ascii_whitespace() || character.is_ascii_control()
        {
            regex += &format!("\\x{{{:x}}}", u32::from(character));
        } else {
            regex.push(character);
        }
    }
    regex
}

fn limits() -> ParserLimits {
    ParserLimits { verbose_errors: false, initial_lexer_fuel: LEXER_FUEL, ..ParserLimits::default() }
}

fn factory(tokens: &TokEnv) -> Result<ParserFactory> {
    let caps = InferenceCapabilities { ff_tokens: false, ..InferenceCapabilities::default() };
    let mut factory =
        ParserFactory::new(tokens, caps, &[]).map_err(|error| refused(&format!("{error:#}")))?;
    factory.quiet();
    *factory.limits_mut() = limits();
    Ok(factory)
}

/// A matcher at the beginning of the text, where at least one token is allowed.
fn compile(factory: &ParserFactory, grammar: TopLevelGrammar) -> Result<llguidance::Matcher> {
    let parser = factory.create_parser(grammar).map_err(|error| refused(&format!("{error:#}")))?;
    let mut start = llguidance::Matcher::new(Ok(parser));
    match start.deep_clone().compute_mask_or_eos() {
        Ok(_) => Ok(start),
        Err(error) if has_no_token(&error) => {
            let first = String::from_utf8_lossy(&start.compute_ff_bytes()).chars().next();
            Err(Error::Request(match first {
                Some(first) => format!(
                    "the answer must begin with {first:?}, which no token of this model's tokenizer can; use another model or \
                     grammar"
                ),
                None => {
                    "no text matches it, or no token of this model's tokenizer can begin one; use another model or grammar"
                        .into()
                }
            }))
        }
        Err(error) => Err(refused(&format!("no text matches it, or it is too complex: {error:#}"))),
    }
}

/// Whether no token of the vocabulary fits: `StopReason::NoExtensionBias`, which errors say by name only.
fn has_no_token(error: &impl std::fmt::Display) -> bool {
    format!("{error:#}").contains("NoExtensionBias")
}

/// Runs `work` with a large stack; a panic is an error.
fn in_thread<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, work);
        let thread = thread.map_err(|_| Error::Memory {
            what: "cannot start a thread that compiles the grammar; close other programs".into(),
        })?;
        thread.join().unwrap_or_else(|_| Err(refused("too complex")))
    })
}

/// The first lines of an error of llguidance, as one line.
fn refused(text: &str) -> Error {
    let text = ["<state>", "<backtrace>", "<non-verbose"]
        .iter()
        .fold(text, |text, mark| text.split_once(mark).map_or(text, |(before, _)| before));
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut told: String = words.chars().take(MAX_ERROR).collect();
    if told.len() < words.len() {
        told.push('…');
    }
    Error::Request(told)
}

/// The tokens of a tokenizer as a trie.
pub struct Vocabulary {
    factory: ParserFactory,
}

impl Vocabulary {
    /// tokens: the bytes of each id; empty for ids without text and for special tokens, which no text of a grammar
    /// matches. special: the names of those that a Lark grammar may name, as `<|im_end|>`. stop_ids: all of them end an
    /// answer.
    ///
    /// # Errors
    /// Request: no tokens, or a stop id outside of them.
    pub fn new(mut tokens: Vec<Vec<u8>>, special: &[(u32, String)], stop_ids: &[u32]) -> Result<Self> {
        let count = tokens.len();
        let outside =
            stop_ids.iter().chain(special.iter().map(|(id, _)| id)).find(|&&id| id as usize >= count);
        if count == 0 || count > 1 << 24 || outside.is_some() {
            return Err(Error::Request(format!(
                "grammar: the tokenizer must have 1 to 2^24 tokens, stop ids among them (got {count})"
            )));
        }
        for token in &mut tokens {
            // 0xff marks special tokens; no UTF-8 has it.
            if token.len() > MAX_TOKEN_BYTES || token.first() == Some(&TokTrie::SPECIAL_TOKEN_MARKER) {
                token.clear();
            }
        }
        for (id, name) in special {
            let marked = [&[TokTrie::SPECIAL_TOKEN_MARKER], name.as_bytes()].concat();
            tokens[*id as usize] = if marked.len() > MAX_TOKEN_BYTES { Vec::new() } else { marked };
        }
        let first = stop_ids.first().copied().unwrap_or(llguidance::toktrie::INVALID_TOKEN);
        let trie = TokTrie::from(&TokRxInfo::new(count as u32, first), &tokens);
        let trie = if stop_ids.len() > 1 { trie.with_eos_tokens(stop_ids) } else { trie };
        let tokens: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        Ok(Self { factory: factory(&tokens)? })
    }

    /// Compiles a grammar.
    ///
    /// # Errors
    /// Request: it cannot be honoured; in llguidance's words.
    pub fn compile(&self, source: &Source) -> Result<Grammar> {
        let parsed = source.parse()?;
        in_thread(|| Ok(Grammar { start: Mutex::new(compile(&self.factory, parsed)?) }))
    }
}

/// A compiled grammar.
pub struct Grammar {
    start: Mutex<llguidance::Matcher>,
}

impl Grammar {
    /// A matcher at the beginning of an answer.
    pub fn matcher(&self) -> Matcher {
        Matcher { matcher: self.start.lock().unwrap_or_else(PoisonError::into_inner).deep_clone() }
    }
}

/// The place in a grammar that an answer has reached.
pub struct Matcher {
    matcher: llguidance::Matcher,
}

impl Matcher {
    /// The ids that are allowed next: after a whole answer only those that end it.
    ///
    /// # Errors
    /// Request: the grammar is too complex at this place, or no token of the vocabulary fits.
    pub fn mask(&mut self) -> Result<Mask> {
        let mask = self.matcher.compute_mask_or_eos();
        mask.map(|mask| Mask::new(mask.into())).map_err(|error| {
            if has_no_token(&error) {
                return Error::Request(
                    "grammar: no token of this model's tokenizer can continue the answer as the grammar asks; use another \
                     model or grammar"
                        .into(),
                );
            }
            let Error::Request(text) = refused(&format!("{error:#}")) else { return Error::Cancelled };
            Error::Request(format!("grammar: no token can follow here: {text}"))
        })
    }

    /// A matcher at the same place, which an error of the other one does not reach.
    pub fn copy(&self) -> Self {
        Self { matcher: self.matcher.clone() }
    }

    /// Whether nothing can follow, as the answer is whole or does not match.
    pub fn has_stopped(&self) -> bool {
        self.matcher.is_stopped()
    }

    /// Takes a token; one that does not fit is an error of the next [`Matcher::mask`].
    pub fn commit(&mut self, id: u32) {
        let _ = self.matcher.consume_token(id);
    }

    /// Takes the tokens that an answer begins with.
    ///
    /// # Errors
    /// Request: they do not fit.
    pub fn advance(&mut self, ids: &[u32]) -> Result<()> {
        for (place, &id) in ids.iter().enumerate() {
            if self.matcher.is_stopped() || self.matcher.validate_tokens(&[id]).is_ok_and(|fit| fit == 0) {
                return Err(Error::Request(format!(
                    "grammar: token {} of the text that the answer starts with does not match; start it in another way",
                    place + 1
                )));
            }
            self.commit(id);
        }
        Ok(())
    }

    /// Whether the answer is whole and nothing can follow.
    pub fn is_done(&self) -> bool {
        self.matcher.is_stopped() && !self.matcher.is_error()
    }
}

#[cfg(test)]
mod tests;
