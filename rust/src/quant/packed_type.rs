//! The types of packed weights, and how rows of each are packed and unpacked.

use super::panels::step::{GROUP, LANES, SUPER_BLOCK};
use super::panels::{float, q4_0, q4_1_q5_1, q4_k_q5_k, q6_k, q8_0};

/// Version of the panel layout. Raise it with every change of what [`PackedType::pack_row`] writes: packs on disk of
/// another version are not used.
pub const PANEL_LAYOUT: u32 = 4;

/// A storage type of weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PackedType {
    /// IEEE binary32.
    F32,
    /// IEEE binary16.
    F16,
    /// The upper half of a binary32.
    BF16,
    /// Blocks of 32 signed bytes with an f16 scale.
    Q8_0,
    /// Integers of 6 bits (value + 32): a signed byte per 16 as scale, times an f16 per 256.
    Q6K,
    /// Blocks of 32 integers of 5 bits with an f16 scale and an f16 minimum.
    Q5_1,
    /// Blocks of 32 integers of 5 bits with a scale and a minimum of 6 bits, times two f16 per 256.
    Q5K,
    /// Blocks of 32 nibbles with an f16 scale and an f16 minimum.
    Q4_1,
    /// Blocks of 32 nibbles with a scale and a minimum of 6 bits, times two f16 per 256.
    Q4K,
    /// Blocks of 32 nibbles (value + 8) with an f16 scale.
    Q4_0,
}

impl PackedType {
    /// All types, the largest first.
    pub const ALL: [PackedType; 10] = [
        PackedType::F32,
        PackedType::BF16,
        PackedType::F16,
        PackedType::Q8_0,
        PackedType::Q6K,
        PackedType::Q5_1,
        PackedType::Q5K,
        PackedType::Q4_1,
        PackedType::Q4K,
        PackedType::Q4_0,
    ];

    /// The name that the command line and messages use.
    pub fn name(self) -> &'static str {
        match self {
            PackedType::F32 => "f32",
            PackedType::F16 => "f16",
            PackedType::BF16 => "bf16",
            PackedType::Q8_0 => "q8_0",
            PackedType::Q6K => "q6_k",
            PackedType::Q5_1 => "q5_1",
            PackedType::Q5K => "q5_k",
            PackedType::Q4_1 => "q4_1",
            PackedType::Q4K => "q4_k",
            PackedType::Q4_0 => "q4_0",
        }
    }

    /// Bytes of a value of the float formats.
    pub fn value_bytes(self) -> usize {
        if self == PackedType::F32 { 4 } else { 2 }
    }

    /// k per step of a panel.
    pub fn step_values(self) -> usize {
        match self {
            PackedType::F32 | PackedType::F16 => 1,
            PackedType::BF16 => 2,
            _ => GROUP,
        }
    }

    /// Bytes per step of a panel, without the numbers that steps share.
    pub const fn step_bytes(self) -> usize {
        match self {
            PackedType::F32 | PackedType::BF16 => 4 * LANES,
            PackedType::F16 => 2 * LANES,
            PackedType::Q8_0 => q8_0::STEP_BYTES,
            PackedType::Q6K => q6_k::STEP_BYTES,
            PackedType::Q5_1 => q4_1_q5_1::step_bytes(5),
            PackedType::Q5K => q4_k_q5_k::step_bytes(5),
            PackedType::Q4_1 => q4_1_q5_1::step_bytes(4),
            PackedType::Q4K => q4_k_q5_k::step_bytes(4),
            PackedType::Q4_0 => q4_0::STEP_BYTES,
        }
    }

    /// Bytes of the numbers that four steps of the K-quants share.
    pub(crate) const fn numbers_bytes(self) -> usize {
        match self {
            PackedType::Q6K => q6_k::NUMBERS_BYTES,
            PackedType::Q5K | PackedType::Q4K => q4_k_q5_k::NUMBERS_BYTES,
            _ => 0,
        }
    }

    /// Bytes of a panel of so many steps, at most `usize::MAX`.
    pub const fn panel_bytes(self, steps: usize) -> usize {
        let numbers = steps.div_ceil(SUPER_BLOCK / GROUP).saturating_mul(self.numbers_bytes());
        steps.saturating_mul(self.step_bytes()).saturating_add(numbers)
    }

    /// bf16 reductions are padded to this many steps: the pairs of k in a tile of AMX.
    pub const BF16_STEP_MULTIPLE: usize = 16;

    /// Steps that hold `k` values; what is beyond `k` is zero.
    pub fn steps(self, k: usize) -> usize {
        let steps = k.div_ceil(self.step_values());
        if self == PackedType::BF16 { steps.next_multiple_of(Self::BF16_STEP_MULTIPLE) } else { steps }
    }

    /// The values of `bytes` (a float format, little endian, any alignment) as f32; none for other formats.
    pub fn values(self, bytes: &[u8]) -> impl Iterator<Item = f32> + '_ {
        let size = if self == PackedType::F32 { 4 } else { 2 };
        let floats = matches!(self, PackedType::F32 | PackedType::F16 | PackedType::BF16);
        bytes[..if floats { bytes.len() } else { 0 }].chunks_exact(size).map(move |b| match self {
            PackedType::F32 => f32::from_le_bytes([b[0], b[1], b[2], b[3]]),
            PackedType::F16 => half::f16::from_bits(u16::from_le_bytes([b[0], b[1]])).to_f32(),
            _ => half::bf16::from_bits(u16::from_le_bytes([b[0], b[1]])).to_f32(),
        })
    }

    /// Rounds a row to this format and writes it into its lane of a panel.  // panel [steps, step_bytes]
    pub fn pack_row(self, values: &[f32], lane: usize, panel: &mut [u8]) {
        match self {
            PackedType::F32 => float::pack_f32(values, lane, panel),
            PackedType::F16 => float::pack_f16(values, lane, panel),
            PackedType::BF16 => float::pack_bf16(values, lane, panel),
            PackedType::Q8_0 => q8_0::pack_row(values, lane, panel),
            PackedType::Q6K => q6_k::pack_row(values, lane, panel),
            PackedType::Q5_1 => q4_1_q5_1::pack_row::<5>(values, lane, panel),
            PackedType::Q5K => q4_k_q5_k::pack_row::<5>(values, lane, panel),
            PackedType::Q4_1 => q4_1_q5_1::pack_row::<4>(values, lane, panel),
            PackedType::Q4K => q4_k_q5_k::pack_row::<4>(values, lane, panel),
            PackedType::Q4_0 => q4_0::pack_row(values, lane, panel),
        }
    }

    /// Reads the row in a lane of a panel.  // out [k]
    pub fn unpack_row(self, panel: &[u8], lane: usize, out: &mut [f32]) {
        match self {
            PackedType::F32 => float::unpack_f32(panel, lane, out),
            PackedType::F16 => float::unpack_f16(panel, lane, out),
            PackedType::BF16 => float::unpack_bf16(panel, lane, out),
            PackedType::Q8_0 => q8_0::unpack_row(panel, lane, out),
            PackedType::Q6K => q6_k::unpack_row(panel, lane, out),
            PackedType::Q5_1 => q4_1_q5_1::unpack_row::<5>(panel, lane, out),
            PackedType::Q5K => q4_k_q5_k::unpack_row::<5>(panel, lane, out),
            PackedType::Q4_1 => q4_1_q5_1::unpack_row::<4>(panel, lane, out),
            PackedType::Q4K => q4_k_q5_k::unpack_row::<4>(panel, lane, out),
            PackedType::Q4_0 => q4_0::unpack_row(panel, lane, out),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers in [-1, 1) that every run repeats.
    fn noise(n: usize) -> Vec<f32> {
        let mut state = 1_u64;
        (0..n)
            .map(|_| {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                ((state >> 40) as f32) / (1 << 23) as f32 - 1.0
            })
            .collect()
    }

    #[test]
    fn a_row_comes_back_within_half_a_step_of_its_format() {
        for k in [1, 31, 32, 33, 64, 65, 172] {
            let row = noise(k);
            let bounds = [
                (PackedType::F32, 0.0),
                (PackedType::F16, 5e-4),
                (PackedType::BF16, 4e-3),
                (PackedType::Q8_0, 0.5 / 127.0 + 1e-3),
                (PackedType::Q6K, 1.0 / 32.0 + 5e-3),
                (PackedType::Q5_1, 0.035),
                (PackedType::Q5K, 0.055),
                (PackedType::Q4_1, 0.07),
                (PackedType::Q4K, 0.09),
                (PackedType::Q4_0, 0.13),
            ];
            for (dtype, bound) in bounds {
                let mut panel = vec![0; dtype.panel_bytes(dtype.steps(k))];
                for lane in [0, 7, 15] {
                    dtype.pack_row(&row, lane, &mut panel);
                    let mut back = vec![f32::NAN; k];
                    dtype.unpack_row(&panel, lane, &mut back);
                    for (x, y) in row.iter().zip(&back) {
                        assert!((x - y).abs() <= bound, "{dtype:?} k {k} lane {lane}: {x} came back as {y}");
                    }
                }
            }
        }
    }

    /// Packs on disk outlive the program: a program with another layout must not read them.
    #[test]
    fn a_change_of_layout_raises_its_number() {
        let sum = |dtype: PackedType| {
            let mut panel = vec![0; dtype.panel_bytes(dtype.steps(100))];
            for lane in 0..LANES {
                let row: Vec<f32> = noise(100).iter().map(|x| x * (lane + 1) as f32).collect();
                dtype.pack_row(&row, lane, &mut panel);
            }
            format!("{} {:016x}", dtype.name(), xxhash_rust::xxh3::xxh3_64(&panel))
        };
        let sums = PackedType::ALL.map(sum);
        let known = [
            "f32 9675ce0cf3048bff",
            "bf16 04d0443eda80fbc3",
            "f16 713d1b11fb9ba334",
            "q8_0 5398d9ee3826227a",
            "q6_k 4fc3eb2ae98e2706",
            "q5_1 8e21b57f3db8d29a",
            "q5_k 80780881009c8077",
            "q4_1 ffb30f095cc3c4b5",
            "q4_k 696da20b48ef4629",
            "q4_0 e3c818c26e3d94a8",
        ];
        assert_eq!(sums, known, "raise PANEL_LAYOUT and write the new sums here");
    }

    #[test]
    fn lanes_do_not_touch_each_other() {
        for dtype in PackedType::ALL {
            let rows: Vec<Vec<f32>> =
                (0..LANES).map(|lane| noise(100).iter().map(|x| x * (lane + 1) as f32).collect()).collect();
            let mut panel = vec![0; dtype.panel_bytes(dtype.steps(100))];
            for (lane, row) in rows.iter().enumerate() {
                dtype.pack_row(row, lane, &mut panel);
            }
            for (lane, row) in rows.iter().enumerate() {
                let (mut alone, mut back, mut own) = (vec![0; panel.len()], vec![0.0; 100], vec![0.0; 100]);
                dtype.pack_row(row, lane, &mut alone);
                dtype.unpack_row(&alone, lane, &mut own);
                dtype.unpack_row(&panel, lane, &mut back);
                assert_eq!(back, own, "{dtype:?} lane {lane}");
            }
        }
    }

    #[test]
    fn a_nan_stays_nan_in_every_format() {
        for dtype in PackedType::ALL {
            for bad in [f32::NAN, -f32::NAN] {
                let mut row = noise(600);
                row[300] = bad;
                let mut panel = vec![0; dtype.panel_bytes(dtype.steps(600))];
                dtype.pack_row(&row, 5, &mut panel);
                let mut back = vec![0.0; 600];
                dtype.unpack_row(&panel, 5, &mut back);
                assert!(back[300].is_nan(), "{dtype:?}: {}", back[300]);
                assert!(back[0].is_finite() && back[599].is_finite(), "{dtype:?}: other blocks keep theirs");
            }
        }
    }

    #[test]
    fn zeros_and_the_extremes_of_a_block_are_exact() {
        let mut row = [0.0; 64];
        row[3] = -8.0;
        for dtype in [PackedType::Q8_0, PackedType::Q6K, PackedType::Q4_0] {
            let mut panel = vec![0; dtype.panel_bytes(1)];
            dtype.pack_row(&row, 5, &mut panel);
            let mut back = [f32::NAN; 64];
            dtype.unpack_row(&panel, 5, &mut back);
            let tolerance = match dtype {
                PackedType::Q8_0 => 8.0 * 5e-4,
                PackedType::Q6K => 8.0 * 1e-3,
                _ => 0.0,
            };
            assert!(
                (back[3] + 8.0).abs() <= tolerance
                    && back.iter().enumerate().all(|(i, &x)| i == 3 || x == 0.0),
                "{dtype:?}"
            );
        }
    }
}
