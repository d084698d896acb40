//! Cached blocks by their tokens: a radix tree with one block per node, which finds the longest cached prefix of a text.
//!
//! A node is a whole block of [`BLOCK`] tokens, or a shorter tail without children. Sequences hold a [`Place`]: the
//! node of their last whole block. A node is in use while the place of a sequence is this node or a descendant, else
//! idle; only idle leaves can be evicted, the least recently used one first, so the remaining nodes are always
//! connected.

use super::block::{BLOCK, Block};
use crate::config::RopeVariant;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Included, Unbounded};
use std::sync::Arc;

/// The place of a sequence: its last whole block in the tree. Every place that was entered must be left.
#[derive(Debug)]
pub struct Place {
    node: u64,
    blocks: usize,
}

impl Place {
    /// Whole blocks before this place.
    pub fn blocks(&self) -> usize {
        self.blocks
    }

    /// Whether both are the same place, so that both texts have the same tokens before it.
    pub fn is_at(&self, other: &Place) -> bool {
        self.node == other.node
    }
}

struct Node {
    /// None for a root.
    edge: Option<Edge>,
    /// In the order of their tokens. No child's tokens begin another's.
    children: BTreeMap<Arc<[u32]>, u64>,
    /// Sequences whose place is here or below.
    users: usize,
    last_used: u64,
}

/// What leads to a node.
struct Edge {
    parent: u64,
    tokens: Arc<[u32]>,
    block: Arc<Block>,
}

impl Node {
    fn parent(&self) -> Option<u64> {
        self.edge.as_ref().map(|edge| edge.parent)
    }

    fn block(&self) -> Option<Arc<Block>> {
        self.edge.as_ref().map(|edge| Arc::clone(&edge.block))
    }
}

/// The blocks of sequences in progress and of ended ones, by their tokens.
pub struct PrefixTree {
    nodes: BTreeMap<u64, Node>,
    /// Keys have the rotation of their variant: each has its own tree.
    roots: Vec<(RopeVariant, u64)>,
    next: u64,
    clock: u64,
    block_bytes: usize,
    idle_bytes: usize,
    /// (last use, node) of the nodes that can be evicted.
    idle_leaves: BTreeSet<(u64, u64)>,
}

impl PrefixTree {
    /// An empty tree of blocks of so many bytes.
    pub fn new(block_bytes: usize) -> Self {
        Self {
            nodes: BTreeMap::new(),
            roots: Vec::new(),
            next: 0,
            clock: 0,
            block_bytes,
            idle_bytes: 0,
            idle_leaves: BTreeSet::new(),
        }
    }

    /// Bytes of what no sequence uses.
    pub fn idle_bytes(&self) -> usize {
        self.idle_bytes
    }

    /// A place before the first token.
    pub fn enter(&mut self, variant: RopeVariant) -> Place {
        let known = self.roots.iter().find(|(of, _)| *of == variant).map(|&(_, root)| root);
        let root = known.unwrap_or_else(|| {
            let root = self.add(None);
            self.roots.push((variant, root));
            root
        });
        self.node(root).users += 1;
        Place { node: root, blocks: 0 }
    }

    /// Gives a place back: what only its sequence used is idle from now on.
    pub fn leave(&mut self, place: Place) {
        self.clock += 1;
        let mut at = Some(place.node);
        while let Some(id) = at {
            let clock = self.clock;
            let node = self.node(id);
            node.users -= 1;
            node.last_used = clock;
            at = node.parent();
            if node.users == 0 {
                self.idle_bytes += self.bytes(id);
                self.offer(id);
            }
        }
    }

    /// The whole block that continues a place with exactly these tokens; the place is then behind it.
    pub fn follow(&mut self, place: &mut Place, tokens: &[u32]) -> Option<Arc<Block>> {
        let &child = self.nodes[&place.node].children.get(tokens).filter(|_| tokens.len() == BLOCK)?;
        self.stand_on(place, child);
        self.nodes[&child].block()
    }

    /// Whole blocks that continue a place with these tokens, up to the last one that `is_end` is true of.
    pub fn blocks_to(&self, place: &Place, tokens: &[u32], is_end: impl Fn(&Block) -> bool) -> usize {
        let (mut node, mut found) = (&self.nodes[&place.node], 0);
        for (index, tokens) in tokens.chunks_exact(BLOCK).enumerate() {
            let Some(child) = node.children.get(tokens) else { break };
            node = &self.nodes[child];
            if node.edge.as_ref().is_some_and(|edge| is_end(&edge.block)) {
                found = index + 1;
            }
        }
        found
    }

    /// The block behind a place that begins with the most of these tokens, and with how many.
    pub fn best_part(&mut self, place: &Place, tokens: &[u32]) -> Option<(Arc<Block>, usize)> {
        // In the order of tokens, the longest common beginning is that of a neighbour.
        let children = &self.nodes[&place.node].children;
        let before = children.range::<[u32], _>((Unbounded, Included(tokens))).next_back();
        let after = children.range::<[u32], _>((Excluded(tokens), Unbounded)).next();
        let (count, id) = before
            .into_iter()
            .chain(after)
            .map(|(theirs, &id)| (theirs.iter().zip(tokens).take_while(|(a, b)| a == b).count(), id))
            .filter(|&(count, _)| count > 0)
            .max_by_key(|&(count, _)| count)?;
        self.clock += 1;
        if self.idle_leaves.remove(&(self.nodes[&id].last_used, id)) {
            self.node(id).last_used = self.clock;
            self.offer(id);
        }
        Some((self.nodes[&id].block()?, count))
    }

    /// Adds a whole block after a place and moves the place to it. If these tokens are there already, returns their
    /// block, which has the same bits (law 1).
    pub fn insert(&mut self, place: &mut Place, tokens: &[u32], block: &Arc<Block>) -> Option<Arc<Block>> {
        assert_eq!(tokens.len(), BLOCK, "a whole block");
        let known = self.follow(place, tokens);
        if known.is_none() {
            let child = self.put(place, tokens, block);
            self.stand_on(place, child);
        }
        known
    }

    /// Puts the last, partly filled block of a sequence behind its place, unless another block begins with its tokens.
    pub fn insert_tail(&mut self, place: &Place, tokens: &[u32], block: &Arc<Block>) {
        let children = &self.nodes[&place.node].children;
        let after = children.range::<[u32], _>((Included(tokens), Unbounded)).next();
        if !tokens.is_empty() && after.is_none_or(|(theirs, _)| !theirs.starts_with(tokens)) {
            self.put(place, tokens, block);
        }
    }

    /// Removes the least recently used idle leaf and returns its block.
    pub fn evict(&mut self) -> Option<Arc<Block>> {
        let &(_, leaf) = self.idle_leaves.first()?;
        self.remove(leaf).block()
    }

    fn node(&mut self, id: u64) -> &mut Node {
        self.nodes.get_mut(&id).expect("what a place or a node refers to is not removed")
    }

    /// Bytes that go when a node is removed.
    fn bytes(&self, id: u64) -> usize {
        if self.nodes[&id].edge.is_some() { self.block_bytes } else { 0 }
    }

    /// Moves a place to a child of its node.
    fn stand_on(&mut self, place: &mut Place, child: u64) {
        *place = Place { node: child, blocks: place.blocks + 1 };
        let node = self.node(child);
        node.users += 1;
        if node.users == 1 {
            let last_used = node.last_used;
            self.idle_leaves.remove(&(last_used, child));
            self.idle_bytes -= self.bytes(child);
        }
    }

    /// Lets a node be evicted, if it is an idle leaf; a root that is one is removed.
    fn offer(&mut self, id: u64) {
        let node = &self.nodes[&id];
        if node.users > 0 || !node.children.is_empty() {
            return;
        }
        if node.edge.is_some() {
            self.idle_leaves.insert((node.last_used, id));
        } else {
            self.nodes.remove(&id);
            self.roots.retain(|&(_, root)| root != id);
        }
    }

    /// Makes a node that nobody uses yet.
    fn add(&mut self, edge: Option<Edge>) -> u64 {
        self.next += 1;
        let (children, last_used) = (BTreeMap::new(), self.clock);
        self.nodes.insert(self.next, Node { edge, children, users: 0, last_used });
        self.next
    }

    /// Adds a block behind a place. A tail that it begins with, which is the neighbour before it, is no longer needed.
    fn put(&mut self, place: &Place, tokens: &[u32], block: &Arc<Block>) -> u64 {
        let children = &self.nodes[&place.node].children;
        let before = children.range::<[u32], _>((Unbounded, Excluded(tokens))).next_back();
        if let Some((_, &tail)) = before.filter(|(theirs, _)| tokens.starts_with(theirs)) {
            self.remove(tail);
        }
        self.clock += 1;
        let (parent, tokens, block) = (place.node, Arc::from(tokens), Arc::clone(block));
        let child = self.add(Some(Edge { parent, tokens: Arc::clone(&tokens), block }));
        self.node(parent).children.insert(tokens, child);
        self.idle_bytes += self.bytes(child);
        self.offer(child);
        child
    }

    /// Removes an idle leaf.
    fn remove(&mut self, id: u64) -> Node {
        self.idle_bytes -= self.bytes(id);
        let node = self.nodes.remove(&id).expect("an idle leaf is in the tree");
        self.idle_leaves.remove(&(node.last_used, id));
        if let Some(Edge { parent, tokens, .. }) = &node.edge {
            self.node(*parent).children.remove(tokens);
            self.offer(*parent);
        }
        node
    }
}

#[cfg(test)]
mod tests {
    use super::super::block::KvLayer;
    use super::super::{KvCache, KvLayout, KvSequence};
    use super::*;
    use ropechat_kernels::quant::PackedType;

    fn layout() -> KvLayout {
        KvLayout::of_layers([KvLayer::new(1, 4, 4)].into_iter(), PackedType::F32)
    }

    fn bytes(blocks: usize) -> usize {
        blocks * layout().block_bytes()
    }

    fn tree() -> PrefixTree {
        PrefixTree::new(bytes(1))
    }

    fn block() -> Arc<Block> {
        let mut sequence = KvSequence::default();
        KvCache::new(layout()).reserve(&mut sequence, 1).unwrap();
        Arc::clone(&sequence.blocks()[0])
    }

    /// The whole blocks of a text, each of one repeated token; the place behind them.
    fn insert(tree: &mut PrefixTree, text: &[u32]) -> (Place, Vec<Arc<Block>>) {
        let mut place = tree.enter(RopeVariant::default());
        let blocks = text.iter().map(|&token| {
            let own = block();
            tree.insert(&mut place, &[token; BLOCK], &own).unwrap_or(own)
        });
        let blocks = blocks.collect();
        (place, blocks)
    }

    /// How many blocks of a text are in the tree.
    fn known(tree: &mut PrefixTree, text: &[u32]) -> usize {
        let mut place = tree.enter(RopeVariant::default());
        let followed =
            text.iter().take_while(|&&token| tree.follow(&mut place, &[token; BLOCK]).is_some()).count();
        tree.leave(place);
        followed
    }

    #[test]
    fn equal_tokens_have_one_block_and_every_variant_a_tree_of_its_own() {
        let mut tree = tree();
        let (a, first) = insert(&mut tree, &[1, 2, 3]);
        let (b, second) = insert(&mut tree, &[1, 2, 4]);
        assert!(Arc::ptr_eq(&first[1], &second[1]) && !Arc::ptr_eq(&first[2], &second[2]));
        assert_eq!((known(&mut tree, &[1, 2, 4, 4]), known(&mut tree, &[2])), (3, 0));
        assert!(!a.is_at(&b));
        let rope = crate::config::Rope {
            theta: 10_000.0,
            rotary_dim: 4,
            layout: crate::config::RopeLayout::Neox,
            scaling: crate::config::RopeScaling::Dynamic { factor: 2.0, original_max_position_embeddings: 4 },
        };
        let mut other = tree.enter(rope.variant(9));
        assert!(tree.follow(&mut other, &[1; BLOCK]).is_none());
        for place in [a, b, other] {
            tree.leave(place);
        }
        assert_eq!(tree.idle_bytes(), bytes(4));
    }

    #[test]
    fn what_is_used_stays_and_the_least_recently_used_leaf_goes_first() {
        let mut tree = tree();
        let (used, _) = insert(&mut tree, &[1, 2]);
        let (older, blocks) = insert(&mut tree, &[1, 3, 4]);
        let (newer, _) = insert(&mut tree, &[1, 5]);
        tree.leave(older);
        tree.leave(newer);
        assert_eq!(tree.idle_bytes(), bytes(3));
        assert!(Arc::ptr_eq(&tree.evict().unwrap(), &blocks[2]));
        assert_eq!(known(&mut tree, &[1, 3, 4]), 2, "and is now the most recently used");
        assert!(tree.evict().is_some());
        assert_eq!((known(&mut tree, &[1, 5]), known(&mut tree, &[1, 3])), (1, 2));
        assert!(tree.evict().is_some() && tree.evict().is_none());
        assert_eq!((known(&mut tree, &[1, 2]), tree.idle_bytes()), (2, 0));
        tree.leave(used);
        while tree.evict().is_some() {}
        assert!(tree.nodes.is_empty() && tree.roots.is_empty() && tree.idle_leaves.is_empty());
    }

    #[test]
    fn a_tail_serves_until_more_tokens_take_its_place() {
        let mut tree = tree();
        let (mut place, _) = insert(&mut tree, &[1]);
        let tail: Vec<u32> = (0..20).collect();
        let stored = [block(), block(), block()];
        tree.insert_tail(&place, &tail[..10], &stored[0]);
        tree.insert_tail(&place, &tail[..5], &stored[1]); // begins another one
        tree.insert_tail(&place, &[7], &stored[2]);
        let (found, count) = tree.best_part(&place, &[0, 1, 2, 9, 9]).unwrap();
        assert!(Arc::ptr_eq(&found, &stored[0]) && count == 3);
        assert!(tree.best_part(&place, &[8, 7]).is_none() && tree.best_part(&place, &[]).is_none());
        assert_eq!(tree.best_part(&place, &tail).unwrap().1, 10);
        let longer = block();
        tree.insert_tail(&place, &tail, &longer);
        assert!(Arc::ptr_eq(&tree.best_part(&place, &tail[..3]).unwrap().0, &longer));
        let whole: Vec<u32> = (0..BLOCK as u32).collect();
        assert!(tree.follow(&mut place, &tail).is_none(), "a tail is no whole block");
        assert!(tree.insert(&mut place, &whole, &block()).is_none());
        tree.leave(place);
        assert_eq!(tree.idle_bytes(), bytes(3), "the tails 0..10 and 0..20 went");
    }
}
