//! Matrices packed for the kernels, and the one door to a matmul.
//!
//! A [`Weight`] holds `out_features x in_features` values in *panels* of 16 output rows, interleaved step by step
//! (see `kernel/README.md` for the drawing), the same layout for one row and for many. A matmul
//! splits the panels over the threads; what happens to a finished tile is its [`Epilogue`].

use crate::buffer::{Buffer, plain_bytes};
use crate::error::Result;
use crate::kernel::{Kernels, LANES, Product};
use crate::parallel::Pool;
use crate::quant::DType;
use half::{bf16, f16};
use std::ops::Range;

/// Activation rows per pass over a thread's panels: they stay in the second-level cache.
const ROW_BLOCK: usize = 48;

/// One source matrix, row-major.  // [out_features, in_features]
#[derive(Debug, Clone, Copy)]
pub struct Source<'a> {
    /// The type of `bytes`.
    pub dtype: DType,
    /// Output rows.
    pub out_features: usize,
    /// `out_features * in_features` values, little endian, of any alignment.
    pub bytes: &'a [u8],
}

/// How the output rows of several sources become one weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrangement {
    /// One after the other: q, k, v.
    Stacked,
    /// A panel of each in turn, so that a thread has both factors of a gated MLP: gate, up.
    Interleaved,
}

/// A packed matrix.
pub struct Weight {
    dtype: DType,
    in_features: usize,
    panels: usize,
    /// Output rows of the sources together.
    out_features: usize,
    data: Buffer,
    /// Padded to the panels; empty when there is none.
    bias: Vec<f32>,
}

impl std::fmt::Debug for Weight {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Weight([{}, {}] {})", self.out_features, self.in_features, self.dtype.name())
    }
}

impl Weight {
    /// Packs `sources` (converted to `dtype`) with the threads of `pool`.
    ///
    /// # Errors
    /// Memory.
    pub fn pack(
        sources: &[Source<'_>],
        arrangement: Arrangement,
        in_features: usize,
        dtype: DType,
        pool: &Pool,
    ) -> Result<Self> {
        let map = PanelMap::new(sources, arrangement);
        let panel_bytes = steps(dtype, in_features) * step_bytes(dtype);
        let mut data = Buffer::zeroed(map.panels() * panel_bytes, "a weight")?;
        {
            let mut panels: Vec<(usize, &mut [u8])> =
                data.bytes_mut().chunks_exact_mut(panel_bytes).take(map.panels()).enumerate().collect();
            pool.for_each(&mut panels, |(index, panel)| {
                for (lane, row) in map.rows(*index).enumerate() {
                    if let Some((source, row)) = row {
                        pack_row(&sources[source], row, in_features, dtype, lane, panel);
                    }
                }
            });
        }
        let out_features = sources.iter().map(|s| s.out_features).sum();
        Ok(Self { dtype, in_features, panels: map.panels(), out_features, data, bias: Vec::new() })
    }

    /// Adds bias vectors, one per source of [`Weight::pack`] in the same order and arrangement.
    pub fn with_bias(mut self, biases: &[Vec<f32>], arrangement: Arrangement) -> Self {
        let sources: Vec<Source<'_>> =
            biases.iter().map(|b| Source { dtype: DType::F32, out_features: b.len(), bytes: &[] }).collect();
        let map = PanelMap::new(&sources, arrangement);
        self.bias = vec![0.0; self.panels * LANES];
        for panel in 0..map.panels() {
            for (lane, row) in map.rows(panel).enumerate() {
                if let Some((source, row)) = row {
                    self.bias[panel * LANES + lane] = biases[source][row];
                }
            }
        }
        self
    }

    /// The storage type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Output values per row, padding included: the stride of a matmul's output.
    pub fn padded_out(&self) -> usize {
        self.panels * LANES
    }

    /// Bytes of the packed matrix.
    pub fn bytes(&self) -> usize {
        self.data.bytes().len()
    }

    fn panel_bytes(&self) -> usize {
        steps(self.dtype, self.in_features) * step_bytes(self.dtype)
    }

    /// Unpacks one output row (a stacked weight's): the embedding of a token.  // out [in_features]
    pub fn row(&self, row: usize, out: &mut [f32]) {
        let (panel, lane) = (row / LANES, row % LANES);
        let panel = &self.data.bytes()[panel * self.panel_bytes()..][..self.panel_bytes()];
        let half = |at: usize| u16::from_le_bytes([panel[at], panel[at + 1]]);
        for (k, out) in out.iter_mut().enumerate() {
            *out = match self.dtype {
                DType::F32 => {
                    let at = (k * LANES + lane) * 4;
                    f32::from_le_bytes([panel[at], panel[at + 1], panel[at + 2], panel[at + 3]])
                }
                DType::F16 => f16::from_bits(half((k * LANES + lane) * 2)).to_f32(),
                DType::BF16 => bf16::from_bits(half(((k / 2) * LANES + lane) * 4 + (k % 2) * 2)).to_f32(),
            };
        }
    }

    /// `x` times this matrix; `epilogue` says where the product goes.  // x [rows, in_features]
    pub fn matmul(&self, x: &Activations, kernels: Kernels, pool: &Pool, epilogue: Epilogue<'_>) {
        assert!(x.width == self.in_features && x.format == Activations::format_for(self.dtype));
        let sink = Sink::new(epilogue, x.rows, self.panels);
        pool.run(&|thread| {
            // Panels in pairs, so that a gated pair is never cut.
            let pairs = pool.share(self.panels.div_ceil(2), thread);
            let mut tile = [0.0; ROW_BLOCK * 2 * LANES];
            for first in (0..x.rows).step_by(ROW_BLOCK) {
                let rows = first..(first + ROW_BLOCK).min(x.rows);
                for pair in pairs.clone() {
                    let width = self.tile(x, rows.clone(), 2 * pair, kernels, &mut tile);
                    // SAFETY: threads have disjoint pairs, so no two write the same columns.
                    unsafe { sink.take(&tile, rows.clone(), 2 * pair, width, kernels) }
                }
            }
        });
    }

    /// The product of some rows with up to two panels, bias added; returns the columns written.  // tile [rows, 32]
    fn tile(
        &self,
        x: &Activations,
        rows: Range<usize>,
        panel: usize,
        kernels: Kernels,
        tile: &mut [f32],
    ) -> usize {
        let panels = (self.panels - panel).min(2);
        assert!(rows.end <= x.rows && rows.len() * 2 * LANES <= tile.len());
        let job = Product {
            weights: self.data.bytes()[panel * self.panel_bytes()..].as_ptr(),
            panel_bytes: self.panel_bytes(),
            panels,
            x: x.bytes()[rows.start * x.row_bytes()..].as_ptr(),
            x_bytes: x.row_bytes(),
            rows: rows.len(),
            steps: steps(self.dtype, self.in_features),
            out: tile.as_mut_ptr(),
            out_stride: 2 * LANES,
        };
        // SAFETY: the panels and rows lie inside their buffers (slices above), the tile holds rows x 32.
        unsafe { kernels.product(self.dtype, &job) }
        if !self.bias.is_empty() {
            let bias = &self.bias[panel * LANES..][..panels * LANES];
            for row in tile.chunks_exact_mut(2 * LANES).take(rows.len()) {
                kernels.add(&mut row[..panels * LANES], bias);
            }
        }
        panels * LANES
    }
}

/// What becomes of a matmul's product.
pub enum Epilogue<'a> {
    /// `out = product`.  // out [rows, padded_out]
    Store(&'a mut [f32]),
    /// `x += product`, the residual connection.  // x [rows, width], width <= padded_out
    AddTo(&'a mut [f32], usize),
    /// `out = silu(gate) * up` of interleaved panels.  // out [rows, width], width <= padded_out / 2
    SiluGate(&'a mut [f32], usize),
}

#[derive(Clone, Copy)]
enum SinkKind {
    Store,
    Add,
    SiluGate,
}

/// An [`Epilogue`] that threads share: each writes its own columns.
struct Sink {
    kind: SinkKind,
    out: *mut f32,
    stride: usize,
}

// SAFETY: `take` writes disjoint columns per thread, which its caller guarantees.
unsafe impl Sync for Sink {}

impl Sink {
    fn new(epilogue: Epilogue<'_>, rows: usize, panels: usize) -> Self {
        let (kind, out, stride) = match epilogue {
            Epilogue::Store(out) => (SinkKind::Store, out, panels * LANES),
            Epilogue::AddTo(out, width) => (SinkKind::Add, out, width),
            Epilogue::SiluGate(out, width) => (SinkKind::SiluGate, out, width),
        };
        assert!(out.len() >= rows * stride);
        Self { kind, out: out.as_mut_ptr(), stride }
    }

    /// Puts the tile of `rows` and the panels from `panel` on where it belongs.
    ///
    /// # Safety
    /// No other thread touches the columns of these panels meanwhile, and `rows` are rows of the output.
    unsafe fn take(&self, tile: &[f32], rows: Range<usize>, panel: usize, width: usize, kernels: Kernels) {
        let first = match self.kind {
            SinkKind::Store | SinkKind::Add => panel * LANES,
            SinkKind::SiluGate => panel / 2 * LANES,
        };
        let columns = match self.kind {
            SinkKind::Store | SinkKind::Add => width.min(self.stride - first.min(self.stride)),
            SinkKind::SiluGate => LANES.min(self.stride - first.min(self.stride)),
        };
        for (row, tile) in rows.zip(tile.chunks_exact(2 * LANES)) {
            // SAFETY: row < rows and first + columns <= stride, so this is inside the output (checked in `new`); no one
            // else has these columns.
            let out =
                unsafe { std::slice::from_raw_parts_mut(self.out.add(row * self.stride + first), columns) };
            match self.kind {
                SinkKind::Store => out.copy_from_slice(&tile[..columns]),
                SinkKind::Add => kernels.add(out, &tile[..columns]),
                SinkKind::SiluGate => kernels.silu_mul(&tile[..columns], &tile[LANES..][..columns], out),
            }
        }
    }
}

/// Rows on their way into a matmul, in the type that the weight's kernel multiplies.
///
/// Converted once per input, not once per matmul.
#[derive(Debug, Default)]
pub struct Activations {
    format: ActivationFormat,
    rows: usize,
    width: usize,
    f32: Vec<f32>,
    bf16: Vec<u16>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum ActivationFormat {
    /// For f32 and f16 weights.
    #[default]
    F32,
    /// For bf16 weights: rows of pairs, padded to a whole one.
    Bf16,
}

impl Activations {
    fn format_for(weights: DType) -> ActivationFormat {
        match weights {
            DType::F32 | DType::F16 => ActivationFormat::F32,
            DType::BF16 => ActivationFormat::Bf16,
        }
    }

    /// Makes room for rows of `width` for weights of `dtype`, and fills row r by `fill(r, out)`.  // out [width]
    pub fn fill(
        &mut self,
        rows: usize,
        width: usize,
        weights: DType,
        kernels: Kernels,
        pool: &Pool,
        fill: impl Fn(usize, &mut [f32]) + Sync,
    ) {
        (self.rows, self.width, self.format) = (rows, width, Self::format_for(weights));
        match self.format {
            ActivationFormat::F32 => {
                self.f32.resize(rows * width, 0.0);
                by_rows(pool, &mut self.f32[..rows * width], width, &fill);
            }
            ActivationFormat::Bf16 => {
                let padded = width.next_multiple_of(2);
                self.bf16.resize(rows * padded, 0);
                by_rows(pool, &mut self.bf16[..rows * padded], padded, |row, out: &mut [u16]| {
                    SCRATCH.with_borrow_mut(|scratch| {
                        scratch.resize(width.max(scratch.len()), 0.0);
                        fill(row, &mut scratch[..width]);
                        kernels.to_bf16(&scratch[..width], &mut out[..width]);
                        out[width..].fill(0);
                    });
                });
            }
        }
    }

    fn row_bytes(&self) -> usize {
        match self.format {
            ActivationFormat::F32 => self.width * 4,
            ActivationFormat::Bf16 => self.width.next_multiple_of(2) * 2,
        }
    }

    fn bytes(&self) -> &[u8] {
        match self.format {
            ActivationFormat::F32 => plain_bytes(&self.f32),
            ActivationFormat::Bf16 => plain_bytes(&self.bf16),
        }
    }
}

thread_local! {
    /// One f32 row on its way to another type.
    static SCRATCH: std::cell::RefCell<Vec<f32>> = const { std::cell::RefCell::new(Vec::new()) };
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

/// Which source row stands in which lane of which panel.
struct PanelMap {
    /// Output rows of each source.
    rows: Vec<usize>,
    arrangement: Arrangement,
}

impl PanelMap {
    fn new(sources: &[Source<'_>], arrangement: Arrangement) -> Self {
        Self { rows: sources.iter().map(|s| s.out_features).collect(), arrangement }
    }

    fn panels(&self) -> usize {
        match self.arrangement {
            Arrangement::Stacked => self.rows.iter().sum::<usize>().div_ceil(LANES),
            Arrangement::Interleaved => self.rows.iter().map(|rows| rows.div_ceil(LANES)).sum(),
        }
    }

    /// (source, row) of each lane; None is padding.
    fn rows(&self, panel: usize) -> impl Iterator<Item = Option<(usize, usize)>> {
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

/// Steps of a reduction over `in_features`.
fn steps(dtype: DType, in_features: usize) -> usize {
    match dtype {
        DType::F32 | DType::F16 => in_features,
        DType::BF16 => in_features.div_ceil(2),
    }
}

/// Bytes of one step of a panel.
fn step_bytes(dtype: DType) -> usize {
    match dtype {
        DType::F32 | DType::BF16 => 4 * LANES,
        DType::F16 => 2 * LANES,
    }
}

/// Writes one source row into its lane of a panel, converted to `dtype`.
fn pack_row(
    source: &Source<'_>,
    row: usize,
    in_features: usize,
    dtype: DType,
    lane: usize,
    panel: &mut [u8],
) {
    let bytes = &source.bytes[row * in_features * source.dtype.size()..][..in_features * source.dtype.size()];
    let mut put = |at: usize, value: &[u8]| panel[at..at + value.len()].copy_from_slice(value);
    let place = |k: usize| match dtype {
        DType::F32 => (k * LANES + lane) * 4,
        DType::F16 => (k * LANES + lane) * 2,
        DType::BF16 => ((k / 2) * LANES + lane) * 4 + (k % 2) * 2,
    };
    if source.dtype == dtype {
        for (k, value) in bytes.chunks_exact(dtype.size()).enumerate() {
            put(place(k), value);
        }
        return;
    }
    for (k, value) in source.dtype.values(bytes).enumerate() {
        match dtype {
            DType::F32 => put(place(k), &value.to_le_bytes()),
            DType::F16 => put(place(k), &f16::from_f32(value).to_le_bytes()),
            DType::BF16 => put(place(k), &bf16::from_f32(value).to_le_bytes()),
        }
    }
}
