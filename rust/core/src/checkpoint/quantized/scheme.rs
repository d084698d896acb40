//! What a checkpoint says of its quantized matrices, in the words of `quantization_config`.

/// How a checkpoint stores the matrices that are not plain numbers. The tensors in the file decide which ones are
/// quantized, not the lists of skipped modules.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Scheme {
    /// All tensors are numbers, or blocks of GGUF.
    #[default]
    Plain,
    /// Floats of a byte with a scale per tensor, per row, or per block of [rows, columns].
    Fp8 {
        /// `weight_block_size`.
        block: Option<[usize; 2]>,
    },
    /// compressed-tensors: the weights of each of its `config_groups`.
    CompressedTensors(Vec<WeightScheme>),
    /// GPTQ: integers with a scale and a zero point per group of inputs.
    Gptq {
        /// Bits of an integer.
        bits: usize,
        /// Inputs that share a scale; None: all of them.
        group_size: Option<usize>,
        /// What `qzeros` holds.
        zero_points: ZeroPoints,
    },
    /// AWQ (layout gemm): as GPTQ, with eight outputs in a word.
    Awq {
        /// Inputs that share a scale; None: all of them.
        group_size: Option<usize>,
    },
    /// Experts in MXFP4, as gpt-oss has them.
    Mxfp4,
    /// bitsandbytes: NF4 and FP4, or bytes (LLM.int8).
    BitsAndBytes,
    /// BitNet b1.58: -1, 0 and 1 times a scale per matrix; the model rounds the inputs of these matrices to bytes.
    BitNet {
        /// How the matrices are stored.
        form: TernaryForm,
        /// Beginnings and ends of the names of modules that are plain numbers.
        skipped: Vec<String>,
    },
}

/// How ternary matrices are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TernaryForm {
    /// `linear_class` bitlinear: packed, and divided by `weight_scale`.
    Divided,
    /// `linear_class` autobitlinear: packed, and multiplied by `weight_scale`.
    Multiplied,
    /// `quantization_mode` online: floats, which the model rounds.
    Floats,
}

/// What the zero points of a GPTQ file are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ZeroPoints {
    /// `checkpoint_format` gptq: one less than the zero point.
    MinusOne,
    /// `checkpoint_format` gptq_v2: the zero point.
    AsIs,
}

/// The weights of a `config_groups` entry of compressed-tensors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WeightScheme {
    /// What a value is.
    pub number: Number,
    /// Whether there are no zero points.
    pub symmetric: bool,
    /// What shares a scale.
    pub strategy: Strategy,
}

/// `type` and `num_bits`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Number {
    /// Integers of so many bits.
    Int(usize),
    /// E4M3.
    Float8,
}

/// `strategy`: what shares a scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strategy {
    /// The whole matrix.
    Tensor,
    /// A row.
    Channel,
    /// So many values of a row.
    Group(usize),
    /// A block of [rows, columns].
    Block([usize; 2]),
}

impl Scheme {
    /// For people: `gptq, 4 bits, groups of 128`. Empty for plain numbers.
    pub fn words(&self) -> String {
        let groups = |size: &Option<usize>| match size {
            Some(size) => format!("groups of {size}"),
            None => "one group per output".to_owned(),
        };
        match self {
            Scheme::Plain => String::new(),
            Scheme::Fp8 { block: Some([rows, columns]) } => format!("fp8, blocks of {rows} x {columns}"),
            Scheme::Fp8 { block: None } => "fp8".to_owned(),
            Scheme::CompressedTensors(weights) => {
                let all: Vec<String> = weights.iter().map(WeightScheme::words).collect();
                format!("compressed-tensors, {}", all.join("; "))
            }
            Scheme::Gptq { bits, group_size, zero_points } => {
                let version = if *zero_points == ZeroPoints::AsIs { "gptq_v2" } else { "gptq" };
                format!("{version}, {bits} bits, {}", groups(group_size))
            }
            Scheme::Awq { group_size } => format!("awq, 4 bits, {}", groups(group_size)),
            Scheme::Mxfp4 => "mxfp4".to_owned(),
            Scheme::BitsAndBytes => "bitsandbytes".to_owned(),
            Scheme::BitNet { form: TernaryForm::Divided, .. } => "bitnet, bitlinear".to_owned(),
            Scheme::BitNet { form: TernaryForm::Multiplied, .. } => "bitnet, autobitlinear".to_owned(),
            Scheme::BitNet { form: TernaryForm::Floats, .. } => "bitnet, autobitlinear, online".to_owned(),
        }
    }
}

impl WeightScheme {
    fn words(&self) -> String {
        let number = match self.number {
            Number::Int(bits) => format!("{bits} bits"),
            Number::Float8 => "fp8".to_owned(),
        };
        let sharing = match self.strategy {
            Strategy::Tensor => "one scale per tensor".to_owned(),
            Strategy::Channel => "one scale per output".to_owned(),
            Strategy::Group(size) => format!("groups of {size}"),
            Strategy::Block([rows, columns]) => format!("blocks of {rows} x {columns}"),
        };
        let zero_points = if self.symmetric { "" } else { ", with zero points" };
        format!("{number}, {sharing}{zero_points}")
    }
}
