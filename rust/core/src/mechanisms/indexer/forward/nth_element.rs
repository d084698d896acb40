//! The choice of the highest scores where some are equal, as transformers makes it on a CPU.
//!
//! `torch.topk` leaves the choice among equal scores to `std::nth_element`. Sums of relu(q k) over few heads are often zero,
//! so the choice shows. This is libstdc++'s algorithm (introselect: Musser 1997) without its last resort for inputs made to
//! be slow.

/// The indices of the `count` highest scores, in no order; `count` is 1 to the number of scores.
pub(super) fn highest(scores: &[f32], count: usize) -> Vec<usize> {
    // NaN comes first.
    let is_before = |a: usize, b: usize| (scores[a].is_nan() && !scores[b].is_nan()) || scores[a] > scores[b];
    let mut order: Vec<usize> = (0..scores.len()).collect();
    let (mut first, mut last, nth) = (0, order.len(), count - 1);
    while count < scores.len() && last - first > 3 {
        let cut = partition(&mut order[first..last], &is_before) + first;
        if cut <= nth {
            first = cut;
        } else {
            last = cut;
        }
    }
    insertion_sort(&mut order[first..last], &is_before);
    order.truncate(count);
    order
}

/// Puts the median of three entries first, and those before it before those behind it; where the latter begin.
fn partition(order: &mut [usize], is_before: &impl Fn(usize, usize) -> bool) -> usize {
    let (a, b, c) = (1, order.len() / 2, order.len() - 1);
    let before = |x: usize, y: usize| is_before(order[x], order[y]);
    let median = match (before(a, b), before(b, c), before(a, c)) {
        (true, true, _) | (false, false, false) => b,
        (true, false, true) | (false, true, false) => c,
        (true, false, false) | (false, _, true) => a,
    };
    order.swap(0, median);
    let (mut low, mut high) = (1, order.len());
    loop {
        while is_before(order[low], order[0]) {
            low += 1;
        }
        high -= 1;
        while is_before(order[0], order[high]) {
            high -= 1;
        }
        if low >= high {
            return low;
        }
        order.swap(low, high);
        low += 1;
    }
}

fn insertion_sort(order: &mut [usize], is_before: &impl Fn(usize, usize) -> bool) {
    for end in 1..order.len() {
        let mut at = end;
        while at > 0 && is_before(order[at], order[at - 1]) {
            order.swap(at, at - 1);
            at -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::highest;

    fn sorted(scores: &[f32], count: usize) -> Vec<usize> {
        let mut found = highest(scores, count);
        found.sort_unstable();
        found
    }

    /// Numbers of a program that calls `std::nth_element` of GCC 12.
    #[test]
    fn of_equal_scores_those_that_the_partition_leaves_first() {
        assert_eq!(sorted(&[0.0; 5], 4), [0, 2, 3, 4]);
        assert_eq!(sorted(&[0.0, 3.0, 0.0, 1.0, 0.0, 0.0], 4), [1, 3, 4, 5]);
        let few = [0.0, 0.0, 2.0, 0.0, 0.0, 0.0, 5.0, 0.0, 0.0, 0.0, 1.0, 0.0];
        assert_eq!(sorted(&few, 5), [0, 2, 6, 8, 10]);
        let many: Vec<f32> =
            (0..40).map(|i| if i * 7 % 5 == 0 { 0.0 } else { (i * 13 % 4) as f32 }).collect();
        let expected = [2, 3, 6, 7, 11, 14, 18, 19, 22, 23, 26, 27, 29, 31, 34, 38, 39];
        assert_eq!(sorted(&many, 17), expected);
    }

    #[test]
    fn nan_is_chosen_first_and_all_may_be_chosen() {
        assert_eq!(sorted(&[1.0, f32::NAN, 3.0, 2.0, 0.0], 2), [1, 2]);
        assert_eq!(sorted(&[f32::NAN; 6], 6), [0, 1, 2, 3, 4, 5]);
    }
}
