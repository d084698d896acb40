"""A GGUF file with the weights of a model folder that `ropechat.engine.bench.shapes` made, for the peers.

`python gguf_twin.py FOLDER OUT.gguf q8_0|q4_0|bf16|f16`; needs numpy and gguf (pip install gguf).
q4_0 keeps the embedding, which is the output matrix too, in q8_0, as files that people use do.
"""

import json
import struct
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf import GGUFWriter, quants

TYPES = {"q8_0": Type.Q8_0, "q4_0": Type.Q4_0, "bf16": Type.BF16, "f16": Type.F16}
FILE_TYPES = {"q8_0": 7, "q4_0": 2, "bf16": 32, "f16": 1}  # llama.cpp's llama_ftype; OpenVINO asks for it
PARTS = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
_BLOCK = 1 << 24  # values quantized at a time


def name_of(name: str) -> str:
    """A Hugging Face tensor's name in GGUF."""
    if name == "model.embed_tokens.weight":
        return "token_embd.weight"
    if name == "model.norm.weight":
        return "output_norm.weight"
    _, _, layer, *part, _ = name.split(".")
    return f"blk.{layer}.{PARTS['.'.join(part)]}.weight"


def write_facts(writer: GGUFWriter, config: dict[str, Any], tokenizer: dict[str, Any]) -> None:
    """The metadata."""
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    tokens = sorted(tokenizer["model"]["vocab"], key=tokenizer["model"]["vocab"].get)
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.NORMAL] * len(tokens))
    writer.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)


def quantized(values: np.ndarray, kind: Type) -> np.ndarray:
    """bf16 bits [rows, columns] in a GGUF type, some rows at a time."""
    rows = max(1, _BLOCK // values.shape[-1])
    blocks = []
    for start in range(0, len(values), rows):
        wide = (values[start : start + rows].astype(np.uint32) << 16).view(np.float32)
        blocks.append(quants.quantize(wide, kind))
    return np.concatenate(blocks)


def write_twin(folder: Path, path: Path, dtype: str) -> None:
    config = json.loads((folder / "config.json").read_text("utf-8"))
    tokenizer = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    with (folder / "model.safetensors").open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
    header.pop("__metadata__", None)
    data = np.memmap(folder / "model.safetensors", np.uint8, "r", 8 + length)
    part = path.with_suffix(".part")
    writer = GGUFWriter(part, "llama", use_temp_file=True)
    writer.add_file_type(FILE_TYPES[dtype])
    write_facts(writer, config, tokenizer)
    for name, about in header.items():
        begin, end = about["data_offsets"]
        values = data[begin:end].view(np.uint16).reshape(about["shape"])
        if values.ndim == 1:
            writer.add_tensor(name_of(name), (values.astype(np.uint32) << 16).view(np.float32))
            continue
        kind = Type.Q8_0 if dtype == "q4_0" and "embed_tokens" in name else TYPES[dtype]
        writer.add_tensor(name_of(name), quantized(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    part.rename(path)


if __name__ == "__main__":
    write_twin(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
