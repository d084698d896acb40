//! Floats of a byte (OCP 8-bit Floating Point, OCP Microscaling Formats 1.0).
//!
//! ```text
//! E4M3 | sign | 4 bits, bias 7  | 3 bits |   no infinity; NaN where all seven are ones
//! E5M2 | sign | 5 bits, bias 15 | 2 bits |   infinity and NaN as in an f16, whose upper half it is
//! E8M0 | 8 bits, bias 127 |                  a power of two; NaN where all are ones
//! ```

use half::f16;

/// The value of an E4M3.
pub fn e4m3(bits: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(bits >> 3 & 15), f32::from(bits & 7));
    let magnitude = match (exponent, bits & 7) {
        (15, 7) => f32::NAN,
        (0, _) => mantissa / 512.0,
        _ => (8.0 + mantissa) * 2.0_f32.powi(exponent - 10),
    };
    if bits & 0x80 == 0 { magnitude } else { -magnitude }
}

/// The value of an E5M2.
pub fn e5m2(bits: u8) -> f32 {
    f16::from_bits(u16::from(bits) << 8).to_f32()
}

/// The value of an E8M0.
pub fn e8m0(bits: u8) -> f32 {
    match bits {
        255 => f32::NAN,
        0 => f32::from_bits(0x0040_0000), // 2^-127 is subnormal
        _ => f32::from_bits(u32::from(bits) << 23),
    }
}
