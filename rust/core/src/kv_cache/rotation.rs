//! A rotation of keys before they are rounded to q8_0, so that a few large dimensions (Qwen 2.5 has keys of 200 in some)
//! do not leave the others of their block a handful of steps. Queries are rotated alike, which keeps their products.
//!
//! Source: QuaRot, Ashkboos et al. 2024 (arXiv 2404.00456), section 4.

/// Multiplies a vector in place by an orthonormal, symmetric matrix, its own inverse: the Walsh-Hadamard matrices of the
/// powers of two that its length is a sum of, the largest first.
pub fn rotate(mut vector: &mut [f32]) {
    while let Some(power) = vector.len().checked_ilog2() {
        let (part, rest) = vector.split_at_mut(1 << power);
        transform(part);
        vector = rest;
    }
}

/// The normalized Walsh-Hadamard transform; the length is a power of two.
fn transform(x: &mut [f32]) {
    let mut half = x.len() / 2;
    while half > 0 {
        for pair in x.chunks_exact_mut(2 * half) {
            let (first, second) = pair.split_at_mut(half);
            for (a, b) in first.iter_mut().zip(second) {
                (*a, *b) = (*a + *b, *a - *b);
            }
        }
        half /= 2;
    }
    let scale = 1.0 / (x.len() as f32).sqrt();
    x.iter_mut().for_each(|x| *x *= scale);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::common::Noise;

    #[test]
    fn products_stay_and_a_second_rotation_undoes_the_first() {
        for dim in [1, 2, 3, 24, 64, 80, 96, 128, 576] {
            let mut noise = Noise(dim as u64 + 7);
            let (query, key) = (noise.take(dim), noise.take(dim));
            let (mut rotated_query, mut rotated_key) = (query.clone(), key.clone());
            rotate(&mut rotated_query);
            rotate(&mut rotated_key);
            let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(a * b)).sum::<f64>();
            assert!((dot(&query, &key) - dot(&rotated_query, &rotated_key)).abs() < 1e-4, "{dim}");
            assert!(dim < 2 || query != rotated_query);
            rotate(&mut rotated_query);
            assert!(query.iter().zip(&rotated_query).all(|(a, b)| (a - b).abs() < 1e-5), "{dim}");
        }
    }

    #[test]
    fn one_large_dimension_is_spread_over_all() {
        let mut key = vec![0.0; 64];
        key[5] = 200.0;
        rotate(&mut key);
        assert!(key.iter().all(|x| x.abs() == 25.0));
    }
}
