//! MXFP4 (OCP Microscaling Formats 1.0): blocks of 32 floats of 4 bits (a sign, two bits of exponent, one of mantissa)
//! with a power of two.
//!
//! ```text
//! | exponent e8m0 | 16 bytes: low nibbles, then high ones |      value = 2^(exponent - 127) * VALUES[q] / 2
//! ```

use super::iq4::from_table;

/// The 4-bit floats, doubled so that they are integers; sign and magnitude, and -0 is 0.
const VALUES: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// 2^(exponent - 128): half of the scale. The two smallest are subnormal.
fn half_scale(exponent: u8) -> f32 {
    f32::from_bits(match exponent {
        0 | 1 => 0x0020_0000 << exponent,
        _ => u32::from(exponent - 1) << 23,
    })
}

pub(super) fn read_block(block: &[u8], out: &mut [f32]) {
    from_table(&VALUES, half_scale(block[0]), &block[1..], out);
}
