"""An onnxruntime-genai model with the weights of a folder of `ropechat.engine.bench.shapes`, for the peers.

`python onnx_twin.py FOLDER OUT int8|int4`; needs numpy and onnx. The graph is what onnxruntime-genai's own
model builder writes for the CPU by default: blocks of 32, accuracy level 4, logits of every row.
"""

import json
import shutil
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

BLOCK = 32
MICROSOFT = "com.microsoft"


class Weights:
    """Tensors of a safetensors file, as f32."""

    def __init__(self, folder: Path) -> None:
        path = folder / "model.safetensors"
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            self._header = json.loads(file.read(length))
        self._data = np.memmap(path, np.uint8, "r", 8 + length)

    def __call__(self, name: str) -> np.ndarray:
        about = self._header[f"{name}.weight"]
        begin, end = about["data_offsets"]
        bits = self._data[begin:end].view(np.uint16).reshape(about["shape"])
        return (bits.astype(np.uint32) << 16).view(np.float32)


def quantized(values: np.ndarray, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """Codes around 2^(bits-1) [rows, blocks, bytes] and scales [rows * blocks]."""
    groups = values.reshape(len(values), -1, BLOCK)
    half = 1 << (bits - 1)
    scales = np.abs(groups).max(2, keepdims=True) / (half - 1)
    codes = (np.rint(groups / scales) + half).astype(np.uint8)
    if bits == 4:
        codes = codes[..., 0::2] | codes[..., 1::2] << 4
    return codes, scales.astype(np.float32).reshape(-1)


class Decoder:
    """The graph, node by node."""

    def __init__(self, config: dict[str, Any], weights: Weights, bits: int) -> None:
        self.config, self.weights, self.bits = config, weights, bits
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, name: str, values: np.ndarray) -> str:
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(values), name))
        return name

    def node(
        self, kind: str, inputs: list[str], outputs: str | list[str], domain: str = "", **given: Any
    ) -> str:
        outputs = [outputs] if isinstance(outputs, str) else outputs
        self.nodes.append(helper.make_node(kind, inputs, outputs, domain=domain, **given))
        return outputs[0]

    def linear(self, x: str, name: str, out: str | None = None) -> str:
        values = self.weights(name)
        rows, columns = values.shape
        codes, scales = quantized(values, self.bits)
        inputs = [x, self.constant(f"{name}.q", codes), self.constant(f"{name}.scales", scales)]
        return self.node(
            "MatMulNBits", inputs, out or f"{name}.y", MICROSOFT,
            K=columns, N=rows, bits=self.bits, block_size=BLOCK, accuracy_level=4,
        )  # fmt: skip

    def add_norm(self, x: str, y: str, name: str) -> tuple[str, str]:
        """norm(x + y) and x + y."""
        gamma = self.constant(f"{name}.gamma", self.weights(name))
        outputs = [f"{name}.out", "", "", f"{name}.sum"]
        kind = "SkipSimplifiedLayerNormalization"
        self.node(kind, [x, y, gamma], outputs, MICROSOFT, epsilon=self.config["rms_norm_eps"])
        return outputs[0], outputs[3]

    def lengths(self) -> None:
        """seqlens_k and total_length out of the attention mask."""
        one = self.constant("one", np.array([1], np.int64))
        total = self.node("ReduceSum", ["attention_mask", one], "mask_sum", keepdims=0)
        self.node("Cast", [self.node("Sub", [total, one], "mask_last")], "seqlens_k", to=TensorProto.INT32)
        at = self.constant("at_one", np.array(1, np.int64))
        shape = self.node("Shape", ["attention_mask"], "mask_shape")
        self.node(
            "Cast", [self.node("Gather", [shape, at], "mask_length")], "total_length", to=TensorProto.INT32
        )

    def angles(self) -> None:
        size, length = self.config["head_dim"], self.config["max_position_embeddings"]
        inverse = self.config["rope_theta"] ** -(np.arange(0, size, 2) / size)
        angle = np.outer(np.arange(min(length, 8192)), inverse)
        self.constant("cos", np.cos(angle).astype(np.float32))
        self.constant("sin", np.sin(angle).astype(np.float32))

    def attention(self, x: str, index: int) -> str:
        layer = f"model.layers.{index}.self_attn"
        q, k, v = (self.linear(x, f"{layer}.{part}_proj") for part in "qkv")
        past = [f"past_key_values.{index}.key", f"past_key_values.{index}.value"]
        outputs = [f"{layer}.out", f"present.{index}.key", f"present.{index}.value"]
        self.node(
            "GroupQueryAttention",
            [q, k, v, *past, "seqlens_k", "total_length", "cos", "sin"],
            outputs,
            MICROSOFT,
            num_heads=self.config["num_attention_heads"],
            kv_num_heads=self.config["num_key_value_heads"],
            do_rotary=1,
        )
        return self.linear(outputs[0], f"{layer}.o_proj")

    def mlp(self, x: str, index: int) -> str:
        layer = f"model.layers.{index}.mlp"
        gate, up = self.linear(x, f"{layer}.gate_proj"), self.linear(x, f"{layer}.up_proj")
        swish = self.node("Mul", [gate, self.node("Sigmoid", [gate], f"{layer}.sigmoid")], f"{layer}.swish")
        return self.linear(self.node("Mul", [swish, up], f"{layer}.inner"), f"{layer}.down_proj")

    def build(self) -> None:
        self.lengths()
        self.angles()
        table = self.constant("embedding", self.weights("model.embed_tokens"))
        x = self.node("Gather", [table, "input_ids"], "embedded")
        first = "model.layers.0.input_layernorm"
        gamma = self.constant(f"{first}.gamma", self.weights(first))
        y = self.node(
            "SimplifiedLayerNormalization", [x, gamma], f"{first}.out",
            axis=-1, epsilon=self.config["rms_norm_eps"], stash_type=1,
        )  # fmt: skip
        layers = self.config["num_hidden_layers"]
        for index in range(layers):
            attended = self.attention(y, index)
            y, x = self.add_norm(x, attended, f"model.layers.{index}.post_attention_layernorm")
            following = f"model.layers.{index + 1}.input_layernorm" if index + 1 < layers else "model.norm"
            y, x = self.add_norm(x, self.mlp(y, index), following)
        self.linear(y, "model.embed_tokens", "logits")

    def model(self) -> Any:
        self.build()
        heads, size = self.config["num_key_value_heads"], self.config["head_dim"]

        def cache(form: str, length: str) -> list[Any]:
            return [
                helper.make_tensor_value_info(
                    form % (index, part), TensorProto.FLOAT, ["batch", heads, length, size]
                )
                for index in range(self.config["num_hidden_layers"])
                for part in ("key", "value")
            ]

        ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "rows"])
        mask = helper.make_tensor_value_info("attention_mask", TensorProto.INT64, ["batch", "total"])
        logits = helper.make_tensor_value_info(
            "logits", TensorProto.FLOAT, ["batch", "rows", self.config["vocab_size"]]
        )
        inputs = [ids, mask, *cache("past_key_values.%d.%s", "past")]
        outputs = [logits, *cache("present.%d.%s", "total")]
        graph = helper.make_graph(self.nodes, "llama", inputs, outputs, self.constants)
        imports = [helper.make_opsetid("", 21), helper.make_opsetid(MICROSOFT, 1)]
        return helper.make_model(graph, opset_imports=imports, ir_version=10)


def genai_config(config: dict[str, Any]) -> dict[str, Any]:
    length = min(config["max_position_embeddings"], 8192)
    decoder = {
        "session_options": {"provider_options": []},
        "filename": "model.onnx",
        "head_size": config["head_dim"],
        "hidden_size": config["hidden_size"],
        "num_attention_heads": config["num_attention_heads"],
        "num_hidden_layers": config["num_hidden_layers"],
        "num_key_value_heads": config["num_key_value_heads"],
        "inputs": {
            "input_ids": "input_ids",
            "attention_mask": "attention_mask",
            "past_key_names": "past_key_values.%d.key",
            "past_value_names": "past_key_values.%d.value",
        },
        "outputs": {
            "logits": "logits",
            "present_key_names": "present.%d.key",
            "present_value_names": "present.%d.value",
        },
    }
    about = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1, "context_length": length}
    model = about | {"type": "llama", "vocab_size": config["vocab_size"], "decoder": decoder}
    return {"model": model, "search": {"max_length": length, "past_present_share_buffer": True}}


def write_twin(folder: Path, out: Path, dtype: str) -> None:
    part = out.with_name(out.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    config = json.loads((folder / "config.json").read_text("utf-8"))
    model = Decoder(config, Weights(folder), {"int8": 8, "int4": 4}[dtype]).model()
    onnx.save_model(
        model,
        part / "model.onnx",
        save_as_external_data=True,
        location="model.onnx.data",
        size_threshold=1024,
    )
    (part / "genai_config.json").write_text(json.dumps(genai_config(config), indent=2), "utf-8")
    part.rename(out)


if __name__ == "__main__":
    write_twin(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
