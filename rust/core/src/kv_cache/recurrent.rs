//! The recurrent state of a sequence: what its layers without keys and values keep of all positions before.
//!
//! A state belongs to one length. Going back to a shorter one needs a snapshot: the state is kept by the block that it
//! is the end of, so that forks, which share blocks, share snapshots, and a released block releases its own. Snapshots
//! are never written: a forward pass reads the committed state and writes the next one (law 3).

use crate::config::Config;
use ropechat_kernels::kernel::LANES;
use ropechat_platform::error::Result;
use ropechat_platform::memory::Buffer;
use ropechat_platform::sync::{Mutex, MutexGuard};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, PoisonError, Weak};

/// Bytes that snapshots may take, and how many there may be, of any size.
const SNAPSHOT_BYTES: usize = 128 << 20;
const LEAST_SNAPSHOTS: usize = 4;
/// Snapshots kept behind a sequence that grows by a few tokens at a time, fewer than a block has.
const TRAIL: usize = 2;

/// The sizes of a sequence's recurrent state. The mixers of all layers have the same, and so have all further
/// states.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct RecurrentLayout {
    /// Layers with a state.
    pub layers: usize,
    /// Channels of the convolution.
    pub channels: usize,
    /// Positions that it keeps of each.
    pub positions: usize,
    /// Heads with a matrix.
    pub heads: usize,
    /// Rows of a head's matrix.
    pub keys: usize,
    /// Columns of a head's matrix, up to whole panels of 16.
    pub values: usize,
    /// Further states of mechanisms, which follow those of the mixers.
    pub further_states: usize,
    /// Values of each.
    pub further_values: usize,
}

impl RecurrentLayout {
    /// The layout of a model's state; no layers where it has none.
    pub fn new(config: &Config) -> Self {
        let Some(recurrent) = &config.recurrent else { return Self::default() };
        let layers = config.layers.iter().filter(|layer| layer.mixer.is_recurrent()).count();
        let (channels, positions) = recurrent.facts().window();
        let (heads, keys, values) = recurrent.facts().matrices();
        let [further_states, further_values] = config.mechanisms.further_states();
        let values = values.next_multiple_of(LANES);
        Self { layers, channels, positions, heads, keys, values, further_states, further_values }
    }

    /// Values of one head's matrix.
    pub fn matrix_values(&self) -> usize {
        self.keys * self.values
    }

    /// Values of one layer: the window of the convolution, then the matrices of all heads.
    pub fn layer_values(&self) -> usize {
        self.channels * self.positions + self.heads * self.matrix_values()
    }

    /// Bytes of the state of all layers.
    pub fn bytes(&self) -> usize {
        self.place(self.layers + self.further_states).start * size_of::<f32>()
    }

    /// Where the values of a layer are, counted over the mixers, then over further states.
    fn place(&self, layer: usize) -> Range<usize> {
        let mixers = layer.min(self.layers);
        let start = mixers * self.layer_values() + (layer - mixers) * self.further_values;
        let values = if layer < self.layers { self.layer_values() } else { self.further_values };
        start..start + values
    }
}

/// One state of all layers.
pub struct State {
    data: Buffer,
    bytes: usize,
    /// One reference of the store's count of states.
    _allocated: Arc<()>,
}

impl State {
    /// The values of all layers.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.data.bytes()[..self.bytes]
    }
}

/// A state that may be dropped.
type Kept = Mutex<Option<Arc<State>>>;
/// Where a block keeps the state at its end.
pub type Slot = Arc<Kept>;

/// What the states of a cache have in common: their size, and which snapshots there are.
pub struct StateStore {
    layout: RecurrentLayout,
    allocated: Arc<()>,
    /// Where snapshots are, oldest first.
    snapshots: Mutex<VecDeque<Weak<Kept>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl StateStore {
    pub fn new(layout: RecurrentLayout) -> Self {
        Self { layout, allocated: Arc::new(()), snapshots: Mutex::default() }
    }

    /// Bytes of all states, snapshots included.
    pub fn bytes(&self) -> usize {
        (Arc::strong_count(&self.allocated) - 1) * self.layout.bytes()
    }

    /// A state whose values are not set.
    fn state(&self) -> Result<State> {
        let data = Buffer::zeroed(self.layout.bytes(), "the recurrent state")?;
        Ok(State { data, bytes: self.layout.bytes(), _allocated: Arc::clone(&self.allocated) })
    }

    /// A state that `fill` writes; None where that returns false.
    pub fn read(&self, fill: impl FnOnce(&mut [u8]) -> bool) -> Result<Option<Arc<State>>> {
        let mut state = self.state()?;
        let is_filled = fill(&mut state.data.bytes_mut()[..self.layout.bytes()]);
        Ok(is_filled.then(|| Arc::new(state)))
    }

    /// Puts a snapshot into its slot; the oldest ones of all sequences make room for it.
    pub fn keep(&self, slot: &Slot, state: &Arc<State>) {
        *lock(slot) = Some(Arc::clone(state));
        let mut snapshots = lock(&self.snapshots);
        let is_kept = |weak: &Weak<Kept>| weak.upgrade().is_some_and(|slot| lock(&slot).is_some());
        snapshots.retain(|weak| !std::ptr::eq(weak.as_ptr(), Arc::as_ptr(slot)) && is_kept(weak));
        let most = (SNAPSHOT_BYTES / self.layout.bytes().max(1)).max(LEAST_SNAPSHOTS);
        while snapshots.len() >= most {
            if let Some(oldest) = snapshots.pop_front().and_then(|weak| weak.upgrade()) {
                *lock(&oldest) = None;
            }
        }
        snapshots.push_back(Arc::downgrade(slot));
    }
}

/// The state of one sequence.
pub struct RecurrentSequence {
    store: Arc<StateStore>,
    /// The state after the committed positions; None where there are none yet.
    current: Option<Arc<State>>,
    /// What the forward pass writes.
    next: Option<State>,
    /// Memory for the next one.
    spare: Option<State>,
    /// Snapshots of the last short steps, oldest first.
    trail: VecDeque<Slot>,
    /// A length to go back to, and its state.
    marked: Option<(usize, Arc<State>)>,
}

impl RecurrentSequence {
    /// The state before the first position, or a snapshot.
    pub fn new(store: &Arc<StateStore>, current: Option<Arc<State>>) -> Self {
        let store = Arc::clone(store);
        Self { store, current, next: None, spare: None, trail: VecDeque::new(), marked: None }
    }

    /// The state of the committed positions.
    pub fn current(&self) -> Option<Arc<State>> {
        self.current.clone()
    }

    /// Makes room for the state that a forward pass writes.
    pub fn reserve(&mut self) -> Result<()> {
        if self.next.is_none() {
            self.next = Some(match self.spare.take() {
                Some(spare) => spare,
                None => self.store.state()?,
            });
        }
        Ok(())
    }

    /// Forgets what a forward pass wrote.
    pub fn rollback(&mut self) {
        self.spare = self.next.take().or(self.spare.take());
    }

    /// Goes back to the state of a length: a snapshot, the marked one, or None at the beginning.
    pub fn restore(&mut self, current: Option<Arc<State>>, len: usize) {
        let before = std::mem::replace(&mut self.current, current);
        self.use_again(before);
        if self.marked.as_ref().is_some_and(|(marked, _)| *marked > len) {
            let beyond = self.marked.take().map(|(_, state)| state);
            self.use_again(beyond);
        }
        self.trail.clear();
        self.rollback();
    }

    /// Remembers the current state, that of `len`.
    pub fn mark(&mut self, len: usize) {
        let marked = self.current.clone().map(|state| (len, state));
        let before = std::mem::replace(&mut self.marked, marked);
        self.use_again(before.map(|(_, state)| state));
    }

    /// What [`RecurrentSequence::mark`] remembers.
    pub fn marked(&self) -> Option<(usize, Arc<State>)> {
        self.marked.clone()
    }

    /// Keeps the memory of a state that nobody else has for the next one.
    fn use_again(&mut self, state: Option<Arc<State>>) {
        self.spare = state.and_then(Arc::into_inner).or(self.spare.take());
    }

    /// Takes over what the forward pass wrote, and keeps it in `slot` where a block ends with it. is_short: whether the pass
    /// had less than a block, as those of drawn tokens, of which the last snapshots are kept.
    pub fn commit(&mut self, slot: Option<&Slot>, is_short: bool) {
        let Some(next) = self.next.take() else { return };
        let before = self.current.replace(Arc::new(next));
        self.use_again(before);
        let (Some(slot), Some(current)) = (slot, &self.current) else { return };
        self.store.keep(slot, current);
        if is_short {
            self.trail.push_back(Arc::clone(slot));
            if self.trail.len() > TRAIL
                && let Some(old) = self.trail.pop_front()
            {
                *lock(&old) = None;
            }
        }
    }

    /// A layer's committed state (None: zeros) and the one that the forward pass writes.  // [layer_values], or
    /// [further_values] behind the mixers, each
    pub fn layer(&mut self, layer: usize) -> (Option<&[f32]>, &mut [f32]) {
        let at = self.store.layout.place(layer);
        let before = self.current.as_ref().map(|state| &bytemuck::cast_slice(state.data.bytes())[at.clone()]);
        let next = self.next.as_mut().expect("the caller reserved room for the state");
        (before, &mut bytemuck::cast_slice_mut(next.data.bytes_mut())[at])
    }
}
