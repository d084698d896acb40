//! What the system gives: memory, mapped files, and how much of both there is.

pub mod checksum;
pub mod limits;
pub mod mapped;
pub mod memory;
