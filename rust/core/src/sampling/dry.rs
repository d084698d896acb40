//! DRY ("don't repeat yourself", P. E. Weidmann 2024, text-generation-webui pull request 5677): an id that would continue a
//! repetition of the end of the text gets a penalty that grows exponentially with the length of the repetition.
//!
//! For an id t let n be the largest number for which the last n tokens also occur earlier, followed by t. With
//! n >= allowed_length its logit becomes x - multiplier * base^(n - allowed_length). What comes before the last sequence
//! breaker (a line break, for example) does not count as part of a repetition, and a token that is a breaker by itself has no
//! penalty.

/// Token sequences that a repetition must not contain.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Breakers {
    /// In order.
    sequences: Vec<Vec<u32>>,
}

impl Breakers {
    /// The breakers of these sequences; empty ones are none.
    pub fn new(mut sequences: Vec<Vec<u32>>) -> Self {
        sequences.retain(|sequence| !sequence.is_empty());
        sequences.sort_unstable();
        sequences.dedup();
        Self { sequences }
    }

    /// Whether the id alone is a breaker.
    fn has(&self, id: u32) -> bool {
        let at = self.sequences.partition_point(|sequence| sequence.as_slice() < [id].as_slice());
        self.sequences.get(at).is_some_and(|sequence| *sequence == [id])
    }

    /// How many tokens come after the last place where a breaker begins, without those of the breaker: of several breakers
    /// at that place the longest counts.
    fn free_tail(&self, text: &[u32]) -> usize {
        for start in (0..text.len()).rev() {
            let rest = &text[start..];
            let first = self.sequences.partition_point(|sequence| sequence[0] < rest[0]);
            let here = self.sequences[first..].iter().take_while(|sequence| sequence[0] == rest[0]);
            if let Some(longest) = here.filter(|one| rest.starts_with(one)).map(Vec::len).max() {
                return rest.len() - longest;
            }
        }
        text.len()
    }
}

/// The ids that would continue a repetition of the end of `text`, each with the length of the longest one, by id.
///
/// Only repetitions of at least `allowed_length` tokens are listed.
pub(super) fn repetitions(text: &[u32], allowed_length: usize, breakers: &Breakers) -> Vec<(u32, usize)> {
    let longest = breakers.free_tail(text);
    if longest < allowed_length {
        return Vec::new();
    }
    let mut found: Vec<(u32, usize)> = common_ends(text)
        .into_iter()
        .zip(text.get(1..).unwrap_or_default())
        .map(|(length, &next)| (next, length.min(longest)))
        .filter(|&(next, length)| length >= allowed_length && !breakers.has(next))
        .collect();
    found.sort_unstable_by(|a, b| a.0.cmp(&b.0).then(b.1.cmp(&a.1)));
    found.dedup_by_key(|&mut (id, _)| id);
    found
}

/// How many tokens at the end of each beginning `text[..=i]`, i < len - 1, are those at the end of the text.
///
/// The Z algorithm (Gusfield 1997, section 1.4) from the end: linear time.
fn common_ends(text: &[u32]) -> Vec<usize> {
    let last = text.len().saturating_sub(1);
    let mut lengths = vec![0; last]; // [i]: of text[..=i]
    // The match that reaches furthest to the left: of the tokens [left, right).
    let (mut left, mut right) = (last, last);
    for i in (0..last).rev() {
        let mut length = 0;
        if i >= left {
            // text[left..right] is the end of the text, so what is known of the token as far from the end counts here.
            let twin = last - (right - 1 - i);
            length = if twin < last { lengths[twin].min(i + 1 - left) } else { 0 };
        }
        while length <= i && text[i - length] == text[last - length] {
            length += 1;
        }
        lengths[i] = length;
        if i + 1 - length < left {
            (left, right) = (i + 1 - length, i + 1);
        }
    }
    lengths
}

/// multiplier * base^(length - allowed_length), finite.
pub(super) fn penalty(multiplier: f32, base: f32, length: usize, allowed_length: usize) -> f64 {
    let exponent = i32::try_from(length - allowed_length).unwrap_or(i32::MAX);
    (f64::from(multiplier) * f64::from(base).powi(exponent)).min(f64::from(f32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn random(seed: u32) -> Vec<u32> {
        let mut x = seed.wrapping_mul(2_654_435_761) | 1;
        let mut next = move || {
            x ^= x << 13;
            x ^= x >> 17;
            x ^= x << 5;
            x
        };
        let (length, ids) = (next() % 60, 1 + next() % 4);
        (0..length).map(|_| next() % ids).collect()
    }

    #[test]
    fn common_ends_are_those_that_a_search_finds() {
        for seed in 0..2000 {
            let text = random(seed);
            let searched: Vec<usize> = (0..text.len().saturating_sub(1))
                .map(|i| text[..=i].iter().rev().zip(text.iter().rev()).take_while(|(a, b)| a == b).count())
                .collect();
            assert_eq!(common_ends(&text), searched, "{text:?}");
        }
    }

    #[test]
    fn the_longest_repetition_of_each_id_counts() {
        let none = Breakers::default();
        // "1 2 3" at the end; before, "1 2 3" was followed by 4, "2 3" by 5, "3" by 6.
        let text = [1, 2, 3, 4, 2, 3, 5, 3, 6, 1, 2, 3];
        assert_eq!(repetitions(&text, 1, &none), [(4, 3), (5, 2), (6, 1)]);
        assert_eq!(repetitions(&text, 3, &none), [(4, 3)]);
        assert_eq!(repetitions(&[7, 7, 7, 7], 1, &none), [(7, 3)]);
        assert_eq!(repetitions(&[7], 1, &none), []);
        assert_eq!(repetitions(&[], 0, &none), []);
    }

    #[test]
    fn breakers_end_a_repetition() {
        let text = [9, 1, 2, 5, 9, 1, 2];
        assert_eq!(repetitions(&text, 1, &Breakers::default()), [(5, 3)]);
        assert_eq!(repetitions(&text, 1, &Breakers::new(vec![vec![9]])), [(5, 2)]);
        assert_eq!(repetitions(&text, 1, &Breakers::new(vec![vec![9], vec![9, 1], vec![9, 8]])), [(5, 1)]);
        assert_eq!(repetitions(&text, 1, &Breakers::new(vec![vec![2]])), []);
        assert_eq!(repetitions(&text, 1, &Breakers::new(vec![vec![5, 1], vec![5]])), []); // only 5 would go on
        assert_eq!(repetitions(&text, 1, &Breakers::new(vec![vec![], vec![2, 3]])), [(5, 3)]);
    }
}
