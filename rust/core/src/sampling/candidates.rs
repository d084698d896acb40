//! The candidates of one draw: a prefix of the ids in order of probability, extended only as far as a filter needs it,
//! without the best of them where XTC removed these.

use crate::sampling::readout::Logprobs;
use crate::sampling::top_k::{self, TopK};
use crate::{Error, Result};
use ropechat_kernels::kernel::exp_sums;
use ropechat_kernels::kernel::logsumexp::{ExpSums, exp};

/// How many candidates are sorted at first when no filter limits them; grows eightfold.
const FIRST: usize = 256;

/// The candidates that survive one stage.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stage {
    /// The name of the [`super::ChainStep`].
    pub name: &'static str,
    /// How many survive; masked ids (-inf) never count.
    pub kept: usize,
    /// Their raw probability.
    pub mass: f64,
    /// Entropy of the renormalized survivors at this stage, in nats.
    pub entropy: f64,
    /// A number that the stage found: of top_n_sigma the standard deviation of the logits, of xtc the number in [0, 1) that
    /// it drew, which removes candidates below xtc_probability.
    pub value: Option<f64>,
}

/// The state after a stage, which gives any id's probability there.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cut {
    max: f32,
    inverse_temperature: f64,
    total: f64,
    /// The last survivor; `None`: all finite logits survive.
    last_key: Option<u64>,
    /// The best candidate that XTC does not remove, and what it does.
    exclusion: Option<(u64, Exclusion)>,
}

impl Cut {
    /// Whether the id survives with this logit.
    pub fn keeps(&self, logit: f32, id: u32) -> bool {
        let key = top_k::key(logit, id as usize);
        logit > f32::NEG_INFINITY
            && self.last_key.is_none_or(|last| key <= last)
            && self.exclusion.is_none_or(|(first, exclusion)| exclusion.chance < 1.0 || key >= first)
    }

    /// Renormalized probability of a survivor.
    pub fn probability(&self, logit: f32, id: u32) -> f64 {
        let weight = exp(scaled(logit, self.max, self.inverse_temperature));
        let Some((first, exclusion)) = self.exclusion else { return weight / self.total };
        let (best, others) = exclusion.factors(self.total);
        weight * if top_k::key(logit, id as usize) < first { best } else { others }
    }
}

/// What XTC does: the best candidates are removed.
#[derive(Debug, Clone, Copy)]
struct Exclusion {
    /// How many.
    count: usize,
    /// Sum of the other survivors' weights.
    rest: f64,
    /// How likely that is; 1 for a draw, which has decided it.
    chance: f64,
}

impl Exclusion {
    /// Probability per weight of what is removed, and of the others. `total`: sum of the weights of both.
    fn factors(&self, total: f64) -> (f64, f64) {
        let kept = (1.0 - self.chance) / total;
        (kept, kept + self.chance / self.rest)
    }
}

/// The candidates that have survived so far, each with its unnormalized probability.
#[derive(Debug, Default)]
pub(crate) struct Candidates {
    top_k: TopK,
    /// The row's largest logit.
    max: f32,
    inverse_temperature: f64,
    /// The best so many survive; `None`: all finite logits do.
    kept: Option<usize>,
    /// exp((logit - max) / temperature) of the best candidates; the first is exactly 1.
    weights: Vec<f64>,
    /// Sum of the survivors' weights (with what XTC removed), once it is known.
    total: Option<f64>,
    exclusion: Option<Exclusion>,
    /// Raw probability of the finite logits, less than 1 when a grammar masked others.
    mass: f64,
}

impl Candidates {
    /// Take the raw probability of a row's finite logits from now on. `raw` is the read-out before the mask.
    pub fn set_mass(&mut self, row: &[f32], raw: Option<&Logprobs>) {
        self.mass = raw.map_or(1.0, |raw| {
            let sums = exp_sums(row, self.max, 1.0);
            exp(f64::from(self.max) + sums.exp.ln() - raw.logsumexp).min(1.0)
        });
    }

    /// Start with every finite logit of a row at temperature 1; returns the largest logit.
    pub fn start(&mut self, row: &[f32], position: usize) -> Result<f32> {
        self.max = self.top_k.scan(row, position)?;
        self.kept = None;
        self.exclusion = None;
        self.set_temperature(1.0);
        Ok(self.max)
    }

    /// Divide the logits by `temperature` > 0; the order of the candidates stays.
    pub fn set_temperature(&mut self, temperature: f32) {
        self.inverse_temperature = 1.0 / f64::from(temperature);
        self.weights.clear();
        self.total = None;
    }

    /// Keep the best `k`, exactly; ties by lower id.
    pub fn keep_top(&mut self, row: &[f32], k: usize) {
        let n = self.rank(row, k);
        self.keep(n);
    }

    /// Keep the smallest set whose renormalized probability is at least `p`; at least one.
    pub fn keep_mass(&mut self, row: &[f32], p: f64) {
        let target = p * self.total(row);
        let mut mass = 0.0;
        let mut n = 0;
        while let Some(weight) = self.weight(row, n) {
            mass += weight;
            n += 1;
            if mass >= target {
                break;
            }
        }
        self.keep(n);
    }

    /// Keep what is at least `ratio` <= 1 times as probable as the best.
    pub fn keep_ratio(&mut self, row: &[f32], ratio: f64) {
        let mut n = 0;
        while self.weight(row, n).is_some_and(|weight| weight >= ratio) {
            n += 1;
        }
        self.keep(n);
    }

    /// Keep what is at most `n` standard deviations below the largest logit; returns the standard deviation of the logits
    /// above -inf.
    pub fn keep_sigma(&mut self, row: &[f32], n: f64) -> f64 {
        let finite = || row.iter().filter(|&&x| x > f32::NEG_INFINITY).map(|&x| f64::from(x));
        let count = finite().count() as f64;
        let mean = finite().sum::<f64>() / count;
        let sigma = (finite().map(|x| (x - mean) * (x - mean)).sum::<f64>() / count).sqrt();
        let lowest = f64::from(self.max) - n * sigma;
        let kept = finite().filter(|&x| x >= lowest).count();
        self.keep_top(row, kept);
        sigma
    }

    /// Of the candidates with at least the probability `threshold` remove all but the least probable one, which happens
    /// with this chance > 0.
    pub fn exclude_best(&mut self, row: &[f32], threshold: f64, chance: f64) {
        let lowest = threshold * self.total(row);
        let mut n = 0;
        while self.weight(row, n).is_some_and(|weight| weight >= lowest && weight > 0.0) {
            n += 1;
        }
        if n < 2 {
            return;
        }
        let count = n - 1; // the least probable of them stays
        self.exclusion = Some(Exclusion { count, rest: 0.0, chance });
        let rest = self.sums(row)[1].exp;
        self.exclusion = Some(Exclusion { count, rest, chance });
    }

    /// Inverse CDF: the first candidate, in order of probability, with u * total < its cumulative weight.
    pub fn draw(&mut self, row: &[f32], u: f64) -> Result<u32> {
        let (first, total) = self.drawn_from(row);
        let target = u * total;
        let mut mass = 0.0;
        let mut n = first;
        while let Some(weight) = self.weight(row, n) {
            // Weights only fall: past a 0 there is nothing to draw (rounding may leave u * total unreached).
            if weight == 0.0 {
                break;
            }
            mass += weight;
            n += 1;
            if mass > target {
                break;
            }
        }
        let keys = self.top_k.top(row, n);
        keys.last()
            .map(|&key| top_k::id(key))
            .ok_or_else(|| Error::Internal("a draw without candidates".into()))
    }

    /// What survives now. `logits` is the unprocessed row that `raw` was read out of.
    pub fn stage(&mut self, name: &'static str, row: &[f32], logits: &[f32], raw: &Logprobs) -> Stage {
        let [best, others] = self.sums(row);
        let removed = self.exclusion.map_or(0, |exclusion| exclusion.count);
        let is_removed = self.exclusion.is_some_and(|exclusion| exclusion.chance == 1.0);
        let first = if is_removed { removed } else { 0 };
        let mut raw_mass = |from: usize, to: usize| -> f64 {
            let keys = &self.top_k.top(row, to)[from..];
            keys.iter().map(|&key| exp(f64::from(logits[top_k::id(key) as usize]) - raw.logsumexp)).sum()
        };
        let (kept, mass) = match self.kept {
            Some(kept) => (kept - first, raw_mass(first, kept)),
            None => {
                let finite = row.iter().filter(|&&x| x > f32::NEG_INFINITY).count();
                (finite - first, self.mass - raw_mass(0, first))
            }
        };
        let entropy = match self.exclusion {
            None => others.entropy(),
            Some(exclusion) => {
                let (of_best, of_others) = exclusion.factors(best.exp + others.exp);
                let term = |p: f64, sums: ExpSums| match p {
                    0.0 => 0.0,
                    _ => -p * (p.ln() * sums.exp + sums.d_exp),
                };
                term(of_best, best) + term(of_others, others)
            }
        };
        Stage { name, kept, mass: mass.clamp(0.0, 1.0), entropy, value: None }
    }

    /// The row's largest logit.
    pub fn max(&self) -> f32 {
        self.max
    }

    /// What gives any id's probability now.
    pub fn cut(&mut self, row: &[f32]) -> Cut {
        let total = self.total(row);
        let last_key = self.kept.and_then(|kept| self.top_k.top(row, kept).last().copied());
        let exclusion = self
            .exclusion
            .and_then(|exclusion| Some((*self.top_k.top(row, exclusion.count + 1).last()?, exclusion)));
        Cut { max: self.max, inverse_temperature: self.inverse_temperature, total, last_key, exclusion }
    }

    /// Numbers u for which [`Candidates::draw`] returns the survivor `key`, as [start, end); `None` where that also depends
    /// on what XTC draws.
    pub fn interval(&mut self, row: &[f32], key: u64) -> Option<(f64, f64)> {
        if self.exclusion.is_some_and(|exclusion| exclusion.chance < 1.0) {
            return None;
        }
        let (mut n, total) = self.drawn_from(row);
        let mut start = 0.0;
        while let Some(weight) = self.weight(row, n) {
            let end = start + weight;
            if self.top_k.top(row, n + 1)[n] == key {
                // The last one is drawn for what rounding leaves, too.
                let is_last = self.weight(row, n + 1).is_none_or(|next| next == 0.0);
                let end = if is_last { 1.0 } else { (end / total).min(1.0) };
                return Some(((start / total).min(1.0), end));
            }
            (start, n) = (end, n + 1);
        }
        Some((1.0, 1.0)) // not a survivor
    }

    /// 1 + how many finite logits come before `key`, survivors or not.
    pub fn rank_of(&mut self, row: &[f32], key: u64) -> usize {
        // Recorded candidates are mostly among the best few; counting passes over the whole row.
        let sorted = self.top_k.top(row, self.weights.len().max(64));
        match sorted.binary_search(&key) {
            Ok(at) => 1 + at,
            Err(_) => 1 + top_k::count_before(row, key),
        }
    }

    /// Sum of the survivors' weights.
    fn total(&mut self, row: &[f32]) -> f64 {
        if let Some(total) = self.total {
            return total;
        }
        let total = match self.kept {
            Some(n) => {
                self.rank(row, n);
                self.weights[..n].iter().sum()
            }
            None => exp_sums(row, self.max, self.inverse_temperature).exp,
        };
        self.total = Some(total);
        total
    }

    /// Number of the best candidates that XTC removed, and the sum of the others' weights.
    fn drawn_from(&mut self, row: &[f32]) -> (usize, f64) {
        match self.exclusion {
            Some(exclusion) if exclusion.chance == 1.0 => (exclusion.count, exclusion.rest),
            _ => (0, self.total(row)),
        }
    }

    /// The sums of the weights of what XTC removes, and of the other survivors.
    fn sums(&mut self, row: &[f32]) -> [ExpSums; 2] {
        let count = self.exclusion.map_or(0, |exclusion| exclusion.count);
        let Some(kept) = self.kept else {
            let best = self.weigh(row, 0, count);
            let others = match count {
                0 => exp_sums(row, self.max, self.inverse_temperature),
                _ => {
                    let mut others = row.to_vec();
                    for &key in self.top_k.top(row, count) {
                        others[top_k::id(key) as usize] = f32::NEG_INFINITY;
                    }
                    exp_sums(&others, self.max, self.inverse_temperature)
                }
            };
            if count == 0 {
                self.total = Some(others.exp);
            }
            return [best, others];
        };
        [self.weigh(row, 0, count), self.weigh(row, count, kept)]
    }

    /// The sums of the weights of the candidates from one to another.
    fn weigh(&mut self, row: &[f32], from: usize, to: usize) -> ExpSums {
        self.rank(row, to);
        let (mut sum, mut weighted) = (0.0, 0.0);
        for (&key, weight) in self.top_k.top(row, to).iter().zip(&self.weights).skip(from) {
            sum += weight;
            weighted += weight * scaled(row[top_k::id(key) as usize], self.max, self.inverse_temperature);
        }
        ExpSums { exp: sum, d_exp: weighted }
    }

    /// Weight of the n-th best survivor, from 0, or of what XTC removed.
    fn weight(&mut self, row: &[f32], n: usize) -> Option<f64> {
        if n >= self.weights.len() {
            self.rank(row, FIRST.max(self.weights.len().saturating_mul(8)).max(n + 1));
        }
        if self.kept.is_some_and(|kept| n >= kept) {
            return None;
        }
        self.weights.get(n).copied()
    }

    /// Rank and weigh the best `n`, or as many as survive; returns how many.
    fn rank(&mut self, row: &[f32], n: usize) -> usize {
        let n = n.min(self.kept.unwrap_or(usize::MAX));
        let keys = self.top_k.top(row, n);
        let (max, inverse_temperature) = (self.max, self.inverse_temperature);
        let known = self.weights.len().min(keys.len());
        let logits = keys[known..].iter().map(|&key| row[top_k::id(key) as usize]);
        self.weights.extend(logits.map(|logit| exp(scaled(logit, max, inverse_temperature))));
        keys.len()
    }

    fn keep(&mut self, n: usize) {
        if self.kept != Some(n) {
            self.kept = Some(n);
            self.total = None;
        }
    }
}

/// (logit - max) / temperature: at most 0.
fn scaled(logit: f32, max: f32, inverse_temperature: f64) -> f64 {
    (f64::from(logit) - f64::from(max)) * inverse_temperature
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::readout::read_logprobs;

    #[test]
    fn at_temperature_1_without_filters_the_processed_distribution_is_the_raw_one_bitwise() {
        let logits: Vec<f32> = (0..5003).map(|i| ((i * 7919) % 4999) as f32 * 3e-3 - 9.0).collect();
        let raw = read_logprobs(&logits, logits.len(), 0).unwrap();
        let mut candidates = Candidates::default();
        candidates.set_mass(&logits, None);
        candidates.start(&logits, 0).unwrap();
        candidates.set_temperature(1.0);
        let stage = candidates.stage("temperature", &logits, &logits, &raw);
        assert_eq!((stage.kept, stage.mass, stage.entropy), (5003, 1.0, raw.entropy));
        let total = candidates.total(&logits);
        assert_eq!(f64::from(candidates.max) + total.ln(), raw.logsumexp);
        for (n, &(id, logprob)) in raw.top.iter().enumerate() {
            assert_eq!(
                candidates.weight(&logits, n),
                Some(exp(f64::from(logits[id as usize]) - f64::from(candidates.max)))
            );
            let processed = f64::from(logits[id as usize]) * candidates.inverse_temperature;
            assert_eq!(processed - (f64::from(candidates.max) + total.ln()), logprob);
        }
    }
}
