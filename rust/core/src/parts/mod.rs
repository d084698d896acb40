//! The parts of a model, each declared once: as a spec it is built by `family`, checked and measured; loaded it is what the
//! forward pass reads.

mod attention;
mod layer;
mod leaf;
mod mechanisms;
mod mlp;
mod recurrent;
mod rows;

pub use attention::{AttentionLayer, MlaWeights, Projection, RelativeScoreWeights, ResidualScales};
pub use layer::{HiddenInput, Layer, MtpLayer, OutsideLayers, PerLayerEmbedding, PerLayerInput};
pub(crate) use leaf::parts;
pub use leaf::{
    IntegerSpec, Join, Leaf, LeafRef, Load, Loader, MatrixSpec, NoPart, NormGate, NormSpec, NormWeights,
    NumberSpec, Packed, Packing, Part, Prepare, Spec,
};
pub use mechanisms::{LayerMechanisms, OutsideMechanisms};
pub use mlp::{DenseAndMoe, DenseMlp, Mlp, MoeMlp, RouterMlpWeights};
pub use recurrent::RecurrentWeights;
pub use rows::{Rows, TensorRows};
