//! The facts of embeddings of hashed n-grams.

use crate::config::Facts;

/// Hashes of the last 2 to `ngram_size` tokens choose rows of a table; their projection is added to the residual
/// streams of some layers, after a gate and together with its own dilated convolution (qwen4_exp).
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)] // fields with the names of their keys
pub struct NgramEmbedding {
    pub ngram_size: usize,
    /// Hashes of each length of n-gram.
    pub heads_per_ngram: usize,
    /// Width of the rows of all hashes together.
    pub ple_embed_dim: usize,
    /// Positions that the convolution sees, `ngram_size` apart.
    pub ple_conv_kernel_size: usize,
    /// Tensors that a table is stored in.
    pub split_ngram_parts: usize,
    /// An n-gram does not reach past this token, which also comes before the first one.
    pub eos_token_id: u32,
    /// Values of all residual streams of a row.
    pub channels: usize,
    /// One per layer that has the embedding, in order.
    pub tables: Vec<NgramTable>,
}

/// How a layer's hashes find rows in its table.
#[derive(Debug, Clone, PartialEq)]
pub struct NgramTable {
    /// The layer.
    pub layer: usize,
    /// Factor of each token of an n-gram, the last token's first.  // [ngram_size]
    pub multipliers: Vec<u64>,
    /// Rows of each hash.  // [hashes]
    pub sizes: Vec<usize>,
    /// Rows of the table, those that no hash finds included.
    pub rows: usize,
}

impl NgramEmbedding {
    /// Hashes per token.
    pub fn num_hashes(&self) -> usize {
        (self.ngram_size - 1) * self.heads_per_ngram
    }

    /// Width of a row of the table.
    pub fn row_width(&self) -> usize {
        self.ple_embed_dim / self.num_hashes()
    }

    /// Earlier positions that the convolution sees.
    pub fn window(&self) -> usize {
        (self.ple_conv_kernel_size - 1) * self.ngram_size
    }

    /// The place of a layer's table among the tables.
    pub fn table_of(&self, layer: usize) -> Option<usize> {
        self.tables.iter().position(|table| table.layer == layer)
    }

    /// The rows that a token chooses. `earlier(n)`: the token n positions before it, if it has one.
    pub fn rows(&self, table: usize, token: u32, earlier: impl Fn(usize) -> Option<u32>) -> Vec<usize> {
        let NgramTable { multipliers, sizes, .. } = &self.tables[table];
        let (mut rows, mut first) = (Vec::with_capacity(sizes.len()), 0);
        let (mut hash, mut ended) = (u64::from(token).wrapping_mul(multipliers[0]), false);
        for (back, sizes) in (1..).zip(sizes.chunks_exact(self.heads_per_ngram)) {
            let before = if ended { None } else { earlier(back) };
            let before = before.unwrap_or(self.eos_token_id);
            ended |= before == self.eos_token_id;
            hash ^= u64::from(before).wrapping_mul(multipliers[back]);
            for &size in sizes {
                rows.push(first + (hash % size as u64) as usize);
                first += size;
            }
        }
        rows
    }
}

impl Facts for NgramEmbedding {
    /// Hashes.
    fn buffers(&self) -> &'static [&'static str] {
        &[
            "ple_embedding.layer_multipliers",
            "ple_embedding.ngram_heads_offsets",
            "ple_embedding.ngram_heads_vocab_sizes",
        ]
    }

    /// Of each layer: inputs of the convolution, then the last tokens.
    fn further_states(&self) -> Option<[usize; 2]> {
        Some([self.tables.len(), self.window() * self.channels + self.ngram_size - 1])
    }
}

impl NgramTable {
    /// The table of the layer that is the `index`-th with the embedding: its multipliers are derived from the seed, and
    /// each hash of all tables has as many rows as the next prime number from `base` on (transformers,
    /// `Qwen4ExpTextNGramEmbedding`).
    pub fn new(
        [index, layer]: [usize; 2],
        vocab_size: usize,
        seed: u64,
        [ngram_size, num_hashes]: [usize; 2],
        primes: &mut impl Iterator<Item = usize>,
        divisible_by: usize,
    ) -> NgramTable {
        let half = (i64::MAX as u64 / vocab_size as u64 / 2).max(1);
        let seed = seed.wrapping_add(10_007 * index as u64);
        let multiplier = |token: usize| {
            2 * (splitmix64(seed.wrapping_add(SPLITMIX_GAMMA.wrapping_mul(token as u64 + 1))) % half) + 1
        };
        let sizes: Vec<usize> = primes.take(num_hashes).collect();
        let rows = sizes.iter().sum::<usize>().next_multiple_of(divisible_by);
        NgramTable { layer, multipliers: (0..ngram_size).map(multiplier).collect(), sizes, rows }
    }
}

/// The prime numbers from `base` on.
pub fn primes_from(base: usize) -> impl Iterator<Item = usize> {
    let divides = |divisor: usize, number: usize| number.is_multiple_of(divisor);
    (base.max(2)..).filter(move |&number| (2..).take_while(|n| n * n <= number).all(|n| !divides(n, number)))
}

const SPLITMIX_GAMMA: u64 = 0x9E37_79B9_7F4A_7C15;

/// Steele et al. 2014, SplitMix64.
fn splitmix64(value: u64) -> u64 {
    let value = value.wrapping_add(SPLITMIX_GAMMA);
    let value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first outputs of SplitMix64 from the state 0 (its reference implementation).
    #[test]
    fn the_hash_is_splitmix64() {
        assert_eq!(splitmix64(0), 0xE220_A839_7B1D_CDAF);
        assert_eq!(splitmix64(SPLITMIX_GAMMA), 0x6E78_9E6A_A1B9_65F4);
    }

    #[test]
    fn sizes_are_prime_numbers_and_n_grams_end_at_the_end_of_a_text() {
        let mut primes = primes_from(101);
        let tables = (0..2)
            .map(|index| NgramTable::new([index, 2 * index], 50, 7, [3, 4], &mut primes, 8))
            .collect::<Vec<_>>();
        assert_eq!(tables[0].sizes, [101, 103, 107, 109]);
        assert_eq!(tables[1].sizes, [113, 127, 131, 137]);
        assert_eq!((tables[0].rows, tables[1].rows), (424, 512));
        let embedding = NgramEmbedding {
            ngram_size: 3,
            heads_per_ngram: 2,
            ple_embed_dim: 8,
            ple_conv_kernel_size: 4,
            split_ngram_parts: 1,
            eos_token_id: 2,
            channels: 4,
            tables,
        };
        let of = |before: [Option<u32>; 2]| embedding.rows(0, 9, |back| before[back - 1]);
        assert_eq!(of([None, None]), of([Some(2), Some(5)]));
        assert_ne!(of([Some(3), Some(2)])[..2], of([Some(4), Some(2)])[..2]);
        assert_eq!(of([Some(3), Some(2)])[..2], of([Some(3), Some(5)])[..2]);
        assert_ne!(of([Some(3), Some(2)])[2..], of([Some(3), Some(5)])[2..]);
        assert_eq!(of([Some(3), None]), of([Some(3), Some(2)]));
    }
}
