//! Elementwise functions beyond Llama's: activations, LayerNorm, soft caps, rotation of neighbours.
//!
//! # Safety
//! As in `generic.rs`: the CPU must have the ISA of [`Lanes`]; `kernel/mod.rs` checks the lengths.

use super::generic::{exp, inverse_root, map};
use super::lanes::{LANES, Lanes};
use crate::quant::BLOCK;

/// Activation of an MLP.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Activation {
    /// `silu`: x * sigmoid(x) (llama and most others).
    Silu,
    /// `gelu`: x * Phi(x) by the error function (Hendrycks and Gimpel 2016; falcon, gpt_neox).
    Gelu,
    /// `gelu_new`, `gelu_fast`, `gelu_pytorch_tanh`: the same by a tanh (gemma, gpt2, phi, starcoder2).
    GeluTanh,
    /// `relu2`: max(x, 0)^2 (So et al. 2021, Primer; nemotron).
    Relu2,
    /// gpt_oss: gate * sigmoid(alpha * gate) * (up + 1), gate at most `limit`, up within +-`limit`.
    ClampedSwiglu {
        /// `swiglu_alpha`.
        alpha: f32,
        /// `swiglu_limit`.
        limit: f32,
    },
}

/// out = act(gate) * up.  // all [n]
#[inline(always)]
pub(super) unsafe fn gate<V: Lanes>(activation: Activation, gate: &[f32], up: &[f32], out: &mut [f32]) {
    let (gate, up, to, len) = (gate.as_ptr(), up.as_ptr(), out.as_mut_ptr(), out.len());
    // SAFETY: the ISA is the caller's duty; all hold `len` values.
    unsafe {
        match activation {
            Activation::Silu => map!(V, [g = gate, u = up] => to, len, silu(g).mul(u)),
            Activation::Gelu => map!(V, [g = gate, u = up] => to, len, gelu(g).mul(u)),
            Activation::GeluTanh => map!(V, [g = gate, u = up] => to, len, gelu_tanh(g).mul(u)),
            Activation::Relu2 => map!(V, [g = gate, u = up] => to, len, relu2(g).mul(u)),
            Activation::ClampedSwiglu { alpha, limit } => {
                let (alpha, most, least) = (V::splat(alpha), V::splat(limit), V::splat(-limit));
                map!(V, [g = gate, u = up] => to, len, {
                    let g = most.min(g);
                    let u = least.max(most.min(u)).add(V::splat(1.0));
                    sigmoid_of(g, g.mul(alpha)).mul(u)
                });
            }
        }
    }
}

/// out = act(x); a clamped SwiGLU needs two inputs and takes `x` for both.  // both [n]
#[inline(always)]
pub(super) unsafe fn activate<V: Lanes>(activation: Activation, x: &[f32], out: &mut [f32]) {
    let (input, to, len) = (x.as_ptr(), out.as_mut_ptr(), out.len());
    // SAFETY: the ISA is the caller's duty; both hold `len` values.
    unsafe {
        match activation {
            Activation::Silu => map!(V, [x = input] => to, len, silu(x)),
            Activation::Gelu => map!(V, [x = input] => to, len, gelu(x)),
            Activation::GeluTanh => map!(V, [x = input] => to, len, gelu_tanh(x)),
            Activation::Relu2 => map!(V, [x = input] => to, len, relu2(x)),
            Activation::ClampedSwiglu { .. } => gate::<V>(activation, x, x, out),
        }
    }
}

/// value / (1 + e^-x).
#[inline(always)]
unsafe fn sigmoid_of<V: Lanes>(value: V, x: V) -> V {
    // SAFETY: the ISA is the caller's duty.
    unsafe { value.div(V::splat(1.0).add(exp(V::splat(0.0).sub(x)))) }
}

#[inline(always)]
unsafe fn silu<V: Lanes>(x: V) -> V {
    // SAFETY: the ISA is the caller's duty.
    unsafe { sigmoid_of(x, x) }
}

/// x/2 (1 + tanh(u)) = x sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3).
#[inline(always)]
unsafe fn gelu_tanh<V: Lanes>(x: V) -> V {
    const TWICE_ROOT: f32 = std::f32::consts::FRAC_2_SQRT_PI * std::f32::consts::SQRT_2; // 2 sqrt(2/pi)
    // SAFETY: the ISA is the caller's duty.
    unsafe {
        let cubic = x.mul(x).mul(x).mul(V::splat(0.044_715)).add(x);
        sigmoid_of(x, cubic.mul(V::splat(TWICE_ROOT)))
    }
}

/// x/2 (1 + erf(x / sqrt 2)); erf by Abramowitz and Stegun 7.1.26, off by 1.5e-7 at most.
#[inline(always)]
unsafe fn gelu<V: Lanes>(x: V) -> V {
    // SAFETY: the ISA is the caller's duty.
    unsafe {
        let (zero, one, half) = (V::splat(0.0), V::splat(1.0), V::splat(0.5));
        let magnitude = x.max(zero.sub(x)); // NaN is both
        let z = magnitude.mul(V::splat(std::f32::consts::FRAC_1_SQRT_2));
        let t = one.div(z.mul_add(V::splat(0.327_591_1), one));
        let mut p = V::splat(1.061_405_4);
        for c in [-1.453_152, 1.421_413_7, -0.284_496_74, 0.254_829_6] {
            p = p.mul_add(t, V::splat(c));
        }
        // For x >= 0: x - x/2 erfc(|x| / sqrt 2); below: minus |x|/2 erfc.
        let tail = magnitude.mul(half).mul(p.mul(t).mul(exp(zero.sub(z.mul(z)))));
        zero.max(x).sub(tail)
    }
}

#[inline(always)]
unsafe fn relu2<V: Lanes>(x: V) -> V {
    // SAFETY: the ISA is the caller's duty.
    unsafe {
        let positive = V::splat(0.0).max(x);
        positive.mul(positive)
    }
}

/// (x - mean) / sqrt(variance + eps) * weight + bias, population variance (Ba et al. 2016).  // all [n]
#[inline(always)]
pub(super) unsafe fn layer_norm<V: Lanes>(
    x: &[f32],
    weight: &[f32],
    bias: &[f32],
    eps: f32,
    out: &mut [f32],
) {
    // SAFETY: loads stay inside x, the tail goes through an array of 16.
    unsafe {
        let chunks = x.chunks_exact(LANES);
        let tail = chunks.remainder();
        let mut padded = [0.0; LANES];
        padded[..tail.len()].copy_from_slice(tail);
        let mut sums = V::load(padded.as_ptr());
        for chunk in chunks.clone() {
            sums = sums.add(V::load(chunk.as_ptr()));
        }
        let mean = sums.sum() / x.len() as f32;
        let center = V::splat(mean);
        padded[tail.len()..].fill(mean);
        let away = V::load(padded.as_ptr()).sub(center);
        let mut squares = away.mul(away);
        for chunk in chunks {
            let away = V::load(chunk.as_ptr()).sub(center);
            squares = away.mul_add(away, squares);
        }
        let variance = squares.sum() / x.len() as f32;
        let scale = V::splat(inverse_root(variance + eps));
        map!(V, [x = x.as_ptr(), w = weight.as_ptr(), b = bias.as_ptr()] => out.as_mut_ptr(), out.len(), {
            x.sub(center).mul(scale).mul_add(w, b)
        });
    }
}

/// Keys of a block as f32: a byte times the scale of its position for its 32 dimensions.
///
/// bytes and out [2 panels of 16 positions][head_dim][16], scales [head_dim / 32][32 positions]
#[inline(always)]
pub(super) unsafe fn widen_keys<V: Lanes>(bytes: &[u8], scales: &[f32], out: &mut [f32]) {
    let panel = bytes.len() / 2;
    for (p, (bytes, out)) in bytes.chunks_exact(panel).zip(out.chunks_exact_mut(panel)).enumerate() {
        for (d, (bytes, out)) in bytes.chunks_exact(LANES).zip(out.chunks_exact_mut(LANES)).enumerate() {
            let scales = &scales[d / BLOCK * BLOCK + p * LANES..][..LANES];
            // SAFETY: the ISA is the caller's duty; each is 16 values.
            unsafe { V::load_i8(bytes.as_ptr().cast()).mul(V::load(scales.as_ptr())).store(out.as_mut_ptr()) }
        }
    }
}

/// Values of a block as f32, likewise.
///
/// bytes and out [panels of 16 dimensions][32 positions][16], scales [v_head_dim / 32][32 positions]
#[inline(always)]
pub(super) unsafe fn widen_values<V: Lanes>(bytes: &[u8], scales: &[f32], out: &mut [f32]) {
    for (at, (bytes, out)) in bytes.chunks_exact(LANES).zip(out.chunks_exact_mut(LANES)).enumerate() {
        let (panel, position) = (at / BLOCK, at % BLOCK);
        let scale = scales[panel * LANES / BLOCK * BLOCK + position];
        // SAFETY: the ISA is the caller's duty; both are 16 values.
        unsafe { V::load_i8(bytes.as_ptr().cast()).mul(V::splat(scale)).store(out.as_mut_ptr()) }
    }
}

/// x *= factor.  // [n]
#[inline(always)]
pub(super) unsafe fn scale<V: Lanes>(x: &mut [f32], factor: f32) {
    let at = x.as_mut_ptr();
    // SAFETY: x holds x.len() values.
    unsafe { map!(V, [x = at] => at, x.len(), x.mul(V::splat(factor))) }
}

/// x = cap * tanh(x * factor / cap) (Gemma Team 2024).  // [n]
#[inline(always)]
pub(super) unsafe fn softcap<V: Lanes>(x: &mut [f32], factor: f32, cap: f32) {
    let at = x.as_mut_ptr();
    // SAFETY: x holds x.len() values.
    unsafe {
        let (one, twice) = (V::splat(1.0), V::splat(2.0 * factor / cap));
        map!(V, [x = at] => at, x.len(), {
            // tanh(u) = 1 - 2 / (e^2u + 1); beyond +-44 it is +-1 in f32.
            let e = exp(x.mul(twice));
            one.sub(V::splat(2.0).div(e.add(one))).mul(V::splat(cap))
        });
    }
}

/// Rotates the pairs (2i, 2i + 1) by the angles whose cos and sin are given.  // x [2n], cos and sin [n]
#[inline(always)]
pub(super) fn rotate_pairs(x: &mut [f32], cos: &[f32], sin: &[f32]) {
    for ((pair, c), s) in x.chunks_exact_mut(2).zip(cos).zip(sin) {
        let (a, b) = (pair[0], pair[1]);
        pair[0] = a * c - b * s;
        pair[1] = b * c + a * s;
    }
}
