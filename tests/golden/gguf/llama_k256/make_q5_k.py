"""Make q5_k.gguf out of q6_k.gguf's numbers, and add what transformers computes from it to the golden.

    python tests/golden/gguf/llama_k256/make_q5_k.py      (gguf 0.19.0, transformers 5.23.0, torch)

Matrices become Q5_K; embedding, unembedding and ffn_down stay in Q6_K. Before anything is written, the
numbers of q6_k.gguf are computed in the same way and held against those that are there.
"""

import json
from hashlib import sha256
from pathlib import Path

import gguf
import numpy as np
import torch
from safetensors.numpy import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

FOLDER = Path(__file__).parent
KEPT = ("token_embd.weight", "output.weight", "blk.0.ffn_down.weight")
HEADS = {"attn_q": 4, "attn_k": 2}
NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
CONFIG = LlamaConfig(
    vocab_size=64,
    hidden_size=256,
    intermediate_size=256,
    num_hidden_layers=1,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=512,
    rms_norm_eps=1e-5,
    rope_theta=10000.0,
    attn_implementation="eager",
)


def q5_k(values: np.ndarray) -> np.ndarray:
    """Q5_K by the range of each part.  # [rows, k] -> uint8 [rows, k / 256 * 176]"""
    x = values.reshape(-1, 8, 32).astype(np.float32)
    low, high = np.minimum(x.min(2), 0), np.maximum(x.max(2), 0)
    wanted = np.stack([(high - low) / 31, -low])  # scale, min  [2, blocks, 8]
    d = (wanted.max(2) / 63).astype(np.float16)
    six = np.round(wanted / np.maximum(d, 1e-12)[..., None].astype(np.float32)).clip(0, 63).astype(np.uint8)
    scale, minimum = d[..., None].astype(np.float32) * six
    q = np.round((x + minimum[..., None]) / np.maximum(scale, 1e-12)[..., None]).clip(0, 31).astype(np.uint8)
    first, last = six[..., :4], six[..., 4:]
    numbers = [*(first | last >> 4 << 6), last[0] & 15 | (last[1] & 15) << 4]
    fifth = np.bitwise_or.reduce(q >> 4 << np.arange(8, dtype=np.uint8)[:, None], axis=1)
    nibbles = (q[:, ::2] & 15 | (q[:, 1::2] & 15) << 4).reshape(-1, 128)
    blocks = np.concatenate([d.T.copy().view(np.uint8), *numbers, fifth, nibbles], axis=1)
    return blocks.reshape(len(values), -1)


def weights(file: Path) -> dict[str, np.ndarray]:
    """Every tensor of a file by its name there, as f32."""
    return {
        tensor.name: gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        for tensor in gguf.GGUFReader(file).tensors
    }


def model(file: Path) -> LlamaForCausalLM:
    """The model of a file, in f32; rows of q and k go back from adjacent pairs to halves."""
    state = {}
    for name, values in weights(file).items():
        part = name.removesuffix(".weight").removeprefix("blk.0.")
        if part in HEADS:
            pairs = values.reshape(HEADS[part], -1, 2, values.shape[1])
            values = pairs.swapaxes(1, 2).reshape(values.shape)
        layer = "model.layers.0." if name.startswith("blk.") else ""
        state[f"{layer}{NAMES[part]}.weight"] = torch.from_numpy(values.copy())
    found = LlamaForCausalLM(CONFIG).eval()
    found.load_state_dict(state)
    return found


@torch.no_grad()
def numbers(file: Path, golden: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Logits of both prompts and the greedy continuation of the first."""
    net, p33, long = model(file), golden["input_ids.p33"], golden["input_ids.long"]
    first, second = (net(torch.from_numpy(ids)[None].long()).logits[0].numpy() for ids in (p33, long))
    ids = p33.tolist()
    for _ in range(24):
        ids.append(int(net(torch.tensor([ids])).logits[0, -1].argmax()))
    greedy = np.array(ids[len(p33) :], golden["q6_k.greedy.output_ids"].dtype)
    found = {"logits.p33": first, "logits_last.long": second[-8:].copy(), "greedy.output_ids": greedy}
    return {f"{file.stem}.{name}": values for name, values in found.items()}


def write(file: Path, source: Path) -> None:
    """The file of Q5_K and Q6_K."""
    reader, values = gguf.GGUFReader(source), weights(source)
    writer = gguf.GGUFWriter(file, "llama")
    for key, field in reader.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            value = 17 if key == "general.file_type" else field.contents()
            writer.add_key_value(key, value, field.types[0])
    for tensor in reader.tensors:
        kind, data = tensor.tensor_type, tensor.data
        if kind == gguf.GGMLQuantizationType.Q6_K and tensor.name not in KEPT:
            kind, data = gguf.GGMLQuantizationType.Q5_K, q5_k(values[tensor.name])
        writer.add_tensor(tensor.name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    """Check, then write the file and its numbers."""
    torch.set_num_threads(1)
    golden = load_file(FOLDER / "golden.safetensors")
    for name, values in numbers(FOLDER / "q6_k.gguf", golden).items():
        assert np.allclose(values, golden[name], atol=1e-4), f"{name} is not what is there"
    file = FOLDER / "q5_k.gguf"
    write(file, FOLDER / "q6_k.gguf")
    found = numbers(file, golden)
    apart = np.abs(found["q5_k.logits.p33"] - golden["q6_k.logits.p33"]).max()
    save_file(golden | found, FOLDER / "golden.safetensors")
    about = json.loads((FOLDER / "golden.json").read_text())
    types = sorted({tensor.tensor_type.name for tensor in gguf.GGUFReader(file).tensors})
    data = file.read_bytes()
    about["files"]["q5_k"] = {
        "file": file.name,
        "bytes": len(data),
        "sha256": sha256(data).hexdigest(),
        "tensor_types": types,
        "max_abs_change_vs_q6_k": float(apart),
    }
    about["tensors"] |= {name: list(values.shape) for name, values in found.items()}
    (FOLDER / "golden.json").write_text(json.dumps(about, indent=1))


if __name__ == "__main__":
    main()
