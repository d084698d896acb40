//! Online softmax: one partial result (largest score, sum, weighted values) per query and task. Partials are merged in the
//! order of their positions and divided by the sum at the end (Milakov and Gimelshein 2018; FlashAttention, Dao et al. 2022).

use ropechat_kernels::kernel::Kernels;
use std::ops::Range;

/// The partial results of all rows of a layer.
///
/// Layout of a row group: `[head splits][KV splits][heads of the split, rows, group_size][value | max | sum]`.
#[derive(Debug, Default)]
pub(super) struct Partials {
    widths: Widths,
    values: Vec<f32>,
    groups: Vec<RowGroup>,
}

/// Rows of one run that share a split into tasks.
#[derive(Debug)]
struct RowGroup {
    /// The first row's index among all rows.
    row: usize,
    /// Number of rows.
    rows: usize,
    /// Heads per task.
    heads: usize,
    /// Tasks along the positions.
    kv_splits: usize,
    /// Where its partials start in [`Partials::values`].
    start: usize,
}

/// Sizes that all groups share.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Widths {
    /// Heads that tasks take: key/value heads, or parts of their query heads.
    pub heads: usize,
    /// Of these so many read the same keys.
    pub per_key: usize,
    /// Query heads of each.
    pub group: usize,
    /// Values per head.
    pub value: usize,
    /// `value` rounded up to whole panels.
    pub padded: usize,
}

impl Widths {
    /// Numbers of one query's partial: values, max and sum.
    pub fn partial(self) -> usize {
        self.padded + 2
    }

    fn task(self, group: &RowGroup) -> usize {
        group.heads * group.rows * self.group * self.partial()
    }
}

impl Partials {
    /// Makes room for the tasks of row groups (rows, heads per task, KV splits); yields each task's part of it, ordered
    /// by group, head split and KV split.
    pub fn allocate(
        &mut self,
        groups: impl Iterator<Item = (Range<usize>, usize, usize)>,
        widths: Widths,
    ) -> impl Iterator<Item = &mut [f32]> {
        self.groups.clear();
        self.widths = widths;
        let mut start = 0;
        for (rows, heads, kv_splits) in groups {
            let group = RowGroup { row: rows.start, rows: rows.len(), heads, kv_splits, start };
            start += widths.heads / heads * kv_splits * widths.task(&group);
            self.groups.push(group);
        }
        self.values.resize(start.max(self.values.len()), 0.0);
        let mut rest = &mut self.values[..start];
        let sizes = self.groups.iter().flat_map(move |group| {
            std::iter::repeat_n(widths.task(group), widths.heads / group.heads * group.kv_splits)
        });
        sizes.map(move |size| {
            let (out, after) = std::mem::take(&mut rest).split_at_mut(size);
            rest = after;
            out
        })
    }

    /// Merges a row's partials in order, those with `later` keys last, and divides by the sum: the output of the row's query
    /// heads from `first` on, as many as `out` has room for.  // out [heads, value]
    pub fn write_output(
        &self,
        later: Option<&Partials>,
        (row, first): (usize, usize),
        sinks: &[f32],
        out: &mut [f32],
        kernels: Kernels,
    ) {
        let width = self.widths.partial();
        TOTAL.with_borrow_mut(|total| {
            total.resize(width, 0.0);
            for (query, out) in (first..).zip(out.chunks_exact_mut(self.widths.value)) {
                reset(total);
                for partials in std::iter::once(self).chain(later) {
                    partials.merge_into(total, row, query, kernels);
                }
                divide(total, sinks.get(query), out);
            }
        });
    }

    /// Merges a query's partials into `total`, in order.  // total [padded + 2]
    fn merge_into(&self, total: &mut [f32], row: usize, query: usize, kernels: Kernels) {
        let widths = self.widths;
        let group = &self.groups[self.groups.partition_point(|group| group.row <= row) - 1];
        let (head, member) = (query / widths.group, query % widths.group);
        let in_task = (head % group.heads * group.rows + row - group.row) * widths.group + member;
        let task = group.start + head / group.heads * group.kv_splits * widths.task(group);
        for split in 0..group.kv_splits {
            let at = task + split * widths.task(group) + in_task * widths.partial();
            merge(total, &self.values[at..][..widths.partial()], kernels);
        }
    }
}

thread_local! {
    /// The merged partials of one query.
    static TOTAL: std::cell::RefCell<Vec<f32>> = const { std::cell::RefCell::new(Vec::new()) };
}

/// The partial of no positions.  // partial [padded + 2]
pub(super) fn reset(partial: &mut [f32]) {
    let (values, softmax) = partial.split_at_mut(partial.len() - 2);
    values.fill(0.0);
    softmax.copy_from_slice(&[f32::NEG_INFINITY, 0.0]);
}

/// Merges the partial of later positions into `total`.  // both [padded + 2]
pub(super) fn merge(total: &mut [f32], part: &[f32], kernels: Kernels) {
    let values = total.len() - 2;
    let (max, part_max, sum, part_sum) = (total[values], part[values], total[values + 1], part[values + 1]);
    if part_sum == 0.0 {
        return; // it saw no position; the sum of scores that are all NaN is NaN, with a max of -inf
    }
    let new_max = max.max(part_max);
    let (scale, part_scale) = ((max - new_max).exp(), (part_max - new_max).exp());
    kernels.axpby(&mut total[..values], &part[..values], scale, part_scale);
    total[values..].copy_from_slice(&[new_max, sum * scale + part_sum * part_scale]);
}

/// out = values / sum. A sink adds to the sum as a score without a value.
fn divide(total: &[f32], sink: Option<&f32>, out: &mut [f32]) {
    let (max, sum) = (total[total.len() - 2], total[total.len() - 1]);
    let (scale, sum) = match sink {
        None => (1.0, sum),
        Some(&sink) => {
            let with_sink = max.max(sink);
            let scale = (max - with_sink).exp();
            (scale, sum * scale + (sink - with_sink).exp())
        }
    };
    for (out, value) in out.iter_mut().zip(total) {
        *out = value * scale / sum;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ropechat_kernels::kernel::Isa;

    /// The partial of some positions, each with a score and a value.
    fn partial(positions: &[(f32, f32)]) -> [f32; 3] {
        let max = positions.iter().map(|&(score, _)| score).fold(f32::NEG_INFINITY, f32::max);
        let weight = |score: f32| (score - max).exp();
        let weighted = positions.iter().map(|&(score, value)| weight(score) * value).sum();
        [weighted, max, positions.iter().map(|&(score, _)| weight(score)).sum()]
    }

    #[test]
    fn merged_parts_are_the_softmax_of_all_positions() {
        let kernels = Kernels::of(Isa::Scalar).unwrap();
        let rising = [(-2.0, 1.0), (-1.5, -3.0), (0.5, 2.0), (1.0, 7.0), (2.5, -1.0), (4.0, 0.5)];
        let mut falling = rising;
        falling.reverse();
        for positions in [rising, falling, [rising[2]; 6]] {
            for sizes in [vec![6], vec![1; 6], vec![2, 3, 1], vec![1, 5]] {
                let (mut total, mut rest) = ([0.0; 3], &positions[..]);
                reset(&mut total);
                for size in sizes {
                    let (part, after) = rest.split_at(size);
                    merge(&mut total, &partial(part), kernels);
                    rest = after;
                }
                for sink in [None, Some(3.0)] {
                    let exps = positions.map(|(score, value)| (f64::from(score).exp(), f64::from(value)));
                    let of_sink = sink.map_or(0.0, |sink: f32| f64::from(sink).exp());
                    let sum = exps.iter().map(|(exp, _)| exp).sum::<f64>() + of_sink;
                    let expected = exps.iter().map(|(exp, value)| exp * value).sum::<f64>() / sum;
                    let mut out = [0.0];
                    divide(&total, sink.as_ref(), &mut out);
                    assert!((f64::from(out[0]) - expected).abs() < 1e-6, "{positions:?} {sink:?}: {out:?}");
                }
            }
        }
    }

    /// One chunk that saw nothing but NaN has a max of -inf, as one that saw nothing.
    #[test]
    fn a_part_of_nan_is_not_a_part_that_saw_nothing() {
        let kernels = Kernels::of(Isa::Scalar).unwrap();
        let (nan, nothing, sound) =
            ([f32::NAN, f32::NEG_INFINITY, f32::NAN], [0.0, f32::NEG_INFINITY, 0.0], [0.5, 3.0, 1.0]);
        for (first, second) in [(nan, sound), (sound, nan), (nothing, nan), (nan, nothing)] {
            let mut total = [0.0; 3];
            reset(&mut total);
            merge(&mut total, &first, kernels);
            merge(&mut total, &second, kernels);
            // As a task's total is merged with those of others.
            let mut all = [0.0; 3];
            reset(&mut all);
            merge(&mut all, &total, kernels);
            for sink in [None, Some(&2.0)] {
                let mut out = [0.0];
                divide(&all, sink, &mut out);
                assert!(out[0].is_nan(), "{first:?} {second:?} {sink:?}: {out:?}");
            }
        }
        let mut total = [0.0; 3];
        reset(&mut total);
        merge(&mut total, &nothing, kernels);
        merge(&mut total, &sound, kernels);
        assert_eq!(total, sound);
    }
}
