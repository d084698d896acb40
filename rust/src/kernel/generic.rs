//! Every algorithm, stated once over [`Lanes`]. The ISA files compile these for their registers.
//!
//! The law that shapes this file: the order of additions behind one output value never depends on how many rows or
//! panels are computed together. A product adds its steps in order into one accumulator per output; more speed comes
//! from more outputs at a time (a tile of rows x panels), never from splitting a sum.
//!
//! # Safety
//! All functions are `unsafe` because [`Lanes`] is: the CPU must have the ISA. Slices carry the lengths that their
//! docs state; `kernel/mod.rs` checks them once per call.

use super::lanes::{LANES, Lanes};

/// One block of a matrix product: `out[r][16 p + lane] = sum over steps of x[r] * weights[p][lane]`.
///
/// A panel holds 16 output rows, interleaved step by step, so that one load feeds 16 outputs. A step is one k (f32,
/// f16) or a pair of k (bf16).
#[derive(Clone, Copy)]
pub(super) struct Product {
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
    /// Whether the sums begin with what stands in the output.
    pub onto: bool,
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

/// A whole [`Product`] in tiles of at most `T` rows by two panels.
#[inline(always)]
pub(super) unsafe fn product<V: Lanes, F: Format, const T: usize>(job: &Product) {
    // SAFETY (whole function): the caller's duty; tiles stay inside `rows` and `panels`.
    let mut panel = 0;
    while panel < job.panels {
        let pair = job.panels - panel >= 2;
        let mut row = 0;
        while row < job.rows {
            let rows = (job.rows - row).min(T);
            if pair {
                // SAFETY: see above.
                unsafe { tile_of::<V, F, T, 2>(job, panel, row, rows) }
            } else {
                // SAFETY: see above.
                unsafe { tile_of::<V, F, T, 1>(job, panel, row, rows) }
            }
            row += rows;
        }
        panel += if pair { 2 } else { 1 };
    }
}

/// Picks the tile compiled for `rows` rows.
#[inline(always)]
unsafe fn tile_of<V: Lanes, F: Format, const T: usize, const P: usize>(
    job: &Product,
    panel: usize,
    row: usize,
    rows: usize,
) {
    macro_rules! pick {
        ($($m:literal)*) => {
            match rows {
                // SAFETY: the caller's duty.
                $($m if $m <= T => unsafe { tile::<V, F, $m, P>(job, panel, row) },)*
                _ => unreachable!("a tile has at most {T} rows"),
            }
        };
    }
    pick!(1 2 3 4 5 6 7 8 9 10 11 12)
}

/// M rows by P panels, all sums in registers.
#[inline(always)]
unsafe fn tile<V: Lanes, F: Format, const M: usize, const P: usize>(job: &Product, panel: usize, row: usize) {
    // SAFETY: panel + P <= panels and row + M <= rows, so every address lies in the job's buffers.
    unsafe {
        let weights: [*const u8; P] = std::array::from_fn(|p| job.weights.add((panel + p) * job.panel_bytes));
        let x: [*const u8; M] = std::array::from_fn(|m| job.x.add((row + m) * job.x_bytes));
        let mut sums = [[V::splat(0.0); P]; M];
        if job.onto {
            for (m, sums) in sums.iter_mut().enumerate() {
                for (p, sum) in sums.iter_mut().enumerate() {
                    *sum = V::load(job.out.add((row + m) * job.out_stride + (panel + p) * LANES));
                }
            }
        }
        for step in 0..job.steps {
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
                sum.store(job.out.add((row + m) * job.out_stride + (panel + p) * LANES));
            }
        }
    }
}

/// out = expression of vectors of the inputs, 16 values at a time, the tail through zero-padded copies; `out` may be one
/// of the inputs. A macro and not a function of a closure: intrinsics inside a closure would become calls.
macro_rules! map {
    ($V:ty, [$($name:ident = $input:expr),*] => $out:expr, $len:expr, $result:expr) => {{
        let (out, len): (*mut f32, usize) = ($out, $len);
        let whole = len - len % LANES;
        let mut start = 0;
        while start < whole {
            $(let $name = <$V>::load($input.add(start));)*
            ($result).store(out.add(start));
            start += LANES;
        }
        if whole < len {
            $(
                let mut padded = [0.0; LANES];
                $input.add(whole).copy_to_nonoverlapping(padded.as_mut_ptr(), len - whole);
                let $name = <$V>::load(padded.as_ptr());
            )*
            let mut padded = [0.0; LANES];
            ($result).store(padded.as_mut_ptr());
            out.add(whole).copy_from_nonoverlapping(padded.as_ptr(), len - whole);
        }
    }};
}

pub(super) use map;

/// x += y.  // both [n]
#[inline(always)]
pub(super) unsafe fn add<V: Lanes>(x: &mut [f32], y: &[f32]) {
    let at = x.as_mut_ptr();
    // SAFETY: both hold x.len() values.
    unsafe { map!(V, [a = at, b = y.as_ptr()] => at, x.len(), a.add(b)) }
}

/// 1 / sqrt(x), and NaN for infinity: squares that overflowed must reach the logits as NaN, where they are reported, not
/// as a row of zeros.
#[inline(always)]
pub(super) fn inverse_root(x: f32) -> f32 {
    if x.is_finite() { 1.0 / x.sqrt() } else { f32::NAN }
}

/// x / sqrt(mean(x^2) + eps) * weight (Zhang and Sennrich 2019).  // all [n]
#[inline(always)]
pub(super) unsafe fn rms_norm<V: Lanes>(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    // SAFETY: loads stay inside x, the tail goes through an array of 16.
    unsafe {
        let mut squares = V::splat(0.0);
        let mut chunks = x.chunks_exact(LANES);
        for chunk in &mut chunks {
            let v = V::load(chunk.as_ptr());
            squares = v.mul_add(v, squares);
        }
        let tail = chunks.remainder();
        let mut padded = [0.0; LANES];
        padded[..tail.len()].copy_from_slice(tail);
        let v = V::load(padded.as_ptr());
        let mean = v.mul_add(v, squares).sum() / x.len() as f32;
        let scale = V::splat(inverse_root(mean + eps));
        map!(V, [x = x.as_ptr(), w = weight.as_ptr()] => out.as_mut_ptr(), out.len(), x.mul(scale).mul(w));
    }
}

/// Rotates the pairs (i, i + n) of one head by the angles whose cos and sin are given.  // head [2n], cos and sin [n]
#[inline(always)]
pub(super) unsafe fn rotate_half<V: Lanes>(head: &mut [f32], cos: &[f32], sin: &[f32]) {
    let (a, b) = head.split_at_mut(cos.len());
    // SAFETY: the in-place inputs are read before the same places are written.
    unsafe {
        let (mut start, n) = (0, cos.len());
        while start + LANES <= n {
            let (x, y) = (V::load(a.as_ptr().add(start)), V::load(b.as_ptr().add(start)));
            let (c, s) = (V::load(cos.as_ptr().add(start)), V::load(sin.as_ptr().add(start)));
            x.mul(c).sub(y.mul(s)).store(a.as_mut_ptr().add(start));
            y.mul(c).add(x.mul(s)).store(b.as_mut_ptr().add(start));
            start += LANES;
        }
        for i in start..n {
            let (x, y) = (a[i], b[i]);
            a[i] = x * cos[i] - y * sin[i];
            b[i] = y * cos[i] + x * sin[i];
        }
    }
}

/// Softmax numerators: scores become e^(score - max) for the first `valid` positions and 0 for the rest of the last
/// vector. Returns (max, sum).  // scores [>= valid, up to whole vectors], scaled by `scale` first
///
/// A score that is NaN or +inf makes its numerator NaN, and so the sum; `max` leaves NaN out.
#[inline(always)]
pub(super) unsafe fn softmax<V: Lanes>(scores: &mut [f32], valid: usize, scale: f32) -> (f32, f32) {
    let whole = valid.next_multiple_of(LANES);
    scores[valid..whole].fill(f32::NEG_INFINITY);
    let scores = &mut scores[..whole];
    // SAFETY: `scores` holds whole vectors.
    unsafe {
        let scale = V::splat(scale);
        let mut max = V::splat(f32::NEG_INFINITY);
        for vector in scores.chunks_exact_mut(LANES) {
            let scaled = V::load(vector.as_ptr()).mul(scale);
            scaled.store(vector.as_mut_ptr());
            max = scaled.max(max); // never NaN: a NaN comes back as its numerator
        }
        let max = max.largest();
        let mut sum = V::splat(0.0);
        for vector in scores.chunks_exact_mut(LANES) {
            let e = exp(V::load(vector.as_ptr()).sub(V::splat(max)));
            e.store(vector.as_mut_ptr());
            sum = sum.add(e);
        }
        (max, sum.sum())
    }
}

/// acc = acc * a + partial * b: joins two partial softmax sums.  // acc and partial [n]
#[inline(always)]
pub(super) unsafe fn merge<V: Lanes>(acc: &mut [f32], partial: &[f32], a: f32, b: f32) {
    let at = acc.as_mut_ptr();
    // SAFETY: both hold acc.len() values.
    unsafe {
        let (a, b) = (V::splat(a), V::splat(b));
        map!(V, [x = at, y = partial.as_ptr()] => at, acc.len(), x.mul(a).add(y.mul(b)));
    }
}

/// Round to binary16, nearest even.  // both [n]
#[inline(always)]
pub(super) unsafe fn to_f16<V: Lanes>(x: &[f32], out: &mut [u16]) {
    // SAFETY: `start + 16 <= len` of both slices in the loop; the tail goes through arrays of 16.
    unsafe {
        let whole = x.len() - x.len() % LANES;
        for start in (0..whole).step_by(LANES) {
            V::load(x.as_ptr().add(start)).store_f16(out.as_mut_ptr().add(start));
        }
        let (mut tail, mut rounded) = ([0.0; LANES], [0; LANES]);
        tail[..x.len() - whole].copy_from_slice(&x[whole..]);
        V::load(tail.as_ptr()).store_f16(rounded.as_mut_ptr());
        out[whole..].copy_from_slice(&rounded[..x.len() - whole]);
    }
}

/// Round to bf16, nearest even; NaN stays NaN.  // x [n], out [>= n]
#[inline(always)]
pub(super) fn to_bf16(x: &[f32], out: &mut [u16]) {
    for (x, out) in x.iter().zip(out) {
        let bits = x.to_bits();
        let rounded = (bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16) as u16;
        *out = if x.is_nan() { (bits >> 16) as u16 | 0x40 } else { rounded };
    }
}

/// e^x for x <= 88: range reduction by ln 2 and the degree-6 minimax polynomial of Cephes' expf; about 1 ulp.
/// Below -87.3 the result is 0; e^NaN is NaN.
#[inline(always)]
pub(super) unsafe fn exp<V: Lanes>(x: V) -> V {
    // SAFETY: the ISA is the caller's duty.
    unsafe {
        let x = V::splat(88.0).min(V::splat(-104.0).max(x));
        let n = x.mul(V::splat(std::f32::consts::LOG2_E)).round();
        let r = n.mul_add(V::splat(-0.693_359_4), x);
        let r = n.mul_add(V::splat(2.121_944_4e-4), r);
        let mut p = V::splat(1.987_569_1e-4);
        for c in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 0.166_666_65, 0.5] {
            p = p.mul_add(r, V::splat(c));
        }
        let p = p.mul_add(r.mul(r), r.add(V::splat(1.0)));
        p.scale_by_power(n)
    }
}
