//! AMX tiles (Sapphire Rapids): 16 x 16 outputs per instruction, for blocks of bytes and for bf16.
//!
//! Everything else is the AVX-512 table's. Products of bytes are exact, and the scaling after each 32-block is that of
//! `matmul_blocks.rs`, so few rows (VNNI) and many (tiles) have the same bits. bf16 products round inside the tile unit
//! in another order, so one row goes through tiles too.
//!
//! Rust has no stable AMX intrinsics: the instructions are written as assembly. Values stay in tiles within one block of
//! assembly only. What remains from block to block is the configuration of the tiles, which nothing else sets.

use super::super::lanes::LANES;
use super::super::matmul::MatmulArgs;
use super::super::matmul_blocks::{self as blocks, BlockFormat};
use super::super::prefetch::prefetch_l2;
use super::super::quantize::x_scales_at;
use super::super::table::{Isa, Table};
use super::avx512;
use crate::quant::{BLOCK, GROUP, PackedType, SUPER_BLOCK, place_of};
use std::arch::asm;
use std::arch::x86_64::*;
use std::cell::RefCell;
use std::sync::OnceLock;

/// This ISA's functions.
pub(in crate::kernel) const AMX: Table = Table {
    isa: Isa::Amx,
    matmul_q8_0: q8_0,
    matmul_q5_1: q5_1,
    matmul_q5_k: q5_k,
    matmul_q4_1: q4_1,
    matmul_q4_k: q4_k,
    matmul_q4_0: q4_0,
    matmul_bf16: bf16,
    ..avx512::BF16
};

/// Sixteen lanes, used with tiles.
type Lanes = avx512::Zmm<avx512::Bf16>;

/// With fewer rows than this so much of a tile is empty that VNNI is faster.
const ROWS_WORTH_TILES: usize = 13;
/// Rows and columns of a tile of sums.
const TILE: usize = 16;

/// Whether this process may use tiles: the CPU has them and the kernel grants their (large) register state.
pub(super) fn is_available() -> bool {
    static GRANTED: OnceLock<bool> = OnceLock::new();
    *GRANTED.get_or_init(|| {
        const AMX_BF16_TILE_INT8: u32 = 1 << 22 | 1 << 24 | 1 << 25;
        if __cpuid(0).eax < 7 || __cpuid_count(7, 0).edx & AMX_BF16_TILE_INT8 != AMX_BF16_TILE_INT8 {
            return false;
        }
        const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
        const XFEATURE_XTILEDATA: libc::c_long = 18;
        // SAFETY: asks Linux for a permission; it refuses (old kernel, small signal stack) by returning an error.
        unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
    })
}

/// The tile shapes of one matmul: tiles 0..4 are sums, 4 and 5 activations, 6 and 7 weights.
#[repr(C, align(64))]
struct Config {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

impl Config {
    fn new(x_rows: usize, x_bytes: u16, weight_rows: u8) -> Self {
        let mut config =
            Self { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
        for tile in 0..8 {
            (config.row_bytes[tile], config.rows[tile]) = match tile {
                0..4 => (64, x_rows as u8),
                4 | 5 => (x_bytes, x_rows as u8),
                _ => (64, weight_rows),
            };
        }
        config
    }

    /// # Safety
    /// Needs AMX.
    unsafe fn load(&self) {
        // SAFETY: the caller's duty; the operand is 64 valid bytes.
        unsafe {
            asm!(
                "ldtilecfg [{}]", in(reg) self,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack, preserves_flags)
            );
        }
    }
}

/// Releases the tile state, so that context switches need not save it.
///
/// # Safety
/// Needs AMX.
unsafe fn release() {
    // SAFETY: the caller's duty.
    unsafe {
        asm!(
            "tilerelease",
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack, preserves_flags)
        );
    }
}

/// A format's matmul: few rows by AVX-512, many in tiles.
macro_rules! tiled {
    ($($name:ident $format:ident $few:ident;)*) => {$(
        unsafe fn $name(args: &MatmulArgs) {
            // SAFETY: this table is handed out when the CPU has AMX and AVX-512; the arguments are the caller's duty.
            unsafe {
                if args.rows < ROWS_WORTH_TILES {
                    return (avx512::BF16.$few)(args);
                }
                matmul_blocks::<blocks::$format>(args);
            }
        }
    )*};
}

// Q6_K has two scales per block and would need twice the tiles of sums: AVX-512 is as fast.
tiled! {
    q8_0 Q8_0 matmul_q8_0;
    q5_1 Q5_1 matmul_q5_1;
    q5_k Q5K matmul_q5_k;
    q4_1 Q4_1 matmul_q4_1;
    q4_k Q4K matmul_q4_k;
    q4_0 Q4_0 matmul_q4_0;
}

/// 64 bytes at a cache line.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([i8; 64]);

/// Integer sums of one step: two blocks of 16 rows by 16 lanes.
type StepInts = [[Line; TILE]; 2];

struct Scratch {
    /// One panel as signed bytes.
    signed: Vec<Line>,
    /// Sums of this step and of the next. Zero at first, because a tile of fewer rows than 16 does not write the others.
    ints: [StepInts; 2],
}

thread_local! {
    static SCRATCH: RefCell<Scratch> =
        const { RefCell::new(Scratch { signed: Vec::new(), ints: [[[Line([0; 64]); TILE]; 2]; 2] }) };
}

/// Prefetches the weights that come next, a part per step: with tile instructions the processor has no capacity to
/// prefetch by itself.
struct Prefetch {
    next: *const u8,
    bytes_per_step: usize,
}

impl Prefetch {
    /// Prefetches `bytes` at `next` during `steps` steps; nothing for few rows, which are bound by memory already.
    fn new(args: &MatmulArgs, next: *const u8, bytes: usize, steps: usize) -> Self {
        let bytes = if args.rows < TILE { 0 } else { bytes.div_ceil(steps) };
        Self { next, bytes_per_step: bytes.next_multiple_of(size_of::<Line>()) }
    }

    #[inline(always)]
    fn step(&mut self) {
        prefetch_l2(self.next, self.bytes_per_step);
        self.next = self.next.wrapping_add(self.bytes_per_step);
    }
}

/// A matmul of 32-blocks: the weights of a panel are made signed bytes once, then 16 rows are computed at a time.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn matmul_blocks<F: BlockFormat>(args: &MatmulArgs) {
    // SAFETY: the caller vouches for the CPU and the arguments; tiles stay inside `rows` and `panels`.
    unsafe {
        let rows = args.rows.min(TILE);
        Config::new(rows, BLOCK as u16, 8).load();
        SCRATCH.with_borrow_mut(|Scratch { signed, ints }| {
            signed.resize(signed.len().max(args.steps * TILE), Line([0; 64]));
            for panel in 0..args.panels {
                let weights = args.weights.add(panel * args.panel_bytes);
                signed_panel::<F>(weights, args.table, args.steps, signed);
                let steps = args.rows.div_ceil(TILE) * args.steps;
                let mut ahead =
                    Prefetch::new(args, weights.wrapping_add(args.panel_bytes), args.panel_bytes, steps);
                let mut row = 0;
                loop {
                    // The last tile overlaps the one before it instead of being short: it has the same bits.
                    row = row.min(args.rows - rows);
                    block_tile::<F>(args, weights, signed, [panel, row, rows], ints, &mut ahead);
                    row += rows;
                    if row >= args.rows {
                        break;
                    }
                }
            }
        });
        release();
    }
}

/// The stored (unsigned) weights of one panel as signed bytes, a line per four values of all lanes.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn signed_panel<F: BlockFormat>(
    weights: *const u8,
    table: *const u8,
    steps: usize,
    signed: &mut [Line],
) {
    // SAFETY: a table is 64 bytes.
    let table = unsafe { _mm512_loadu_si512(table.cast()) };
    let offset = _mm512_set1_epi8(-128);
    for (step, lines) in signed.chunks_exact_mut(TILE).take(steps).enumerate() {
        // SAFETY: the step is inside the panel; a line is 64 bytes.
        unsafe {
            let quads = weights.add(place_of(step, F::NUMBERS_BYTES, F::STEP_BYTES).1 + F::VALUES_AT);
            for (t, line) in lines.iter_mut().enumerate() {
                let unsigned = match t {
                    0..8 => F::four_values::<Lanes, 0>(quads, t, false, table),
                    _ => F::four_values::<Lanes, 1>(quads, t - 8, false, table),
                };
                let signed = if F::HAS_MINS { unsigned } else { _mm512_xor_si512(unsigned, offset) };
                _mm512_store_si512((line as *mut Line).cast(), signed);
            }
        }
    }
}

/// Up to 16 rows by one panel: per block one tile product, then sum += int * weight scale * activation scale.
///
/// The tiles of a step are multiplied while the step before it is scaled.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn block_tile<F: BlockFormat>(
    args: &MatmulArgs,
    weights: *const u8,
    signed: &[Line],
    [panel, row, rows]: [usize; 3],
    ints: &mut [StepInts; 2],
    ahead: &mut Prefetch,
) {
    // SAFETY: row + rows <= args.rows; rows beyond have the last one's scales, arbitrary integers, and are never stored.
    unsafe {
        let x = args.x.add(row * args.x_bytes);
        let x_scales: [*const f32; TILE] =
            std::array::from_fn(|m| x.add(m.min(rows - 1) * args.x_bytes + x_scales_at(args.steps)).cast());
        let mut sums = [_mm512_setzero_ps(); TILE];
        multiply_step(x, args.x_bytes, signed.as_ptr(), &mut ints[0]);
        for step in 0..args.steps {
            ahead.step();
            let next = step + 1;
            if next < args.steps {
                multiply_step(
                    x.add(next * GROUP),
                    args.x_bytes,
                    signed.as_ptr().add(next * TILE),
                    &mut ints[next % 2],
                );
            }
            let numbers = weights.add(place_of(step, F::NUMBERS_BYTES, F::STEP_BYTES).0);
            let index = step % (SUPER_BLOCK / GROUP);
            macro_rules! block {
                ($block:literal) => {
                    let scale = F::scale::<Lanes, $block, 0>(numbers, index);
                    let scale = _mm512_mul_ps(scale.0, _mm512_set1_ps(1.0 / f32::from(F::FACTOR)));
                    for m in 0..TILE {
                        let x_scale = x_scales[m].add(2 * step + $block).read_unaligned();
                        let int = _mm512_load_si512(ints[step % 2][$block].as_ptr().add(m).cast());
                        let scaled = _mm512_mul_ps(_mm512_cvtepi32_ps(int), scale);
                        sums[m] = _mm512_fmadd_ps(scaled, _mm512_set1_ps(x_scale), sums[m]);
                    }
                    if F::HAS_MINS {
                        let min = F::min::<Lanes, $block, 0>(numbers, index).0;
                        for m in 0..TILE {
                            let sum = x_scales[m].add(4 * args.steps + 2 * step + $block).read_unaligned();
                            sums[m] = _mm512_fmadd_ps(min, _mm512_set1_ps(sum), sums[m]);
                        }
                    }
                };
            }
            block!(0);
            block!(1);
        }
        for (m, sum) in sums.iter().enumerate().take(rows) {
            _mm512_storeu_ps(args.out.add((row + m) * args.out_stride + panel * LANES), *sum);
        }
    }
}

/// The tile products of one step: its two blocks of activations with two half tiles of weights.
///
/// # Safety
/// Tiles are configured; `x` is valid for the configured rows of a step, `weights` for 16 lines.
#[inline(always)]
unsafe fn multiply_step(x: *const u8, x_bytes: usize, weights: *const Line, ints: &mut StepInts) {
    // SAFETY: the caller's duty; the sums are 2 x 16 lines.
    unsafe {
        asm!(
            "tileloadd tmm6, [{weights} + {line}]",
            "tileloadd tmm4, [{x} + {x_bytes}]",
            "tilezero tmm0",
            "tdpbssd tmm0, tmm4, tmm6",
            "tileloadd tmm7, [{weights} + {line} + 512]",
            "tileloadd tmm5, [{x} + {x_bytes} + 32]",
            "tilezero tmm1",
            "tdpbssd tmm1, tmm5, tmm7",
            "tilestored [{ints} + {line}], tmm0",
            "tilestored [{ints} + {line} + 1024], tmm1",
            x = in(reg) x,
            x_bytes = in(reg) x_bytes,
            weights = in(reg) weights,
            line = in(reg) size_of::<Line>(),
            ints = in(reg) ints,
            out("tmm0") _, out("tmm1") _, out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack, preserves_flags)
        );
    }
}

/// Steps (pairs of k) of one bf16 tile.
const PAIRS: usize = PackedType::BF16_STEP_MULTIPLE;

/// A bf16 matmul: two tiles of rows by two panels at a time, sums in tiles over the whole reduction. What is no whole number of
/// tiles, or continues a reduction, is computed without tiles, for any number of rows.
unsafe fn bf16(args: &MatmulArgs) {
    if args.accumulate || !args.steps.is_multiple_of(PAIRS) {
        // SAFETY: the caller's duty; the CPU has these products too.
        return unsafe { (avx512::BF16.matmul_bf16)(args) };
    }
    // SAFETY: this table is handed out when the CPU has AMX; tiles stay inside `rows` and `panels`.
    unsafe {
        let rows = args.rows.min(TILE);
        Config::new(rows, 64, PAIRS as u8).load();
        for panel in (0..args.panels).step_by(2) {
            // A single panel or tile is computed twice, with the same bits.
            let second_panel = (panel + 1).min(args.panels - 1);
            let steps = args.rows.div_ceil(2 * TILE) * args.steps / PAIRS;
            let next = args.weights.wrapping_add((second_panel + 1) * args.panel_bytes);
            let mut ahead = Prefetch::new(args, next, 2 * args.panel_bytes, steps);
            let mut row = 0;
            loop {
                row = row.min(args.rows - rows);
                let second_row = (row + rows).min(args.rows - rows);
                bf16_tiles(args, [panel, second_panel], [row, second_row], &mut ahead);
                row = second_row + rows;
                if row >= args.rows {
                    break;
                }
            }
        }
        release();
    }
}

/// Two tiles of rows by two panels, or one tile of rows twice: the sums stay in tiles from the first step to the last,
/// so the loop is one block of assembly.
unsafe fn bf16_tiles(args: &MatmulArgs, panels: [usize; 2], rows: [usize; 2], ahead: &mut Prefetch) {
    let single = rows[0] == rows[1];
    // SAFETY: the caller passes panels and rows of `args`, whose steps are whole tiles, and at least one. A tile's step
    // is 64 bytes of a row and 16 lines of a panel.
    unsafe {
        let x = rows.map(|row| args.x.add(row * args.x_bytes));
        let weights = panels.map(|panel| args.weights.add(panel * args.panel_bytes));
        let out = |row: usize, panel: usize| args.out.add(row * args.out_stride + panel * LANES);
        let out = rows.map(|row| panels.map(|panel| out(row, panel)));
        asm!(
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            "2:",
            "add {soon}, {bytes_per_step}",
            "3:",
            "cmp {next}, {soon}",
            "je 4f",
            "prefetcht1 [{next}]",
            "add {next}, 64",
            "jmp 3b",
            "4:",
            "tileloadd tmm6, [{w0} + {line}]",
            "tileloadd tmm4, [{x0} + {x_bytes}]",
            "tileloadd tmm7, [{w1} + {line}]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "test {x1}, {x1}",
            "jz 5f",
            "tileloadd tmm5, [{x1} + {x_bytes}]",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "add {x1}, 64",
            "5:",
            "add {x0}, 64",
            "add {w0}, 1024",
            "add {w1}, 1024",
            "sub {steps}, 1",
            "jnz 2b",
            "mov {w0}, [{out}]",
            "mov {w1}, [{out} + 8]",
            "tilestored [{w0} + {stride}], tmm0",
            "tilestored [{w1} + {stride}], tmm1",
            "test {x1}, {x1}",
            "jz 6f",
            "mov {w0}, [{out} + 16]",
            "mov {w1}, [{out} + 24]",
            "tilestored [{w0} + {stride}], tmm2",
            "tilestored [{w1} + {stride}], tmm3",
            "6:",
            x0 = inout(reg) x[0] => _,
            x1 = inout(reg) if single { std::ptr::null() } else { x[1] } => _,
            w0 = inout(reg) weights[0] => _,
            w1 = inout(reg) weights[1] => _,
            steps = inout(reg) args.steps / PAIRS => _,
            next = inout(reg) ahead.next,
            soon = inout(reg) ahead.next => _,
            bytes_per_step = in(reg) ahead.bytes_per_step,
            x_bytes = in(reg) args.x_bytes,
            line = in(reg) size_of::<Line>(),
            out = in(reg) &raw const out,
            stride = in(reg) args.out_stride * size_of::<f32>(),
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack)
        );
    }
}
