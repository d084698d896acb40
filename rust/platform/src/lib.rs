//! What the system gives, and everything that can go wrong. The modules, from the lowest to the highest; one imports only
//! from those above it in this list:
//!
//! - `error`: everything that can go wrong, with the exit code that it leads to.
//! - `sync`: locks that ThreadSanitizer sees.
//! - `memory`: aligned memory that is asked for before it is used.
//! - `limits`: what the process may still use.
//! - `cores`: processors, and which of them to use.
//! - `files`: reading and writing without surprises.
//! - `sigbus`: a mapped file that is cut ends the process with a message.
//! - `mapped`: files as memory.

#![deny(unsafe_code)]

#[allow(unsafe_code)] // calls of the C library
pub mod cores;
pub mod error;
pub mod files;
#[allow(unsafe_code)] // calls of the C library
pub mod limits;
#[allow(unsafe_code)] // mapped memory
pub mod mapped;
pub mod memory;
#[cfg(unix)]
#[allow(unsafe_code)] // a signal handler
pub mod sigbus;
#[cfg(not(unix))]
pub mod sigbus {
    //! Without signals nothing is watched.

    #[derive(Debug)]
    pub struct Watched;

    impl Watched {
        pub fn new(_map: &[u8], _path: &std::path::Path) -> Option<Self> {
            None
        }
    }

    pub fn exit_when_cut(_screen: bool) {}
}
pub mod sync;

pub use error::{Error, Result};
