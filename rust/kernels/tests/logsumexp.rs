//! Sums of exponentials, in f64.

use ropechat_kernels::kernel::exp_chunks;
use ropechat_kernels::kernel::logsumexp::{CHUNK, ExpSums, add_chunks, exp, exp_sums, exp_sums_with_squares};

#[test]
fn exp_is_within_1e_15_of_libm_on_its_whole_range() {
    assert_eq!(exp(0.0), 1.0);
    assert_eq!(exp(-0.0), 1.0);
    assert_eq!(exp(f64::NEG_INFINITY), 0.0);
    assert_eq!(exp(-1e300), 0.0);
    assert_eq!(exp(f64::NAN), 0.0);
    let mut worst: f64 = 0.0;
    for i in 0..2_000_000 {
        let x = -708.0 * (f64::from(i) / 2e6).powi(3) + f64::from(i % 7) * 1e-9;
        let x = x.min(0.0);
        worst = worst.max((exp(x) / x.exp() - 1.0).abs());
    }
    println!("worst relative difference from libm: {worst:e}");
    assert!(worst < 1e-15, "{worst:e}");
}

#[test]
fn masked_logits_add_exactly_nothing() {
    let mut logits = vec![f32::NEG_INFINITY; 3000];
    logits[1234] = -7.5;
    assert_eq!(exp_sums(&logits, -7.5, 1.0), ExpSums { exp: 1.0, d_exp: 0.0 });
    assert_eq!(exp_sums(&logits, -7.5, 1.0).entropy(), 0.0);
}

#[test]
fn sums_do_not_depend_on_trailing_masked_logits() {
    let logits: Vec<f32> = (0..2051).map(|i| ((i * 37) % 101) as f32 * 0.1).collect();
    let mut longer = logits.clone();
    longer.extend([f32::NEG_INFINITY; 9]);
    assert_eq!(exp_sums(&logits, 10.0, 0.7), exp_sums(&longer, 10.0, 0.7));
}

#[test]
fn every_instruction_set_gives_these_bits() {
    let logits: Vec<f32> = (0..5000).map(|i| ((i * 7919) % 4999) as f32 * 0.004).collect();
    let ExpSums { exp, d_exp } = exp_sums(&logits, 19.992, 1.25);
    assert_eq!((exp.to_bits(), d_exp.to_bits()), (4_641_258_500_802_046_288, 13_864_612_912_788_675_026));
}

#[test]
fn parts_of_a_row_give_the_bits_of_the_whole() {
    for len in [1_usize, 255, 256, 257, 5000] {
        let logits: Vec<f32> = (0..len).map(|i| ((i * 7919) % 4999) as f32 * 0.004).collect();
        let mut chunks = vec![Default::default(); len.div_ceil(CHUNK)];
        for (logits, out) in logits.chunks(3 * CHUNK).zip(chunks.chunks_mut(3)) {
            exp_chunks(logits, 19.992, out);
        }
        let (sums, squares) = add_chunks(&chunks);
        assert_eq!((sums, squares), exp_sums_with_squares(&logits, 19.992), "{len}");
        assert_eq!(sums, exp_sums(&logits, 19.992, 1.0), "{len}");
        assert!(len == 1 || squares > 0.0);
    }
}
