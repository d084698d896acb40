//! Eight-bit floats of files.

use ropechat_kernels::quant::float8::{e4m3, e5m2, e8m0};

#[test]
fn values_of_the_specification() {
    assert_eq!([0x00, 0x01, 0x07, 0x08].map(e4m3), [0.0, 1.0 / 512.0, 7.0 / 512.0, 1.0 / 64.0]);
    assert_eq!([0x38, 0x39, 0x7e, 0xfe].map(e4m3), [1.0, 1.125, 448.0, -448.0]);
    assert!(e4m3(0x7f).is_nan() && e4m3(0xff).is_nan());
    assert_eq!([0x3c, 0x3d, 0x7b, 0x01].map(e5m2), [1.0, 1.25, 57_344.0, 2.0_f32.powi(-16)]);
    assert!(e5m2(0x7c).is_infinite() && e5m2(0x7d).is_nan());
    assert_eq!([127, 128, 1, 0].map(e8m0), [1.0, 2.0, 2.0_f32.powi(-126), 2.0_f32.powi(-127)]);
    assert!(e8m0(255).is_nan());
}
