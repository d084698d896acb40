//! The files of the pool, compiled with loom's atomics and threads.
#![cfg(loom)]

#[path = "../src/compute"]
pub mod compute {
    pub mod phases;
    pub mod pool;
}

#[cfg(test)]
mod tests;
