"""An OpenVINO model with the weights of a folder that `ropechat.engine.bench.shapes` made, for the peers.

`python openvino_twin.py FOLDER OUT int8|int4|bf16`; needs numpy and openvino. The graph and the formats
are those that optimum-intel exports: a stateful decoder; int8: asymmetric, a scale per row; int4: symmetric,
a scale per 64; the embedding, which is the output matrix too, in int8. Without a tokenizer: it is given ids.
"""

import json
import shutil
import struct
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13 as op
from openvino.op import Constant
from openvino.op.util import Variable, VariableInfo

GROUP = 64
_ROWS = 4096  # rows quantized at a time
_BORROWED: list[np.ndarray] = []


class Weights:
    """Tensors of a safetensors file, as graph nodes."""

    def __init__(self, folder: Path, dtype: str) -> None:
        path = folder / "model.safetensors"
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            self._header = json.loads(file.read(length))
        self._data = np.memmap(path, np.uint8, "r", 8 + length)
        self._dtype = dtype

    def values(self, name: str) -> np.ndarray:
        about = self._header[name]
        begin, end = about["data_offsets"]
        return self._data[begin:end].view(np.uint16).reshape(about["shape"])  # bf16 bits

    def vector(self, name: str) -> Any:
        return op.constant(wide(self.values(name)))

    def matrix(self, name: str, dtype: str | None = None) -> Any:
        """f32 values [rows, columns], decompressed where they are used."""
        bits, dtype = self.values(name), dtype or self._dtype
        if dtype == "bf16":
            return op.convert(constant_of(bits.copy(), bits.shape, ov.Type.bf16), "f32")
        if dtype == "int4":
            return int4(bits)
        return int8(bits)


def constant_of(values: np.ndarray, shape: Sequence[int], kind: Any) -> Any:
    """A constant of a type that NumPy lacks; it borrows the array, which must live as long."""
    _BORROWED.append(values)
    return Constant(ov.Tensor(values, ov.Shape(shape), kind))


def wide(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def int8(bits: np.ndarray) -> Any:
    """u8 with a scale and a zero point per row."""
    codes = np.empty(bits.shape, np.uint8)
    scales = np.empty((len(bits), 1), np.float16)
    zeros = np.empty((len(bits), 1), np.uint8)
    for start in range(0, len(bits), _ROWS):
        part = slice(start, start + _ROWS)
        values = wide(bits[part])
        low, high = values.min(1, keepdims=True), values.max(1, keepdims=True)
        scale = (high - low) / 255
        zero = np.clip(np.rint(-low / scale), 0, 255)
        codes[part] = np.clip(np.rint(values / scale) + zero, 0, 255)
        scales[part], zeros[part] = scale, zero
    shifted = op.subtract(op.convert(op.constant(codes), "f16"), op.convert(op.constant(zeros), "f16"))
    return op.convert(op.multiply(shifted, op.constant(scales)), "f32")


def int4(bits: np.ndarray) -> Any:
    """i4 with a scale per GROUP values."""
    rows, columns = bits.shape
    groups = wide(bits).reshape(rows, columns // GROUP, GROUP)
    scales = np.abs(groups).max(2, keepdims=True) / 7
    codes = np.clip(np.rint(groups / scales), -8, 7).astype(np.int8).view(np.uint8) & 15
    packed = (codes[..., 0::2] | codes[..., 1::2] << 4).astype(np.uint8)
    kept = constant_of(packed.reshape(-1), groups.shape, ov.Type.i4)
    values = op.multiply(op.convert(kept, "f16"), op.constant(scales.astype(np.float16)))
    return op.convert(op.reshape(values, op.constant([rows, columns]), False), "f32")


def named(node: Any, name: str) -> Any:
    node.set_friendly_name(name)
    node.output(0).set_names({name})
    return node


class Decoder:
    """The graph of a llama decoder with its cache as state."""

    def __init__(self, config: dict[str, Any], weights: Weights) -> None:
        self.config, self.weights = config, weights
        self.ids = named(op.parameter([-1, -1], np.int64), "input_ids")
        self.mask = named(op.parameter([-1, -1], np.int64), "attention_mask")
        self.positions = named(op.parameter([-1, -1], np.int64), "position_ids")
        self.beams = named(op.parameter([-1], np.int32), "beam_idx")
        self.assigns: list[Any] = []
        self.batch = op.gather(op.shape_of(self.ids), op.constant([0]), op.constant(0))

    def norm(self, x: Any, name: str) -> Any:
        squares = op.reduce_mean(op.power(x, np.float32(2)), op.constant([-1]), True)
        root = op.sqrt(op.add(squares, np.float32(self.config["rms_norm_eps"])))
        return op.multiply(op.multiply(x, op.divide(np.float32(1), root)), self.weights.vector(name))

    def linear(self, x: Any, name: str) -> Any:
        return op.matmul(x, self.weights.matrix(name + ".weight"), False, True)

    def angles(self) -> tuple[Any, Any]:
        """Cosine and sine.  # [batch, 1, rows, head_dim]"""
        size = self.config["head_dim"]
        inverse = self.config["rope_theta"] ** -(np.arange(0, size, 2, dtype=np.float64) / size)
        row = op.convert(op.unsqueeze(self.positions, op.constant(1)), "f32")
        half = op.transpose(
            op.matmul(op.constant(inverse.astype(np.float32)[None, :, None]), row, False, False), [0, 2, 1]
        )
        angle = op.unsqueeze(op.concat([half, half], -1), op.constant(1))
        return op.cos(angle), op.sin(angle)

    def rotated(self, x: Any, angles: tuple[Any, Any]) -> Any:
        half = self.config["head_dim"] // 2
        first = op.slice(x, [0], [half], [1], [3])
        second = op.slice(x, [half], [np.iinfo(np.int64).max], [1], [3])
        turned = op.concat([op.multiply(second, np.float32(-1)), first], -1)
        return op.add(op.multiply(x, angles[0]), op.multiply(turned, angles[1]))

    def cached(self, x: Any, name: str) -> Any:
        """What was kept and what is new; kept in turn.  # [batch, heads, context, head_dim]"""
        heads, size = self.config["num_key_value_heads"], self.config["head_dim"]
        info = VariableInfo()
        info.data_shape = ov.PartialShape([-1, heads, -1, size])
        info.data_type, info.variable_id = ov.Type.f32, name
        variable = Variable(info)
        shape = op.concat([self.batch, op.constant([heads, 0, size])], 0)
        read = op.read_value(op.broadcast(np.float32(0), shape), variable)
        kept = op.concat([op.gather(read, self.beams, op.constant(0)), x], 2)
        self.assigns.append(op.assign(kept, variable))
        return kept

    def spread(self, x: Any) -> Any:
        """Each key/value head once for each of its query heads."""
        heads, size = self.config["num_key_value_heads"], self.config["head_dim"]
        copies = self.config["num_attention_heads"] // heads
        if copies == 1:
            return x
        length = op.gather(op.shape_of(x), op.constant([2]), op.constant(0))
        shape = op.concat(
            [self.batch, op.constant([heads, copies], dtype=np.int64), length, op.constant([size])], 0
        )
        many = op.broadcast(op.unsqueeze(x, op.constant(2)), shape, "BIDIRECTIONAL")
        return op.reshape(many, op.constant([0, heads * copies, -1, size]), True)

    def causal(self) -> Any:
        """0 where a row may look, else -inf.  # [1, 1, rows, context]"""
        one = op.constant(1)
        total = op.gather(op.shape_of(self.mask), one, op.constant(0))
        rows = op.gather(op.shape_of(self.ids), one, op.constant(0))
        places = op.range(op.constant(0), total, one, "i64")
        own = op.range(op.subtract(total, rows), total, one, "i64")
        sees = op.less_equal(op.unsqueeze(places, op.constant(0)), op.unsqueeze(own, op.constant(1)))
        allowed = op.select(sees, np.float32(0), np.float32(np.finfo(np.float32).min))
        return op.unsqueeze(allowed, op.constant([0, 1]))

    def attention(self, x: Any, layer: str, angles: tuple[Any, Any], mask: Any) -> Any:
        size = self.config["head_dim"]

        def heads(part: str) -> Any:
            y = self.linear(x, f"{layer}.self_attn.{part}_proj")
            return op.transpose(op.reshape(y, op.constant([0, 0, -1, size]), True), [0, 2, 1, 3])

        number = layer.rpartition(".")[2]
        k = self.cached(self.rotated(heads("k"), angles), f"past_key_values.{number}.keypresent.{number}.key")
        v = self.cached(heads("v"), f"past_key_values.{number}.valuepresent.{number}.value")
        q = self.rotated(heads("q"), angles)
        y = op.scaled_dot_product_attention(q, self.spread(k), self.spread(v), mask)
        joined = op.reshape(op.transpose(y, [0, 2, 1, 3]), op.constant([0, 0, -1]), True)
        return self.linear(joined, f"{layer}.self_attn.o_proj")

    def model(self) -> ov.Model:
        kind = "bf16" if self.weights._dtype == "bf16" else "int8"
        table = self.weights.matrix("model.embed_tokens.weight", kind)
        x = op.gather(table, self.ids, op.constant(0))
        angles, mask = self.angles(), self.causal()
        for index in range(self.config["num_hidden_layers"]):
            layer = f"model.layers.{index}"
            x = op.add(
                x, self.attention(self.norm(x, f"{layer}.input_layernorm.weight"), layer, angles, mask)
            )
            y = self.norm(x, f"{layer}.post_attention_layernorm.weight")
            gate = op.swish(self.linear(y, f"{layer}.mlp.gate_proj"))
            inner = op.multiply(gate, self.linear(y, f"{layer}.mlp.up_proj"))
            x = op.add(x, self.linear(inner, f"{layer}.mlp.down_proj"))
        logits = named(op.matmul(self.norm(x, "model.norm.weight"), table, False, True), "logits")
        inputs = [self.ids, self.mask, self.positions, self.beams]
        return ov.Model([op.result(logits)], self.assigns, inputs, "llama")


def write_twin_model(folder: Path, out: Path, dtype: str) -> None:
    part = out.with_name(out.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    config = json.loads((folder / "config.json").read_text("utf-8"))
    shutil.copy(folder / "config.json", part)
    ov.save_model(
        Decoder(config, Weights(folder, dtype)).model(), part / "openvino_model.xml", compress_to_fp16=False
    )
    part.rename(out)


if __name__ == "__main__":
    write_twin_model(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
