//! What the system gives: memory, mapped files, and how much of both there is.

pub(crate) mod checksum;
#[allow(unsafe_code)] // calls of the C library
pub mod limits;
#[allow(unsafe_code)] // mapped memory and its signal handler
pub mod mapped;
#[allow(unsafe_code)] // aligned allocation, and numbers as bytes
pub(crate) mod memory;
