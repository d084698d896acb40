//! Every ISA of this CPU against naive sums, on odd sizes and tails, and against itself in bits.

use half::{bf16, f16};
use ropechat_kernels::kernel::{
    Activation, Isa, Kernels, LANES, Panels, Rows, ScanSteps, q8_parts, x_row_bytes,
};
use ropechat_kernels::quant::{BLOCK, PackedType};

/// The bytes of a slice of numbers.
fn bytes<T: bytemuck::NoUninit>(values: &[T]) -> &[u8] {
    bytemuck::cast_slice(values)
}

/// Numbers in [-1, 1) that every run repeats (an LCG: Knuth's MMIX constants).
pub struct Noise(pub u64);

impl Noise {
    pub fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.0 >> 40) as f32) / (1 << 23) as f32 - 1.0
    }

    pub fn take(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.next()).collect()
    }
}

pub fn kernels() -> impl Iterator<Item = Kernels> {
    Isa::ALL.into_iter().filter_map(|isa| Kernels::of(isa).ok())
}

/// Operands of a product in one format, and the numbers that they stand for.
pub struct Operands {
    format: PackedType,
    steps: usize,
    weights: Vec<u8>,
    panel_bytes: usize,
    x: Vec<u8>,
    x_bytes: usize,
    exact_weights: Vec<f32>, // [panels * 16, k]
    exact_x: Vec<f32>,       // [rows, k]
}

pub fn operands(format: PackedType, panels: usize, rows: usize, k: usize, noise: &mut Noise) -> Operands {
    let steps = format.steps(k);
    let panel_bytes = format.panel_bytes(steps);
    let mut weights = vec![0; panels * panel_bytes];
    let mut exact_weights = vec![0.0; panels * LANES * k];
    for (row, exact) in exact_weights.chunks_exact_mut(k).enumerate() {
        let panel = &mut weights[row / LANES * panel_bytes..][..panel_bytes];
        format.pack_row(&noise.take(k), row % LANES, panel);
        format.unpack_row(panel, row % LANES, exact);
    }
    let (mut x, mut exact_x) = (Vec::new(), Vec::new());
    for _ in 0..rows {
        let (row, exact) = activation_row(format, &noise.take(k));
        x.extend(row);
        exact_x.extend(exact);
    }
    Operands { format, steps, panel_bytes, weights, x_bytes: x.len() / rows, x, exact_weights, exact_x }
}

/// A row in the activation type of `format`, and the values that it stands for.
fn activation_row(format: PackedType, values: &[f32]) -> (Vec<u8>, Vec<f32>) {
    match format {
        PackedType::F32 | PackedType::F16 => (bytes(values).to_vec(), values.to_vec()),
        PackedType::BF16 => {
            let mut row: Vec<u16> = values.iter().map(|&v| bf16::from_f32(v).to_bits()).collect();
            let exact = row.iter().map(|&bits| bf16::from_bits(bits).to_f32()).collect();
            row.resize(2 * format.steps(values.len()), 0);
            (bytes(&row).to_vec(), exact)
        }
        _ => {
            let mut row = vec![0; x_row_bytes(format, format.steps(values.len()))];
            Kernels::of(Isa::Scalar).unwrap().quantize_q8(values, format, &mut row);
            let exact = (0..values.len()).map(|k| q8_value(&row, values.len(), k)).collect();
            (row, exact)
        }
    }
}

/// Value k of a rounded row of n.
fn q8_value(row: &[u8], n: usize, k: usize) -> f32 {
    q8_scale(row, n, k) * f32::from(row[k] as i8)
}

/// Its scale.
fn q8_scale(row: &[u8], n: usize, k: usize) -> f32 {
    q8_parts(row, n).1.nth(k / 32).unwrap()
}

impl Operands {
    /// Row by column, in f64.
    pub fn exact(&self, row: usize, column: usize, k: usize) -> f64 {
        let pairs = self.exact_x[row * k..][..k].iter().zip(&self.exact_weights[column * k..]);
        pairs.map(|(&x, &w)| f64::from(x) * f64::from(w)).sum()
    }

    pub fn product(&self, kernels: Kernels, rows: std::ops::Range<usize>) -> Vec<f32> {
        let panels = self.weights.len() / self.panel_bytes;
        let mut out = vec![f32::NAN; rows.len() * panels * LANES];
        let panels = Panels {
            format: self.format,
            bytes: &self.weights,
            panel_bytes: self.panel_bytes,
            count: panels,
            steps: self.steps,
        };
        let bytes = &self.x[rows.start * self.x_bytes..];
        let x = Rows { bytes, stride: self.x_bytes, count: rows.len() };
        kernels.matmul(panels, x, &mut out, panels.count * LANES);
        out
    }
}

#[test]
fn products_equal_naive_sums_for_odd_sizes() {
    let mut noise = Noise(1);
    for format in PackedType::ALL {
        for (panels, rows, k) in
            [(1, 1, 1), (1, 2, 8), (2, 3, 7), (3, 12, 12), (2, 13, 33), (3, 25, 172), (1, 7, 105)]
        {
            let operands = operands(format, panels, rows, k, &mut noise);
            for kernels in kernels() {
                let out = operands.product(kernels, 0..rows);
                for (row, out) in out.chunks_exact(panels * LANES).enumerate() {
                    for (column, &value) in out.iter().enumerate() {
                        let exact = operands.exact(row, column, k);
                        assert!(
                            (f64::from(value) - exact).abs() < 2e-6 * (k as f64).sqrt().max(1.0),
                            "{kernels:?} {format:?} [{panels}x16, {k}] row {row} column {column}: {value} for {exact}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn a_row_has_the_same_bits_alone_and_in_company() {
    let mut noise = Noise(2);
    // With 1,100 values many rows take panels part by part where these are unpacked.
    for (format, k) in PackedType::ALL.into_iter().flat_map(|format| [173, 1100].map(|k| (format, k))) {
        let operands = operands(format, 3, 29, k, &mut noise);
        for kernels in kernels() {
            let all = operands.product(kernels, 0..29);
            for row in 0..29 {
                for company in [1, 2, 5, 8, 12, 13] {
                    let rows = row..(row + company).min(29);
                    let alone = operands.product(kernels, rows);
                    assert_eq!(
                        bytes(&alone[..48]),
                        bytes(&all[row * 48..][..48]),
                        "{kernels:?} {format:?} {k} row {row}"
                    );
                }
            }
        }
    }
}

#[test]
fn elementwise_functions_equal_their_definition_on_every_length() {
    let mut noise = Noise(3);
    for kernels in kernels() {
        for n in [1, 2, 15, 16, 17, 31, 32, 33, 63, 576] {
            let (x, y) = (noise.take(n), noise.take(n));
            let mut sum = x.clone();
            kernels.add(&mut sum, &y);
            assert!((0..n).all(|i| sum[i] == x[i] + y[i]), "{kernels:?} add {n}");

            let mut normed = vec![0.0; n];
            kernels.rms_norm(&x, &y, 1e-5, &mut normed);
            let mean = x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / n as f64;
            for i in 0..n {
                let exact = f64::from(x[i]) / (mean + 1e-5).sqrt() * f64::from(y[i]);
                assert!((f64::from(normed[i]) - exact).abs() < 1e-6, "{kernels:?} rms_norm {n}");
            }

            let mut merged = x.clone();
            kernels.axpby(&mut merged, &y, 0.5, 0.25);
            assert!(
                (0..n).all(|i| (merged[i] - (x[i] * 0.5 + y[i] * 0.25)).abs() < 1e-7),
                "{kernels:?} axpby {n}"
            );

            let mut halves = vec![0; n];
            kernels.to_f16(&x, &mut halves);
            assert!((0..n).all(|i| halves[i] == f16::from_f32(x[i]).to_bits()), "{kernels:?} to_f16 {n}");
            kernels.to_bf16(&x, &mut halves);
            assert!((0..n).all(|i| halves[i] == bf16::from_f32(x[i]).to_bits()), "{kernels:?} to_bf16 {n}");
        }
    }
}

/// The activations as their papers state them, in f64; erf by its series.
fn exact(activation: Activation, x: f64, up: f64) -> f64 {
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    match activation {
        Activation::Silu => x * sigmoid(x) * up,
        Activation::Gelu => {
            let z = (x / std::f64::consts::SQRT_2).clamp(-5.0, 5.0);
            let (mut term, mut sum) = (z, z);
            for n in 1..200 {
                term *= -z * z / f64::from(n);
                sum += term / f64::from(2 * n + 1);
            }
            0.5 * x * (1.0 + sum * std::f64::consts::FRAC_2_SQRT_PI) * up
        }
        Activation::GeluTanh => {
            let u = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
            0.5 * x * (1.0 + u.tanh()) * up
        }
        Activation::Relu => x.max(0.0) * up,
        Activation::Relu2 => x.max(0.0).powi(2) * up,
        Activation::Sigmoid => sigmoid(x) * up,
        Activation::Xielu { alpha_p, alpha_n } => {
            let (alpha_p, alpha_n) = (f64::from(alpha_p), f64::from(alpha_n));
            let curve = if x > 0.0 { alpha_p * x * x } else { alpha_n * (x.exp_m1() - x) };
            (curve + 0.5 * x) * up
        }
        Activation::ClampedSwiglu { alpha, limit, offset } => {
            let (alpha, limit, offset) = (f64::from(alpha), f64::from(limit), f64::from(offset));
            let gate = x.min(limit);
            gate * sigmoid(alpha * gate) * (up.clamp(-limit, limit) + offset)
        }
    }
}

#[test]
fn activations_equal_their_definition() {
    let clamped = Activation::ClampedSwiglu { alpha: 1.702, limit: 7.0, offset: 1.0 };
    let xielu = Activation::xielu(0.4, -0.7);
    let sigmoid = Activation::Sigmoid;
    let all = [
        Activation::Silu,
        Activation::Gelu,
        Activation::GeluTanh,
        Activation::Relu,
        Activation::Relu2,
        sigmoid,
        xielu,
        clamped,
    ];
    let mut noise = Noise(8);
    for kernels in kernels() {
        for (activation, n) in all.into_iter().flat_map(|a| [1, 16, 33, 576].map(|n| (a, n))) {
            let gate: Vec<f32> = noise.take(n).iter().map(|x| x * 12.0).collect();
            let up: Vec<f32> = noise.take(n).iter().map(|x| x * 12.0).collect();
            let (mut gated, mut alone) = (vec![0.0; n], vec![0.0; n]);
            kernels.gate(activation, &gate, &up, &mut gated);
            kernels.activate(activation, &gate, &mut alone);
            for i in 0..n {
                let (x, up) = (f64::from(gate[i]), f64::from(up[i]));
                // e^x - 1 near 0 is as exact as 1 is.
                let near_one = if activation == xielu { 2e-7 } else { 0.0 };
                let bound =
                    |exact: f64, by: f64| 2e-6 * exact.abs() + (3e-7 * x.abs() + near_one) * by.abs() + 1e-9;
                let one = if activation == clamped { x } else { 1.0 };
                for (found, by) in [(gated[i], up), (alone[i], one)] {
                    let exact = exact(activation, x, by);
                    assert!(
                        (f64::from(found) - exact).abs() < bound(exact, by),
                        "{kernels:?} {activation:?} {x} by {by}: {found} for {exact}"
                    );
                }
            }
        }
    }
}

#[test]
fn layer_norm_scale_and_softcap_equal_their_definition() {
    let mut noise = Noise(9);
    for kernels in kernels() {
        for n in [1, 2, 15, 16, 17, 33, 63, 576] {
            let x: Vec<f32> = noise.take(n).iter().map(|x| x * 3.0 + 5.0).collect();
            let (weight, bias, mut normed) = (noise.take(n), noise.take(n), vec![0.0; n]);
            kernels.layer_norm(&x, &weight, &bias, 1e-5, &mut normed);
            let mean = x.iter().map(|&x| f64::from(x)).sum::<f64>() / n as f64;
            let variance = x.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / n as f64;
            for i in 0..n {
                let exact = (f64::from(x[i]) - mean) / (variance + 1e-5).sqrt() * f64::from(weight[i])
                    + f64::from(bias[i]);
                assert!((f64::from(normed[i]) - exact).abs() < 4e-6, "{kernels:?} layer_norm {n}");
            }
            let (mut scaled, mut capped) = (x.clone(), x.clone());
            kernels.scale(&mut scaled, 0.3);
            kernels.softcap(&mut capped, 0.7, 4.0);
            for i in 0..n {
                assert_eq!(scaled[i], x[i] * 0.3, "{kernels:?} scale {n}");
                let exact = 4.0 * (f64::from(x[i]) * 0.7 / 4.0).tanh();
                assert!((f64::from(capped[i]) - exact).abs() < 1e-6, "{kernels:?} softcap {n}");
            }
        }
        let mut far = [1e4, -1e4, 0.0];
        kernels.softcap(&mut far, 1.0, 30.0);
        assert_eq!(far, [30.0, -30.0, 0.0]);
    }
}

#[test]
fn a_selective_scan_equals_its_definition_and_does_not_see_how_it_is_cut() {
    let mut noise = Noise(12);
    for (kernels, keys) in kernels().flat_map(|kernels| [1, 5, 16].map(|keys| (kernels, keys))) {
        const ROWS: usize = 7;
        let rates: Vec<f32> = noise.take(keys * LANES).iter().map(|x| -4.0 * x.abs()).collect();
        let steps: Vec<f32> = noise.take(ROWS * LANES).iter().map(|x| 2.0 * x.abs()).collect();
        let (learned, queries) = (noise.take(ROWS * keys), noise.take(ROWS * keys));
        let (state, values) = (noise.take(keys * LANES), noise.take(ROWS * LANES));
        let scan = |cuts: &[usize]| {
            let (mut state, mut values) = (state.clone(), values.clone());
            for cut in cuts.windows(2) {
                let (wide, narrow) = (cut[0] * LANES..cut[1] * LANES, cut[0] * keys..cut[1] * keys);
                kernels.selective_scan(ScanSteps {
                    keys,
                    state: &mut state,
                    rates: &rates,
                    steps: &steps[wide.clone()],
                    learned: &learned[narrow.clone()],
                    queries: &queries[narrow],
                    values: &mut values[wide],
                });
            }
            (state, values)
        };
        let (_, found) = scan(&[0, ROWS]);
        assert_eq!(scan(&[0, ROWS]), scan(&[0, 3, 4, ROWS]), "{kernels:?}");
        for lane in 0..LANES {
            let mut exact: Vec<f64> = (0..keys).map(|key| f64::from(state[key * LANES + lane])).collect();
            for row in 0..ROWS {
                let step = f64::from(steps[row * LANES + lane]);
                let value = f64::from(values[row * LANES + lane]);
                let mut sum = 0.0;
                for (key, state) in exact.iter_mut().enumerate() {
                    let decay = (f64::from(rates[key * LANES + lane]) * step).exp();
                    *state = decay * *state + step * value * f64::from(learned[row * keys + key]);
                    sum += *state * f64::from(queries[row * keys + key]);
                }
                let off = (f64::from(found[row * LANES + lane]) - sum).abs();
                assert!(off < 1e-5, "{kernels:?} {keys} keys, row {row}: {off}");
            }
        }
    }
}

#[test]
fn squares_that_overflow_become_nan_and_not_zeros() {
    for kernels in kernels() {
        let (mut x, ones, mut out) = (vec![1.0; 40], vec![1.0; 40], vec![0.0; 40]);
        x[7] = 3e38;
        kernels.rms_norm(&x, &ones, 1e-5, &mut out);
        assert!(out.iter().all(|x| x.is_nan()), "{kernels:?} rms_norm");
        kernels.layer_norm(&x, &ones, &[0.0; 40], 1e-5, &mut out);
        assert!(out.iter().all(|x| x.is_nan()), "{kernels:?} layer_norm");
    }
}

/// A NaN of either sign at any place reaches the result of every function, and its neighbours stay as they were.
#[test]
fn nan_survives_every_function() {
    let clamped = Activation::ClampedSwiglu { alpha: 1.702, limit: 7.0, offset: 1.0 };
    let sigmoid = Activation::Sigmoid;
    let all = [
        Activation::Silu,
        Activation::Gelu,
        Activation::GeluTanh,
        Activation::Relu,
        Activation::Relu2,
        sigmoid,
        clamped,
    ];
    const N: usize = 35; // two vectors and a tail
    for (kernels, at) in kernels().flat_map(|kernels| [0, 17, 34].map(|at| (kernels, at))) {
        for nan in [f32::NAN, -f32::NAN] {
            let (ones, mut x, mut out) = (vec![1.0; N], vec![1.0; N], vec![0.0; N]);
            x[at] = nan;
            let one_nan = |out: &[f32], what: &str| {
                let found = out.iter().enumerate().all(|(i, x)| x.is_nan() == (i == at));
                assert!(found, "{kernels:?} {what} {at}: {out:?}");
            };
            for activation in all {
                kernels.activate(activation, &x, &mut out);
                one_nan(&out, &format!("{activation:?}"));
                kernels.gate(activation, &x, &ones, &mut out);
                one_nan(&out, &format!("gate of {activation:?}"));
                kernels.gate(activation, &ones, &x, &mut out);
                one_nan(&out, &format!("up of {activation:?}"));
            }
            out.copy_from_slice(&x);
            kernels.softcap(&mut out, 1.0, 30.0);
            one_nan(&out, "softcap");
            out.copy_from_slice(&x);
            kernels.scale(&mut out, 2.0);
            one_nan(&out, "scale");
            out.copy_from_slice(&x);
            kernels.add(&mut out, &ones);
            one_nan(&out, "add");
            kernels.axpby(&mut out, &ones, 0.0, 1.0);
            one_nan(&out, "axpby");
            let mut halves = [0; N];
            kernels.to_f16(&x, &mut halves);
            one_nan(&halves.map(|bits| f16::from_bits(bits).to_f32()), "to_f16");
            kernels.to_bf16(&x, &mut halves);
            one_nan(&halves.map(|bits| bf16::from_bits(bits).to_f32()), "to_bf16");
            kernels.rms_norm(&x, &ones, 1e-5, &mut out);
            assert!(out.iter().all(|x| x.is_nan()), "{kernels:?} rms_norm {at}");
            kernels.layer_norm(&x, &ones, &ones, 1e-5, &mut out);
            assert!(out.iter().all(|x| x.is_nan()), "{kernels:?} layer_norm {at}");
        }
    }
}

#[test]
fn a_score_that_is_no_number_makes_the_softmax_nan() {
    for kernels in kernels() {
        for bad in [f32::NAN, -f32::NAN, f32::INFINITY] {
            for (valid, at) in [(1, 0), (16, 3), (35, 0), (35, 20), (35, 34)] {
                let mut scores = [1.0; 3 * LANES];
                scores[at] = bad;
                let (_, sum) = kernels.softmax(&mut scores, valid, 0.5);
                assert!(sum.is_nan() && scores[at].is_nan(), "{kernels:?} {bad} at {at} of {valid}: {sum}");
            }
            let mut scores = [bad; LANES];
            assert!(kernels.softmax(&mut scores, 5, 0.5).1.is_nan(), "{kernels:?} {bad} alone");
        }
    }
}

/// In the weights, in the row, in the scales of either.
#[test]
fn nan_survives_every_product() {
    let mut noise = Noise(10);
    for format in PackedType::ALL {
        for (k, at) in [(172, 0), (172, 171), (64, 40)] {
            for rows in [1, 13, 29] {
                let mut weights = noise.take(k);
                weights[at] = f32::NAN;
                let mut bad = operands(format, 2, rows, k, &mut noise);
                format.pack_row(&weights, 5, &mut bad.weights[..bad.panel_bytes]);
                let mut x = noise.take(k);
                x[at] = f32::NAN;
                let mut in_row = operands(format, 2, rows, k, &mut noise);
                let row = activation_row(format, &x).0;
                in_row.x[(rows - 1) * row.len()..].copy_from_slice(&row);
                for kernels in kernels() {
                    let name = format!("{kernels:?} {format:?} {k} {at} {rows}");
                    for row in bad.product(kernels, 0..rows).chunks_exact(2 * LANES) {
                        let found = row.iter().enumerate().all(|(i, x)| x.is_nan() == (i == 5));
                        assert!(found, "{name}: a weight {row:?}");
                    }
                    let out = in_row.product(kernels, 0..rows);
                    let (others, last) = out.split_at((rows - 1) * 2 * LANES);
                    assert!(last.iter().all(|x| x.is_nan()), "{name}: a row");
                    assert!(others.iter().all(|x| x.is_finite()), "{name}: other rows");
                }
            }
        }
    }
}

#[test]
fn rows_are_rounded_to_bytes_alike_on_every_isa() {
    let mut noise = Noise(6);
    for n in [1, 31, 32, 33, 64, 65, 172, 576] {
        let mut x = noise.take(n);
        x[0] = 0.0;
        x[n / 2] *= 50.0;
        let mut expected = vec![0; x_row_bytes(PackedType::Q6K, PackedType::Q6K.steps(n))];
        Kernels::of(Isa::Scalar).unwrap().quantize_q8(&x, PackedType::Q6K, &mut expected);
        for (k, &x) in x.iter().enumerate() {
            let half_a_step = 0.5001 * q8_scale(&expected, n, k);
            assert!((q8_value(&expected, n, k) - x).abs() <= half_a_step, "{n} {k}");
        }
        for kernels in kernels() {
            let mut rounded = vec![0; expected.len()];
            kernels.quantize_q8(&x, PackedType::Q6K, &mut rounded);
            assert!(rounded == expected, "{kernels:?} {n}");
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut x = x.clone();
                x[n - 1] = bad;
                kernels.quantize_q8(&x, PackedType::Q6K, &mut rounded);
                assert!(q8_value(&rounded, n, n - 1).is_nan(), "{kernels:?} {n} {bad}");
            }
        }
    }
}

/// BitNet's rounding: the largest magnitude of a row is 127 steps in all of its blocks.
#[test]
fn rows_with_one_scale_are_rounded_alike_on_every_isa() {
    let (mut noise, scalar) = (Noise(9), Kernels::of(Isa::Scalar).unwrap());
    for n in [1, 31, 32, 33, 64, 172, 576] {
        let mut x = noise.take(n);
        x[n / 2] = -7.5;
        let mut expected = vec![0; x_row_bytes(PackedType::Tq2_0, PackedType::Tq2_0.steps(n))];
        scalar.quantize_q8_by_row(&x, PackedType::Tq2_0, &mut expected);
        let mut floats = x.clone();
        scalar.round_by_row(&mut floats);
        let (bytes, scales) = q8_parts(&expected, n);
        assert!(scales.into_iter().all(|scale| scale == 7.5 / 127.0));
        for (k, &x) in x.iter().enumerate() {
            let byte = (x * (127.0 / 7.5)).round_ties_even();
            assert_eq!(f32::from(bytes[k] as i8), byte, "{n} {k}");
            assert_eq!(floats[k], byte / (127.0 / 7.5), "{n} {k}");
        }
        for kernels in kernels() {
            let mut rounded = vec![0; expected.len()];
            kernels.quantize_q8_by_row(&x, PackedType::Tq2_0, &mut rounded);
            assert!(rounded == expected, "{kernels:?} {n}");
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut x = x.clone();
                x[n - 1] = bad;
                kernels.quantize_q8_by_row(&x, PackedType::Tq2_0, &mut rounded);
                assert!(q8_value(&rounded, n, n - 1).is_nan(), "{kernels:?} {n} {bad}");
                kernels.round_by_row(&mut x);
                assert!(x[n - 1].is_nan(), "{n} {bad}");
            }
        }
    }
    // A row of nothing but zeros, and one below the least magnitude that counts.
    for x in [0.0, 1e-8] {
        let mut row = vec![0; x_row_bytes(PackedType::Tq2_0, PackedType::Tq2_0.steps(40))];
        scalar.quantize_q8_by_row(&[x; 40], PackedType::Tq2_0, &mut row);
        assert_eq!(q8_value(&row, 40, 39), 0.0);
    }
}

#[test]
fn values_too_small_for_a_scale_count_as_zeros() {
    for format in PackedType::ALL.into_iter().filter(|format| format.step_values() == 2 * BLOCK) {
        let mut operands = operands(format, 1, 2, 64, &mut Noise(8));
        for kernels in kernels() {
            kernels.quantize_q8(&[1e-40; 64], format, &mut operands.x[..operands.x_bytes]);
            let out = operands.product(kernels, 0..2);
            assert!(out[..LANES].iter().all(|x| x.abs() < 1e-36), "{kernels:?} {format:?}");
        }
    }
}

#[test]
fn rotation_turns_pairs_by_their_angle() {
    let mut noise = Noise(4);
    for kernels in kernels() {
        for half in [1, 4, 6, 10, 16, 17, 32, 64] {
            let (head, angles) = (noise.take(2 * half), noise.take(half));
            let (cos, sin): (Vec<f32>, Vec<f32>) = angles.iter().map(|a| (a.cos(), a.sin())).unzip();
            let mut turned = head.clone();
            kernels.rope_neox(&mut turned, &cos, &sin);
            // The other layout is the same rotation of other places.
            let mut pairs: Vec<f32> = (0..half).flat_map(|i| [head[i], head[i + half]]).collect();
            kernels.rope_interleaved(&mut pairs, &cos, &sin);
            for i in 0..half {
                let off = (pairs[2 * i] - turned[i]).abs().max((pairs[2 * i + 1] - turned[i + half]).abs());
                assert!(off < 2e-7, "{kernels:?} {half}");
            }
            for i in 0..half {
                let x = head[i] * cos[i] - head[i + half] * sin[i];
                let y = head[i + half] * cos[i] + head[i] * sin[i];
                assert!(
                    (turned[i] - x).abs() < 2e-7 && (turned[i + half] - y).abs() < 2e-7,
                    "{kernels:?} {half}"
                );
            }
        }
    }
}

#[test]
fn values_are_the_last_columns_of_keys() {
    let mut noise = Noise(9);
    for (dim, first) in [(1, 0), (16, 0), (33, 6), (40, 8), (64, 47)] {
        let (keys, width) = (noise.take(dim * BLOCK), dim - first);
        for kernels in kernels() {
            let mut values = vec![f32::NAN; width.next_multiple_of(LANES) * BLOCK];
            kernels.transpose_keys(PackedType::F32, bytes(&keys), first, &mut values);
            for (at, &value) in values.iter().enumerate() {
                let (d, position) = (at / (BLOCK * LANES) * LANES + at % LANES, at / LANES % BLOCK);
                let key = keys.get((position / LANES * dim + first + d) * LANES + position % LANES);
                let expected = if d < width { key.copied() } else { Some(0.0) };
                assert_eq!(Some(value), expected, "{kernels:?} {dim} {first} {position} {d}");
            }
        }
    }
}

#[test]
fn softmax_counts_only_what_is_visible() {
    let mut noise = Noise(5);
    for kernels in kernels() {
        for valid in (1..=2 * LANES).chain([100, 255, 256]) {
            let mut scores = [f32::NAN; 16 * LANES];
            let input: Vec<f32> = noise.take(valid).iter().map(|x| x * 60.0).collect();
            scores[..valid].copy_from_slice(&input);
            let (max, sum) = kernels.softmax(&mut scores, valid, 0.5);
            let exact_max = input.iter().fold(f32::NEG_INFINITY, |a, &b| a.max(b)) * 0.5;
            assert_eq!(max, exact_max, "{kernels:?} {valid}");
            let exact: Vec<f64> = input.iter().map(|&x| f64::from(x * 0.5 - max).exp()).collect();
            assert!((f64::from(sum) - exact.iter().sum::<f64>()).abs() < 1e-5, "{kernels:?} {valid}");
            for (i, &score) in scores[..valid.next_multiple_of(LANES)].iter().enumerate() {
                let exact = exact.get(i).copied().unwrap_or(0.0);
                assert!((f64::from(score) - exact).abs() <= 3e-7 * exact + 1e-37, "{kernels:?} {valid} {i}");
            }
        }
    }
}

#[test]
fn a_product_goes_on_where_it_stopped() {
    let mut noise = Noise(7);
    for (format, rows) in [PackedType::F32, PackedType::F16, PackedType::BF16]
        .into_iter()
        .flat_map(|format| [1, 5, 14].map(|rows| (format, rows)))
    {
        let whole = operands(format, 3, rows, 300, &mut noise);
        for kernels in kernels() {
            let products = |first: usize| {
                let mut out = vec![0.0; rows * 3 * LANES];
                for steps in [0..first, first..whole.steps] {
                    let panels = Panels {
                        format,
                        bytes: &whole.weights[steps.start * format.step_bytes()..],
                        panel_bytes: whole.panel_bytes,
                        count: 3,
                        steps: steps.len(),
                    };
                    let x = Rows { bytes: &whole.x[4 * steps.start..], stride: whole.x_bytes, count: rows };
                    kernels.matmul_accumulate(panels, x, &mut out, 3 * LANES);
                }
                out
            };
            let expected = products(1);
            assert!(products(13) == expected, "{kernels:?} {format:?} {rows}");
            let whole_product = whole.product(kernels, 0..rows);
            // Tiles of AMX round in another way.
            let same = kernels.isa() != Isa::Amx || format != PackedType::BF16;
            assert!(!same || whole_product == expected, "{kernels:?} {format:?} {rows}");
        }
    }
}

/// Whatever the caller says of its slices, nothing is read or written beyond them.
#[test]
fn a_product_whose_operands_are_too_short_is_refused() {
    const FAR: usize = usize::MAX / 2 + 1;
    for (format, kernels) in
        PackedType::ALL.into_iter().flat_map(|format| kernels().map(move |k| (format, k)))
    {
        let steps = format.steps(64);
        let panel_bytes = format.panel_bytes(steps);
        let stride = x_row_bytes(format, steps);
        let (weights, x) = (vec![0; 3 * panel_bytes], vec![0; 3 * stride]);
        let refused = |panels: Panels<'_>, rows: Rows<'_>, out_len: usize, out_stride: usize| {
            let mut out = vec![0.0; out_len];
            let call = std::panic::AssertUnwindSafe(|| kernels.matmul(panels, rows, &mut out, out_stride));
            std::panic::catch_unwind(call).is_err()
        };
        let panels = Panels { format, bytes: &weights, panel_bytes, count: 3, steps };
        let rows = Rows { bytes: &x, stride, count: 3 };
        let (len, width) = (9 * LANES, 3 * LANES);
        assert!(!refused(panels, rows, len, width), "{kernels:?} {format:?}");
        for (count, panel_bytes, steps) in [
            (4, panel_bytes, steps),
            (3, panel_bytes + 1, steps),
            (3, FAR, steps),
            (1, FAR, steps),
            (3, panel_bytes, steps + PackedType::BF16_STEP_MULTIPLE),
            (1, panel_bytes, usize::MAX / format.step_bytes() + 1),
            (3, panel_bytes, 0),
            (0, panel_bytes, steps),
        ] {
            let panels = Panels { count, panel_bytes, steps, ..panels };
            assert!(
                refused(panels, rows, len, width),
                "{kernels:?} {format:?} {count} {panel_bytes} {steps}"
            );
        }
        for (count, stride) in [(4, stride), (3, stride + 1), (3, FAR), (0, stride)] {
            let rows = Rows { count, stride, ..rows };
            assert!(refused(panels, rows, len, width), "{kernels:?} {format:?} {count} rows {stride} apart");
        }
        for (len, out_stride) in [(len - 1, width), (len, width + 1), (len, FAR)] {
            assert!(refused(panels, rows, len, out_stride), "{kernels:?} {format:?} {len} of {out_stride}");
        }
    }
}

#[test]
fn an_unknown_isa_is_refused_by_name() {
    assert!(Isa::ALL.iter().any(|&isa| Kernels::of(isa).is_ok()));
    assert_eq!(Kernels::of(Isa::Scalar).unwrap().isa(), Isa::Scalar);
}
