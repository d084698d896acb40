//! The channels of a reply: what the model thinks, and its answer.
//!
//! Models that reason write a thought between two markers and the answer behind it. Which markers is found from the chat
//! template (`ropechat/engine/reasoning.py`); here each token of a reply gets its channel, and a thought whose budget is
//! spent is closed.

use std::sync::Arc;

/// Where a token of a reply belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Channel {
    /// To the answer.
    Answer,
    /// To the thought.
    Thought,
    /// To what separates the two.
    Marker,
}

impl Channel {
    /// The value of `Step.channel` in Python.
    pub fn name(self) -> &'static str {
        match self {
            Channel::Answer => "answer",
            Channel::Thought => "thought",
            Channel::Marker => "marker",
        }
    }
}

/// What separates a thought from an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Marker {
    /// These ids, the first of which is a control token.
    Ids(Vec<u32>),
    /// This text, in tokens of any division.
    Text(Vec<u8>),
}

impl Marker {
    fn is_empty(&self) -> bool {
        match self {
            Marker::Ids(ids) => ids.is_empty(),
            Marker::Text(text) => text.is_empty(),
        }
    }
}

/// The markers of a model.
#[derive(Debug)]
pub struct Markers {
    /// Opens a thought, at the beginning of a reply.
    pub start: Marker,
    /// Closes a thought.
    pub end: Marker,
    /// Opens an answer without a thought; empty where nothing does.
    pub answer: Vec<u32>,
    /// Written in place of the model's choice to close a thought; contains `end` and the space around it.
    pub close: Vec<u32>,
    /// The bytes of each id, if a marker is a text.
    pub token_bytes: Vec<Vec<u8>>,
}

impl Markers {
    fn bytes(&self, id: u32) -> &[u8] {
        self.token_bytes.get(id as usize).map_or(&[], Vec::as_slice)
    }

    fn bytes_of(&self, ids: &[u32]) -> Vec<u8> {
        ids.iter().flat_map(|&id| self.bytes(id)).copied().collect()
    }

    /// Whether the end marker is among these ids.
    fn has_end(&self, ids: &[u32]) -> bool {
        match &self.end {
            Marker::Ids(end) => ids.windows(end.len()).any(|part| part == end),
            Marker::Text(end) => self.bytes_of(ids).windows(end.len()).any(|part| part == end),
        }
    }

    /// The channel of each id of a whole reply. is_open: whether the prompt ends inside a thought.
    pub fn label(self: &Arc<Self>, ids: &[u32], is_open: bool) -> Vec<Channel> {
        let mut channels = Channels::new(Arc::clone(self), is_open, None);
        ids.iter().map(|&id| channels.push(id)).collect()
    }
}

/// The place in a reply that has been reached.
#[derive(Debug, Clone)]
pub struct Channels {
    markers: Arc<Markers>,
    /// Tokens of a thought at most.
    budget: Option<usize>,
    /// Tokens of the thought so far.
    spent: usize,
    state: State,
}

#[derive(Debug, Clone)]
enum State {
    /// The first tokens of a reply, which may become a marker.
    Start(Vec<u32>),
    /// In a thought; of the end marker so many ids, or these last bytes, are there.
    Thought {
        ids: usize,
        bytes: Vec<u8>,
    },
    /// The thought is being closed: the place in `close`.
    Closing(usize),
    Answer,
}

/// What the next token has to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Demand {
    /// Anything.
    Free,
    /// This id.
    Only(u32),
    /// What the grammar allows, or one of these ids if there are any.
    Grammar {
        /// Begin a marker.
        also: Vec<u32>,
        /// Whether only these may follow, as a marker has begun.
        only: bool,
    },
}

impl Channels {
    /// At the beginning of a reply. is_open: whether the prompt ends inside a thought. budget: tokens of a thought at most.
    pub fn new(markers: Arc<Markers>, is_open: bool, budget: Option<usize>) -> Self {
        let state = if is_open { State::thought() } else { State::Start(Vec::new()) };
        Self { markers, budget, spent: 0, state }
    }

    /// Whether the answer has begun.
    pub fn is_answer(&self) -> bool {
        matches!(self.state, State::Answer)
    }

    /// Whether a thought may have to be closed.
    pub(super) fn has_budget(&self) -> bool {
        self.budget.is_some() && !self.is_answer()
    }

    /// What the next token has to be. constrained: whether the answer must match a grammar.
    pub(super) fn demand(&self, constrained: bool) -> Demand {
        match &self.state {
            State::Closing(place) => Demand::Only(self.markers.close[*place]),
            State::Thought { ids: 0, .. } if self.is_spent() => Demand::Only(self.markers.close[0]),
            State::Thought { .. } => Demand::Free,
            State::Start(_) if !constrained => Demand::Free,
            State::Start(ids) => Demand::Grammar { also: self.openings(ids), only: !ids.is_empty() },
            State::Answer if constrained => Demand::Grammar { also: Vec::new(), only: false },
            State::Answer => Demand::Free,
        }
    }

    fn is_spent(&self) -> bool {
        self.budget.is_some_and(|budget| self.spent >= budget) && !self.markers.close.is_empty()
    }

    /// The ids that continue the beginning of a marker.
    fn openings(&self, begun: &[u32]) -> Vec<u32> {
        let mut found = Vec::new();
        let mut add = |marker: &[u32]| {
            if marker.starts_with(begun) {
                found.extend(marker.get(begun.len()));
            }
        };
        add(&self.markers.answer);
        match &self.markers.start {
            Marker::Ids(ids) => add(ids),
            Marker::Text(text) => {
                let written: usize = begun.iter().map(|&id| self.markers.bytes(id).len()).sum();
                let rest = &text[written.min(text.len())..];
                let continues = |bytes: &[u8]| !bytes.is_empty() && rest.starts_with(bytes);
                let ids = (0..).zip(&self.markers.token_bytes);
                found.extend(ids.filter(|(_, bytes)| continues(bytes)).map(|(id, _)| id));
            }
        }
        found
    }

    /// Takes the next token and returns its channel. constrained, as for `demand`: then the space that follows the end
    /// marker is written before the grammar begins.
    pub(super) fn take(&mut self, id: u32, constrained: bool) -> Channel {
        let (markers, is_spent) = (Arc::clone(&self.markers), self.is_spent());
        match &mut self.state {
            State::Answer => Channel::Answer,
            State::Closing(place) if id != markers.close[*place] => {
                // A token of a given beginning, which was drawn with another budget.
                let begun = &markers.close[..*place];
                if markers.has_end(begun) {
                    self.state = State::Answer;
                    return Channel::Answer;
                }
                self.state = State::Thought { ids: 0, bytes: markers.bytes_of(begun) };
                self.take(id, constrained)
            }
            State::Closing(place) => {
                *place += 1;
                if *place == markers.close.len() {
                    self.state = State::Answer;
                }
                Channel::Marker
            }
            State::Start(ids) => {
                ids.push(id);
                let (state, channel) = after_start(&markers, std::mem::take(ids));
                self.state = state;
                channel
            }
            State::Thought { ids: 0, .. } if is_spent && id == markers.close[0] => {
                self.state = if markers.close.len() == 1 { State::Answer } else { State::Closing(1) };
                Channel::Marker
            }
            State::Thought { ids, bytes } => {
                let channel = match &markers.end {
                    Marker::Ids(end) => {
                        *ids = if id == end[*ids] { *ids + 1 } else { usize::from(id == end[0]) };
                        match *ids {
                            0 => Channel::Thought,
                            count if count == end.len() => {
                                self.state = behind_end(&markers.close, end, constrained);
                                Channel::Marker
                            }
                            _ => Channel::Marker,
                        }
                    }
                    Marker::Text(end) => {
                        bytes.extend_from_slice(markers.bytes(id));
                        if bytes.windows(end.len()).any(|part| part == end) {
                            self.state = State::Answer;
                            Channel::Marker
                        } else {
                            let kept = bytes.len().min(end.len() - 1);
                            bytes.drain(..bytes.len() - kept);
                            Channel::Thought
                        }
                    }
                };
                self.spent += usize::from(channel == Channel::Thought);
                channel
            }
        }
    }

    /// As `take`, without a grammar.
    pub fn push(&mut self, id: u32) -> Channel {
        self.take(id, false)
    }
}

impl State {
    fn thought() -> Self {
        State::Thought { ids: 0, bytes: Vec::new() }
    }
}

/// The state behind the first tokens of a reply, and the channel of the last one.
fn after_start(markers: &Markers, ids: Vec<u32>) -> (State, Channel) {
    let is_part = |marker: &[u32]| !marker.is_empty() && marker.starts_with(&ids);
    if ids == markers.answer {
        return (State::Answer, Channel::Marker);
    }
    let begins = match &markers.start {
        start if start.is_empty() => false,
        Marker::Ids(start) if ids == *start => return (State::thought(), Channel::Marker),
        Marker::Ids(start) => is_part(start),
        Marker::Text(start) => {
            let written = markers.bytes_of(&ids);
            if written.starts_with(start) {
                let bytes = written[start.len()..].to_vec();
                return (State::Thought { ids: 0, bytes }, Channel::Marker);
            }
            !written.is_empty() && start.starts_with(&written)
        }
    };
    match begins || is_part(&markers.answer) {
        true => (State::Start(ids), Channel::Marker),
        false => (State::Answer, Channel::Answer),
    }
}

/// The state after an end marker that the model wrote.
fn behind_end(close: &[u32], end: &[u32], constrained: bool) -> State {
    let place = close.windows(end.len()).position(|part| part == end).map(|place| place + end.len());
    match place {
        Some(place) if constrained && place < close.len() => State::Closing(place),
        _ => State::Answer,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Channel::{Answer, Marker as Between, Thought};

    const START: u32 = 1;
    const END: u32 = 2;
    const SPACE: u32 = 3;

    fn of_ids() -> Arc<Markers> {
        Arc::new(Markers {
            start: Marker::Ids(vec![START]),
            end: Marker::Ids(vec![END]),
            answer: Vec::new(),
            close: vec![SPACE, END, SPACE],
            token_bytes: Vec::new(),
        })
    }

    /// Ids are the bytes of the text: `<t>` opens, `</t>` closes.
    fn of_text() -> Arc<Markers> {
        let token_bytes: Vec<Vec<u8>> = (0..=127).map(|byte| vec![byte]).collect();
        Arc::new(Markers {
            start: Marker::Text(b"<t>".to_vec()),
            end: Marker::Text(b"</t>".to_vec()),
            answer: Vec::new(),
            close: b"</t>".iter().map(|&byte| byte.into()).collect(),
            token_bytes,
        })
    }

    fn text(text: &str) -> Vec<u32> {
        text.bytes().map(u32::from).collect()
    }

    #[test]
    fn a_reply_is_a_thought_between_markers_and_an_answer() {
        let markers = of_ids();
        assert_eq!(
            markers.label(&[START, 9, 9, END, 8], false),
            [Between, Thought, Thought, Between, Answer]
        );
        assert_eq!(markers.label(&[9, END, 8], true), [Thought, Between, Answer]);
        assert_eq!(markers.label(&[9, START, END], false), [Answer; 3], "a thought only begins a reply");
        assert_eq!(markers.label(&[START, START, END, END], false), [Between, Thought, Between, Answer]);
    }

    #[test]
    fn markers_of_text_are_found_in_any_division() {
        let markers = of_text();
        let found = markers.label(&text("<t>a</</t>b</t>"), false);
        let mut expected = vec![Between; 3];
        expected.extend([Thought; 6]);
        expected.push(Between);
        expected.extend([Answer; 5]);
        assert_eq!(found, expected);
        assert_eq!(markers.label(&text("<b>"), false), [Between, Answer, Answer]);
    }

    #[test]
    fn markers_of_several_ids_may_have_a_common_beginning() {
        let markers = Arc::new(Markers {
            start: Marker::Ids(vec![5, 6, 7]),
            end: Marker::Ids(vec![4, 5, 8, 7]),
            answer: vec![5, 8, 7],
            close: vec![4, 5, 8, 7],
            token_bytes: Vec::new(),
        });
        assert_eq!(markers.label(&[5, 8, 7, 9], false), [Between, Between, Between, Answer]);
        let with_thought = [5, 6, 7, 9, 4, 5, 4, 5, 8, 7, 9];
        let channels = markers.label(&with_thought, false);
        assert_eq!(channels[3], Thought);
        assert_eq!(channels[4..10], [Between; 6]);
        assert_eq!(channels[10], Answer);
    }

    #[test]
    fn a_spent_budget_closes_the_thought() {
        for budget in 0..4 {
            let mut channels = Channels::new(of_ids(), true, Some(budget));
            for _ in 0..budget {
                assert_eq!(channels.demand(false), Demand::Free);
                assert_eq!(channels.push(9), Thought);
            }
            for id in [SPACE, END, SPACE] {
                assert_eq!(channels.demand(false), Demand::Only(id));
                assert!(!channels.is_answer());
                assert_eq!(channels.push(id), Between);
            }
            assert!(channels.is_answer());
            assert_eq!(channels.demand(false), Demand::Free);
        }
    }

    #[test]
    fn given_tokens_that_only_begin_to_close_are_a_thought() {
        let mut channels = Channels::new(of_ids(), true, Some(0));
        let given = [SPACE, 9, SPACE, SPACE, END, 9];
        let found = given.map(|id| channels.push(id));
        assert_eq!(found, [Between, Thought, Between, Between, Between, Answer], "`9` did not close it");
        let mut channels = Channels::new(of_text(), true, Some(0));
        for id in text("</</t") {
            channels.push(id);
        }
        assert_eq!(channels.demand(false), Demand::Only(u32::from(b'>')));
    }

    #[test]
    fn a_grammar_begins_behind_the_thought_and_its_space() {
        let mut channels = Channels::new(of_ids(), false, None);
        assert_eq!(channels.demand(true), Demand::Grammar { also: vec![START], only: false });
        channels.take(START, true);
        assert_eq!(channels.demand(true), Demand::Free);
        channels.take(END, true);
        assert_eq!(channels.demand(true), Demand::Only(SPACE));
        channels.take(SPACE, true);
        assert_eq!(channels.demand(true), Demand::Grammar { also: Vec::new(), only: false });
    }
}
