//! Who may use the workers now: one thread at a time, in the order of asking.

use super::sync::{Condvar, Mutex, lock, set_turn_of, turn_of};
use std::sync::PoisonError;

/// Tickets: of those who asked so far, and of the one whose turn it is.
#[derive(Default)]
pub struct Turns {
    tickets: Mutex<(u64, u64)>,
    next: Condvar,
}

/// A turn; the next one begins when this is dropped.
#[must_use]
pub struct Turn<'a>(Option<&'a Turns>);

impl Turns {
    /// Waits for a turn of the pool at this address. A thread that has it already gets nothing more.
    pub fn take(&self, pool: usize) -> Turn<'_> {
        if turn_of() == pool {
            return Turn(None);
        }
        let mut tickets = lock(&self.tickets);
        let own = tickets.0;
        tickets.0 += 1;
        while tickets.1 != own {
            tickets = self.next.wait(tickets).unwrap_or_else(PoisonError::into_inner);
        }
        set_turn_of(pool);
        Turn(Some(self))
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let Some(turns) = self.0 else { return };
        set_turn_of(0);
        let mut tickets = lock(&turns.tickets);
        tickets.1 += 1;
        if tickets.0 > tickets.1 {
            turns.next.notify_all();
        }
    }
}
