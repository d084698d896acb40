//! The KV cache with the caches of ended sequences: a new sequence starts from the longest prefix that it shares.

use super::sequence::Sequence;
use crate::config::RopeVariant;
use crate::error::{Error, Result};
use crate::kv_cache::{KvCache, KvSequence};
use std::collections::VecDeque;

/// Ended sequences whose cache is kept.
const RETAINED: usize = 4;

pub(super) struct ReusableCache {
    pub kv: KvCache,
    pub retained: VecDeque<Retained>,
}

/// A sequence that ended, kept for its cache.
pub(super) struct Retained {
    ids: Vec<u32>,
    pub cache: KvSequence,
    rope_variant: RopeVariant,
}

impl ReusableCache {
    pub fn new(kv: KvCache) -> Self {
        Self { kv, retained: VecDeque::new() }
    }

    /// A fork of the cache that shares most of `ids`.
    pub fn longest_prefix<'a>(
        &'a self,
        live: impl Iterator<Item = &'a Sequence>,
        ids: &[u32],
        rope_variant: RopeVariant,
    ) -> KvSequence {
        let live = live.map(|s| (&s.ids, &s.cache, s.rope_variant));
        let ended = self.retained.iter().map(|r| (&r.ids, &r.cache, r.rope_variant));
        let shared = |other: &[u32], cached: usize| {
            let same = ids.iter().zip(other).take_while(|(a, b)| a == b).count();
            same.min(cached)
        };
        live.chain(ended)
            .filter(|&(_, _, other)| other == rope_variant)
            .map(|(other, cache, _)| (shared(other, cache.len()), cache))
            .max_by_key(|&(len, _)| len)
            .map_or_else(KvSequence::default, |(len, cache)| self.kv.fork(cache, len))
    }

    /// Keeps the cache of a sequence that ended.
    pub fn retain(&mut self, sequence: Sequence) {
        let Sequence { ids, cache, rope_variant, .. } = sequence;
        self.retained.push_back(Retained { ids, cache, rope_variant });
        if self.retained.len() > RETAINED {
            self.release_oldest();
        }
    }

    /// Reserves `rows` positions; when memory is short, the caches of ended sequences are released first.
    pub fn reserve(&mut self, cache: &mut KvSequence, rows: usize) -> Result<()> {
        loop {
            match self.kv.reserve(cache, rows) {
                Err(Error::Memory { .. }) if !self.retained.is_empty() => self.release_oldest(),
                result => return result,
            }
        }
    }

    fn release_oldest(&mut self) {
        if let Some(oldest) = self.retained.pop_front() {
            self.kv.release(oldest.cache);
        }
    }
}
