//! A checksum at the speed of memory: it finds damage, not malice.

/// Words side by side, so that the sums fill vector registers.
const LANES: usize = 16;

/// Of any bytes: Fletcher's two running sums, in 64-bit lanes, then mixed into one word.
///
/// The first sum sees every changed word, the second every word that moved. Method: J. G. Fletcher, "An arithmetic
/// checksum for serial transmissions" (1982); the mixer is that of MurmurHash3's end.
pub fn checksum(bytes: &[u8]) -> u64 {
    let (mut first, mut second) = ([0_u64; LANES], [0_u64; LANES]);
    let blocks = bytes.chunks_exact(8 * LANES);
    let mut last = [0; 8 * LANES];
    last[..blocks.remainder().len()].copy_from_slice(blocks.remainder());
    let mut add = |block: &[u8]| {
        for (lane, word) in block.chunks_exact(8).enumerate() {
            let word =
                u64::from_le_bytes([word[0], word[1], word[2], word[3], word[4], word[5], word[6], word[7]]);
            first[lane] = first[lane].wrapping_add(word);
            second[lane] = second[lane].wrapping_add(first[lane]);
        }
    };
    blocks.for_each(&mut add);
    add(&last);
    let sums = first.iter().chain(&second);
    sums.fold(bytes.len() as u64, |hash, &sum| mixed(hash.rotate_left(23) ^ mixed(sum)))
}

fn mixed(mut x: u64) -> u64 {
    x = (x ^ (x >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    x = (x ^ (x >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    x ^ (x >> 33)
}

#[cfg(test)]
mod tests {
    use super::checksum;

    #[test]
    fn every_kind_of_damage_shows() {
        let whole: Vec<u8> = (0..1000_u32).map(|i| (i * 7 + i / 256) as u8).collect();
        let sum = checksum(&whole);
        assert_eq!(sum, checksum(&whole.clone()));
        for at in 0..whole.len() {
            for bit in 0..8 {
                let mut damaged = whole.clone();
                damaged[at] ^= 1 << bit;
                assert_ne!(checksum(&damaged), sum, "bit {bit} of byte {at}");
            }
            assert_ne!(checksum(&whole[..at]), sum, "cut at {at}");
        }
        for (a, b) in [(0, 128), (8, 16), (0, 512)] {
            let mut moved = whole.clone();
            let (left, right) = moved.split_at_mut(b);
            left[a..a + 8].swap_with_slice(&mut right[..8]);
            assert_ne!(checksum(&moved), sum, "words at {a} and {b} changed places");
        }
        assert_ne!(checksum(&[0; 128]), checksum(&[0; 129]));
        let mut zeroed = whole.clone();
        zeroed[256..512].fill(0);
        assert_ne!(checksum(&zeroed), sum);
    }
}
