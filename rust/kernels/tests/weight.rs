//! Matmuls with packed matrices.

use ropechat_kernels::compute::activations::{Activations, RowRounding, RowSource};
use ropechat_kernels::compute::panels::{Arrangement, PanelShape, Source, SourceRows, pack};
use ropechat_kernels::compute::pool::Pool;
use ropechat_kernels::compute::weight::{Epilogue, RowsOf, Storage, Weight, matmul_each};
use ropechat_kernels::kernel::{Activation, Isa, Kernels};
use ropechat_kernels::quant::{PackedType, StorageType};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// A matrix of 8 columns.
fn weight(values: &[f32], pool: &Pool) -> Weight {
    let rows = SourceRows::Stored(bytemuck::cast_slice(values));
    let source = Source { tensor_type: StorageType::F32, out_features: values.len() / 8, rows };
    let shape = PanelShape::new(&[values.len() / 8], Arrangement::Stacked, 8, PackedType::F32);
    let data = pack(&[source], Arrangement::Stacked, 8, PackedType::F32, pool, &|_, _| ()).unwrap();
    Weight::stacked(vec![(shape, Storage::Memory(Arc::new(data)))])
}

/// Rows that are multiplied with a matrix each have the bits of a matmul with that matrix; other rows stay.
#[test]
fn matrices_share_a_job_by_rows() {
    let kernels = Kernels::of(Isa::Scalar).unwrap();
    for threads in 1..4 {
        let pool = Pool::new(threads);
        let values = |factor: f32| (0..4800 * 8).map(|i| factor * (i % 97) as f32).collect::<Vec<_>>();
        let weights = [weight(&values(1.0), &pool), weight(&values(-0.5), &pool)];
        let mut x = Activations::default();
        let row = |row: usize, out: &mut [f32]| out.fill(row as f32 + 1.0);
        x.quantize_rows(7, 8, PackedType::F32, kernels, &pool, RowSource::Computed(&row));
        let all = weights.each_ref().map(|weight| {
            let mut out = vec![0.0; 7 * 4800];
            weight.matmul(&x, kernels, &pool, Epilogue::Store(&mut out));
            out
        });
        let mut mixed = vec![9.0; 7 * 4800];
        let jobs = [RowsOf { weight: &weights[1], rows: 1..3 }, RowsOf { weight: &weights[0], rows: 4..7 }];
        matmul_each(&jobs, &x, kernels, &pool, Epilogue::Store(&mut mixed));
        for (row, mixed) in mixed.chunks_exact(4800).enumerate() {
            match row {
                1 | 2 => assert_eq!(mixed, &all[1][row * 4800..][..4800]),
                0 | 3 => assert!(mixed.iter().all(|&value| value == 9.0)),
                _ => assert_eq!(mixed, &all[0][row * 4800..][..4800]),
            }
        }
    }
}

/// A model that rounds its inputs gets the product of the rounded ones, from stored and from computed rows; rows that were not
/// rounded are refused.
#[test]
fn inputs_are_rounded_for_weights_that_say_so() {
    let (pool, kernels) = (Pool::new(2), Kernels::of(Isa::Scalar).unwrap());
    let values: Vec<f32> = (0..32 * 8).map(|i| (i % 3) as f32 - 1.0).collect();
    let plain = weight(&values, &pool);
    let rounding = plain.clone().with_rounding(RowRounding::BytesByRow);
    let row = [0.3, -2.0, 0.011, 0.0, 1.7, 0.9, -0.4, 0.25];
    let rounded = row.map(|x: f32| (x * 63.5).round_ties_even() / 63.5);
    let product = |weight: &Weight, x: &Activations| {
        let mut out = vec![0.0; 32];
        weight.matmul(x, kernels, &pool, Epilogue::Store(&mut out));
        out
    };
    let mut x = Activations::default();
    let (row, rounded) = (&row[..], &rounded[..]);
    x.quantize_rows(1, 8, plain.input_type(), kernels, &pool, RowSource::Stored(&|_| rounded));
    let expected = product(&plain, &x);
    assert!(catch_unwind(AssertUnwindSafe(|| product(&rounding, &x))).is_err());
    let (stored, computed) = (|_: usize| row, |_: usize, out: &mut [f32]| out.copy_from_slice(row));
    for source in [RowSource::Stored(&stored), RowSource::Computed(&computed)] {
        x.quantize_rows(1, 8, rounding.input_type(), kernels, &pool, source);
        assert_eq!(product(&rounding, &x), expected);
    }
}

/// An output that is too narrow or too short for the panels is refused before anything is written.
#[test]
fn an_epilogue_that_does_not_fit_is_refused() {
    let (pool, kernels) = (Pool::new(1), Kernels::of(Isa::Scalar).unwrap());
    let weight = weight(&[0.0; 40 * 8], &pool);
    let mut x = Activations::default();
    x.quantize_rows(2, 8, PackedType::F32, kernels, &pool, RowSource::Computed(&|_, out| out.fill(1.0)));
    let refused = |epilogue: Epilogue<'_>| {
        catch_unwind(AssertUnwindSafe(|| weight.matmul(&x, kernels, &pool, epilogue))).is_err()
    };
    let mut out = vec![0.0; 96];
    assert!(!refused(Epilogue::Store(&mut out)) && !refused(Epilogue::AddTo(&mut out, 40)));
    assert!(refused(Epilogue::Store(&mut out[1..])));
    for width in [0, 32, 49, usize::MAX / 2 + 1] {
        assert!(refused(Epilogue::AddTo(&mut [], width)) && refused(Epilogue::AddTo(&mut out, width)));
        assert!(refused(Epilogue::Activate(Activation::Silu, &mut out, width)));
    }
    // Three panels are no pairs of gate and up.
    assert!(refused(Epilogue::Gate(Activation::Silu, &mut out, 24)));
}
