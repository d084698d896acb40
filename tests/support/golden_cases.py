"""The folders of tests/golden: what is in one, and its pass rule."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from reference import read_safetensors

GOLDEN = Path(__file__).parents[1] / "golden"
DTRANSFORMER = GOLDEN / "dtransformer_rope"  # the pseudo-code's own case, with its own tensor names
CASES = sorted({path.parent for path in GOLDEN.glob("*/golden.safetensors")} - {DTRANSFORMER})
QUANTIZED_CASES = [path for path in CASES if "quantization_config" in (path / "config.json").read_text()]
LLAMA_CASES = [path for path in CASES if path.name.startswith("llama") and path.name != "llama4_text"]
PROMPTS = ("p1", "p7", "p33", "long")


def model_type(folder: Path) -> str:
    name: str = json.loads((folder / "config.json").read_text())["model_type"]
    return name


@dataclass(frozen=True)
class Golden:
    """What transformers computed for one model directory."""

    name: str
    tensors: dict[str, np.ndarray]
    atol: float
    rtol: float

    @classmethod
    def read(cls, directory: Path) -> "Golden":
        tolerance = json.loads((directory / "golden.json").read_text())["tolerance"]
        tensors = read_safetensors(directory / "golden.safetensors")
        if "logits.p7" in tensors and "logprobs.p7" not in tensors:  # newer cases leave it out
            logits = tensors["logits.p7"].astype(np.float64)
            top = logits.max(axis=1, keepdims=True)
            logsumexp = top + np.log(np.exp(logits - top).sum(axis=1, keepdims=True))
            tensors["logprobs.p7"] = (logits - logsumexp).astype(np.float32)
        return cls(directory.name, tensors, tolerance["atol"], tolerance["rtol"])

    @property
    def prompts(self) -> list[str]:
        """The prompts that the case has logits of."""
        return [prompt for prompt in PROMPTS if f"logits.{prompt}" in self.tensors]

    def ids(self, prompt: str) -> list[int]:
        ids: list[int] = self.tensors[f"input_ids.{prompt}"].tolist()
        return ids

    def greedy_runs(self) -> Iterator[tuple[str, list[int]]]:
        """(tensor prefix, prompt ids) of each greedy run that ropechat promises to reproduce."""
        yield "greedy", self.tensors["greedy.prompt_ids"].tolist()
        for run, prompt in (("greedy_long", "input_ids.long"), ("greedy_cross", "greedy_cross.prompt_ids")):
            if f"{run}.recompute.output_ids" in self.tensors:
                yield f"{run}.recompute", self.tensors[prompt].tolist()

    def check(self, found: np.ndarray, tensor: str, index: int | None = None) -> None:
        """|found - golden| <= atol + rtol * |golden|, everywhere."""
        golden = self.tensors[tensor] if index is None else self.tensors[tensor][index]
        assert found.shape == golden.shape, f"{self.name}: {tensor}: {found.shape}; {golden.shape} expected"
        excess = np.abs(found - golden) / (self.atol + self.rtol * np.abs(golden))
        at = np.nan_to_num(excess, nan=np.inf).argmax()
        worst = tuple(int(i) for i in np.unravel_index(at, excess.shape))
        message = f"{found[worst]} at {worst}, {golden[worst]} expected: {excess[worst]:.3g} x the tolerance"
        assert (excess <= 1).all(), f"{self.name}: {tensor}: outside: {message}"
