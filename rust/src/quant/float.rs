//! f32, f16 and bf16: a step is one k of all lanes, for bf16 a pair of k.

use super::{DType, LANES};
use half::{bf16, f16};

/// Byte of value k of a lane.
fn place(dtype: DType, k: usize, lane: usize) -> usize {
    match dtype {
        DType::BF16 => ((k / 2) * LANES + lane) * 4 + (k % 2) * 2,
        DType::F16 => (k * LANES + lane) * 2,
        _ => (k * LANES + lane) * 4,
    }
}

pub(super) fn pack_row(dtype: DType, values: &[f32], lane: usize, panel: &mut [u8]) {
    match dtype {
        DType::F32 => put(values, panel, |k| place(DType::F32, k, lane), f32::to_le_bytes),
        DType::F16 => put(values, panel, |k| place(DType::F16, k, lane), |x| f16::from_f32(x).to_le_bytes()),
        _ => put(values, panel, |k| place(DType::BF16, k, lane), |x| bf16::from_f32(x).to_le_bytes()),
    }
}

fn put<const N: usize>(
    values: &[f32],
    panel: &mut [u8],
    at: impl Fn(usize) -> usize,
    bytes: impl Fn(f32) -> [u8; N],
) {
    for (k, &value) in values.iter().enumerate() {
        panel[at(k)..][..N].copy_from_slice(&bytes(value));
    }
}

pub(super) fn unpack_row(dtype: DType, panel: &[u8], lane: usize, out: &mut [f32]) {
    for (k, out) in out.iter_mut().enumerate() {
        let at = place(dtype, k, lane);
        let half = u16::from_le_bytes([panel[at], panel[at + 1]]);
        *out = match dtype {
            DType::F32 => f32::from_le_bytes([panel[at], panel[at + 1], panel[at + 2], panel[at + 3]]),
            DType::F16 => f16::from_bits(half).to_f32(),
            _ => bf16::from_bits(half).to_f32(),
        };
    }
}
