//! f32, f16 and bf16: a step is one k of all lanes; for bf16 it is a pair of k.

use super::step::LANES;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

/// Byte of value k of a lane, for values of `bytes` bytes in steps of `per_step` k.
fn place(bytes: usize, per_step: usize, k: usize, lane: usize) -> usize {
    ((k / per_step * LANES + lane) * per_step + k % per_step) * bytes
}

fn put<T: Copy, const N: usize>(
    values: &[T],
    per_step: usize,
    lane: usize,
    panel: &mut [u8],
    bytes: impl Fn(T) -> [u8; N],
) {
    for (k, &value) in values.iter().enumerate() {
        panel[place(N, per_step, k, lane)..][..N].copy_from_slice(&bytes(value));
    }
}

fn get<const N: usize>(
    panel: &[u8],
    per_step: usize,
    lane: usize,
    out: &mut [f32],
    value: impl Fn([u8; N]) -> f32,
) {
    for (k, out) in out.iter_mut().enumerate() {
        let mut bytes = [0; N];
        bytes.copy_from_slice(&panel[place(N, per_step, k, lane)..][..N]);
        *out = value(bytes);
    }
}

pub(crate) fn pack_f32(values: &[f32], lane: usize, panel: &mut [u8]) {
    put(values, 1, lane, panel, f32::to_le_bytes);
}

pub(crate) fn pack_f16(values: &[f32], lane: usize, panel: &mut [u8]) {
    // Converted many at a time: with the processor's instructions where it has them.
    let mut halves = vec![f16::ZERO; values.len()];
    halves.convert_from_f32_slice(values);
    put(&halves, 1, lane, panel, f16::to_le_bytes);
}

pub(crate) fn pack_bf16(values: &[f32], lane: usize, panel: &mut [u8]) {
    put(values, 2, lane, panel, |x| bf16::from_f32(x).to_le_bytes());
}

pub(crate) fn unpack_f32(panel: &[u8], lane: usize, out: &mut [f32]) {
    get(panel, 1, lane, out, f32::from_le_bytes);
}

pub(crate) fn unpack_f16(panel: &[u8], lane: usize, out: &mut [f32]) {
    get(panel, 1, lane, out, |bytes| f16::from_le_bytes(bytes).to_f32());
}

pub(crate) fn unpack_bf16(panel: &[u8], lane: usize, out: &mut [f32]) {
    get(panel, 2, lane, out, |bytes| bf16::from_le_bytes(bytes).to_f32());
}
