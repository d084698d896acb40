//! What the next token of a sequence may be: a thought that must end, a grammar that the answer must match.

use super::channels::{Channel, Channels, Demand};
use super::grammar::Matcher;
use super::mask::Mask;
use crate::Result;

/// The place in a reply, and in the grammar of its answer.
pub struct Constraint {
    channels: Option<Channels>,
    matcher: Option<Matcher>,
}

impl Constraint {
    /// At the beginning of a reply.
    pub fn new(channels: Option<Channels>, matcher: Option<Matcher>) -> Self {
        Self { channels, matcher }
    }

    /// Takes the tokens that a reply begins with.
    ///
    /// # Errors
    /// Request: those of the answer do not fit the grammar.
    pub fn advance(&mut self, ids: &[u32]) -> Result<()> {
        let constrained = self.matcher.is_some();
        let answer = match &mut self.channels {
            None => 0,
            Some(channels) => {
                let belongs = |&id: &u32| channels.take(id, constrained) == Channel::Answer;
                ids.iter().position(belongs).unwrap_or(ids.len())
            }
        };
        match &mut self.matcher {
            Some(matcher) => matcher.advance(&ids[answer..]),
            None => Ok(()),
        }
    }

    /// Whether the answer has begun: from here on tokens count.
    pub fn is_answer(&self) -> bool {
        self.channels.as_ref().is_none_or(Channels::is_answer)
    }

    /// Whether there is a mask at some places.
    pub fn has_masks(&self) -> bool {
        self.matcher.is_some() || self.channels.as_ref().is_some_and(Channels::has_budget)
    }

    /// A constraint at the same place, which an error of the other one does not reach.
    pub fn copy(&self) -> Self {
        Self { channels: self.channels.clone(), matcher: self.matcher.as_ref().map(Matcher::copy) }
    }

    /// The ids that are allowed next; None: all.
    ///
    /// # Errors
    /// As `Matcher::mask`.
    fn mask(&mut self) -> Result<Option<Mask>> {
        let constrained = self.matcher.is_some();
        let demand = match &self.channels {
            Some(channels) => channels.demand(constrained),
            None if constrained => Demand::Grammar { also: Vec::new(), only: false },
            None => Demand::Free,
        };
        Ok(match (demand, &mut self.matcher) {
            (Demand::Only(id), _) => Some(Mask::forced(id)),
            (Demand::Grammar { also, only: true }, _) => Some(Mask::of(&also)),
            (Demand::Grammar { also, .. }, Some(matcher)) => {
                let mut mask = matcher.mask()?;
                also.into_iter().for_each(|id| mask.allow(id));
                Some(mask)
            }
            _ => None,
        })
    }

    /// The mask of the next token, and those behind each token of `draft`, as far as they allow it and the text goes on.
    ///
    /// # Errors
    /// As `Matcher::mask`, for the next token; behind a drafted one an error only ends the list.
    pub fn masks(&mut self, draft: &[u32]) -> Result<Vec<Option<Mask>>> {
        let mut masks = vec![self.mask()?];
        if draft.is_empty() {
            return Ok(masks);
        }
        let mut ahead = self.copy();
        for (place, &id) in draft.iter().enumerate() {
            if masks[place].as_ref().is_some_and(|mask| !mask.allows(id)) {
                break;
            }
            ahead.commit(id);
            if ahead.matcher.as_ref().is_some_and(Matcher::has_stopped) {
                break;
            }
            let Ok(mask) = ahead.mask() else { break };
            masks.push(mask);
        }
        Ok(masks)
    }

    /// Takes a token and returns its channel; one that does not fit the grammar is an error of the next `masks`.
    pub fn commit(&mut self, id: u32) -> Channel {
        let constrained = self.matcher.is_some();
        let channel =
            self.channels.as_mut().map_or(Channel::Answer, |channels| channels.take(id, constrained));
        if let (Channel::Answer, Some(matcher)) = (channel, &mut self.matcher) {
            matcher.commit(id);
        }
        channel
    }

    /// Whether the answer matches its grammar and nothing can follow.
    pub fn is_done(&self) -> bool {
        self.is_answer() && self.matcher.as_ref().is_some_and(Matcher::is_done)
    }
}
