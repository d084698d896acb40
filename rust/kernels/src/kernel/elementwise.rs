//! Functions of rows: addition, norms, activations, soft caps, RoPE.
//!
//! # Safety
//! As in `matmul.rs`: the CPU must have the ISA of [`Lanes`]; `kernel/mod.rs` checks the lengths.

use super::lanes::{LANES, Lanes};

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

/// x += y.  // both [n]
#[inline(always)]
pub(super) unsafe fn add<V: Lanes>(x: &mut [f32], y: &[f32]) {
    let at = x.as_mut_ptr();
    // SAFETY: both hold x.len() values.
    unsafe { map!(V, [a = at, b = y.as_ptr()] => at, x.len(), a.add(b)) }
}

/// x *= y.  // both [n]
#[inline(always)]
pub(super) unsafe fn mul<V: Lanes>(x: &mut [f32], y: &[f32]) {
    let at = x.as_mut_ptr();
    // SAFETY: both hold x.len() values.
    unsafe { map!(V, [a = at, b = y.as_ptr()] => at, x.len(), a.mul(b)) }
}

/// acc += x * y.  // all [n]
#[inline(always)]
pub(super) unsafe fn mul_add<V: Lanes>(acc: &mut [f32], x: &[f32], y: &[f32]) {
    let at = acc.as_mut_ptr();
    // SAFETY: all hold acc.len() values.
    unsafe { map!(V, [acc = at, x = x.as_ptr(), y = y.as_ptr()] => at, acc.len(), x.mul_add(y, acc)) }
}

/// e^x, of larger x e^88. Below -87.3 the result is 0; e^NaN is NaN.
#[inline(always)]
pub(super) unsafe fn exp<V: Lanes>(x: V) -> V {
    // SAFETY: the ISA is the caller's duty.
    unsafe { exp_of_small(V::splat(88.0).min(x)) }
}

/// e^x for x <= 88: range reduction by ln 2 and the degree-6 minimax polynomial of Cephes' expf; about 1 ulp.
#[inline(always)]
pub(super) unsafe fn exp_of_small<V: Lanes>(x: V) -> V {
    // SAFETY: the ISA is the caller's duty.
    unsafe {
        let x = V::splat(-104.0).max(x);
        let n = x.mul(V::splat(std::f32::consts::LOG2_E)).round();
        let r = n.mul_add(V::splat(-0.693_359_4), x);
        let r = n.mul_add(V::splat(2.121_944_4e-4), r);
        let mut p = V::splat(1.987_569_1e-4);
        for c in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 0.166_666_65, 0.5] {
            p = p.mul_add(r, V::splat(c));
        }
        let p = p.mul_add(r.mul(r), r.add(V::splat(1.0)));
        p.ldexp(n)
    }
}

/// x = e^x, by [`exp`].  // [n]
#[inline(always)]
pub(super) unsafe fn exp_in_place<V: Lanes>(x: &mut [f32]) {
    let at = x.as_mut_ptr();
    // SAFETY: x holds x.len() values.
    unsafe { map!(V, [x = at] => at, x.len(), exp(x)) }
}

/// acc = a * acc + b * x.  // acc and x [n]
#[inline(always)]
pub(super) unsafe fn axpby<V: Lanes>(acc: &mut [f32], x: &[f32], a: f32, b: f32) {
    let at = acc.as_mut_ptr();
    // SAFETY: both hold acc.len() values.
    unsafe {
        let (a, b) = (V::splat(a), V::splat(b));
        map!(V, [acc = at, x = x.as_ptr()] => at, acc.len(), acc.mul(a).add(x.mul(b)));
    }
}

/// Activation of an MLP.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Activation {
    /// `silu`: x * sigmoid(x) (llama and most others).
    Silu,
    /// `gelu`: x * Phi(x) by the error function (Hendrycks and Gimpel 2016; falcon, gpt_neox).
    Gelu,
    /// `gelu_new`, `gelu_fast`, `gelu_pytorch_tanh`: the same by a tanh (gemma, gpt2, phi, starcoder2).
    GeluTanh,
    /// `relu`: max(x, 0).
    Relu,
    /// `relu2`: max(x, 0)^2 (So et al. 2021, Primer; nemotron).
    Relu2,
    /// sigmoid(x): gates (kimi_linear).
    Sigmoid,
    /// `xielu` (Huang and Schlag 2024, <https://arxiv.org/abs/2411.13010>; apertus): alpha_p x^2 + x/2 above 0,
    /// alpha_n (e^x - 1 - x) + x/2 below.
    Xielu {
        /// Of the positive part.
        alpha_p: f32,
        /// Of the negative part.
        alpha_n: f32,
    },
    /// gate * sigmoid(alpha * gate) * (up + offset), gate at most `limit`, up within +-`limit` (gpt_oss, hy_v4).
    ClampedSwiglu {
        /// `swiglu_alpha`.
        alpha: f32,
        /// `swiglu_limit`.
        limit: f32,
        /// Added to up: 1 in gpt_oss, 0 in hy_v4.
        offset: f32,
    },
}

impl Activation {
    /// xIELU with its learned parameters as files store them: before the softplus that keeps them positive.
    pub fn xielu(alpha_p: f32, alpha_n: f32) -> Self {
        let softplus = |x: f32| x.max(0.0) + (-x.abs()).exp().ln_1p();
        Self::Xielu { alpha_p: softplus(alpha_p), alpha_n: XIELU_BETA + softplus(alpha_n) }
    }
}

/// xIELU's slope at 0.
const XIELU_BETA: f32 = 0.5;

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
            Activation::Relu => map!(V, [g = gate, u = up] => to, len, relu(g).mul(u)),
            Activation::Relu2 => map!(V, [g = gate, u = up] => to, len, relu2(g).mul(u)),
            Activation::Sigmoid => map!(V, [g = gate, u = up] => to, len, sigmoid_of(u, g)),
            Activation::Xielu { alpha_p, alpha_n } => {
                map!(V, [g = gate, u = up] => to, len, xielu(g, alpha_p, alpha_n).mul(u));
            }
            Activation::ClampedSwiglu { alpha, limit, offset } => {
                let (alpha, most, least) = (V::splat(alpha), V::splat(limit), V::splat(-limit));
                let offset = V::splat(offset);
                map!(V, [g = gate, u = up] => to, len, {
                    let g = most.min(g);
                    let u = least.max(most.min(u)).add(offset);
                    sigmoid_of(g, g.mul(alpha)).mul(u)
                });
            }
        }
    }
}

/// out = act(x); a clamped SwiGLU has two inputs, here both `x`.  // both [n]
#[inline(always)]
pub(super) unsafe fn activate<V: Lanes>(activation: Activation, x: &[f32], out: &mut [f32]) {
    let (input, to, len) = (x.as_ptr(), out.as_mut_ptr(), out.len());
    // SAFETY: the ISA is the caller's duty; both hold `len` values.
    unsafe {
        match activation {
            Activation::Silu => map!(V, [x = input] => to, len, silu(x)),
            Activation::Gelu => map!(V, [x = input] => to, len, gelu(x)),
            Activation::GeluTanh => map!(V, [x = input] => to, len, gelu_tanh(x)),
            Activation::Relu => map!(V, [x = input] => to, len, relu(x)),
            Activation::Relu2 => map!(V, [x = input] => to, len, relu2(x)),
            Activation::Sigmoid => map!(V, [x = input] => to, len, sigmoid_of(V::splat(1.0), x)),
            Activation::Xielu { alpha_p, alpha_n } => {
                map!(V, [x = input] => to, len, xielu(x, alpha_p, alpha_n));
            }
            Activation::ClampedSwiglu { .. } => gate::<V>(activation, x, x, out),
        }
    }
}

/// x = act(x).  // [n]
#[inline(always)]
pub(super) unsafe fn activate_in_place<V: Lanes>(activation: Activation, x: &mut [f32]) {
    let (at, len) = (x.as_mut_ptr(), x.len());
    // SAFETY: the ISA is the caller's duty; x holds `len` values.
    unsafe {
        match activation {
            Activation::Silu => map!(V, [x = at] => at, len, silu(x)),
            Activation::Sigmoid => map!(V, [x = at] => at, len, sigmoid_of(V::splat(1.0), x)),
            _ => {
                let copy = x.to_vec();
                activate::<V>(activation, &copy, x);
            }
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
unsafe fn xielu<V: Lanes>(x: V, alpha_p: f32, alpha_n: f32) -> V {
    // SAFETY: the ISA is the caller's duty.
    unsafe {
        let zero = V::splat(0.0);
        let (above, below) = (zero.max(x), zero.min(x)); // NaN is both
        let curve = exp(below).sub(V::splat(1.0)).sub(below).mul(V::splat(alpha_n));
        above.mul(above).mul(V::splat(alpha_p)).add(curve).add(x.mul(V::splat(XIELU_BETA)))
    }
}

#[inline(always)]
unsafe fn relu<V: Lanes>(x: V) -> V {
    // SAFETY: the ISA is the caller's duty.
    unsafe { V::splat(0.0).max(x) }
}

#[inline(always)]
unsafe fn relu2<V: Lanes>(x: V) -> V {
    // SAFETY: the ISA is the caller's duty.
    unsafe {
        let positive = relu(x);
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
        let mean = sums.reduce_add() / x.len() as f32;
        let center = V::splat(mean);
        padded[tail.len()..].fill(mean);
        let away = V::load(padded.as_ptr()).sub(center);
        let mut squares = away.mul(away);
        for chunk in chunks {
            let away = V::load(chunk.as_ptr()).sub(center);
            squares = away.mul_add(away, squares);
        }
        let variance = squares.reduce_add() / x.len() as f32;
        let scale = V::splat(inverse_root(variance + eps));
        map!(V, [x = x.as_ptr(), w = weight.as_ptr(), b = bias.as_ptr()] => out.as_mut_ptr(), out.len(), {
            x.sub(center).mul(scale).mul_add(w, b)
        });
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
pub(super) fn rope_interleaved(x: &mut [f32], cos: &[f32], sin: &[f32]) {
    for ((pair, c), s) in x.chunks_exact_mut(2).zip(cos).zip(sin) {
        let (a, b) = (pair[0], pair[1]);
        pair[0] = a * c - b * s;
        pair[1] = b * c + a * s;
    }
}

/// 1 / sqrt(x), and NaN for infinity: squares that overflowed must reach the logits as NaN, where they are reported, not
/// as zeros.
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
        let mean = v.mul_add(v, squares).reduce_add() / x.len() as f32;
        let scale = V::splat(inverse_root(mean + eps));
        map!(V, [x = x.as_ptr(), w = weight.as_ptr()] => out.as_mut_ptr(), out.len(), x.mul(scale).mul(w));
    }
}

/// Rotates the pairs (i, i + n) of one head by the angles whose cos and sin are given.  // head [2n], cos and sin [n]
#[inline(always)]
pub(super) unsafe fn rope_neox<V: Lanes>(head: &mut [f32], cos: &[f32], sin: &[f32]) {
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
