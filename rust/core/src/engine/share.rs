//! How often drafts were right lately.

/// Drafted tokens that are remembered.
const MEMORY: f64 = 24.0;

/// Right and all drafted tokens, older ones with less weight.
#[derive(Debug, Clone, Copy)]
pub(super) struct Share {
    right: f64,
    all: f64,
}

impl Share {
    /// A share that is assumed before anything was drafted, and how many drafts it counts as.
    pub const fn prior(share: f64, weight: f64) -> Self {
        Self { right: share * weight, all: weight }
    }

    /// Counts a draft.
    pub fn add(&mut self, is_right: bool) {
        let kept = 1.0 - 1.0 / MEMORY;
        self.right = self.right * kept + f64::from(u8::from(is_right));
        self.all = self.all * kept + 1.0;
    }

    /// The share of right ones, from 0 to 1.
    pub fn get(self) -> f64 {
        self.right / self.all
    }
}
