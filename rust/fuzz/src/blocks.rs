//! Blocks of ggml's types with any bytes: reading, packing, and products on every instruction set.

use ropechat_kernels::kernel::{Isa, Kernels, LANES, Panels, Rows, x_row_bytes};
use ropechat_kernels::quant::{PackedType, StorageType};

/// The first byte chooses the type, the rest are blocks. What is packed without loss is unpacked to the same numbers.
pub fn blocks(data: &[u8]) {
    let Some((&choice, bytes)) = data.split_first() else { return };
    let kind = StorageType::ALL[choice as usize % StorageType::ALL.len()];
    let block = kind.row_bytes(kind.block_values());
    let blocks = (bytes.len() / block).min(8);
    if blocks == 0 {
        return;
    }
    let n = blocks * kind.block_values();
    let bytes = &bytes[..kind.row_bytes(n)];
    let mut values = vec![0.0; n];
    kind.dequantize(bytes, &mut values);
    for into in PackedType::ALL {
        if into != PackedType::F32 && into != PackedType::Q8_0 && !kind.is_kept_in(into) {
            continue;
        }
        let mut panel = vec![0; into.panel_bytes(into.steps(n))];
        let mut scratch = vec![0.0; n];
        kind.pack_row(bytes, into, 3, &mut panel, &mut scratch);
        let mut back = vec![0.0; n];
        into.unpack_row(&panel, 3, &mut back);
        // f16 has MXFP4's scale, a power of two, from 2^-24 to 2^12, and a min of 8 or 16 scales if these are below 4096.
        let has_scales = bytes.chunks(block).all(|block| match kind {
            StorageType::MXFP4 => (104..=140).contains(&block[0]),
            StorageType::Q4_0 | StorageType::Q5_0 => block[1] & 0x7f < 0x6c,
            _ => true,
        });
        let is_exact = into == PackedType::F32 || kind.is_kept_in(into) && has_scales;
        let is_exact = is_exact && values.iter().all(|value| value.is_finite());
        for (index, (&value, &back)) in values.iter().zip(&back).enumerate() {
            assert!(!is_exact || value == back, "{kind:?} in {into:?}, {index}: {value} became {back}");
        }
    }
}

/// Panels of any bytes by rows of numbers, on every instruction set: a column with a NaN or an infinity among its weights gives NaN
/// or an infinity, one without gives numbers.
pub fn matmul(data: &[u8]) {
    let Some((&[choice, rows, steps], bytes)) = data.split_first_chunk::<3>() else { return };
    if bytes.is_empty() {
        return;
    }
    let format = PackedType::ALL[choice as usize % PackedType::ALL.len()];
    let k = (1 + steps as usize % 4) * 256;
    let (steps, rows) = (format.steps(k), 1 + rows as usize % 13);
    let panel_bytes = format.panel_bytes(steps);
    let cycle = |n: usize, skip: usize| bytes.iter().cycle().skip(skip).take(n).copied().collect::<Vec<u8>>();
    let weights = cycle(panel_bytes, 0);
    // Never zero, which would hide an infinity.
    let values: Vec<f32> = cycle(rows * k, 1).iter().map(|&byte| f32::from(byte as i8 | 1) / 16.0).collect();
    let columns: Vec<Vec<f32>> = (0..LANES)
        .map(|lane| {
            let mut column = vec![0.0; k];
            format.unpack_row(&weights, lane, &mut column);
            column
        })
        .collect();
    for isa in Isa::ALL {
        let Ok(kernels) = Kernels::of(isa) else { continue };
        let x: Vec<u8> = values
            .chunks_exact(k)
            .flat_map(|row| match format {
                PackedType::F32 | PackedType::F16 => bytemuck::cast_slice(row).to_vec(),
                PackedType::BF16 => {
                    row.iter().flat_map(|v| ((v.to_bits() >> 16) as u16).to_le_bytes()).collect()
                }
                _ => {
                    let mut out = vec![0; x_row_bytes(format, steps)];
                    kernels.quantize_q8(row, format, &mut out);
                    out
                }
            })
            .collect();
        let mut out = vec![0.0f32; rows * LANES];
        let stride = x.len() / rows;
        let panels = Panels { format, bytes: &weights, panel_bytes, count: 1, steps };
        kernels.matmul(panels, Rows { bytes: &x, stride, count: rows }, &mut out, LANES);
        for (index, &value) in out.iter().enumerate() {
            let column = &columns[index % LANES];
            if column.iter().any(|weight| weight.is_infinite()) {
                // Of an infinite scale; zeros among its integers are NaN alone, and nothing in their sum.
                assert!(!value.is_finite(), "{format:?} on {isa:?}, {index}: an infinity became {value}");
            } else if column.iter().any(|weight| weight.is_nan()) {
                assert!(value.is_nan(), "{format:?} on {isa:?}, {index}: NaN became {value}");
            } else if column.iter().all(|weight| weight.abs() < 1e30) {
                assert!(value.is_finite(), "{format:?} on {isa:?}, {index}: {value} of numbers");
            }
        }
    }
}
