//! What the system gives: memory, mapped files, limits.

#[allow(unsafe_code)] // calls of the C library
pub mod limits;
#[allow(unsafe_code)] // mapped memory and its signal handler
pub mod mapped;
pub(crate) mod memory;
