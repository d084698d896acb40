//! Mechanisms that one or a few families have, each in a folder with all that it needs; the rest of the engine knows them by
//! the lists below only. A file of a folder belongs to the room that it is named after:
//!
//! - `config.rs`: the facts, and the names of tensors;
//! - `parts.rs`: what a layer has of it, and what is outside the layers (all recurrent mixers have the same);
//! - `family.rs`: the specs of these parts;
//! - `forward.rs`: its steps in a forward pass.

pub mod alt_up;
pub mod branch_convolution;
pub mod compression;
pub mod cycles;
pub mod dynamic_mask;
pub mod head_experts;
pub mod hyper;
pub mod indexer;
pub mod lightning;
pub mod ngram;
pub mod qk_convolution;
pub mod rg_lru;
pub mod selective_scan;
pub mod shared_block;
pub mod short_conv;

/// Calls a macro with all mechanisms, each as `folder: type of its facts`, in the order of their steps.
macro_rules! mechanisms {
    ($with:ident) => {
        $with! {
            alt_up: AltUp,
            cycles: Cycles,
            ngram: NgramEmbedding,
            hyper: HyperConnections,
            shared_block: SharedBlock,
            head_experts: HeadExperts,
            qk_convolution: QkConvolution,
            branch_convolution: BranchConvolutions,
            dynamic_mask: DynamicMask,
            indexer: Indexer,
            compression: CompressedAttention,
        }
    };
}
pub(crate) use mechanisms;

/// Calls the macro with the recurrent mixers of one family or two; linear attention is in the rooms themselves.
macro_rules! mixers {
    ($with:ident) => {
        $with! {
            lightning: Lightning,
            rg_lru: RgLru,
            selective_scan: SelectiveScan,
            short_conv: ShortConv,
        }
    };
}
pub(crate) use mixers;
