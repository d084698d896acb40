//! Philox4x32-10: a counter-based generator, so that the draw at a position needs no state and no neighbours.
//!
//! Source: Salmon, Moraes, Dror, Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3" (SC'11).

const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
const ROUNDS: usize = 10;

/// One block: 128 random bits, a bijection of `counter` for each `key`.
pub fn philox4x32(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let mut x = counter;
    let mut k = key;
    for _ in 0..ROUNDS {
        let (high0, low0) = multiply(MULTIPLIERS[0], x[0]);
        let (high1, low1) = multiply(MULTIPLIERS[1], x[2]);
        x = [high1 ^ x[1] ^ k[0], low1, high0 ^ x[3] ^ k[1], low0];
        k = [k[0].wrapping_add(WEYL[0]), k[1].wrapping_add(WEYL[1])];
    }
    x
}

fn multiply(a: u32, b: u32) -> (u32, u32) {
    let product = u64::from(a) * u64::from(b);
    ((product >> 32) as u32, product as u32)
}

/// Two independent uniform draws in [0, 1) of (seed, stream, position), multiples of 2^-53: that of the token, and XTC's.
///
/// key = seed; counter = position in the low 64 bits, stream in the high; all words little end first.
/// The 53 bits are the upper ones of (word 0, word 1), and of (word 2, word 3).
pub fn uniforms(seed: u64, stream: u64, position: u64) -> [f64; 2] {
    let words = |x: u64| [x as u32, (x >> 32) as u32];
    let [position_low, position_high] = words(position);
    let [stream_low, stream_high] = words(stream);
    let block = philox4x32([position_low, position_high, stream_low, stream_high], words(seed));
    [[block[0], block[1]], [block[2], block[3]]].map(|[high, low]| {
        let bits = (u64::from(high) << 32 | u64::from(low)) >> 11;
        bits as f64 / (1u64 << 53) as f64
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// tests/kat_vectors of Random123, the three lines of `philox4x32 10`.
    #[test]
    fn known_answers_of_random123() {
        let cases = [
            ([0; 4], [0; 2], [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]),
            ([u32::MAX; 4], [u32::MAX; 2], [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]),
            (
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0],
                [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
            ),
        ];
        for (counter, key, expected) in cases {
            assert_eq!(philox4x32(counter, key), expected);
        }
    }

    #[test]
    fn uniforms_are_functions_of_their_three_arguments_in_range() {
        let uniform = |seed, stream, position| uniforms(seed, stream, position)[0];
        let u = uniform(1, 2, 3);
        assert_eq!(u, uniform(1, 2, 3));
        const UPPER: u64 = 1 << 32; // the lowest bit of the upper word
        for other in [uniform(2, 2, 3), uniform(1, 3, 3), uniform(1, 2, 4)] {
            assert_ne!(u, other);
        }
        for other in [uniform(1 + UPPER, 2, 3), uniform(1, 2 + UPPER, 3), uniform(1, 2, 3 + UPPER)] {
            assert_ne!(u, other);
        }
        assert_eq!(uniform(0, 0, 0), (0x6627_e8d5_e169_c58d_u64 >> 11) as f64 * 2f64.powi(-53));
        assert_eq!(uniforms(0, 0, 0)[1], (0xbc57_ac4c_9b00_dbd8_u64 >> 11) as f64 * 2f64.powi(-53));
        let mean =
            (0..100_000).map(|p| uniform(7, 0, p)).inspect(|u| assert!((0.0..1.0).contains(u))).sum::<f64>();
        assert!((mean / 1e5 - 0.5).abs() < 0.004);
    }
}
