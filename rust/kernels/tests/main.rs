//! The tests of the kernels, as one program: the library is compiled once.

mod divergence;
mod every_shape;
mod float8;
mod kernel;
mod logsumexp;
mod matmul_blocks;
mod maxima;
mod packed_type;
mod phases;
mod pool;
mod progress;
mod weight;
