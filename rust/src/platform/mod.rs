//! What the system gives: memory, files, limits.

pub mod cores;
pub mod files;
#[allow(unsafe_code)] // calls of the C library
pub mod limits;
#[allow(unsafe_code)] // mapped memory
pub mod mapped;
pub(crate) mod memory;
#[cfg(unix)]
#[allow(unsafe_code)] // a signal handler
#[cfg_attr(not(feature = "python"), allow(dead_code))] // only the bindings ask for the handler
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
