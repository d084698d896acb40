"""Random changes of a config: what each kind of key may also be.

Keys are recognized by their names, so that a new model type needs no entry here. A key that ropechat does not
compute is refused by name, which a run counts; the purpose is to find values that are computed otherwise.
"""

import copy
import random
import re
from collections.abc import Callable, Sequence
from typing import Any

Value = Any
Choose = Callable[[random.Random, Value], Value]

# What cannot change a logit of an inference, or what must fit the rest.
FIXED = re.compile(
    r".*(dropout|_token_id|_token_index|initializer|init_std|_loss|jitter|aux_|problem_type|labels?\b|id2label).*"
    r"|use_cache|is_decoder|is_encoder_decoder|output_.*|return_dict|torchscript|chunk_size_feed_forward|tie_encoder.*"
    r"|add_cross_attention|architectures|model_type|transformers_version|.*dtype|auto_map|pretraining_tp|_.*|name_or_path"
    r"|use_mamba_kernels|gradient_checkpointing|.*_implementation|quantization_config|hidden_size|d_model|n_embd"
    r"|cross_attention_hidden_size|num_nextn_predict_layers|.*mtp.*|tokenizer_class|prefix|finetuning_task"
)


def _among(*values: Value) -> Choose:
    return lambda rng, value: rng.choice(values)


def _scaled(rng: random.Random, value: Value) -> Value:
    """Half to twice as much; a whole number stays one, and a multiple of four if it was."""
    if value is None or value == 0:
        return value
    if isinstance(value, float):
        return value * rng.choice((0.5, 0.8, 1.3, 2.0))
    unit = 4 if value % 4 == 0 else 1
    return max(unit, int(value * rng.choice((0.5, 0.75, 1.25, 1.5, 2))) // unit * unit)


ACTIVATIONS = [
    "silu",
    "swish",
    "gelu",
    "gelu_new",
    "gelu_pytorch_tanh",
    "gelu_fast",
    "quick_gelu",
    "relu",
    "relu2",
    "tanh",
    "sigmoid",
    "mish",
    "gelu_python",
    "leaky_relu",
]
# The first pattern that matches the whole key decides.
CHOICES: tuple[tuple[str, Choose], ...] = (
    (r"num_hidden_layers|n_layers?|num_layers", _among(1, 2, 3, 4, 5)),
    (r"num_attention_heads|n_heads?|num_heads", _among(2, 4, 8)),
    (
        r"num_key_value_heads|n_kv_heads|num_kv_heads|multi_query_group_num|.*_key_value_heads",
        _among(1, 2, 4),
    ),
    (
        r".*num_experts_per_tok(en)?|moe_k|moe_topk|router_top_k|.*experts_per_tok(en)?|top_k_experts",
        _among(1, 2, 3, 4),
    ),
    (r".*(num|n)_(local_|routed_)?experts|moe_num_experts", _among(2, 3, 4, 6, 8)),
    (r".*shared_experts?", _among(0, 1, 2)),
    (r"n_group|topk_group|num_expert_group.*|.*_groups?|n_groups|num_groups", _among(1, 2, 4)),
    (
        r"first_k_dense_replace|.*dense_(layers|replace).*|decoder_sparse_step|.*_(layer_)?(interval|offset|period|step)|"
        r"interleave_moe_layer_step|full_attn_every.*|moe_layer_freq|.*_pattern",
        _among(1, 2, 3),
    ),
    (r".*window(_size)?|attention_chunk_size|.*chunk_size", _among(None, 3, 5, 9, 33, 64)),
    (r"max_position_embeddings|n_positions|max_sequence_length|seq_length", _among(48, 64, 128, 512)),
    (r"vocab_size.*", _among(97, 131, 160)),
    (r".*_rank|.*_dim|.*intermediate.*|.*ffn.*|.*_size|.*_width|n_inner", _scaled),
    (r".*eps(ilon)?", _among(1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2)),
    (r".*softcap(ping)?", _among(None, 2.0, 5.0, 30.0)),
    (r"clip_qkv|.*_clip|.*clamp.*|swiglu_limit|.*_limit", _among(None, 0.5, 1.5, 7.0)),
    (r"hidden_act(ivation)?|activation(_function)?|mlp_hidden_act|.*_act|act_fn", _among(*ACTIVATIONS)),
    (r"partial_rotary_factor|rotary_pct|rope_pct", _among(0.25, 0.5, 0.75, 1.0)),
    (r"rope_theta|rotary_emb_base|.*_rope_theta|.*base_freq", _among(500.0, 1e4, 5e5)),
    (r"scoring_func|score_function|.*router_score.*", _among("softmax", "sigmoid")),
    (r"topk_method", _among("greedy", "group_limited_greedy", "noaux_tc")),
    (r"alibi_bias_max", _among(4, 8, 16)),
    (r".*(scal(e|ing)|multiplier|factor|scalar|alpha|beta|coef|lambda).*", _scaled),
    (r".*time_step.*|.*_floor|.*_min|.*_max|.*_std", _scaled),
)
# Optional keys that are worth setting where the class has None.
SET_IF_NONE = re.compile(
    r".*softcap.*|clip_qkv|.*window.*|head_dim|num_key_value_heads|rope_scaling|.*multiplier|n_inner"
)


def change(config: dict[str, Value], defaults: dict[str, Value], rng: random.Random) -> dict[str, Value]:
    """Change a config in place, one to four keys of it; returns what changed.

    defaults: of the config's class, with the keys that the file leaves out.
    """
    known = copy.deepcopy({**defaults, **config})
    changed: dict[str, Value] = {}
    keys = [key for key, value in known.items() if not FIXED.fullmatch(key) and _can_change(key, value)]
    for key in rng.sample(keys, min(len(keys), rng.choice((1, 1, 2, 2, 3, 4)))):
        value = _other(key, known[key], rng)
        if value != known[key]:
            changed[key] = value
    if rng.random() < 0.25 and isinstance(known.get("rope_parameters"), dict):
        changed["rope_parameters"] = _rope(known["rope_parameters"], rng)
    layers = changed.get("num_hidden_layers", known.get("num_hidden_layers"))
    for key, value in known.items():
        if isinstance(layers, int) and _is_by_layer(key, value, known.get("num_hidden_layers")):
            given = changed.get(key, value)
            if len(given) != layers:
                changed[key] = [rng.choice(given) for _ in range(layers)]
    config |= changed
    return changed


def _can_change(key: str, value: Value) -> bool:
    if isinstance(value, bool):
        return True
    if isinstance(value, list):
        return bool(value) and all(isinstance(item, str | bool | int) for item in value)
    if value is None:
        return SET_IF_NONE.fullmatch(key) is not None
    return isinstance(value, int | float | str) and any(re.fullmatch(pattern, key) for pattern, _ in CHOICES)


def _other(key: str, value: Value, rng: random.Random) -> Value:
    if isinstance(value, bool):
        return not value
    if isinstance(value, list):
        return _other_list(value, rng)
    choose = next((choose for pattern, choose in CHOICES if re.fullmatch(pattern, key)), None)
    return value if choose is None else choose(rng, value)


def _other_list(value: list[Value], rng: random.Random) -> list[Value]:
    """The same kinds of entries in another order and number; numbers of layers move."""
    kinds: Sequence[Value] = sorted(set(value), key=str)
    if all(isinstance(item, bool) or item in (0, 1) for item in value):
        return [type(item)(rng.random() < 0.5) for item in value]
    if all(isinstance(item, str) for item in value):
        return [rng.choice(kinds) for _ in value]
    return [rng.choice(kinds) for _ in value] if rng.random() < 0.5 else rng.sample(value, len(value))


def _is_by_layer(key: str, value: Value, layers: Value) -> bool:
    return (
        isinstance(value, list)
        and len(value) == layers
        and ("layer" in key or "pattern" in key or "types" in key)
    )


# ---- RoPE

ROPE_TYPES = ("default", "linear", "dynamic", "yarn", "llama3", "longrope")


def _rope(given: dict[str, Value], rng: random.Random) -> dict[str, Value]:
    """Other scaling, of every kind of layer that has its own."""
    if "rope_type" not in given and all(isinstance(value, dict) for value in given.values()):
        return {kind: _rope(inner, rng) if rng.random() < 0.7 else inner for kind, inner in given.items()}
    kind = rng.choice(ROPE_TYPES)
    rope = {"rope_type": kind, "rope_theta": rng.choice((500.0, 1e4, 1e6))}
    if "partial_rotary_factor" in given or rng.random() < 0.15:
        rope["partial_rotary_factor"] = rng.choice((0.25, 0.5, 1.0))
    if kind == "default":
        return rope
    rope["factor"] = rng.choice((1.0, 1.5, 2.0, 4.0, 8.0))
    if kind == "linear":
        return rope
    rope["original_max_position_embeddings"] = rng.choice((16, 32, 64))
    if kind == "llama3":
        rope |= {"low_freq_factor": rng.choice((0.5, 1.0)), "high_freq_factor": rng.choice((2.0, 4.0))}
    optional: dict[str, tuple[Value, ...]] = {}
    if kind == "yarn":
        optional = {
            "beta_fast": (16.0, 32.0),
            "beta_slow": (1.0, 2.0),
            "attention_factor": (0.8, 1.0, 1.3),
            "mscale": (0.7, 1.0),
            "mscale_all_dim": (0.5, 1.0),
            "truncate": (True, False),
        }
    if kind == "longrope":
        optional = {"attention_factor": (0.8, 1.2)}
    return rope | {name: rng.choice(values) for name, values in optional.items() if rng.random() < 0.4}


def with_factors(rope: Value, pairs: int, rng: random.Random) -> None:
    """Fill the lists of longrope, which have a factor per pair of rotated dimensions."""
    if not isinstance(rope, dict):
        return
    if rope.get("rope_type") == "longrope":
        for name in ("short_factor", "long_factor"):
            rope[name] = [round(rng.uniform(1, 4), 3) for _ in range(pairs)]
    for inner in rope.values():
        with_factors(inner, pairs, rng)
