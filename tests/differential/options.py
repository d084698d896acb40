"""Options: random configs of every model type of tests/golden, models of random weights, logits in f32.

transformers builds and computes the model. A case that differs is kept as a folder in the form of a golden
case (tests/golden/README.md), which can be moved there.
"""

import contextlib
import json
import random
import select
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from golden_cases import GOLDEN, PROMPTS
from option_values import change, with_factors
from report import Outcome, Report
from runs import Run
from safetensors.torch import load_file, save_file

SUBJECT = "options"
LENGTHS = dict(zip(PROMPTS, (1, 7, 33, 80), strict=True))
GREEDY = 8
SECONDS = 120
"""After which a model that ropechat computes is a crash."""
NOT_OF_CONFIG = ("architectures", "transformers_version", "dtype", "torch_dtype", "auto_map")


def run(run: Run, report: Report) -> None:
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    with _Engine() as engine:
        for model_type, cases in sorted(_cases().items()):
            if not run.wants(model_type):
                continue
            for index in range(run.count):
                _check(run, report, engine, model_type, cases[index % len(cases)], index)
            report.done(SUBJECT, model_type)


def _cases() -> dict[str, list[Path]]:
    """Unquantized golden cases by model type."""
    found: dict[str, list[Path]] = defaultdict(list)
    for path in sorted(GOLDEN.glob("*/config.json")):
        config = json.loads(path.read_text())
        if "quantization_config" not in config:
            found[config["model_type"]].append(path.parent)
    return found


def _check(run: Run, report: Report, engine: "_Engine", model_type: str, case: Path, index: int) -> None:
    rng = random.Random(f"{run.seed}/{model_type}/{index}")
    config = json.loads((case / "config.json").read_text())
    described: dict[str, Any] = {"case": case.name, "seed": run.seed, "index": index}
    folder = run.folder / SUBJECT / f"{model_type}-{run.seed}-{index}"
    shutil.rmtree(folder, ignore_errors=True)
    # Cases without some prompts have a reason: doge has no long one (tests/golden/README.md).
    known = load_file(case / "golden.safetensors")
    lengths = {prompt: length for prompt, length in LENGTHS.items() if f"logits.{prompt}" in known}
    try:
        built, changed = _changed(config, rng)
        described["changed"] = changed
        model = _model(built, rng)
        tensors = _reference(model, lengths, rng)
        if tensors is None:
            report.add(
                SUBJECT, model_type, Outcome.SKIPPED, "the reference depends on the last bits of the weights"
            )
            return
        _write(model, folder, tensors, rng)
    except Exception as error:
        shutil.rmtree(folder, ignore_errors=True)
        why = f"transformers: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        report.add(SUBJECT, model_type, Outcome.SKIPPED, why[:120])
        return
    answer = engine.ask(folder)
    outcome = Outcome(answer["outcome"])
    for choose in (_first, _last) if outcome == Outcome.WRONG else ():
        with _topk(choose):
            chosen = {
                f"logits.{prompt}": _logits(model, tensors[f"input_ids.{prompt}"]) for prompt in lengths
            }
        save_file({**tensors, **chosen}, folder / "golden.safetensors")
        if engine.ask(folder)["outcome"] == Outcome.EQUAL:
            shutil.rmtree(folder)
            why = "equal numbers in a top-k, whose order PyTorch leaves open"
            report.add(SUBJECT, model_type, Outcome.EXPLAINED, why)
            return
    if outcome in (Outcome.WRONG, Outcome.CRASH):
        _complete(model, folder, tensors)
        report.fail(SUBJECT, model_type, outcome, answer["reason"], folder=str(folder), **described)
    else:
        shutil.rmtree(folder, ignore_errors=True)
        report.add(SUBJECT, model_type, outcome, answer["reason"])


# ---- The model


def _changed(config: dict[str, Any], rng: random.Random) -> tuple[Any, dict[str, Any]]:
    """The config object of a changed golden config, and the changes."""
    inner = config.get("text_config", config)
    defaults = type(_config(config).get_text_config())().to_dict()
    changed = {} if rng.random() < 0.05 else change(inner, _plain(defaults), rng)
    if (rope := inner.get("rope_parameters")) is not None:
        known = {**defaults, **inner}
        head = known.get("qk_rope_head_dim") or known.get("head_dim")
        head = head or known["hidden_size"] // known["num_attention_heads"]
        share = rope.get("partial_rotary_factor") or known.get("partial_rotary_factor") or 1.0
        with_factors(rope, int(head * share) // 2, rng)
    return _config(config), changed


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    return {
        key: value for key, value in values.items() if not isinstance(value, dict) or key == "rope_parameters"
    }


def _config(config: dict[str, Any]) -> Any:
    """The config object as transformers reads the file."""
    with tempfile.TemporaryDirectory() as folder:
        keys = {key: value for key, value in config.items() if key not in NOT_OF_CONFIG}
        (Path(folder) / "config.json").write_text(json.dumps(keys))
        return transformers.AutoConfig.from_pretrained(folder)


def _model(config: Any, rng: random.Random) -> Any:
    """A model of random weights; some are stored in fewer bits than others."""
    seed = rng.randrange(2**31)
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    automatic = transformers.AutoModelForCausalLM
    model = automatic.from_config(config, attn_implementation="eager", dtype=torch.float32).eval()
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() <= 1:  # norms, biases, gates: near what they begin as
                parameter.add_(0.2 * noise)
            elif any(part in name for part in ("embed", "wte", "wpe")):
                parameter.copy_(0.4 * noise)
            else:
                parameter.copy_(1.1 * noise / parameter.shape[-1] ** 0.5)
        for name, buffer in model.named_buffers():
            if "correction_bias" in name:
                buffer.copy_(0.1 * torch.randn(buffer.shape, generator=generator))
        stored = rng.choice((None, torch.bfloat16, torch.float16, "mixed"))
        for tensor in model.state_dict().values():
            kind = rng.choice((None, torch.bfloat16)) if stored == "mixed" else stored
            if kind is not None and tensor.is_floating_point():
                tensor.copy_(tensor.to(kind).float())
    return model


def _logits(model: Any, ids: torch.Tensor) -> torch.Tensor:
    return model(ids[None], use_cache=False).logits[0].float()


def _reference(model: Any, lengths: dict[str, int], rng: random.Random) -> dict[str, torch.Tensor] | None:
    """Prompts and their logits; None if another rounding of the weights changes them (ties of routers)."""
    generator = torch.Generator().manual_seed(rng.randrange(2**31))
    vocab = model.config.get_text_config().vocab_size
    tensors: dict[str, torch.Tensor] = {}
    with torch.no_grad():
        for prompt, length in lengths.items():
            ids = torch.randint(0, vocab, (length,), generator=generator)
            tensors |= {f"input_ids.{prompt}": ids, f"logits.{prompt}": _logits(model, ids)}
        parameters = [parameter for _, parameter in sorted(model.named_parameters())]
        kept = [parameter.clone() for parameter in parameters]
        for parameter in parameters:
            parameter.mul_(1 + 3e-7 * torch.randn(parameter.shape, generator=generator))
        moved = [_apart(_logits(model, tensors[f"input_ids.{p}"]), tensors[f"logits.{p}"]) for p in lengths]
        for parameter, value in zip(parameters, kept, strict=True):
            parameter.copy_(value)
    return tensors if max(moved) < 1e-4 else None


@contextlib.contextmanager
def _topk(choose: Callable[[torch.Tensor, int, bool], torch.Tensor]) -> Iterator[None]:
    """The k largest (or smallest) numbers by indices that `choose` sorts."""
    kept = torch.topk, torch.Tensor.topk

    def topk(x: torch.Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
        order = choose(x, dim, largest).narrow(dim, 0, k)
        return torch.return_types.topk((x.gather(dim, order), order))

    torch.topk = torch.Tensor.topk = topk
    try:
        with torch.no_grad():
            yield
    finally:
        torch.topk, torch.Tensor.topk = kept


def _first(x: torch.Tensor, dim: int, largest: bool) -> torch.Tensor:
    """Of equal numbers the first one first."""
    return torch.sort(x, dim=dim, descending=largest, stable=True).indices


def _last(x: torch.Tensor, dim: int, largest: bool) -> torch.Tensor:
    """Of equal numbers the last one first."""
    return x.shape[dim] - 1 - _first(x.flip(dim), dim, largest)


def _apart(one: torch.Tensor, other: torch.Tensor) -> float:
    """Of the largest number; infinite for what is not finite."""
    if not (torch.isfinite(one).all() and torch.isfinite(other).all()):
        return float("inf")
    return float((one - other).abs().max() / other.abs().max().clamp(min=1))


def _write(model: Any, folder: Path, tensors: dict[str, torch.Tensor], rng: random.Random) -> None:
    """A model folder, its numbers beside it. The config says all keys, or those that the class does not."""
    model.save_pretrained(folder)
    whole = rng.random() < 0.5
    (folder / "config.json").write_text(model.config.to_json_string(use_diff=not whole))
    stored = load_file(folder / "model.safetensors")
    for name, tensor in stored.items():
        for kind in (torch.bfloat16, torch.float16):
            # What was rounded to fewer bits is stored in them.
            rounded = tensor.to(kind)
            if tensor.dim() and tensor.dtype == torch.float32 and torch.equal(rounded.float(), tensor):
                stored[name] = rounded
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "golden.safetensors")


def _complete(model: Any, folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    """What a golden case has in addition: a greedy run and the tolerance."""
    ids = tensors["input_ids.p33"]
    with torch.no_grad():
        for _ in range(GREEDY):
            ids = torch.cat([ids, _logits(model, ids)[-1].argmax()[None]])
    greedy = {"greedy.prompt_ids": ids[:33].clone(), "greedy.output_ids": ids[33:].clone()}
    save_file({**tensors, **greedy}, folder / "golden.safetensors")
    largest = max(float(tensor.abs().max()) for name, tensor in tensors.items() if "logits" in name)
    tolerance = {"atol": 2e-4 * max(1.0, largest), "rtol": 0.0}
    (folder / "golden.json").write_text(json.dumps({"tolerance": tolerance}, indent=1))


# ---- ropechat


class _Engine:
    """The process that computes with ropechat; started again after a crash."""

    def __enter__(self) -> "_Engine":
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def _start(self) -> None:
        command = [sys.executable, str(Path(__file__).with_name("engine_process.py"))]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, folder: Path) -> dict[str, str]:
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(f"{folder.resolve()}\n")
            process.stdin.flush()
            if not select.select([process.stdout], [], [], SECONDS)[0]:
                process.kill()
        line = process.stdout.readline()
        if line:
            return dict(json.loads(line))
        code = process.wait()
        self._start()
        why = f"the process ended with {code}" if code != -9 else f"no answer after {SECONDS} s"
        return {"outcome": "crash", "reason": why}
