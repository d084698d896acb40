//! Prompt look-up: the tokens that followed an earlier occurrence of the last tokens are the draft.
//!
//! Source: Saxena 2023, "Prompt Lookup Decoding". How often such a draft is right is counted on every token of a text,
//! also on those that are computed without a draft: it costs a comparison.

use super::share::Share;

/// Tokens that must be the same before a place, at least.
const LEAST_MATCH: usize = 2;
/// Tokens that are compared when a place is looked for, at most.
const LONGEST_MATCH: usize = 16;

/// The shares of right drafts that a text begins with, by the length of the match: up to 2, 4, 8, 16 tokens, and longer.
const PRIORS: [f64; 5] = [0.25, 0.5, 0.75, 0.9, 0.95];
/// How many drafts a prior counts as.
const PRIOR_WEIGHT: f64 = 4.0;

/// The earlier place of a text that goes on like its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    /// The token that is expected next.
    next: usize,
    /// How many tokens before it are those at the end of the text.
    matched: usize,
}

/// The drafts of one text.
#[derive(Debug)]
pub(super) struct PromptLookup {
    /// Tokens of the text that were seen; 0 before the first.
    seen: usize,
    place: Option<Place>,
    /// By the length of the match.
    shares: [Share; PRIORS.len()],
}

impl Default for PromptLookup {
    fn default() -> Self {
        Self { seen: 0, place: None, shares: PRIORS.map(|share| Share::prior(share, PRIOR_WEIGHT)) }
    }
}

impl PromptLookup {
    /// Takes the tokens that a text has by now; those of the first call are its prompt.
    pub fn observe(&mut self, ids: &[u32]) {
        let first = if self.seen == 0 { ids.len() - 1 } else { self.seen };
        for end in first..ids.len() {
            let place = self.place.take();
            if let Some(Place { next, matched }) = place {
                let is_right = ids[next] == ids[end];
                self.shares[class(matched)].add(is_right);
                self.place = is_right.then_some(Place { next: next + 1, matched: matched + 1 });
            }
            if self.place.is_none() {
                self.place = find(&ids[..=end]);
            }
        }
        self.seen = ids.len();
    }

    /// The chance of each drafted token that it and all before it are right, for `most` of them.
    pub fn chances(&self, most: usize) -> impl Iterator<Item = f64> {
        let matched = self.place.map(|place| place.matched);
        let mut chance = 1.0;
        (0..most).map_while(move |i| {
            chance *= self.shares[class(matched? + i)].get();
            Some(chance)
        })
    }

    /// Appends `count` drafted tokens to the text, or none if nothing was found.
    pub fn draft(&self, ids: &mut Vec<u32>, count: usize) {
        let Some(place) = self.place else { return };
        for next in place.next..place.next + count {
            ids.push(ids[next]); // a draft that reaches the end of the text repeats itself
        }
    }
}

/// The index in [`PRIORS`] of a match of so many tokens.
fn class(matched: usize) -> usize {
    match matched {
        ..=2 => 0,
        3..=4 => 1,
        5..=8 => 2,
        9..=16 => 3,
        _ => 4,
    }
}

/// The place behind the longest repetition of the text's end; the last one of several.
fn find(ids: &[u32]) -> Option<Place> {
    let (&last, before) = ids.split_last()?;
    let mut best: Option<Place> = None;
    for (end, _) in before.iter().enumerate().rev().filter(|&(_, &id)| id == last) {
        let pairs = before[..end].iter().rev().zip(before.iter().rev());
        let matched = 1 + pairs.take(LONGEST_MATCH - 1).take_while(|(a, b)| a == b).count();
        if matched >= LEAST_MATCH && best.is_none_or(|best| matched > best.matched) {
            best = Some(Place { next: end + 1, matched });
            if matched == LONGEST_MATCH {
                break;
            }
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drafted(text: &[u32], count: usize) -> Vec<u32> {
        let mut lookup = PromptLookup::default();
        lookup.observe(text);
        let mut ids = text.to_vec();
        lookup.draft(&mut ids, count);
        ids.split_off(text.len())
    }

    #[test]
    fn the_longest_match_is_drafted_and_of_equal_ones_the_last() {
        assert_eq!(drafted(&[1, 2, 3, 9, 8, 2, 3, 7, 1, 2, 3], 3), [9, 8, 2], "three tokens before two");
        assert_eq!(drafted(&[2, 3, 9, 2, 3, 7, 2, 3], 2), [7, 2], "the last of two");
        assert_eq!(drafted(&[1, 2, 1], 4), [0; 0], "one token is no match");
        assert_eq!(drafted(&[5], 4), [0; 0]);
        assert_eq!(drafted(&[4, 5, 6, 4, 5, 6], 7), [4, 5, 6, 4, 5, 6, 4], "a cycle goes on");
        assert_eq!(drafted(&[3; 100], 5), [3; 5]);
    }

    #[test]
    fn chances_follow_what_was_right() {
        let chance = |lookup: &PromptLookup| lookup.chances(4).collect::<Vec<_>>();
        let mut lookup = PromptLookup::default();
        let mut text: Vec<u32> = (0..40).collect();
        lookup.observe(&text);
        assert!(chance(&lookup).is_empty());
        text.extend([0, 1]);
        lookup.observe(&text);
        assert!((chance(&lookup)[0] - PRIORS[0]).abs() < 1e-9);
        for id in 2..40 {
            text.push(id);
            lookup.observe(&text);
        }
        let good = chance(&lookup);
        assert!(good.len() == 4 && good[0] > 0.97 && good.is_sorted_by(|a, b| a >= b), "{good:?}");
        // The same two tokens, again and again followed by something new.
        for id in 100..160 {
            text.extend([0, 1, id]);
            lookup.observe(&text);
        }
        text.extend([0, 1]);
        lookup.observe(&text);
        assert!(chance(&lookup)[0] < 0.05);
    }
}
