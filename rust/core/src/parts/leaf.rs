//! What a part of a model consists of: matrices, norms and numbers. As a [`Spec`] each says which rows of which stored tensors
//! it takes and how they are prepared; [`Packed`] it is what the forward pass reads.

use super::rows::TensorRows;
use ropechat_kernels::compute::weight::Weight;
use ropechat_platform::error::{Error, Result};
use std::sync::Arc;

/// The forms of a model's leaves.
pub trait Leaf: Clone + 'static {
    /// A matrix.
    type Matrix: Part<Self> + Clone;
    /// A norm.
    type Norm: Part<Self> + Clone;
    /// A vector or a table that is read as f32.
    type Numbers: Part<Self> + Clone;
    /// A table of integers.
    type Integers: Part<Self> + Clone;
}

/// Leaves say what they are loaded from.
#[derive(Clone)]
pub enum Spec {}

impl Leaf for Spec {
    type Matrix = MatrixSpec;
    type Norm = NormSpec;
    type Numbers = NumberSpec;
    type Integers = IntegerSpec;
}

/// Leaves are loaded.
#[derive(Clone)]
pub enum Packed {}

impl Leaf for Packed {
    type Matrix = Weight;
    type Norm = NormWeights;
    type Numbers = Vec<f32>;
    type Integers = Vec<u32>;
}

/// A matrix of the model.
#[derive(Debug, Clone)]
pub struct MatrixSpec {
    /// Its rows, in order.
    pub weights: Vec<TensorRows>,
    /// Their biases, one entry per entry of `weights`; empty when the matrix has no bias.
    pub biases: Vec<TensorRows>,
    /// Values per row.
    pub in_features: usize,
    /// How the entries become one weight.
    pub join: Join,
    /// The type that it is packed in.
    pub packing: Packing,
    /// Factor of the biases.
    pub bias_factor: f32,
}

/// How several tensors become one weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Join {
    /// One after the other.
    Stacked,
    /// Alternating rows of two: gate and up.
    Interleaved,
}

/// The type that a matrix is packed in.
#[derive(Debug, Clone)]
pub enum Packing {
    /// The type that the user asks for, else that of the tensors.
    AsAsked,
    /// The type of `AsAsked`, for a matrix that several layers share: it is packed once.
    Shared,
    /// F32: small differences decide which experts a token takes.
    Exact,
    /// A finer type than asked, for the embedding and lm_head.
    Finer,
    /// A finer type than asked, for the embedding of tokens, which may have another name in the file.
    TokenEmbedding,
    /// That of another matrix, which reads the same input.
    Like(Box<MatrixSpec>),
}

/// A norm of the model.
#[derive(Clone)]
pub struct NormSpec {
    /// The weight; empty when the model has none, which means ones.
    pub weight: Vec<TensorRows>,
    /// The bias; empty when the model has none.
    pub bias: Vec<TensorRows>,
    /// Length of the weight and of the bias.
    pub width: usize,
    /// Down and up projection of a gate of the normed row; empty when it has none.
    pub gate: Vec<TensorRows>,
    /// Whether the file holds the weight as it is, whatever it holds of other norms.
    pub is_plain: bool,
    /// What happens to the weight.
    pub prepare: Option<Prepare>,
}

/// A vector or a table that is read as f32.
#[derive(Clone, Default)]
pub struct NumberSpec {
    /// Rows of tensors, and values per row; empty when the model has none.
    pub rows: Vec<(TensorRows, usize)>,
    /// What happens to the values of all rows.
    pub prepare: Option<Prepare>,
}

/// A table of integers.
#[derive(Clone)]
pub struct IntegerSpec {
    /// The tensor.
    pub table: TensorRows,
    /// Its entries are less than this.
    pub below: usize,
}

/// From the stored numbers to those that the forward pass reads.
pub type Prepare = Arc<dyn Fn(Vec<f32>) -> Vec<f32> + Send + Sync>;

/// The parameters of a norm as they are applied: one is added back to weights that files store minus one, and a norm
/// without a weight tensor has ones.
#[derive(Clone)]
pub struct NormWeights {
    /// The weight.
    pub weight: Vec<f32>,
    /// The bias; zeros without one.
    pub bias: Vec<f32>,
    /// A gate of the normed row.
    pub gate: Option<Box<NormGate>>,
}

/// A gate of a normed row: y * sigmoid(up(silu(down(y)))) (axk2).
#[derive(Clone)]
pub struct NormGate {
    /// [rank, n]
    pub down: Vec<f32>,
    /// [n, rank]
    pub up: Vec<f32>,
}

impl MatrixSpec {
    /// Rows below each other, packed as asked.
    pub fn stacked(weights: Vec<TensorRows>, biases: Vec<TensorRows>, in_features: usize) -> Self {
        Self {
            weights,
            biases,
            in_features,
            join: Join::Stacked,
            packing: Packing::AsAsked,
            bias_factor: 1.0,
        }
    }

    /// A name built from the matrix's tensors and rows: no two matrices of a model have the same.
    pub fn name(&self) -> String {
        let source = |source: &TensorRows| {
            let of = source.transposed.as_deref().map_or_else(String::new, |rows| format!(" of {rows:?}"));
            format!("{} {:?} {:?}{of}", source.name, source.stored, source.rows)
        };
        let sources: Vec<String> = self.weights.iter().map(source).collect();
        format!("{:?} {}", self.join, sources.join(" + "))
    }

    /// This matrix with the rows of its tensors alternating.
    #[must_use]
    pub fn interleaved(self) -> Self {
        Self { join: Join::Interleaved, ..self }
    }

    /// This matrix, packed in another type.
    #[must_use]
    pub fn packed(self, packing: Packing) -> Self {
        Self { packing, ..self }
    }

    /// This matrix with its biases times `bias_factor`.
    #[must_use]
    pub fn with_bias_factor(self, bias_factor: f32) -> Self {
        Self { bias_factor, ..self }
    }
}

impl NormSpec {
    /// A norm of these tensors.
    pub fn new(weight: Vec<TensorRows>, bias: Vec<TensorRows>, width: usize) -> Self {
        Self { weight, bias, width, gate: Vec::new(), is_plain: false, prepare: None }
    }

    /// This norm with `change` applied to each value of its weight.
    #[must_use]
    pub fn prepared(self, change: impl Fn(f32) -> f32 + Send + Sync + 'static) -> Self {
        let prepare: Prepare = Arc::new(move |values| values.into_iter().map(&change).collect());
        Self { prepare: Some(prepare), ..self }
    }

    /// This norm with its weight times `factor`.
    #[must_use]
    pub fn times(self, factor: f32) -> Self {
        if factor == 1.0 { self } else { self.prepared(move |weight| weight * factor) }
    }
}

impl NumberSpec {
    /// Elements of vectors, one after the other.
    pub fn vectors(vectors: impl IntoIterator<Item = TensorRows>) -> Self {
        Self { rows: vectors.into_iter().map(|vector| (vector, 1)).collect(), prepare: None }
    }

    /// Rows of a tensor with `width` values each.
    pub fn table(rows: TensorRows, width: usize) -> Self {
        Self { rows: vec![(rows, width)], prepare: None }
    }

    /// These values, changed by `prepare` to the form that the forward pass reads.
    #[must_use]
    pub fn prepared(self, prepare: impl Fn(Vec<f32>) -> Vec<f32> + Send + Sync + 'static) -> Self {
        Self { prepare: Some(Arc::new(prepare)), ..self }
    }

    /// These values with `change` applied to each.
    #[must_use]
    pub fn each(self, change: impl Fn(f32) -> f32 + Send + Sync + 'static) -> Self {
        self.prepared(move |values| values.into_iter().map(&change).collect())
    }

    /// `count` times the same number, which no file stores.
    pub fn constant(value: f32, count: usize) -> Self {
        Self::vectors([TensorRows::zeros(count)]).prepared(move |zeros| zeros.iter().map(|_| value).collect())
    }
}

/// A leaf of a part.
pub enum LeafRef<'a, L: Leaf> {
    /// A matrix.
    Matrix(&'a L::Matrix),
    /// A norm.
    Norm(&'a L::Norm),
    /// A vector or a table.
    Numbers(&'a L::Numbers),
    /// A table of integers.
    Integers(&'a L::Integers),
}

impl<'a> LeafRef<'a, Spec> {
    /// Calls `each` with the tensors that a leaf takes rows of.
    pub fn tensors(self, mut each: impl FnMut(&'a TensorRows)) {
        let mut all =
            |rows: &'a [TensorRows]| rows.iter().filter(|rows| !rows.is_zeros()).for_each(&mut each);
        match self {
            LeafRef::Matrix(matrix) => {
                [&matrix.weights, &matrix.biases].into_iter().for_each(|rows| all(rows))
            }
            LeafRef::Norm(norm) => {
                [&norm.weight, &norm.bias, &norm.gate].into_iter().for_each(|rows| all(rows));
            }
            LeafRef::Numbers(numbers) => {
                numbers.rows.iter().for_each(|(rows, _)| all(std::slice::from_ref(rows)));
            }
            LeafRef::Integers(integers) => all(std::slice::from_ref(&integers.table)),
        }
    }
}

/// What consists of leaves.
pub trait Part<L: Leaf> {
    /// Calls `each` with every leaf.
    fn visit<'a>(&'a self, each: &mut dyn FnMut(LeafRef<'a, L>));
}

/// Who loads leaves.
pub trait Loader {
    /// Errors: a tensor is missing or misshapen; memory.
    fn matrix(&self, spec: &MatrixSpec) -> Result<Weight>;
    /// Errors: as for a matrix.
    fn norm(&self, spec: &NormSpec) -> Result<NormWeights>;
    /// Errors: as for a matrix.
    fn numbers(&self, spec: &NumberSpec) -> Result<Vec<f32>>;
    /// Errors: as for a matrix; an entry is no valid index.
    fn integers(&self, spec: &IntegerSpec) -> Result<Vec<u32>>;
}

/// A part of specs.
pub trait Load {
    /// The type of this part with its weights loaded.
    type Loaded;

    /// Loads every leaf.
    ///
    /// # Errors
    /// Those of `loader`.
    fn load(&self, loader: &dyn Loader) -> Result<Self::Loaded>;
}

macro_rules! leaf {
    ($spec:ty, $loaded:ty, $method:ident, $variant:ident) => {
        impl Part<Spec> for $spec {
            fn visit<'a>(&'a self, each: &mut dyn FnMut(LeafRef<'a, Spec>)) {
                each(LeafRef::$variant(self));
            }
        }

        impl Load for $spec {
            type Loaded = $loaded;

            fn load(&self, loader: &dyn Loader) -> Result<$loaded> {
                loader.$method(self)
            }
        }
    };
}
leaf!(MatrixSpec, Weight, matrix, Matrix);
leaf!(NormSpec, NormWeights, norm, Norm);
leaf!(NumberSpec, Vec<f32>, numbers, Numbers);
leaf!(IntegerSpec, Vec<u32>, integers, Integers);

impl Part<Packed> for Weight {
    fn visit<'a>(&'a self, each: &mut dyn FnMut(LeafRef<'a, Packed>)) {
        each(LeafRef::Matrix(self));
    }
}

macro_rules! no_matrix {
    ($($leaf:ty),+) => { $(
        impl Part<Packed> for $leaf {
            fn visit<'a>(&'a self, _: &mut dyn FnMut(LeafRef<'a, Packed>)) {}
        }
    )+ };
}
no_matrix!(NormWeights, f32, u32);

macro_rules! lists {
    ($($list:ty, [$($parameter:tt)*];)+) => { $(
        impl<L: Leaf, T: Part<L>, $($parameter)*> Part<L> for $list {
            fn visit<'a>(&'a self, each: &mut dyn FnMut(LeafRef<'a, L>)) {
                self.iter().for_each(|part| part.visit(each));
            }
        }
    )+ };
}
lists! {
    Option<T>, [];
    Vec<T>, [];
    [T; N], [const N: usize];
}

impl<L: Leaf, T: Part<L>> Part<L> for Box<T> {
    fn visit<'a>(&'a self, each: &mut dyn FnMut(LeafRef<'a, L>)) {
        (**self).visit(each);
    }
}

impl<L: Leaf, A: Part<L>, B: Part<L>> Part<L> for (A, B) {
    fn visit<'a>(&'a self, each: &mut dyn FnMut(LeafRef<'a, L>)) {
        self.0.visit(each);
        self.1.visit(each);
    }
}

impl<T: Load> Load for Option<T> {
    type Loaded = Option<T::Loaded>;

    fn load(&self, loader: &dyn Loader) -> Result<Self::Loaded> {
        self.as_ref().map(|part| part.load(loader)).transpose()
    }
}

impl<T: Load> Load for Vec<T> {
    type Loaded = Vec<T::Loaded>;

    fn load(&self, loader: &dyn Loader) -> Result<Self::Loaded> {
        self.iter().map(|part| part.load(loader)).collect()
    }
}

impl<T: Load, const N: usize> Load for [T; N] {
    type Loaded = [T::Loaded; N];

    fn load(&self, loader: &dyn Loader) -> Result<Self::Loaded> {
        let all = self.iter().map(|part| part.load(loader)).collect::<Result<Vec<_>>>()?;
        all.try_into().map_err(|_| Error::Internal("an array of parts".to_owned()))
    }
}

impl<T: Load> Load for Box<T> {
    type Loaded = Box<T::Loaded>;

    fn load(&self, loader: &dyn Loader) -> Result<Self::Loaded> {
        Ok(Box::new((**self).load(loader)?))
    }
}

impl<A: Load, B: Load> Load for (A, B) {
    type Loaded = (A::Loaded, B::Loaded);

    fn load(&self, loader: &dyn Loader) -> Result<Self::Loaded> {
        Ok((self.0.load(loader)?, self.1.load(loader)?))
    }
}

/// The part of a mechanism that has none.
#[derive(Clone)]
pub enum NoPart<L: Leaf = Packed> {
    /// Never made.
    #[doc(hidden)]
    Never(std::convert::Infallible, std::marker::PhantomData<L>),
}

impl<L: Leaf> Part<L> for NoPart<L> {
    fn visit<'a>(&'a self, _: &mut dyn FnMut(LeafRef<'a, L>)) {}
}

impl Load for NoPart<Spec> {
    type Loaded = NoPart;

    fn load(&self, _: &dyn Loader) -> Result<NoPart> {
        let NoPart::Never(never, _) = self;
        match *never {}
    }
}

/// Declares parts once, generic over the form of their leaves `L`: structs and enums with a visit of all leaves, and with
/// loading as a map over them.
///
/// Fields of structs behind `;` are facts without leaves.
macro_rules! parts {
    () => {};
    (
        $(#[$meta:meta])*
        pub struct $name:ident {
            $( $(#[$of_part:meta])* pub $part:ident: $part_type:ty, )*
            $( ; $( $(#[$of_fact:meta])* pub $fact:ident: $fact_type:ty, )+ )?
        }
        $($rest:tt)*
    ) => {
        $(#[$meta])*
        #[derive(Clone)]
        pub struct $name<L: $crate::parts::Leaf = $crate::parts::Packed> {
            $( $(#[$of_part])* pub $part: $part_type, )*
            $( $( $(#[$of_fact])* pub $fact: $fact_type, )+ )?
        }

        impl<L: $crate::parts::Leaf> $crate::parts::Part<L> for $name<L> {
            fn visit<'a>(&'a self, each: &mut dyn FnMut($crate::parts::LeafRef<'a, L>)) {
                $( $crate::parts::Part::<L>::visit(&self.$part, each); )*
            }
        }

        impl $crate::parts::Load for $name<$crate::parts::Spec> {
            type Loaded = $name;

            fn load(&self, loader: &dyn $crate::parts::Loader) -> $crate::Result<$name> {
                Ok($name {
                    $( $part: $crate::parts::Load::load(&self.$part, loader)?, )*
                    $( $( $fact: self.$fact.clone(), )+ )?
                })
            }
        }

        $crate::parts::parts! { $($rest)* }
    };
    (
        $(#[$meta:meta])*
        pub enum $name:ident {
            $( $(#[$of_variant:meta])* $variant:ident($type:ty), )+
        }
        $($rest:tt)*
    ) => {
        $(#[$meta])*
        #[derive(Clone)]
        pub enum $name<L: $crate::parts::Leaf = $crate::parts::Packed> {
            $( $(#[$of_variant])* $variant($type), )+
        }

        impl<L: $crate::parts::Leaf> $crate::parts::Part<L> for $name<L> {
            fn visit<'a>(&'a self, each: &mut dyn FnMut($crate::parts::LeafRef<'a, L>)) {
                match self {
                    $( $name::$variant(part) => $crate::parts::Part::<L>::visit(part, each), )+
                }
            }
        }

        impl $crate::parts::Load for $name<$crate::parts::Spec> {
            type Loaded = $name;

            fn load(&self, loader: &dyn $crate::parts::Loader) -> $crate::Result<$name> {
                Ok(match self {
                    $( $name::$variant(part) => $name::$variant($crate::parts::Load::load(part, loader)?), )+
                })
            }
        }

        $crate::parts::parts! { $($rest)* }
    };
}
pub(crate) use parts;
