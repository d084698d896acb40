"""Load time and peak memory of quantized checkpoints of the shape of Llama-3.2-1B, with random weights.

    python tests/bench/quantized_load.py --work FOLDER [gptq fp8 ...]

Writes a checkpoint into FOLDER, loads it twice, each time in a process of its own (so that the file is in the
page cache), prints a line of Markdown, and removes the checkpoint. Peak: VmHWM of the process less what it
had before the load; mapped pages of the file count.
"""

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from quantized import AWQ, BNB, FP8, ct_config, gptq_config

HIDDEN, WIDTH, LAYERS, HEADS, GROUPS, HEAD, VOCAB = 2048, 8192, 16, 32, 8, 64, 128256
GROUP = 128
CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": GROUPS,
    "head_dim": HEAD,
    "vocab_size": VOCAB,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
}
QUANTIZATION = {
    "gptq": gptq_config(4, GROUP, sym=True),
    "gptq_act": gptq_config(4, GROUP, desc_act=True),
    "awq": AWQ | {"group_size": GROUP},
    "fp8": FP8 | {"weight_block_size": [128, 128]},
    "ct_int4": ct_config(4, GROUP),
    "ct_int8": ct_config(8, -1),
    "bnb_nf4": BNB,
}
CHILD = """
import sys, time, json, resource
from ropechat.engine import native
from ropechat.engine._core import Engine
def kib(name):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(name))
before, begun = kib("VmRSS"), time.perf_counter()
engine = Engine.load(sys.argv[1], threads=2, context=256)
seconds, peak = time.perf_counter() - begun, kib("VmHWM")
used = resource.getrusage(resource.RUSAGE_SELF)
facts = engine.facts
print(json.dumps({"seconds": seconds, "cpu": used.ru_utime + used.ru_stime, "peak": (peak - before) * 1024,
    "weights": facts["weight_bytes"], "dtype": facts["dtype"]}))
"""


def _parts(kind: str, rows: int, columns: int, rng: np.random.Generator) -> dict[str, tuple[str, Any]]:
    """The parts of a matrix: name to (type, array). Random bits, scales near 1 / sqrt(columns)."""

    def bits(*shape: int) -> np.ndarray:
        return rng.integers(0, 1 << 32, shape, "<u4")

    groups = columns // GROUP
    scale = 0.1 / np.sqrt(columns)
    if kind in ("gptq", "gptq_act"):
        zeros = np.full((groups, rows // 8), 0x77777777, "<u4") if kind == "gptq" else bits(groups, rows // 8)
        order = np.arange(columns) // GROUP
        order = rng.permutation(order) if kind == "gptq_act" else order
        return {
            ".qweight": ("I32", bits(columns // 8, rows)),
            ".qzeros": ("I32", zeros),
            ".scales": ("F16", np.full((groups, rows), scale, "<f2")),
            ".g_idx": ("I32", order.astype("<i4")),
        }
    if kind == "awq":
        return {
            ".qweight": ("I32", bits(columns, rows // 8)),
            ".qzeros": ("I32", bits(groups, rows // 8)),
            ".scales": ("F16", np.full((groups, rows), scale, "<f2")),
        }
    if kind == "fp8":
        codes = rng.integers(0, 256, (rows, columns), "u1")
        codes[(codes & 127) > 0x60] = 0
        blocks = (-(-rows // 128), -(-columns // 128))
        return {
            ".weight": ("F8_E4M3", codes),
            ".weight_scale_inv": ("F32", np.full(blocks, scale / 16, "<f4")),
        }
    if kind == "ct_int4":
        return {
            ".weight_packed": ("I32", bits(rows, columns // 8)),
            ".weight_scale": ("F16", np.full((rows, groups), scale, "<f2")),
            ".weight_shape": ("I64", np.array([rows, columns], "<i8")),
        }
    if kind == "ct_int8":
        return {
            ".weight": ("I8", rng.integers(0, 256, (rows, columns), "u1")),
            ".weight_scale": ("F16", np.full((rows, 1), scale / 16, "<f2")),
        }
    state = json.dumps({"quant_type": "nf4", "blocksize": 64, "shape": [rows, columns]}).encode()
    return {
        ".weight": ("U8", rng.integers(0, 256, (rows * columns // 2, 1), "u1")),
        ".weight.absmax": ("F32", np.full(rows * columns // 64, 8 * scale, "<f4")),
        ".weight.quant_map": ("F32", np.linspace(-1, 1, 16, dtype="<f4")),
        ".weight.quant_state.bitsandbytes__nf4": ("U8", np.frombuffer(state, "u1")),
    }


def write(folder: Path, kind: str) -> int:
    """A checkpoint, written matrix by matrix; returns the bytes of its weights."""
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG | {"quantization_config": QUANTIZATION[kind]}))
    header: dict[str, Any] = {}
    end = 0
    with (folder / "data").open("wb") as data:

        def put(name: str, dtype: str, values: np.ndarray) -> None:
            nonlocal end
            begin, end = end, end + values.nbytes
            header[name] = {"dtype": dtype, "shape": list(values.shape), "data_offsets": [begin, end]}
            data.write(values.tobytes())

        def ones(name: str) -> None:
            put(name, "BF16", np.full(HIDDEN, 0x3F80, "<u2"))

        put("model.embed_tokens.weight", "BF16", rng.integers(0x3C00, 0x3D00, (VOCAB, HIDDEN), "<u2"))
        ones("model.norm.weight")
        for layer in range(LAYERS):
            at = f"model.layers.{layer}"
            ones(f"{at}.input_layernorm.weight")
            ones(f"{at}.post_attention_layernorm.weight")
            for name, rows, columns in (
                ("self_attn.q_proj", HEADS * HEAD, HIDDEN),
                ("self_attn.k_proj", GROUPS * HEAD, HIDDEN),
                ("self_attn.v_proj", GROUPS * HEAD, HIDDEN),
                ("self_attn.o_proj", HIDDEN, HEADS * HEAD),
                ("mlp.gate_proj", WIDTH, HIDDEN),
                ("mlp.up_proj", WIDTH, HIDDEN),
                ("mlp.down_proj", HIDDEN, WIDTH),
            ):
                for tail, (dtype, values) in _parts(kind, rows, columns, rng).items():
                    put(f"{at}.{name}{tail}", dtype, values)
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file, (folder / "data").open("rb") as data:
        file.write(len(text).to_bytes(8, "little") + text)
        shutil.copyfileobj(data, file, 1 << 22)
    (folder / "data").unlink()
    return end


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="a folder for 2 GB")
    parser.add_argument("kinds", nargs="*", default=list(QUANTIZATION), help=", ".join(QUANTIZATION))
    given = parser.parse_args()
    print("| layout | file | kept as | weights | peak - weights | load, CPU | load, wall |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for kind in given.kinds:
        folder = given.work / f"quantized_{kind}"
        size = write(folder, kind)
        try:
            for _ in range(2):
                done = subprocess.run(
                    [sys.executable, "-c", CHILD, str(folder)], capture_output=True, text=True, check=True
                )
            said = json.loads(done.stdout)
        finally:
            shutil.rmtree(folder)
        more = said["peak"] - said["weights"]
        row = [kind, f"{size / 1e6:.0f} MB", said["dtype"], f"{said['weights'] / 1e6:.0f} MB"]
        row += [f"{more / 1e6:.0f} MB", f"{said['cpu']:.1f} s", f"{said['seconds']:.1f} s"]
        print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
