//! The parts of a model, each declared once: as a spec it is built by `family`, checked and measured; loaded it is what the
//! forward pass reads.

mod attention;
mod layer;
mod leaf;
mod mlp;
mod recurrent;
mod rows;

pub use attention::{
    AttentionLayer, CompressionWeights, DynamicMaskWeights, HeadExpertsWeights, IndexerWeights, MlaWeights,
    Projection, QkConvolutionWeights, RelativeScoreWeights, SharedKvWeights,
};
pub use layer::{
    AltUpLayer, HiddenInput, HyperWeights, Layer, LowRankHyper, MtpLayer, NgramWeights, OutsideLayers,
    PerLayerEmbedding, PerLayerInput, ResidualScales, SigmoidHyper,
};
pub(crate) use leaf::parts;
pub use leaf::{
    IntegerSpec, Join, Leaf, LeafRef, Load, Loader, MatrixSpec, NormGate, NormSpec, NormWeights, NumberSpec,
    Packed, Packing, Part, Prepare, Spec,
};
pub use mlp::{Adapter, DenseAndMoe, DenseMlp, Mlp, MoeMlp, RouterMlpWeights, SharedBlockWeights};
pub use recurrent::{RecurrentWeights, ShortConvolution};
pub use rows::{Rows, TensorRows};
