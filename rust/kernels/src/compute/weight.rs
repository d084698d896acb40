//! Packed weights: the only way to a matmul with a matrix of the model.
//!
//! A [`Weight`] holds `out_features x in_features` values in panels, the same layout for one row and for many. A matmul
//! splits the panels over the threads; the [`Epilogue`] processes a finished tile.

use crate::compute::activations::{Activations, InputType, RowRounding, share_activations};
use crate::compute::panels::{Arrangement, PanelMap, PanelShape};
use crate::compute::phases::{Phase, announce, within};
use crate::compute::pool::Pool;
use crate::kernel::{Activation, Kernels, LANES, Panels, Rows, x_row_bytes};
use crate::quant::PackedType;
use ropechat_platform::mapped::FilePart;
use ropechat_platform::memory::Buffer;
use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;

/// Bytes of activation rows per pass over a thread's panels: they stay in the second-level cache.
const ROW_BLOCK: usize = 1 << 20;
/// Fewest rows per pass, so that weights are not read too often.
const LEAST_ROWS: usize = 128;

/// Bytes of weights times rows of the smallest part of a matmul: about a microsecond of a thread, or a pair of panels if that
/// is more.
const PART: usize = 32 << 10;
/// Bytes of weights times rows from which a matmul is worth more than one thread.
const WORTH_THREADS: usize = 2 * PART;

/// Where panels are: in memory, or in a mapped pack.
#[derive(Clone)]
pub enum Storage {
    /// They were packed by this process.
    Memory(Arc<Buffer>),
    /// They were packed by an earlier process.
    File(FilePart),
}

impl Storage {
    /// The panels, one after the other.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Storage::Memory(buffer) => buffer.bytes(),
            Storage::File(part) => part.bytes(),
        }
    }
}

/// A packed matrix; a clone shares the panels.
#[derive(Clone)]
pub struct Weight {
    /// Its rows, in parts of one type each; all but the last are whole pairs of panels.
    parts: Vec<Part>,
    /// Panels of all parts.
    panels: usize,
    /// Padded to the panels; empty without one.
    bias: Vec<f32>,
    /// How its inputs are rounded.
    rounding: RowRounding,
}

/// Some rows of a matrix.
#[derive(Clone)]
struct Part {
    shape: PanelShape,
    data: Storage,
}

impl std::fmt::Debug for Weight {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [rows, columns] =
            [self.parts.iter().map(|part| part.shape.out_features).sum(), self.in_features()];
        write!(f, "Weight([{rows}, {columns}] {})", self.dtype().name())
    }
}

impl Weight {
    /// A weight of panels that [`pack`](crate::compute::panels::pack) made, stacked.
    ///
    /// # Panics
    /// Where [`Weight::can_stack`] says no.
    pub fn stacked(parts: Vec<(PanelShape, Storage)>) -> Self {
        assert!(Self::can_stack(parts.iter().map(|(shape, _)| *shape)));
        let parts: Vec<Part> = parts.into_iter().map(|(shape, data)| Part { shape, data }).collect();
        let panels = parts.iter().map(|part| part.shape.panels).sum();
        Self { parts, panels, bias: Vec::new(), rounding: RowRounding::AsWeights }
    }

    /// Whether one weight can have these parts: they read the same activations, and all but the last are pairs of panels.
    pub fn can_stack(shapes: impl Iterator<Item = PanelShape>) -> bool {
        let shapes: Vec<PanelShape> = shapes.collect();
        let Some((last, others)) = shapes.split_last() else { return false };
        others.iter().all(|shape| {
            shape.out_features.is_multiple_of(2 * LANES)
                && shape.in_features == last.in_features
                && share_activations(shape.dtype, last.dtype)
        })
    }

    /// Adds bias vectors, one per source of `pack` in the same order and arrangement.
    pub fn with_bias(mut self, biases: &[Vec<f32>], arrangement: Arrangement) -> Self {
        let map = PanelMap { rows: biases.iter().map(Vec::len).collect(), arrangement };
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

    /// This weight, whose model rounds its inputs.
    pub fn with_rounding(self, rounding: RowRounding) -> Self {
        Self { rounding, ..self }
    }

    /// Values of an input row.
    pub fn in_features(&self) -> usize {
        self.parts[0].shape.in_features
    }

    /// The type that the rows of [`Weight::matmul`] are made for: of several, the one that needs the most of them.
    pub fn dtype(&self) -> PackedType {
        let types = self.parts.iter().map(|part| part.shape.dtype);
        types
            .max_by_key(|dtype| x_row_bytes(*dtype, dtype.steps(self.in_features())))
            .unwrap_or(PackedType::F32)
    }

    /// What the rows of [`Weight::matmul`] are made for.
    pub fn input_type(&self) -> InputType {
        InputType { weights: self.dtype(), rounding: self.rounding }
    }

    /// Output values per row, padding included: the stride of a matmul's output.
    pub fn padded_out(&self) -> usize {
        self.panels * LANES
    }

    /// Where its panels are in memory: the same for clones only.
    pub fn address(&self) -> *const u8 {
        self.parts[0].data.bytes().as_ptr()
    }

    /// Bytes of the packed matrix, of each type.
    pub fn bytes_by_type(&self) -> impl Iterator<Item = (PackedType, usize)> + '_ {
        self.parts.iter().map(|part| (part.shape.dtype, part.shape.bytes()))
    }

    fn bytes(&self) -> usize {
        self.bytes_by_type().map(|(_, bytes)| bytes).sum()
    }

    /// The part that has a panel, and the panel's number in it.
    fn part_of(&self, mut panel: usize) -> (&Part, usize) {
        for part in &self.parts {
            if panel < part.shape.panels {
                return (part, panel);
            }
            panel -= part.shape.panels;
        }
        unreachable!("a panel of the weight")
    }

    /// Unpacks one output row (a stacked weight's): the embedding of a token.  // out [in_features]
    pub fn row(&self, row: usize, out: &mut [f32]) {
        let (part, panel) = self.part_of(row / LANES);
        let bytes = part.shape.panel_bytes();
        part.shape.dtype.unpack_row(&part.data.bytes()[panel * bytes..][..bytes], row % LANES, out);
    }

    /// Multiplies `x` by this matrix; `epilogue` says where the result goes.  // x [rows, in_features]
    pub fn matmul(&self, x: &Activations, kernels: Kernels, pool: &Pool, epilogue: Epilogue<'_>) {
        matmul_each(&[RowsOf { weight: self, rows: 0..x.rows() }], x, kernels, pool, epilogue);
    }

    /// Panels in pairs, so that a gated pair is never cut.
    fn pairs(&self) -> usize {
        self.panels.div_ceil(2)
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
        let (part, first) = self.part_of(panel);
        let weights = Panels {
            format: part.shape.dtype,
            bytes: &part.data.bytes()[first * part.shape.panel_bytes()..],
            panel_bytes: part.shape.panel_bytes(),
            count: panels,
            steps: part.shape.dtype.steps(part.shape.in_features),
        };
        let input = &x.bytes()[rows.start * x.row_bytes()..];
        let input = Rows { bytes: input, stride: x.row_bytes(), count: rows.len() };
        kernels.matmul(weights, input, tile, 2 * LANES);
        if !self.bias.is_empty() {
            let bias = &self.bias[panel * LANES..][..panels * LANES];
            for row in tile.chunks_exact_mut(2 * LANES).take(rows.len()) {
                kernels.add(&mut row[..panels * LANES], bias);
            }
        }
        panels * LANES
    }
}

/// Rows of an input, and the matrix that they are multiplied with.
pub struct RowsOf<'a> {
    /// The matrix.
    pub weight: &'a Weight,
    /// The rows of the input.
    pub rows: Range<usize>,
}

impl RowsOf<'_> {
    fn cost(&self) -> usize {
        self.weight.bytes() * self.rows.len()
    }
}

/// Multiplies rows of `x` by a matrix each, as one job of the pool; `epilogue` has all rows. The matrices have the same
/// sizes and read the same activations; rows ascend.  // x [rows, in_features]
pub fn matmul_each(
    jobs: &[RowsOf<'_>],
    x: &Activations,
    kernels: Kernels,
    pool: &Pool,
    epilogue: Epilogue<'_>,
) {
    let Some(RowsOf { weight: first, .. }) = jobs.first() else { return };
    let mut free = 0;
    for RowsOf { weight, rows } in jobs {
        assert!(x.width() == weight.in_features() && x.fits(weight.input_type()));
        assert!(weight.panels == first.panels && free <= rows.start && rows.start <= rows.end);
        free = rows.end;
    }
    assert!(free <= x.rows());
    let writer = EpilogueWriter::new(epilogue, x.rows(), first.panels);
    let work = |job: &RowsOf<'_>, pairs: Range<usize>| {
        let (weight, rows) = (job.weight, job.rows.clone());
        let blocks = rows.len().div_ceil((ROW_BLOCK / x.row_bytes()).max(LEAST_ROWS));
        // All about equal.
        let row_block = rows.len().div_ceil(blocks.max(1)).next_multiple_of(LANES).min(rows.len());
        let mut tile = TILE.take();
        tile.resize((row_block * 2 * LANES).max(tile.len()), 0.0);
        for first in rows.clone().step_by(row_block.max(1)) {
            let rows = first..(first + row_block).min(rows.end);
            for pair in pairs.clone() {
                let width = weight.tile(x, rows.clone(), 2 * pair, kernels, &mut tile);
                within(Phase::Epilogue, || {
                    // SAFETY: jobs have disjoint rows and the parts of a job disjoint pairs, so no two threads write the same values.
                    unsafe { writer.write(&tile, rows.clone(), 2 * pair, width, kernels) }
                });
            }
        }
        TILE.set(tile);
    };
    let cost: usize = jobs.iter().map(RowsOf::cost).sum();
    let products = |job: &RowsOf<'_>| job.rows.len() * job.weight.in_features() * job.weight.padded_out();
    announce(jobs.iter().map(|job| job.weight.bytes()).sum(), jobs.iter().map(products).sum());
    // Parts of about the same cost.
    let parts_of = |job: &RowsOf<'_>| (job.cost() / PART).clamp(1, job.weight.pairs());
    let parts = jobs.iter().map(parts_of).sum();
    let unit = if cost < WORTH_THREADS { parts } else { 1 };
    pool.ranges(parts, unit, &|range| {
        let mut first = 0;
        for job in jobs {
            let (parts, pairs) = (parts_of(job), job.weight.pairs());
            let [start, end] = [range.start, range.end].map(|part| part.clamp(first, first + parts) - first);
            if start < end {
                work(job, pairs * start / parts..pairs * end / parts);
            }
            first += parts;
        }
    });
}

thread_local! {
    /// The product of a row block and a pair of panels, before the epilogue.  // [rows, 32]
    static TILE: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
}

/// What is done with the result of a matmul.
pub enum Epilogue<'a> {
    /// `out = product`.  // out [rows, padded_out]
    Store(&'a mut [f32]),
    /// `x += product`, the residual connection.  // x [rows, width], width up to whole panels is padded_out
    AddTo(&'a mut [f32], usize),
    /// `out = act(gate) * up` of interleaved panels.  // out [rows, width], width up to whole panels is padded_out / 2
    Gate(Activation, &'a mut [f32], usize),
    /// `out = act(product)`.  // out [rows, width], width up to whole panels is padded_out
    Activate(Activation, &'a mut [f32], usize),
}

#[derive(Clone, Copy)]
enum EpilogueKind {
    Store,
    Add,
    Gate(Activation),
    Activate(Activation),
}

/// An [`Epilogue`] that threads share: each writes its own rows and columns.
struct EpilogueWriter {
    kind: EpilogueKind,
    out: *mut f32,
    stride: usize,
}

// SAFETY: threads write disjoint values, which the caller of `write` guarantees.
unsafe impl Sync for EpilogueWriter {}

impl EpilogueWriter {
    fn new(epilogue: Epilogue<'_>, rows: usize, panels: usize) -> Self {
        let (kind, out, stride) = match epilogue {
            Epilogue::Store(out) => (EpilogueKind::Store, out, panels * LANES),
            Epilogue::AddTo(out, width) => (EpilogueKind::Add, out, width),
            Epilogue::Gate(activation, out, width) => (EpilogueKind::Gate(activation), out, width),
            Epilogue::Activate(activation, out, width) => (EpilogueKind::Activate(activation), out, width),
        };
        let panels = match kind {
            EpilogueKind::Gate(_) => {
                assert!(panels.is_multiple_of(2));
                panels / 2
            }
            EpilogueKind::Store | EpilogueKind::Add | EpilogueKind::Activate(_) => panels,
        };
        assert!(stride.div_ceil(LANES) == panels, "every panel has columns of the output");
        assert!(rows.checked_mul(stride).is_some_and(|values| values <= out.len()));
        Self { kind, out: out.as_mut_ptr(), stride }
    }

    /// Writes the tile of `rows` and the panels from `panel` on to the output.
    ///
    /// # Safety
    /// No other thread touches these rows of the columns of these panels at the same time, and `rows` are rows of the
    /// output.
    unsafe fn write(&self, tile: &[f32], rows: Range<usize>, panel: usize, width: usize, kernels: Kernels) {
        let first = match self.kind {
            EpilogueKind::Store | EpilogueKind::Add | EpilogueKind::Activate(_) => panel * LANES,
            EpilogueKind::Gate(_) => panel / 2 * LANES,
        };
        let columns = match self.kind {
            EpilogueKind::Store | EpilogueKind::Add | EpilogueKind::Activate(_) => {
                width.min(self.stride - first)
            }
            EpilogueKind::Gate(_) => LANES.min(self.stride - first),
        };
        for (row, tile) in rows.zip(tile.chunks_exact(2 * LANES)) {
            // SAFETY: row < rows, and first < stride (checked in `new`, for every panel) makes first + columns <= stride:
            // this is inside the output, whose length `new` checked too. No other thread has these values.
            let out =
                unsafe { std::slice::from_raw_parts_mut(self.out.add(row * self.stride + first), columns) };
            match self.kind {
                EpilogueKind::Store => out.copy_from_slice(&tile[..columns]),
                EpilogueKind::Add => kernels.add(out, &tile[..columns]),
                EpilogueKind::Gate(activation) => {
                    kernels.gate(activation, &tile[..columns], &tile[LANES..][..columns], out);
                }
                EpilogueKind::Activate(activation) => kernels.activate(activation, &tile[..columns], out),
            }
        }
    }
}
