//! The tensors of multi-head latent attention (MLA), as DeepSeek names them.

use super::mechanisms;
use super::prefix::Prefix;
use crate::config::{Attention, Bias, KvB, QueryLatent, Stored, Tensor};
use crate::parts::{MatrixSpec, MlaWeights, NormSpec, Projection, Rows, Spec, TensorRows};

impl Prefix<'_> {
    /// The projections and norms of latent attention.
    ///
    /// In the file the rotated part of a query and of a key is the last one; here it is the first, as for all models.
    /// Both are reordered in the same way, so the scores stay the same.
    pub fn mla(&self, attention: Attention) -> Projection<Spec> {
        let config = self.config;
        let Attention::Mla {
            q_lora_rank,
            kv_lora_rank,
            qk_rope_head_dim: rope,
            q_latent,
            k_rope_norm,
            latent_factors: [q_factor, kv_factor],
            ..
        } = attention
        else {
            return Projection::Heads(self.matrix(&[], config.hidden_size, Bias::None));
        };
        let (heads, dim, hidden) = (self.heads.num_attention_heads, self.heads.head_dim, config.hidden_size);
        let (nope, names) = (dim - rope, &config.names.mla);
        let queries = [Rows::each(heads, dim, nope, dim)];
        let kv_a = self.matrix(&[(names.kv_a_proj, kv_lora_rank + rope)], hidden, config.attention_bias);
        let norm = |name, width| NormSpec { bias: Vec::new(), ..self.norm(name, width) };
        let (q_or_q_a, q_b) = match q_lora_rank {
            // Queries straight from the row have no bias.
            None => (self.rows_of(names.q_proj, heads * dim, &queries, hidden, Bias::None), None),
            Some(rank) => {
                let q_a = self.matrix(&[(names.q_a_proj, rank)], hidden, config.attention_bias);
                let q_b = match q_latent {
                    QueryLatent::Normed => {
                        self.rows_of(names.q_b_proj, heads * dim, &queries, rank, Bias::None)
                    }
                    QueryLatent::NormedAndRaw => {
                        let (width, of_head) = (self.heads.v_head_dim, dim + self.heads.v_head_dim);
                        let queries = Rows::each(heads, of_head, nope, dim).wrapped_at(dim);
                        let parts = [queries, Rows::each(heads, of_head, dim, width)];
                        self.rows_of(names.q_b_proj, heads * of_head, &parts, 2 * rank, Bias::None)
                    }
                };
                (q_a, Some((norm(names.q_a_layernorm, rank).times(q_factor), q_b)))
            }
        };
        let mut a_proj = stacked(q_or_q_a, kv_a);
        let (gate, _) = self.attention_gate();
        if let Some(gate) = gate.filter(|_| q_latent == QueryLatent::Normed) {
            if !a_proj.biases.is_empty() {
                a_proj.biases.push(TensorRows::zeros(gate.rows.count()));
            }
            a_proj.weights.push(gate);
        }
        mechanisms::stack_on(self, &mut a_proj);
        Projection::Mla(Box::new(MlaWeights {
            a_proj,
            q_b,
            kv_a_layernorm: norm(names.kv_a_layernorm, kv_lora_rank).times(kv_factor),
            k_rope_norm: k_rope_norm.map(|_| norm(names.k_rope_norm, rope)),
            q_absorb: self.q_absorb(kv_lora_rank, nope),
        }))
    }

    /// From the part of each head's query that is not rotated to the latent of keys and values: q k = q (W c) = (q W) c.
    fn q_absorb(&self, rank: usize, nope: usize) -> Vec<MatrixSpec> {
        let (heads, of_head) = (self.heads.num_attention_heads, nope + self.heads.v_head_dim);
        let of = |head: usize| match self.config.names.mla.kv_b_proj {
            KvB::Together(name) => {
                let whole = TensorRows::whole(self.name(name.weight), Stored::OutIn, heads * of_head, rank);
                let keys = Rows::range(head * of_head, nope);
                TensorRows { rows: Rows::all(rank), transposed: Some(Box::new(keys)), ..whole }
            }
            KvB::Apart { keys, .. } => self.of_head(keys, head, [rank, nope]),
        };
        (0..heads).map(|head| MatrixSpec::stacked(vec![of(head)], Vec::new(), nope)).collect()
    }

    /// From the latent that each head's weights sum up to the head's value.
    pub fn values_of_latent(&self, rank: usize, nope: usize) -> Vec<MatrixSpec> {
        let (heads, width) = (self.heads.num_attention_heads, self.heads.v_head_dim);
        let of_head = nope + width;
        let of = |head: usize| match self.config.names.mla.kv_b_proj {
            KvB::Together(name) => {
                let whole = TensorRows::whole(self.name(name.weight), Stored::OutIn, heads * of_head, rank);
                TensorRows { rows: Rows::range(head * of_head + nope, width), ..whole }
            }
            KvB::Apart { values, .. } => self.of_head(values, head, [width, rank]),
        };
        (0..heads).map(|head| MatrixSpec::stacked(vec![of(head)], Vec::new(), rank)).collect()
    }

    /// A head's matrix [rows, columns] of a tensor that has one for each head.
    fn of_head(&self, name: Tensor, head: usize, [rows, columns]: [usize; 2]) -> TensorRows {
        let name = self.name(name.weight);
        let shape = vec![self.heads.num_attention_heads, rows, columns];
        let rows = Rows::range(head * rows, rows);
        TensorRows { name, shape, stored: Stored::OutIn, rows, transposed: None }
    }
}

/// Two matrices of the same input as one; the biases of one without any are zeros where the other has some.
fn stacked(first: MatrixSpec, second: MatrixSpec) -> MatrixSpec {
    let join = |a: Vec<_>, b: Vec<_>| a.into_iter().chain(b).collect();
    let has_bias = !first.biases.is_empty() || !second.biases.is_empty();
    let biases = |matrix: &MatrixSpec| match &matrix.biases[..] {
        [] if has_bias => matrix.weights.iter().map(|part| TensorRows::zeros(part.rows.count())).collect(),
        biases => biases.to_vec(),
    };
    MatrixSpec {
        biases: join(biases(&first), biases(&second)),
        weights: join(first.weights, second.weights),
        ..second
    }
}
