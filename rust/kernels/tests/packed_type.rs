//! Rows packed and unpacked in every format.

use ropechat_kernels::quant::{LANES, PackedType};

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
            (PackedType::Iq4Nl, 0.12),
            (PackedType::Mxfp4, 0.18),
            (PackedType::Iq4Xs, 0.13),
            (PackedType::Iq3Xxs, 0.1),
            (PackedType::Iq3S, 0.08),
            (PackedType::Iq2, 0.22),
            (PackedType::Iq1, 0.35),
            (PackedType::Q3K, 0.3),
            (PackedType::Q2K, 0.45),
            (PackedType::Q2_0, 0.55),
            (PackedType::Tq2_0, 0.55),
            (PackedType::Q1_0, 1.0),
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
        "iq4_xs 98302820b919b1f2",
        "iq3_xxs 5b2897a1192f9f6f",
        "iq3_s f786aa507eb36f7d",
        "iq2 82c1be6714b6aa08",
        "iq1 477ae420eeed0862",
        "q4_k 696da20b48ef4629",
        "q4_0 e3c818c26e3d94a8",
        "iq4_nl 8d4071f50ec90d6f",
        "mxfp4 f5010b6d1bd3b90b",
        "q3_k 64c731b42e4bcc3b",
        "q2_k e76bef13c6e7aa04",
        "q2_0 6a36e756a615c3e6",
        "tq2_0 9f150005b933c470",
        "q1_0 72fe8ac4c215a229",
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

/// BitNet's matrices: one scale, which a half would round. It keeps 22 bits.
#[test]
fn ternary_values_keep_their_scale() {
    let d = 0.123_456_79_f32;
    for n in [1, 63, 64, 100, 256, 300, 576] {
        let ternary = |d: f32| (0..n).map(|i| d * ((i * 7 % 3) as f32 - 1.0)).collect::<Vec<f32>>();
        let of_22_bits = f32::from_bits((d.to_bits() + 2) & !3);
        assert_eq!(rounded(PackedType::Tq2_0, &ternary(d)), ternary(of_22_bits), "{n}");
    }
    let largest = f32::MAX;
    assert!(rounded(PackedType::Tq2_0, &[largest, -largest]).into_iter().all(f32::is_finite));
}

/// What a row comes back as.
fn rounded(dtype: PackedType, row: &[f32]) -> Vec<f32> {
    let mut panel = vec![0; dtype.panel_bytes(dtype.steps(row.len()))];
    dtype.pack_row(row, 5, &mut panel);
    let mut back = vec![f32::NAN; row.len()];
    dtype.unpack_row(&panel, 5, &mut back);
    back
}

/// A scale and a minimum that are fitted to the range of 16 values, and then rounded, have 0.074 of gaussian ones.
#[test]
fn two_bits_have_a_small_squared_error() {
    let gaussian: Vec<f32> = noise(6 << 14).chunks(6).map(|six| six.iter().sum()).collect();
    let heavy: Vec<f32> = gaussian.iter().map(|x| x * x.abs()).collect();
    for (name, row, bound) in [("gaussian", gaussian, 0.066), ("heavy tails", heavy, 0.08)] {
        let back = rounded(PackedType::Q2K, &row);
        let error: f32 = row.iter().zip(&back).map(|(x, y)| (x - y).powi(2)).sum();
        let relative = error / row.iter().map(|x| x * x).sum::<f32>();
        assert!(relative < bound, "{name}: {relative}");
    }
}

#[test]
fn two_bits_keep_what_they_can_hold() {
    let draws = noise(9 * 2 * 256);
    let below = |at: usize, n: f32| ((draws[at % draws.len()] + 1.0) / 2.0 * n).floor();
    for (case, [d, dmin]) in
        [[0.01, 0.02], [3e-4, 1e-4], [2000.0, 500.0], [1e-5, 2e-5]].into_iter().enumerate()
    {
        let [d, dmin] = [d, dmin].map(|x| half::f16::from_f32(x).to_f32());
        let row: Vec<f32> = (0..256)
            .map(|i| {
                // The largest s and m say what d and dmin are, and integers from 0 to 3 what s and m are.
                let [s, m] = match i / 16 {
                    0 => [15.0, 15.0],
                    part => {
                        [below(case * 512 + 2 * part, 15.0) + 1.0, below(case * 512 + 2 * part + 1, 16.0)]
                    }
                };
                let q = if i % 16 < 4 { (i % 4) as f32 } else { below(case * 512 + 256 + i, 4.0) };
                d * s * q - dmin * m
            })
            .collect();
        assert_eq!(rounded(PackedType::Q2K, &row), row, "d {d}, dmin {dmin}");
    }
}

#[test]
fn two_bits_stay_finite_and_near() {
    let noise = noise(300);
    let scaled = |factor: f32| noise.iter().map(|x| x * factor).collect::<Vec<_>>();
    let rows = [
        ("zeros", vec![0.0; 300], 0.0),
        ("one value", vec![0.7; 300], 1e-3),
        ("one value below zero", vec![-0.7; 300], 1e-3),
        ("below zero", noise.iter().map(|x| x / 10.0 - 5.0).collect(), 0.25),
        ("above zero", noise.iter().map(|x| x + 1.0).collect(), 0.45),
        ("a large one", (0..300).map(|i| if i == 40 { -900.0 } else { noise[i] }).collect(), 61.0),
        ("huge", scaled(1e6), 4.5e5),
        ("tiny", scaled(1e-6), 4.5e-7),
        ("below the smallest scale", scaled(1e-12), 1e-7),
    ];
    for (name, row, bound) in rows {
        for (x, y) in row.iter().zip(rounded(PackedType::Q2K, &row)) {
            assert!((x - y).abs() <= bound, "{name}: {x} came back as {y}");
        }
    }
    let beyond = rounded(PackedType::Q2K, &scaled(1e30));
    assert!(beyond.iter().all(|y| y.is_finite()), "beyond the largest scale");
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
            (back[3] + 8.0).abs() <= tolerance && back.iter().enumerate().all(|(i, &x)| i == 3 || x == 0.0),
            "{dtype:?}"
        );
    }
}
