//! Checks of what is asked for.

use ropechat_platform::error::{Error, Result, size};

/// Numbers below `count`, each once and in order.
pub(super) fn known(given: &[usize], count: usize, name: &str) -> Result<Vec<usize>> {
    let mut known = given.to_vec();
    known.sort_unstable();
    known.dedup();
    match known.last() {
        Some(&last) if last < count => Ok(known),
        last => Err(Error::Request(format!(
            "{name}: must be at least one of 0 to {} (got {})",
            count - 1,
            last.map_or_else(|| "none".into(), usize::to_string)
        ))),
    }
}

/// An empty list with room for `values`.
pub(super) fn room<T>(values: usize, what: impl FnOnce() -> String) -> Result<Vec<T>> {
    let mut all = Vec::new();
    let reserved = all.try_reserve_exact(values);
    reserved.map(|()| all).map_err(|_| Error::Memory {
        what: format!(
            "{} need {}, more than the system gives; shorten the text",
            what(),
            size(values.saturating_mul(size_of::<T>()) as u64)
        ),
    })
}
