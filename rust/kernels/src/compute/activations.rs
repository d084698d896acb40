//! The input of a matmul, in the type that the weight's kernel multiplies. It is converted once per input, not once per
//! matmul.

use crate::compute::phases::{Phase, within};
use crate::compute::pool::Pool;
use crate::kernel::{Kernels, rows_as_for, x_row_bytes};
use crate::quant::PackedType;
use bytemuck::Zeroable;
use ropechat_platform::memory::CacheLine;

/// Where the rows of an input come from; stored rows are quantized without a copy.
#[derive(Clone, Copy)]
pub enum RowSource<'a> {
    /// Writes row r.
    Computed(&'a (dyn Fn(usize, &mut [f32]) + Sync)),
    /// Row r.
    Stored(&'a (dyn Fn(usize) -> &'a [f32] + Sync)),
}

/// What the rows of an input are made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InputType {
    /// The type of the weights.
    pub weights: PackedType,
    /// How the values are rounded before.
    pub rounding: RowRounding,
}

/// Whether a model rounds the inputs of a matrix itself.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub enum RowRounding {
    /// No: they lose what the weights' kernel cannot take.
    #[default]
    AsWeights,
    /// To signed bytes, of which the largest magnitude of a row is 127 (BitNet).
    BytesByRow,
}

impl From<PackedType> for InputType {
    fn from(weights: PackedType) -> Self {
        Self { weights, rounding: RowRounding::AsWeights }
    }
}

/// Rows of one input.
#[derive(Debug, Default)]
pub struct Activations {
    format: ActivationFormat,
    rounding: RowRounding,
    rows: usize,
    width: usize,
    f32: Vec<f32>,
    bf16: Vec<u16>,
    q8: Vec<CacheLine>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum ActivationFormat {
    /// For f32 and f16 weights.
    #[default]
    F32,
    /// For bf16 weights: rows of pairs, zero-padded to whole tiles.
    Bf16,
    /// For the 32-block formats: rows for weights of this type, see `x_row_bytes`.
    Q8(PackedType),
}

/// Whether weights of two types can be multiplied with the same rows: those of blocks differ in the numbers behind only.
pub fn share_activations(a: PackedType, b: PackedType) -> bool {
    let are_blocks = |dtype| matches!(Activations::format_for(dtype), ActivationFormat::Q8(_));
    a == b || are_blocks(a) && are_blocks(b)
}

impl Activations {
    fn format_for(weights: PackedType) -> ActivationFormat {
        match rows_as_for(weights) {
            PackedType::F32 => ActivationFormat::F32,
            PackedType::BF16 => ActivationFormat::Bf16,
            blocks => ActivationFormat::Q8(blocks),
        }
    }

    /// Sets the rows, in the type that such weights are multiplied with.  // rows of [width]
    pub fn quantize_rows(
        &mut self,
        rows: usize,
        width: usize,
        input: impl Into<InputType>,
        kernels: Kernels,
        pool: &Pool,
        source: RowSource<'_>,
    ) {
        let InputType { weights, rounding } = input.into();
        (self.rows, self.width, self.format) = (rows, width, Self::format_for(weights));
        self.rounding = rounding;
        let (by_row, is_bytes) =
            (rounding == RowRounding::BytesByRow, matches!(self.format, ActivationFormat::Q8(_)));
        let write = |row: usize, out: &mut [f32]| {
            match source {
                RowSource::Stored(stored) => out.copy_from_slice(stored(row)),
                RowSource::Computed(compute) => compute(row, out),
            }
            if by_row && !is_bytes {
                within(Phase::Round, || kernels.round_by_row(out));
            }
        };
        let quantize = |row: usize, quantize: &mut dyn FnMut(&[f32])| match source {
            RowSource::Stored(stored) if is_bytes || !by_row => quantize(stored(row)),
            _ => with_row(width, |values| {
                write(row, values);
                quantize(values);
            }),
        };
        match self.format {
            ActivationFormat::F32 => {
                self.f32.resize(rows * width, 0.0);
                by_rows(pool, &mut self.f32[..rows * width], width, write);
            }
            ActivationFormat::Bf16 => {
                let padded = PackedType::BF16.steps(width) * 2;
                self.bf16.resize(rows * padded, 0);
                by_rows(pool, &mut self.bf16[..rows * padded], padded, |row, out: &mut [u16]| {
                    quantize(row, &mut |values| {
                        within(Phase::Round, || kernels.to_bf16(values, &mut out[..width]));
                    });
                    out[width..].fill(0);
                });
            }
            ActivationFormat::Q8(weights) => {
                let lines = self.row_bytes() / size_of::<CacheLine>();
                self.q8.resize(rows * lines, CacheLine::zeroed());
                by_rows(pool, &mut self.q8[..rows * lines], lines, |row, out: &mut [CacheLine]| {
                    let out = bytemuck::cast_slice_mut(out);
                    quantize(row, &mut |values| {
                        within(Phase::Round, || match rounding {
                            RowRounding::AsWeights => kernels.quantize_q8(values, weights, out),
                            RowRounding::BytesByRow => kernels.quantize_q8_by_row(values, weights, out),
                        });
                    });
                });
            }
        }
    }

    /// Copies rows that are f32.  // out [rows, width]
    pub fn copy_rows(&self, out: &mut Vec<f32>) {
        assert_eq!(self.format, ActivationFormat::F32);
        out.clear();
        out.extend_from_slice(&self.f32[..self.rows * self.width]);
    }

    /// Rows held.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Values of a row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Whether these rows are made for such weights.
    pub fn fits(&self, input: InputType) -> bool {
        self.format == Self::format_for(input.weights) && self.rounding == input.rounding
    }

    /// Distance of two rows in bytes.
    pub fn row_bytes(&self) -> usize {
        match self.format {
            ActivationFormat::F32 => self.width * 4,
            ActivationFormat::Bf16 => x_row_bytes(PackedType::BF16, PackedType::BF16.steps(self.width)),
            ActivationFormat::Q8(weights) => x_row_bytes(weights, weights.steps(self.width)),
        }
    }

    /// The rows as kernels read them, [`row_bytes`](Self::row_bytes) apart.
    pub fn bytes(&self) -> &[u8] {
        match self.format {
            ActivationFormat::F32 => bytemuck::cast_slice(&self.f32),
            ActivationFormat::Bf16 => bytemuck::cast_slice(&self.bf16),
            ActivationFormat::Q8(_) => bytemuck::cast_slice(&self.q8),
        }
    }
}

thread_local! {
    /// One f32 row that is computed before it is converted.
    static SCRATCH: std::cell::RefCell<Vec<f32>> = const { std::cell::RefCell::new(Vec::new()) };
}

/// Calls `work` with a buffer for one f32 row.
fn with_row(width: usize, work: impl FnOnce(&mut [f32])) {
    SCRATCH.with_borrow_mut(|scratch| {
        scratch.resize(width.max(scratch.len()), 0.0);
        work(&mut scratch[..width]);
    });
}

/// Calls `each(row, values)` for every row of `data`, in parallel when there are enough.
pub fn by_rows<T: Send>(pool: &Pool, data: &mut [T], width: usize, each: impl Fn(usize, &mut [T]) + Sync) {
    const ROWS_WORTH_A_THREAD: usize = 8;
    pool.rows(data, width, ROWS_WORTH_A_THREAD, each);
}
