//! Matmuls of f32, f16 and bf16 panels.
//!
//! The order of additions behind one output value never depends on how many rows or panels are computed together (law
//! 1): a matmul adds its steps in order into one accumulator per output. More speed comes from more outputs at a time (a
//! tile of rows x panels), never from splitting a sum.
//!
//! # Safety
//! All functions are `unsafe` because [`Lanes`] is: the CPU must have the ISA, and the addresses must be valid for the
//! lengths that [`MatmulArgs`] states; `kernel/mod.rs` checks them once per call.

use super::lanes::{LANES, Lanes};
use std::mem::MaybeUninit;

/// The arguments of a matmul: `out[r][16 p + lane] = sum over steps of x[r] * weights[p][lane]`.
///
/// A panel holds 16 output rows, interleaved step by step, so that one load feeds 16 outputs. A step is one k (f32,
/// f16) or a pair of k (bf16).
#[derive(Clone, Copy)]
pub(super) struct MatmulArgs {
    /// First panel.
    pub weights: *const u8,
    /// Distance of two panels in bytes.
    pub panel_bytes: usize,
    /// Number of panels.
    pub panels: usize,
    /// 64 bytes: the table of a type whose values name integers.
    pub table: *const u8,
    /// First activation row, in the format's activation type.
    pub x: *const u8,
    /// Distance of two activation rows in bytes.
    pub x_bytes: usize,
    /// Number of activation rows.
    pub rows: usize,
    /// Steps of the reduction.
    pub steps: usize,
    /// First output row.
    pub out: *mut f32,
    /// Distance of two output rows in values.
    pub out_stride: usize,
    /// Whether the sums start from the values in the output instead of 0.
    pub accumulate: bool,
}

/// How one step of a panel multiplies one step of an activation row.
pub(super) trait Format {
    /// Bytes of one step of a panel (16 output rows).
    const WEIGHT_BYTES: usize;
    /// Bytes of one step of an activation row.
    const X_BYTES: usize;
    /// acc + weights * x, for 16 output rows.
    ///
    /// # Safety
    /// The ISA of `V`; `weights` and `x` valid for one step.
    unsafe fn step<V: Lanes>(acc: V, weights: *const u8, x: *const u8) -> V;
}

/// f32 weights and activations.
pub(super) struct F32;
/// f16 weights, widened; f32 activations.
pub(super) struct F16;
/// bf16 weights and activations in pairs of k, f32 sums.
pub(super) struct Bf16;

impl Format for F32 {
    const WEIGHT_BYTES: usize = 4 * LANES;
    const X_BYTES: usize = 4;
    #[inline(always)]
    unsafe fn step<V: Lanes>(acc: V, weights: *const u8, x: *const u8) -> V {
        // SAFETY: the caller's duty.
        unsafe { V::load(weights.cast()).mul_add(V::splat(x.cast::<f32>().read_unaligned()), acc) }
    }
}

impl Format for F16 {
    const WEIGHT_BYTES: usize = 2 * LANES;
    const X_BYTES: usize = 4;
    #[inline(always)]
    unsafe fn step<V: Lanes>(acc: V, weights: *const u8, x: *const u8) -> V {
        // SAFETY: the caller's duty.
        unsafe { V::load_f16(weights.cast()).mul_add(V::splat(x.cast::<f32>().read_unaligned()), acc) }
    }
}

impl Format for Bf16 {
    const WEIGHT_BYTES: usize = 4 * LANES;
    const X_BYTES: usize = 4;
    #[inline(always)]
    unsafe fn step<V: Lanes>(acc: V, weights: *const u8, x: *const u8) -> V {
        // SAFETY: the caller's duty.
        unsafe { V::dot_bf16(acc, weights.cast(), x.cast::<u32>().read_unaligned()) }
    }
}

/// The matmul in tiles of at most `T` rows by two panels, or, for more rows, at most `S` rows by one.
#[inline(always)]
pub(super) unsafe fn matmul<V: Lanes, F: Format, const T: usize, const S: usize>(args: &MatmulArgs) {
    let mut panel = 0;
    while panel < args.panels {
        let pair = args.panels - panel >= 2 && (args.rows <= T || S <= T);
        let tiles = args.rows.div_ceil(if pair { T } else { S });
        for tile in 0..tiles {
            // All of about the same height: a tile of few rows has too few sums to keep the processor busy.
            let (row, end) = (args.rows * tile / tiles, args.rows * (tile + 1) / tiles);
            // SAFETY: the caller's duty; tiles stay inside `rows` and `panels`.
            unsafe {
                if pair {
                    tile_of::<V, F, T, 2>(args, panel, row, end - row);
                } else {
                    tile_of::<V, F, S, 1>(args, panel, row, end - row);
                }
            }
        }
        panel += if pair { 2 } else { 1 };
    }
}

/// The matmul of bf16 panels, which are made f32 once for many rows where the CPU has no products of bf16.
#[inline(always)]
pub(super) unsafe fn matmul_bf16<V: Lanes, const T: usize, const S: usize>(args: &MatmulArgs) {
    // SAFETY: the caller's duty.
    unsafe {
        if V::WIDENS_BF16 && args.rows >= WIDEN_FROM_ROWS {
            matmul_widened::<V, S>(args);
        } else {
            matmul::<V, Bf16, T, S>(args);
        }
    }
}

/// From how many rows on bf16 is made f32 once for all of them.
const WIDEN_FROM_ROWS: usize = 12;
/// Pairs of k that are made f32 at a time: two panels of them and the rows of a tile fit the first-level cache.
const WIDENED_STEPS: usize = 64;

/// f32 values.
#[repr(align(64))]
struct Widened<const N: usize>([f32; N]);

/// The matmul of bf16 by f32 tiles, some steps at a time: the same additions in the same order, and so the same bits. The sums
/// wait in the output from part to part.
#[inline(always)]
unsafe fn matmul_widened<V: Lanes, const S: usize>(args: &MatmulArgs) {
    // What is read was written before: zeroing these would take time.
    let mut panels = MaybeUninit::<Widened<{ 2 * 2 * WIDENED_STEPS * LANES }>>::uninit(); // [2, k, 16]
    let mut rows = MaybeUninit::<Widened<{ 12 * 2 * WIDENED_STEPS }>>::uninit(); // [rows of a tile, k]
    let (panels, rows) = (panels.as_mut_ptr().cast::<f32>(), rows.as_mut_ptr().cast::<f32>());
    let tiles = args.rows.div_ceil(S);
    for panel in (0..args.panels).step_by(2) {
        let count = (args.panels - panel).min(2);
        for first in (0..args.steps).step_by(WIDENED_STEPS) {
            let steps = (args.steps - first).min(WIDENED_STEPS);
            let panel_values = 2 * steps * LANES;
            // SAFETY: the caller's duty; the panels, rows and steps are those of `args`, and fit the buffers.
            unsafe {
                for p in 0..count {
                    let from = args.weights.add((panel + p) * args.panel_bytes + first * Bf16::WEIGHT_BYTES);
                    for step in 0..steps {
                        let to = panels.add(p * panel_values + 2 * step * LANES);
                        V::widen_pairs(from.add(step * Bf16::WEIGHT_BYTES).cast(), to);
                    }
                }
                for tile in 0..tiles {
                    let (row, end) = (args.rows * tile / tiles, args.rows * (tile + 1) / tiles);
                    for m in 0..end - row {
                        let from = args.x.add((row + m) * args.x_bytes + first * Bf16::X_BYTES);
                        widen::<V>(from.cast(), 2 * steps, rows.add(m * 2 * steps));
                    }
                    let part = MatmulArgs {
                        table: args.table,
                        weights: panels.cast(),
                        panel_bytes: panel_values * size_of::<f32>(),
                        panels: count,
                        x: rows.cast(),
                        x_bytes: 2 * steps * size_of::<f32>(),
                        rows: end - row,
                        steps: 2 * steps,
                        out: args.out.add(row * args.out_stride + panel * LANES),
                        out_stride: args.out_stride,
                        accumulate: args.accumulate || first > 0,
                    };
                    for p in 0..count {
                        tile_of::<V, F32, S, 1>(&part, p, 0, end - row);
                    }
                }
            }
        }
    }
}

/// `n` consecutive bf16 as f32.
#[inline(always)]
unsafe fn widen<V: Lanes>(from: *const u16, n: usize, to: *mut f32) {
    // SAFETY: the caller's duty.
    unsafe {
        let whole = n - n % LANES;
        for at in (0..whole).step_by(LANES) {
            V::load_bf16(from.add(at)).store(to.add(at));
        }
        for at in whole..n {
            to.add(at).write(f32::from_bits(u32::from(from.add(at).read_unaligned()) << 16));
        }
    }
}

/// Picks the tile compiled for `rows` rows.
#[inline(always)]
unsafe fn tile_of<V: Lanes, F: Format, const T: usize, const P: usize>(
    args: &MatmulArgs,
    panel: usize,
    row: usize,
    rows: usize,
) {
    macro_rules! pick {
        ($($m:literal)*) => {
            match rows {
                // SAFETY: the caller's duty.
                $($m if const { $m <= T } => unsafe { tile::<V, F, $m, P>(args, panel, row) },)*
                _ => unreachable!("a tile has at most {T} rows"),
            }
        };
    }
    pick!(1 2 3 4 5 6 7 8 9 10 11 12)
}

/// M rows by P panels, all sums in registers.
#[inline(always)]
unsafe fn tile<V: Lanes, F: Format, const M: usize, const P: usize>(
    args: &MatmulArgs,
    panel: usize,
    row: usize,
) {
    // SAFETY: panel + P <= panels and row + M <= rows, so every address lies in the buffers of `args`.
    unsafe {
        let weights: [*const u8; P] =
            std::array::from_fn(|p| args.weights.add((panel + p) * args.panel_bytes));
        let x: [*const u8; M] = std::array::from_fn(|m| args.x.add((row + m) * args.x_bytes));
        let mut sums = [[V::splat(0.0); P]; M];
        if args.accumulate {
            for (m, sums) in sums.iter_mut().enumerate() {
                for (p, sum) in sums.iter_mut().enumerate() {
                    *sum = V::load(args.out.add((row + m) * args.out_stride + (panel + p) * LANES));
                }
            }
        }
        for step in 0..args.steps {
            for m in 0..M {
                for p in 0..P {
                    sums[m][p] = F::step(
                        sums[m][p],
                        weights[p].add(step * F::WEIGHT_BYTES),
                        x[m].add(step * F::X_BYTES),
                    );
                }
            }
        }
        for (m, sums) in sums.iter().enumerate() {
            for (p, sum) in sums.iter().enumerate() {
                sum.store(args.out.add((row + m) * args.out_stride + (panel + p) * LANES));
            }
        }
    }
}
