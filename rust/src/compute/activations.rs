//! Rows on their way into a matmul, in the type that the weight's kernel multiplies: converted once per input, not once
//! per matmul.

use crate::compute::pool::Pool;
use crate::kernel::{Kernels, x_row_bytes};
use crate::platform::memory::{Line, line_bytes, line_bytes_mut, plain_bytes};
use crate::quant::PackedType;

/// Rows of one input.
#[derive(Debug, Default)]
pub struct Activations {
    format: ActivationFormat,
    rows: usize,
    width: usize,
    f32: Vec<f32>,
    bf16: Vec<u16>,
    q8: Vec<Line>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum ActivationFormat {
    /// For f32 and f16 weights.
    #[default]
    F32,
    /// For bf16 weights: rows of pairs, zero-padded to whole tiles.
    Bf16,
    /// For the 32-block formats: blocks of bytes with their scales and sums, and what weights like these want besides.
    Q8(PackedType),
}

impl Activations {
    fn format_for(weights: PackedType) -> ActivationFormat {
        match weights {
            PackedType::F32 | PackedType::F16 => ActivationFormat::F32,
            PackedType::BF16 => ActivationFormat::Bf16,
            PackedType::Q8_0 | PackedType::Q5K | PackedType::Q4K | PackedType::Q4_0 => {
                ActivationFormat::Q8(PackedType::Q8_0)
            }
            PackedType::Q6K => ActivationFormat::Q8(PackedType::Q6K),
        }
    }

    /// Makes room for rows of `width` for weights of `dtype`, and fills row r by `fill(r, out)`.  // out [width]
    pub fn fill(
        &mut self,
        rows: usize,
        width: usize,
        weights: PackedType,
        kernels: Kernels,
        pool: &Pool,
        fill: impl Fn(usize, &mut [f32]) + Sync,
    ) {
        (self.rows, self.width, self.format) = (rows, width, Self::format_for(weights));
        self.write(kernels, pool, &fill, |row, round| {
            with_row(width, |values| {
                fill(row, values);
                round(values);
            });
        });
    }

    /// The same for rows that are there: row r is `row_of(r)`.  // [width]
    pub fn take<'a>(
        &mut self,
        rows: usize,
        width: usize,
        weights: PackedType,
        kernels: Kernels,
        pool: &Pool,
        row_of: impl Fn(usize) -> &'a [f32] + Sync,
    ) {
        (self.rows, self.width, self.format) = (rows, width, Self::format_for(weights));
        let copy = |row: usize, out: &mut [f32]| out.copy_from_slice(row_of(row));
        self.write(kernels, pool, copy, |row, round| round(row_of(row)));
    }

    /// Every row: where no rounding is wanted straight into its place, else by way of what `lend` shows to its second
    /// argument.
    fn write(
        &mut self,
        kernels: Kernels,
        pool: &Pool,
        straight: impl Fn(usize, &mut [f32]) + Sync,
        lend: impl Fn(usize, &mut dyn FnMut(&[f32])) + Sync,
    ) {
        let (rows, width) = (self.rows, self.width);
        match self.format {
            ActivationFormat::F32 => {
                self.f32.resize(rows * width, 0.0);
                by_rows(pool, &mut self.f32[..rows * width], width, straight);
            }
            ActivationFormat::Bf16 => {
                let padded = PackedType::BF16.steps(width) * 2;
                self.bf16.resize(rows * padded, 0);
                by_rows(pool, &mut self.bf16[..rows * padded], padded, |row, out: &mut [u16]| {
                    lend(row, &mut |values| kernels.to_bf16(values, &mut out[..width]));
                    out[width..].fill(0);
                });
            }
            ActivationFormat::Q8(weights) => {
                let lines = self.row_bytes() / size_of::<Line>();
                self.q8.resize(rows * lines, Line::default());
                by_rows(pool, &mut self.q8[..rows * lines], lines, |row, out: &mut [Line]| {
                    lend(row, &mut |values| kernels.quantize_q8(values, weights, line_bytes_mut(out)));
                });
            }
        }
    }

    /// Copies rows that were filled for f32 weights.  // out [rows, width]
    pub fn copy_rows(&self, out: &mut Vec<f32>) {
        assert_eq!(self.format, ActivationFormat::F32);
        out.clear();
        out.extend_from_slice(&self.f32[..self.rows * self.width]);
    }

    /// Rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Values per row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Whether weights of `dtype` take these rows.
    pub fn fits(&self, weights: PackedType) -> bool {
        self.format == Self::format_for(weights)
    }

    /// Distance of two rows in bytes.
    pub fn row_bytes(&self) -> usize {
        match self.format {
            ActivationFormat::F32 => self.width * 4,
            ActivationFormat::Bf16 => x_row_bytes(PackedType::BF16, PackedType::BF16.steps(self.width)),
            ActivationFormat::Q8(weights) => x_row_bytes(weights, weights.steps(self.width)),
        }
    }

    /// All rows.
    pub fn bytes(&self) -> &[u8] {
        match self.format {
            ActivationFormat::F32 => plain_bytes(&self.f32),
            ActivationFormat::Bf16 => plain_bytes(&self.bf16),
            ActivationFormat::Q8(_) => line_bytes(&self.q8),
        }
    }
}

thread_local! {
    /// One f32 row on its way to another type.
    static SCRATCH: std::cell::RefCell<Vec<f32>> = const { std::cell::RefCell::new(Vec::new()) };
}

/// Lends `work` room for one f32 row.
fn with_row(width: usize, work: impl FnOnce(&mut [f32])) {
    SCRATCH.with_borrow_mut(|scratch| {
        scratch.resize(width.max(scratch.len()), 0.0);
        work(&mut scratch[..width]);
    });
}

/// Calls `each(row, values)` for every row of `data`, in parallel when there are enough.
pub fn by_rows<T: Send>(pool: &Pool, data: &mut [T], width: usize, each: impl Fn(usize, &mut [T]) + Sync) {
    const ROWS_WORTH_A_THREAD: usize = 8;
    let rows = data.len() / width;
    let share = rows.div_ceil(pool.threads()).max(ROWS_WORTH_A_THREAD);
    let mut shares: Vec<(usize, &mut [T])> = data.chunks_mut(share * width).enumerate().collect();
    pool.for_each(&mut shares, |(index, share_of_data)| {
        for (row, values) in share_of_data.chunks_exact_mut(width).enumerate() {
            each(*index * share + row, values);
        }
    });
}
