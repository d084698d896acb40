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

/// The matmul in tiles of at most `T` rows by two panels.
#[inline(always)]
pub(super) unsafe fn matmul<V: Lanes, F: Format, const T: usize>(args: &MatmulArgs) {
    // SAFETY (whole function): the caller's duty; tiles stay inside `rows` and `panels`.
    let mut panel = 0;
    while panel < args.panels {
        let pair = args.panels - panel >= 2;
        let mut row = 0;
        while row < args.rows {
            let rows = (args.rows - row).min(T);
            if pair {
                // SAFETY: see above.
                unsafe { tile_of::<V, F, T, 2>(args, panel, row, rows) }
            } else {
                // SAFETY: see above.
                unsafe { tile_of::<V, F, T, 1>(args, panel, row, rows) }
            }
            row += rows;
        }
        panel += if pair { 2 } else { 1 };
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
