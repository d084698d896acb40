//! Matrices of floats of a byte with a scale per tensor, per row, or per block of rows and columns.

use std::sync::LazyLock;

use super::rows::RowReader;
use super::scales::Scales;
use ropechat_kernels::quant::{StorageType, float8};

/// The values of all bytes.
type Table = [f32; 256];

static E4M3: LazyLock<Table> = LazyLock::new(|| std::array::from_fn(|bits| float8::e4m3(bits as u8)));
static E5M2: LazyLock<Table> = LazyLock::new(|| std::array::from_fn(|bits| float8::e5m2(bits as u8)));

/// Types of such tensors.
pub(super) const TYPES: &[&str] = &["F8_E4M3", "F8_E5M2"];

#[derive(Debug)]
pub(super) struct Float8<'a> {
    table: &'static Table,
    /// [rows, columns]
    bytes: &'a [u8],
    /// Columns that share a scale.
    group: usize,
    scales: Scales<'a>,
    /// The largest value before it is scaled.
    largest: f32,
}

impl<'a> Float8<'a> {
    pub fn new(dtype: &str, bytes: &'a [u8], group: usize, scales: Scales<'a>) -> Self {
        let (table, largest) = if dtype == "F8_E5M2" { (&*E5M2, 57_344.0) } else { (&*E4M3, 448.0) };
        Self { table, bytes, group, scales, largest }
    }
}

impl RowReader for Float8<'_> {
    fn kept(&self) -> StorageType {
        let exact_in_bf16 = self.scales.are_powers_of_two();
        if exact_in_bf16 { StorageType::BF16 } else { self.scales.half_type(self.largest) }
    }

    fn values(&self, row: usize, out: &mut [f32]) {
        let bytes = &self.bytes[row * out.len()..][..out.len()];
        for (group, (out, bytes)) in out.chunks_mut(self.group).zip(bytes.chunks(self.group)).enumerate() {
            let scale = self.scales.at(row, group);
            out.iter_mut().zip(bytes).for_each(|(out, &byte)| *out = self.table[usize::from(byte)] * scale);
        }
    }
}
