"""The model in PyTorch: the Llama shape, weights named as in transformers; RoPE or other positions."""

import math
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

Positions = Literal["rope", "sinusoidal", "none"]
Config = dict[str, Any]


def config_of(
    vocab_size: int, hidden: int, layers: int, heads: int, kv_heads: int, intermediate: int, context: int
) -> Config:
    """A config.json in the words of transformers' LlamaConfig."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocab_size,
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": hidden // heads,
        "hidden_act": "silu",
        "max_position_embeddings": context,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "initializer_range": 0.02,
        "bos_token_id": None,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "torch_dtype": "bfloat16",
    }


def angles(positions: int, width: int, theta: float) -> Tensor:
    """t * theta^(-2i/width).  # f64 [positions, width / 2]"""
    frequencies = theta ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    return torch.arange(positions, dtype=torch.float64)[:, None] * frequencies


class Norm(nn.Module):
    """RMSNorm."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.eps: float = config["rms_norm_eps"]
        self.weight = nn.Parameter(torch.ones(config["hidden_size"]))

    def forward(self, x: Tensor) -> Tensor:
        """x / rms(x) * weight."""
        return functional.rms_norm(x, (x.shape[-1],), self.weight.to(x.dtype), self.eps)


class Attention(nn.Module):
    """Causal attention of grouped queries; with RoPE where cos and sin are given."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        hidden, width = config["hidden_size"], config["head_dim"]
        self.heads, self.kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        self.q_proj = nn.Linear(hidden, self.heads * width, bias=False)
        self.k_proj = nn.Linear(hidden, self.kv_heads * width, bias=False)
        self.v_proj = nn.Linear(hidden, self.kv_heads * width, bias=False)
        self.o_proj = nn.Linear(self.heads * width, hidden, bias=False)

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor] | None) -> Tensor:
        """x: [rows, tokens, hidden_size]."""
        rows, tokens, _ = x.shape
        q = self.q_proj(x).view(rows, tokens, self.heads, -1).transpose(1, 2)
        k = self.k_proj(x).view(rows, tokens, self.kv_heads, -1).transpose(1, 2)
        v = self.v_proj(x).view(rows, tokens, self.kv_heads, -1).transpose(1, 2)
        if turn is not None:
            q, k = rotated(q, *turn), rotated(k, *turn)
        out = grouped_attention(q, k, v)
        return cast("Tensor", self.o_proj(out.transpose(1, 2).reshape(rows, tokens, -1)))


def grouped_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal softmax(q k^T / sqrt(width)) v, with the scores of all queries of a key head in one product.

    q: [rows, heads, tokens, width]; k, v: [rows, kv_heads, tokens, width]. Written out, because on a CPU the
    backward pass of PyTorch's own takes half the training for texts as short as these.
    """
    rows, heads, tokens, width = q.shape
    together = q.reshape(rows, k.shape[1], -1, width)
    scores = (together @ k.transpose(2, 3)).view(rows, heads, tokens, tokens).float() * width**-0.5
    later = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
    shares = scores.masked_fill(later, -math.inf).softmax(-1).to(v.dtype)
    return (shares.view(rows, k.shape[1], -1, tokens) @ v).view(rows, heads, tokens, width)


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """RoPE on halves, as transformers' Llama does it."""
    first, second = x.chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


class MLP(nn.Module):
    """SwiGLU."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        hidden, inner = config["hidden_size"], config["intermediate_size"]
        self.gate_proj = nn.Linear(hidden, inner, bias=False)
        self.up_proj = nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """down(silu(gate(x)) * up(x))."""
        return cast("Tensor", self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x)))


class Layer(nn.Module):
    """Attention and MLP, each behind its norm, each added to what came in."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.self_attn, self.mlp = Attention(config), MLP(config)
        self.input_layernorm, self.post_attention_layernorm = Norm(config), Norm(config)

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor] | None) -> Tensor:
        """x: [rows, tokens, hidden_size]."""
        x = x + self.self_attn(self.input_layernorm(x), turn)
        return x + cast("Tensor", self.mlp(self.post_attention_layernorm(x)))


class Decoder(nn.Module):
    """Embeddings, layers, the last norm; logits by the same embeddings."""

    def __init__(self, config: Config, positions: Positions = "rope") -> None:
        super().__init__()
        self.config, self.positions = config, positions
        self.embed_tokens = nn.Embedding(config["vocab_size"], config["hidden_size"])
        self.layers = nn.ModuleList(Layer(config) for _ in range(config["num_hidden_layers"]))
        self.norm = Norm(config)
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                shrink = (
                    math.sqrt(2 * len(self.layers))
                    if name.endswith(("o_proj.weight", "down_proj.weight"))
                    else 1
                )
                nn.init.normal_(parameter, std=config["initializer_range"] / shrink)
        width = config["head_dim"] if positions == "rope" else config["hidden_size"]
        at = angles(config["max_position_embeddings"], width, config["rope_theta"])
        self.register_buffer("cos", at.cos().float(), persistent=False)
        self.register_buffer("sin", at.sin().float(), persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        """The last norm's output.  # [rows, tokens, hidden_size]"""
        tokens = ids.shape[1]
        cos, sin = cast("Tensor", self.cos)[:tokens], cast("Tensor", self.sin)[:tokens]
        x = self.embed_tokens(ids)
        if self.positions == "sinusoidal":  # A. Vaswani et al. (2017), 3.5; scaled to the embeddings' size
            x = x + self.config["initializer_range"] * torch.stack((sin, cos), -1).flatten(1)
        x = x.bfloat16()
        turn = (cos.bfloat16(), sin.bfloat16()) if self.positions == "rope" else None
        for layer in self.layers:
            x = layer(x, turn)
        return cast("Tensor", self.norm(x))

    def losses(self, ids: Tensor, weights: Tensor) -> Tensor:
        """The weighted sum of -ln p of ids[:, 1:].  ids: [rows, tokens + 1]; weights: [rows, tokens]"""
        wanted = weights.flatten().nonzero().squeeze(1)
        x = self(ids[:, :-1]).flatten(0, 1)[wanted]
        logits = functional.linear(x, self.embed_tokens.weight.to(x.dtype)).float()
        each = functional.cross_entropy(logits, ids[:, 1:].flatten()[wanted], reduction="none")
        return (each * weights.flatten()[wanted]).sum()
