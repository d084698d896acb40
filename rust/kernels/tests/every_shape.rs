//! Every shape from 1x1 to 70x200 of every packed type on every instruction set (`make trust`; minutes).

use crate::kernel::Noise;
use crate::kernel::{kernels, operands};
use ropechat_kernels::kernel::LANES;
use ropechat_kernels::quant::PackedType;

const ROWS: usize = 70;
const LONGEST: usize = 200;

/// Against sums in f64 of the numbers that weights and rows stand for; fewer rows have the bits of all.
#[test]
#[ignore = "takes minutes"]
fn products_of_every_shape() {
    let mut noise = Noise(3);
    for format in PackedType::ALL {
        for k in 1..=LONGEST {
            let operands = operands(format, 1, ROWS, k, &mut noise);
            for kernels in kernels() {
                let all = operands.product(kernels, 0..ROWS);
                for (index, &value) in all.iter().enumerate() {
                    let (row, column) = (index / LANES, index % LANES);
                    let exact = operands.exact(row, column, k);
                    assert!(
                        (f64::from(value) - exact).abs() < 2e-6 * (k as f64).sqrt().max(1.0),
                        "{kernels:?} {format:?} k {k}, row {row}, column {column}: {value} for {exact}"
                    );
                }
                for rows in 1..ROWS {
                    let some = operands.product(kernels, 0..rows);
                    let same = some.iter().zip(&all).all(|(one, other)| one.to_bits() == other.to_bits());
                    assert!(same, "{kernels:?} {format:?} k {k}: {rows} rows differ from {ROWS}");
                }
            }
        }
    }
}
