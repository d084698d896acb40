//! Packing matrices into panels.
//!
//! A panel holds 16 output rows, interleaved step by step (`kernel/README.md` draws it).

use crate::compute::pool::Pool;
use crate::kernel::LANES;
use crate::quant::{PackedType, StorageType};
use ropechat_platform::error::Result;
use ropechat_platform::memory::Buffer;
use std::ops::Range;

/// Bytes of panels per thread that are packed between two calls of `done`: several large pages, because a page that two
/// threads touch first is zeroed by both.
const PACKED_AT_A_TIME: usize = 8 << 20;

/// One source matrix, row by row.  // [out_features, in_features]
#[derive(Clone, Copy)]
pub struct Source<'a> {
    /// The type of the rows.
    pub tensor_type: StorageType,
    /// Rows of the matrix.
    pub out_features: usize,
    /// Where they are.
    pub rows: SourceRows<'a>,
}

/// Where the rows of a source come from.
#[derive(Clone, Copy)]
pub enum SourceRows<'a> {
    /// One after the other: `out_features * in_features` values, little endian, of any alignment.
    Stored(&'a [u8]),
    /// Some of such rows, by their numbers.
    Chosen(&'a [u8], &'a [usize]),
    /// A function replaces a buffer by the bytes of a row.
    Computed(&'a (dyn Fn(usize, &mut Vec<u8>) + Sync)),
}

impl Source<'_> {
    /// The bytes of one row; `computed` is the buffer for rows that must be computed.
    fn row<'b>(&'b self, row: usize, in_features: usize, computed: &'b mut Vec<u8>) -> &'b [u8] {
        let bytes = self.tensor_type.row_bytes(in_features);
        match self.rows {
            SourceRows::Stored(all) => &all[row * bytes..][..bytes],
            SourceRows::Chosen(all, order) => &all[order[row] * bytes..][..bytes],
            SourceRows::Computed(make) => {
                make(row, computed);
                &computed[..bytes]
            }
        }
    }
}

/// How the output rows of several sources are arranged in one weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrangement {
    /// One after the other: q, k, v.
    Stacked,
    /// A panel of each, alternating, so that one thread computes both factors of a gated MLP: gate, up.
    Interleaved,
}

/// The shape of a packed matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PanelShape {
    /// The format of the panels.
    pub dtype: PackedType,
    /// Values of a row.
    pub in_features: usize,
    /// Output rows of the sources together.
    pub out_features: usize,
    /// Panels of 16 rows.
    pub panels: usize,
}

impl PanelShape {
    /// The shape of the weight that [`pack`] makes from sources with these numbers of rows.
    pub fn new(rows: &[usize], arrangement: Arrangement, in_features: usize, dtype: PackedType) -> Self {
        let map = PanelMap { rows: rows.to_vec(), arrangement };
        Self { dtype, in_features, out_features: rows.iter().sum(), panels: map.panels() }
    }

    /// Bytes of a panel.
    pub fn panel_bytes(&self) -> usize {
        self.dtype.panel_bytes(self.dtype.steps(self.in_features))
    }

    /// Bytes of all panels, up to a whole cache line.
    pub fn bytes(&self) -> usize {
        (self.panels * self.panel_bytes()).next_multiple_of(64)
    }
}

/// Packs `sources` (converted to `dtype`) with the threads of `pool`, some megabytes at a time: `done(source, rows)` is
/// called with rows that are no longer needed.  // [panels, panel_bytes]
///
/// # Errors
/// Memory.
pub fn pack(
    sources: &[Source<'_>],
    arrangement: Arrangement,
    in_features: usize,
    dtype: PackedType,
    pool: &Pool,
    done: &dyn Fn(usize, Range<usize>),
) -> Result<Buffer> {
    let map = PanelMap { rows: sources.iter().map(|source| source.out_features).collect(), arrangement };
    let panel_bytes = dtype.panel_bytes(dtype.steps(in_features));
    let mut data = Buffer::zeroed(map.panels() * panel_bytes, "a weight")?;
    let mut panels: Vec<(usize, &mut [u8])> =
        data.bytes_mut().chunks_exact_mut(panel_bytes).take(map.panels()).enumerate().collect();
    let at_a_time = (PACKED_AT_A_TIME * pool.threads() / panel_bytes.max(1)).max(1);
    for panels in panels.chunks_mut(at_a_time) {
        pool.for_each(panels, |(index, panel)| {
            let (mut values, mut computed) = (vec![0.0; in_features], Vec::new());
            for (lane, row) in map.rows(*index).enumerate() {
                if let Some((source, row)) = row {
                    let source = &sources[source];
                    let bytes = source.row(row, in_features, &mut computed);
                    source.tensor_type.pack_row(bytes, dtype, lane, panel, &mut values);
                }
            }
        });
        for source in 0..sources.len() {
            let rows = panels.iter().flat_map(|(index, _)| map.rows(*index)).flatten();
            let rows = rows.filter_map(|(of, row)| (of == source).then_some(row));
            // Rows of a source are packed in order.
            if let Some((first, last)) =
                rows.fold(None, |seen, row| Some((seen.map_or(row, |(first, _)| first), row)))
            {
                done(source, first..last + 1);
            }
        }
    }
    Ok(data)
}

/// Which source row is in which lane of which panel.
pub(super) struct PanelMap {
    pub rows: Vec<usize>,
    pub arrangement: Arrangement,
}

impl PanelMap {
    pub fn panels(&self) -> usize {
        match self.arrangement {
            Arrangement::Stacked => self.rows.iter().sum::<usize>().div_ceil(LANES),
            Arrangement::Interleaved => self.rows.iter().map(|rows| rows.div_ceil(LANES)).sum(),
        }
    }

    /// (source, row) of each lane; None is padding.
    pub fn rows(&self, panel: usize) -> impl Iterator<Item = Option<(usize, usize)>> {
        (0..LANES).map(move |lane| match self.arrangement {
            Arrangement::Stacked => {
                let mut row = panel * LANES + lane;
                for (source, &rows) in self.rows.iter().enumerate() {
                    if row < rows {
                        return Some((source, row));
                    }
                    row -= rows;
                }
                None
            }
            Arrangement::Interleaved => {
                let (source, row) = (panel % self.rows.len(), panel / self.rows.len() * LANES + lane);
                (row < self.rows[source]).then_some((source, row))
            }
        })
    }
}
