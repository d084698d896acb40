//! The files of the pool, compiled with loom's atomics and threads, or as they are for ThreadSanitizer.

#[path = "../src/compute"]
pub mod compute {
    pub mod phases;
    pub mod pool;
}

#[cfg(tsan)]
pub mod stand_in;

#[cfg(all(test, not(loom)))]
extern crate self as ropechat_kernels;
#[cfg(all(test, not(loom)))]
#[path = "../tests/pool.rs"]
mod pool;
#[cfg(all(test, loom))]
mod tests;
