//! The names of a model's tensors on the hub, below the layer's path, and how fused tensors are laid out.

/// A weight and its bias.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tensor {
    /// Path of the weight.
    pub weight: &'static str,
    /// Path of the bias.
    pub bias: &'static str,
}

/// `<path>.weight` and `<path>.bias`.
macro_rules! tensor {
    ($path:literal) => {
        $crate::config::Tensor { weight: concat!($path, ".weight"), bias: concat!($path, ".bias") }
    };
}
pub(crate) use tensor;

/// How a matrix is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stored {
    /// [out, in], as PyTorch's Linear.
    OutIn,
    /// [in, out], as gpt2's Conv1D.
    InOut,
}

/// Where queries, keys and values are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Qkv {
    /// A matrix each.
    Separate([Tensor; 3]),
    /// A matrix each; that of the queries holds per head its query, then the gate of its output (qwen3_next, qwen3_5).
    GatedQueries([Tensor; 3]),
    /// A matrix each; of the values' two, the second is of the position before (zaya).
    Delayed([Tensor; 4]),
    /// One matrix: all queries, all keys, all values (phi3, gpt2).
    Stacked(Tensor),
    /// One matrix: the gate of attention's output, all queries, all keys, all values (hrm_text).
    GateStacked(Tensor),
    /// One matrix: per key/value head its queries, its key, its value (gpt_neox, falcon).
    Grouped(Tensor),
    /// One matrix for four devices: of each its queries, its values, its keys (codegen).
    OfFourDevices(Tensor),
}

/// In which order the rows of a head are stored in q and k.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadRows {
    /// In the order that the family rotates.
    InOrder,
    /// The two rows of a pair are adjacent, which the family has half a head apart (llama.cpp's converter moves them).
    Paired,
    /// The halves of a head change places, because the family rotates the other way (nanochat).
    HalvesSwapped,
}

/// Where the MLP's first projections, gate_proj and up_proj, are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GateUp {
    /// `gate` (of a gated MLP) and `up`.
    Separate {
        /// The gate's.
        gate: Tensor,
        /// The other factor's, or a plain MLP's only one.
        up: Tensor,
    },
    /// One matrix: gate, then up (phi3, glm).
    Stacked(Tensor),
}

/// Where the tensors of latent attention are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MlaNames {
    /// Queries, where they have no latent.
    pub q_proj: Tensor,
    /// The latent of queries.
    pub q_a_proj: Tensor,
    /// The norm of that latent.
    pub q_a_layernorm: Tensor,
    /// Queries from their latent.
    pub q_b_proj: Tensor,
    /// The latent of keys and values, then the rotated part of the keys.
    pub kv_a_proj: Tensor,
    /// The norm of that latent.
    pub kv_a_layernorm: Tensor,
    /// The norm of the rotated part of the keys.
    pub k_rope_norm: Tensor,
    /// Keys and values from their latent.
    pub kv_b_proj: KvB,
}

/// Where the projection from the latent to keys and values is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvB {
    /// One matrix: per head its keys, its values.
    Together(Tensor),
    /// Keys [head, kv_lora_rank, qk_nope_head_dim] and values [head, v_head_dim, kv_lora_rank] (newer GGUF files).
    Apart {
        /// The keys'.
        keys: Tensor,
        /// The values'.
        values: Tensor,
    },
}

/// Where the tensors of a mixture of experts are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MoeNames {
    /// `<experts>.<number>.<gate, up, down>`.
    Each {
        /// The router.
        router: Tensor,
        /// The list of experts.
        experts: &'static str,
        /// gate, up and down of one expert.
        parts: [&'static str; 3],
        /// The expert that every token passes.
        shared: &'static str,
        /// gate, up and down of that one.
        shared_parts: [&'static str; 3],
    },
    /// All experts in one tensor [expert, in, out], whose columns alternate between gate and up (gpt_oss).
    Interleaved {
        /// The router.
        router: Tensor,
        /// Columns gate 0, up 0, gate 1 ...
        gate_up: Tensor,
        /// The second projection.
        down: Tensor,
    },
    /// All experts in one tensor, whose rows are those of gate, then those of up (mistral4, granitemoe, llama4).
    Fused {
        /// The router.
        router: Tensor,
        /// [expert, gate and up, in], or [expert, in, gate and up] if `stored` says so.
        gate_up: Tensor,
        /// The second projection.
        down: Tensor,
        /// How the experts' matrices are stored.
        stored: Stored,
        /// The expert that every token passes.
        shared: Shared,
    },
    /// All experts' gates below each other [expert * out, in], so their ups, and their downs [expert * in, out] (dbrx).
    Flat {
        /// The router.
        router: Tensor,
        /// gate, up and down of all experts.
        parts: [&'static str; 3],
    },
    /// All experts in two tensors [expert, out, in], or in three where gate and up are apart (GGUF).
    Merged {
        /// The router.
        router: Tensor,
        /// The first projections.
        gate_up: GateUp,
        /// The second projection.
        down: Tensor,
        /// The expert that every token passes.
        shared: Shared,
        /// Its gate, a vector.
        shared_gate: Tensor,
    },
}

impl MoeNames {
    /// gate, up and down of an expert, as most files name them.
    pub const PARTS: [&'static str; 3] = ["gate_proj.weight", "up_proj.weight", "down_proj.weight"];

    /// The same experts if one tensor has all of them, as transformers 5 does in memory and some files do.
    pub fn fused(self) -> Option<MoeNames> {
        let MoeNames::Each { router, experts: "mlp.experts", shared, .. } = self else { return None };
        let shared = match shared {
            "mlp.shared_experts" => Shared {
                gate_up: GateUp::Separate {
                    gate: tensor!("mlp.shared_experts.gate_proj"),
                    up: tensor!("mlp.shared_experts.up_proj"),
                },
                down: tensor!("mlp.shared_experts.down_proj"),
            },
            _ => Shared {
                gate_up: GateUp::Separate {
                    gate: tensor!("mlp.shared_expert.gate_proj"),
                    up: tensor!("mlp.shared_expert.up_proj"),
                },
                down: tensor!("mlp.shared_expert.down_proj"),
            },
        };
        Some(MoeNames::Fused {
            router,
            gate_up: Tensor { weight: "mlp.experts.gate_up_proj", bias: "" },
            down: Tensor { weight: "mlp.experts.down_proj", bias: "" },
            stored: Stored::OutIn,
            shared,
        })
    }
}

/// Where the tensors of a recurrent mixer are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecurrentNames {
    /// What the normed row is projected to.
    pub in_proj: InProj,
    /// The depthwise convolution, in one tensor or in one each for q, k and v: [channels, 1, positions].
    pub conv: &'static [Tensor],
    /// The channels of three tensors where they are not those of q, k and v (transformers writes three equal parts).
    pub conv_split: Option<[usize; 3]>,
    /// Logarithm of the decay rate per head.
    pub a_log: &'static str,
    /// Bias of the step.
    pub dt_bias: &'static str,
    /// Factor per head of the value that is added to the output (mamba-2).
    pub d: &'static str,
    /// Norm of the output.
    pub norm: Tensor,
    /// The output's projection.
    pub out_proj: Tensor,
    /// Outer and inner dimensions of `a_log` around its values (kimi_linear: all of length 1).
    pub a_log_shape: [&'static [usize]; 2],
    /// Matrices between both projections: z and f from their latents (kimi_linear), what is selected by and the steps
    /// (mamba), the gates of the decay and of the input (recurrent_gemma).
    pub inner: &'static [Tensor],
    /// Norms of what is selected by: dt, B, C (jamba).
    pub inner_norms: &'static [Tensor],
    /// Which form the decay rates and the norm have.
    pub form: RecurrentForm,
}

/// Which form the decay rates and the norm of a recurrent mixer have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecurrentForm {
    /// The rates by their logarithm, A_log; the norm as a vector.
    Hub,
    /// The rates themselves, -exp(A_log); a norm of groups as a matrix [groups, values of a group].
    Gguf,
}

/// Where the input projections of a recurrent mixer are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InProj {
    /// One matrix: B, C, x of a short convolution (lfm2); z, x, B, C, dt (mamba-2); x, z (mamba).
    One(Tensor),
    /// The branch with a state, and the other one (recurrent_gemma).
    Branches([Tensor; 2]),
    /// q, k, v in one; z, b and a in one each (qwen3_5).
    Qkv([Tensor; 4]),
    /// q, k, v, z in one and b, a in another, by key head (qwen3_next).
    ByKeyHead([Tensor; 2]),
    /// q, k, v in one; z in another; b, a in a third, by key head (GGUF files of qwen3_next).
    QkvAndByKeyHead([Tensor; 3]),
    /// q, k, v, z, b and a in one each (olmo_hybrid); f, or its latent, in place of a (kimi_linear).
    Each([Tensor; 6]),
}

/// Where the expert that every token passes is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shared {
    /// The first projections.
    pub gate_up: GateUp,
    /// The second projection.
    pub down: Tensor,
}

/// Where the tensors of a second embedding are that each layer has a part of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PerLayerNames {
    /// The embedding.  // [vocab_size_per_layer_input, layers * width]
    pub embed_tokens: &'static str,
    /// From the first embedding to the same width.
    pub model_projection: Tensor,
    /// Norm of that projection, of each layer's part separately.
    pub projection_norm: Tensor,
    /// In a layer: from the stream to the gate.
    pub gate: Tensor,
    /// In a layer: back to the stream.
    pub projection: Tensor,
    /// In a layer: norm of what is added.
    pub out_norm: Tensor,
}

/// What a model's tensors are called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Names {
    /// Possible prefixes of every path except `lm_head`; the first is the usual one.
    pub bases: &'static [&'static str],
    /// The prefix in this checkpoint.
    pub base: &'static str,
    /// Token embedding.
    pub embed_tokens: &'static str,
    /// How it is stored: [vocab_size, hidden_size] is `OutIn`.
    pub embedding_stored: Stored,
    /// Learned positions.
    pub position_embedding: &'static str,
    /// Norm of the embedding.
    pub embedding_norm: Tensor,
    /// A second embedding.
    pub per_layer: PerLayerNames,
    /// A learned factor of a layer's output.
    pub layer_scalar: &'static str,
    /// The list of layers; `.<number>.` follows.
    pub layers: &'static str,
    /// The number of the first layer.
    pub first_layer: usize,
    /// Layers below one number (longcat_flash: 2); `{part}` in a name is the place among them.
    pub layers_per_number: usize,
    /// How the layers' matrices are stored.
    pub stored: Stored,
    /// The norm after the last layer.
    pub norm: Tensor,
    /// The projection to logits, without a base.
    pub lm_head: Tensor,
    /// Down and up projection of a norm's gate, below the norm's path; its weight is then `norm.weight` there.
    pub norm_gate: [&'static str; 2],
    /// Norm before attention.
    pub attention_norm: Tensor,
    /// Norm after attention.
    pub attention_out_norm: Tensor,
    /// Norm before the MLP.
    pub mlp_norm: Tensor,
    /// Norm after the MLP.
    pub mlp_out_norm: Tensor,
    /// Queries, keys and values.
    pub qkv: Qkv,
    /// The order of a head's rows in q and k.
    pub head_rows: HeadRows,
    /// Norm of queries.
    pub q_norm: Tensor,
    /// Norm of keys.
    pub k_norm: Tensor,
    /// Attention sinks.
    pub sinks: &'static str,
    /// The gate of attention's output.
    pub attention_gate: Tensor,
    /// Its biases, one per head.
    pub gate_bias: &'static str,
    /// Norm of o_proj's input.
    pub attention_sub_norm: Tensor,
    /// Norm of down_proj's input.
    pub mlp_sub_norm: Tensor,
    /// The tensors of latent attention.
    pub mla: MlaNames,
    /// The tensors of recurrent mixers.
    pub recurrent: RecurrentNames,
    /// Attention's output.
    pub o_proj: Tensor,
    /// The MLP's first projections.
    pub gate_up_proj: GateUp,
    /// The MLP's second projection.
    pub down_proj: Tensor,
    /// The tensors of a mixture of experts.
    pub moe: MoeNames,
    /// To the latent of its experts and back.
    pub moe_latent: [Tensor; 2],
    /// `e_score_correction_bias` of its router.
    pub correction_bias: &'static str,
    /// The experts of each token, where a table says which: [vocab_size, experts per token], integers.
    pub tid2eid: &'static str,
    /// Outer dimensions of `correction_bias` (ernie4_5_moe: one of length 1).
    pub correction_bias_shape: &'static [usize],
    /// With a dense MLP: norms after that, before the mixture and after it.
    pub moe_norms: [Tensor; 3],
    /// Of a router with its own norm: that norm's weight, and a factor of each expert.
    pub router_scales: [&'static str; 2],
}

impl Names {
    /// Llama's names, which most families use.
    pub const LLAMA: Names = Names {
        bases: &["model."],
        base: "model.",
        embed_tokens: "embed_tokens.weight",
        embedding_stored: Stored::OutIn,
        position_embedding: "",
        embedding_norm: tensor!("norm"),
        per_layer: PerLayerNames {
            embed_tokens: "embed_tokens_per_layer.weight",
            model_projection: tensor!("per_layer_model_projection"),
            projection_norm: tensor!("per_layer_projection_norm"),
            gate: tensor!("per_layer_input_gate"),
            projection: tensor!("per_layer_projection"),
            out_norm: tensor!("post_per_layer_input_norm"),
        },
        layer_scalar: "layer_scalar",
        layers: "layers",
        first_layer: 0,
        layers_per_number: 1,
        stored: Stored::OutIn,
        norm: tensor!("norm"),
        lm_head: tensor!("lm_head"),
        norm_gate: ["W_down.weight", "W_up.weight"],
        attention_norm: tensor!("input_layernorm"),
        attention_out_norm: tensor!("post_attention_layernorm"),
        mlp_norm: tensor!("post_attention_layernorm"),
        mlp_out_norm: tensor!("post_feedforward_layernorm"),
        qkv: Qkv::Separate([
            tensor!("self_attn.q_proj"),
            tensor!("self_attn.k_proj"),
            tensor!("self_attn.v_proj"),
        ]),
        head_rows: HeadRows::InOrder,
        q_norm: tensor!("self_attn.q_norm"),
        k_norm: tensor!("self_attn.k_norm"),
        sinks: "self_attn.sinks",
        attention_gate: tensor!("self_attn.gate_proj"),
        gate_bias: "self_attn.gate_bias",
        attention_sub_norm: tensor!("self_attn.attn_sub_norm"),
        mlp_sub_norm: tensor!("mlp.ffn_sub_norm"),
        mla: MlaNames {
            q_proj: tensor!("self_attn.q_proj"),
            q_a_proj: tensor!("self_attn.q_a_proj"),
            q_a_layernorm: tensor!("self_attn.q_a_layernorm"),
            q_b_proj: tensor!("self_attn.q_b_proj"),
            kv_a_proj: tensor!("self_attn.kv_a_proj_with_mqa"),
            kv_a_layernorm: tensor!("self_attn.kv_a_layernorm"),
            k_rope_norm: tensor!("self_attn.k_rope_only_layernorm"),
            kv_b_proj: KvB::Together(tensor!("self_attn.kv_b_proj")),
        },
        recurrent: RecurrentNames {
            in_proj: InProj::Qkv([
                tensor!("linear_attn.in_proj_qkv"),
                tensor!("linear_attn.in_proj_z"),
                tensor!("linear_attn.in_proj_b"),
                tensor!("linear_attn.in_proj_a"),
            ]),
            conv: &[tensor!("linear_attn.conv1d")],
            conv_split: None,
            a_log: "linear_attn.A_log",
            dt_bias: "linear_attn.dt_bias",
            d: "",
            norm: tensor!("linear_attn.norm"),
            out_proj: tensor!("linear_attn.out_proj"),
            a_log_shape: [&[], &[]],
            inner: &[],
            inner_norms: &[],
            form: RecurrentForm::Hub,
        },
        o_proj: tensor!("self_attn.o_proj"),
        gate_up_proj: GateUp::Separate { gate: tensor!("mlp.gate_proj"), up: tensor!("mlp.up_proj") },
        down_proj: tensor!("mlp.down_proj"),
        moe: MoeNames::Each {
            router: tensor!("mlp.gate"),
            experts: "mlp.experts",
            parts: ["gate_proj.weight", "up_proj.weight", "down_proj.weight"],
            shared: "mlp.shared_expert",
            shared_parts: MoeNames::PARTS,
        },
        moe_latent: [tensor!("mixer.fc1_latent_proj"), tensor!("mixer.fc2_latent_proj")],
        correction_bias: "mlp.gate.e_score_correction_bias",
        tid2eid: "mlp.gate.tid2eid",
        correction_bias_shape: &[],
        moe_norms: [
            tensor!("post_feedforward_layernorm_1"),
            tensor!("pre_feedforward_layernorm_2"),
            tensor!("post_feedforward_layernorm_2"),
        ],
        router_scales: ["router.scale", "router.per_expert_scale"],
    };

    /// The single first projection of a plain MLP.
    pub const fn plain_up(up: Tensor) -> GateUp {
        GateUp::Separate { gate: up, up }
    }

    /// Path of the token embedding.
    pub fn embedding(&self) -> String {
        format!("{}{}", self.base, self.embed_tokens)
    }
}
