"""One engine in a process of its own, which does what `peers.py` writes to its stdin. Needs that engine only.

`peer_worker.py --list` tells which engines this Python has. `peer_worker.py ENGINE MODEL THREADS DTYPE` loads
one and answers JSON lines; with `--start` it makes one token instead, says so and ends. ik_llama.cpp takes
the folder of its programs behind the type.
"""

import ctypes
import importlib
import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Protocol

SEQUENCE_TOKENS = 512
"""Room of one sequence of a batch."""


class Peer(Protocol):
    """A loaded model."""

    def run(self, ids: Sequence[int], decode: int) -> tuple[float, float]:
        """Seconds until the prompt's last row is known, and of `decode` tokens after it."""

    def batch(self, prompts: Sequence[Sequence[int]], decode: int) -> float:
        """Tokens per second of all sequences together while `decode` tokens of each are made."""


class Ropechat:
    package = "ropechat"

    def __init__(self, model: str, threads: int, dtype: str) -> None:
        from ropechat import Engine

        self.engine = Engine.load(model, threads=threads, dtype=dtype, speculative="off")
        self.engine.stop_ids = frozenset()

    def about(self) -> str:
        return str(self.engine.facts["isa"])

    def run(self, ids: Sequence[int], decode: int) -> tuple[float, float]:
        from ropechat.engine.bench.measure import time_request

        return time_request(self.engine, ids, decode)

    def batch(self, prompts: Sequence[Sequence[int]], decode: int) -> float:
        from ropechat.engine.bench.measure import Workload, time_batch

        return time_batch(
            self.engine, prompts, Workload(batch_decode=decode).batch_tokens(len(prompts)), decode
        )


class LlamaCpp:
    """The low-level API, as llama-bench uses it: flash attention, batches of 512, no sampling.

    llama-cpp-python 0.3.36 crashed in its AMX kernels (q8_0, q4_0) on a virtual machine. A build without them
    that keeps its repacked kernels: CMAKE_ARGS="-DGGML_NATIVE=OFF -DGGML_AVX512=ON -DGGML_AVX512_VBMI=ON
    -DGGML_AVX512_VNNI=ON -DGGML_AVX512_BF16=ON" pip install --no-binary llama-cpp-python llama-cpp-python
    """

    package = "llama_cpp"

    def __init__(self, model: str, threads: int, dtype: str) -> None:
        import llama_cpp

        self.api, self.threads = llama_cpp, threads
        self._quiet = llama_cpp.llama_log_callback(lambda *given: None)
        llama_cpp.llama_log_set(self._quiet, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        params = llama_cpp.llama_model_default_params()
        self.model = llama_cpp.llama_model_load_from_file(model.encode(), params)
        assert self.model, f"{model}: cannot be loaded"
        self.single = self.context(4096, 1)

    def about(self) -> str:
        words = self.api.llama_print_system_info().decode().split(" | ")
        kept = ("AVX512_VNNI", "AVX512_BF16", "AMX_INT8", "REPACK", "OPENMP", "LLAMAFILE")
        return " ".join(name for name in kept if f"{name} = 1" in [word.strip() for word in words])

    def context(self, size: int, sequences: int) -> Any:
        params = self.api.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = size, 2048, 512
        params.n_seq_max = sequences
        params.n_threads = params.n_threads_batch = self.threads
        params.flash_attn_type = 1
        context = self.api.llama_init_from_model(self.model, params)
        assert context, "no context"
        return context

    def feed(self, context: Any, rows: Sequence[tuple[int, int, int, bool]]) -> None:
        """Rows of (id, position, sequence, whether its logits are wanted)."""
        batch = self.api.llama_batch_init(len(rows), 0, 1)
        batch.n_tokens = len(rows)
        for index, (id, position, sequence, wanted) in enumerate(rows):
            batch.token[index], batch.pos[index], batch.logits[index] = id, position, wanted
            batch.n_seq_id[index], batch.seq_id[index][0] = 1, sequence
        code = self.api.llama_decode(context, batch)
        self.api.llama_synchronize(context)
        self.api.llama_batch_free(batch)
        assert code == 0, f"llama_decode: {code}"

    def prompt(self, context: Any, ids: Sequence[int], sequence: int) -> None:
        last = len(ids) - 1
        for start in range(0, len(ids), 2048):
            part = range(start, min(start + 2048, len(ids)))
            self.feed(context, [(ids[at], at, sequence, at == last) for at in part])

    def run(self, ids: Sequence[int], decode: int) -> tuple[float, float]:
        self.api.llama_memory_clear(self.api.llama_get_memory(self.single), True)
        begin = time.perf_counter()
        self.prompt(self.single, ids, 0)
        first = time.perf_counter()
        for index in range(decode):
            self.feed(self.single, [(ids[index % len(ids)], len(ids) + index, 0, True)])
        return first - begin, time.perf_counter() - first

    def batch(self, prompts: Sequence[Sequence[int]], decode: int) -> float:
        context = self.context(SEQUENCE_TOKENS * len(prompts), len(prompts))
        for sequence, ids in enumerate(prompts):
            self.prompt(context, ids, sequence)
        begin = time.perf_counter()
        for step in range(decode):
            at = [(ids[step], len(ids) + step, sequence, True) for sequence, ids in enumerate(prompts)]
            self.feed(context, at)
        seconds = time.perf_counter() - begin
        self.api.llama_free(context)
        return len(prompts) * decode / seconds


class OpenVino:
    """GenAI's pipeline with paged attention, its fastest here; prefix caching off.

    Where the processor multiplies bf16, all that is not quantized is computed in bf16.
    """

    package = "openvino_genai"
    hints: ClassVar[dict[str, str]] = {}

    def __init__(self, model: str, threads: int, dtype: str) -> None:
        import openvino
        import openvino_genai

        self.api, self.openvino = openvino_genai, openvino
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.enable_prefix_caching = False
        scheduler.max_num_batched_tokens = 4096
        scheduler.cache_size = 1
        self.pipe = openvino_genai.LLMPipeline(
            model, "CPU", scheduler_config=scheduler, INFERENCE_NUM_THREADS=threads, **self.hints
        )

    def about(self) -> str:
        core = self.openvino.Core()
        return " ".join(core.get_property("CPU", "OPTIMIZATION_CAPABILITIES"))

    def generate(self, prompts: Sequence[Sequence[int]], tokens: int) -> Any:
        import numpy as np

        config = self.api.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = tokens, True, False
        config.apply_chat_template, config.eos_token_id, config.stop_token_ids = False, 1, {1}
        ids = np.array(prompts, np.int64)
        tensors = self.openvino.Tensor(ids), self.openvino.Tensor(np.ones_like(ids))
        return self.pipe.generate(self.api.TokenizedInputs(*tensors), config).perf_metrics

    def run(self, ids: Sequence[int], decode: int) -> tuple[float, float]:
        metrics = self.generate([ids], decode + 1)
        return metrics.get_ttft().mean / 1e3, sum(metrics.raw_metrics.m_durations) / 1e6

    def batch(self, prompts: Sequence[Sequence[int]], decode: int) -> float:
        raw = self.generate(prompts, decode + 1).raw_metrics
        times, sizes = raw.m_new_token_times, raw.m_batch_sizes
        return sum(sizes[1:]) / (times[-1] - times[0]) * 1e3


class OpenVinoF32(OpenVino):
    """The same in f32, as ropechat and llama.cpp compute what is not quantized."""

    hints: ClassVar = {"INFERENCE_PRECISION_HINT": "f32"}


class OnnxRuntime:
    """onnxruntime-genai, greedy."""

    package = "onnxruntime_genai"

    def __init__(self, model: str, threads: int, dtype: str) -> None:
        import onnxruntime_genai

        self.api = onnxruntime_genai
        config = onnxruntime_genai.Config(model)
        session = {"session_options": {"intra_op_num_threads": threads}}
        config.overlay(json.dumps({"model": {"decoder": session}}))
        self.model = onnxruntime_genai.Model(config)

    def about(self) -> str:
        return ""

    def generator(self, prompts: Sequence[Sequence[int]], tokens: int) -> Any:
        params = self.api.GeneratorParams(self.model)
        length = len(prompts[0]) + tokens + 1
        params.set_search_options(
            do_sample=False, max_length=length, min_length=length, batch_size=len(prompts)
        )
        return self.api.Generator(self.model, params)

    def run(self, ids: Sequence[int], decode: int) -> tuple[float, float]:
        generator = self.generator([ids], decode + 1)
        begin = time.perf_counter()
        generator.append_tokens(list(ids))
        generator.generate_next_token()
        first = time.perf_counter()
        for _ in range(decode):
            generator.generate_next_token()
        return first - begin, time.perf_counter() - first

    def batch(self, prompts: Sequence[Sequence[int]], decode: int) -> float:
        import numpy as np

        generator = self.generator(prompts, decode + 1)
        generator.append_tokens(np.array(prompts, np.int32))
        generator.generate_next_token()
        begin = time.perf_counter()
        for _ in range(decode):
            generator.generate_next_token()
        return len(prompts) * decode / (time.perf_counter() - begin)


class IkLlamaCpp:
    """ik_llama.cpp by its own programs, each measurement in a process of its own; `folder` has them.

    The flags are the best that were measured for each kind of work: weights are repacked (-rtr) for decoding
    and for bf16, without flash attention at a short context, with a cache of q8_0 at a long one.
    """

    LONG_CONTEXT = 1024

    def __init__(self, model: str, threads: int, dtype: str, folder: str) -> None:
        self.model, self.threads, self.dtype, self.folder = model, threads, dtype, folder

    def about(self) -> str:
        return self.bench("-p", "1")["build_commit"]

    def call(self, program: str, *options: str) -> str:
        command = [os.path.join(self.folder, program), "-m", self.model, "-t", str(self.threads), *options]
        with tempfile.TemporaryDirectory() as logs:  # where some builds write a log
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", cwd=logs)
        assert done.returncode == 0, f"{program}: {done.stderr[-200:]}"
        return done.stdout + done.stderr

    def bench(self, *options: str) -> dict[str, Any]:
        """The only test of a run of llama-bench."""
        out = self.call("llama-bench", "-o", "json", "-r", "1", "-n", "0", *options)
        (test,) = json.loads(out[out.index("[\n") : out.rindex("]") + 1])
        return test

    def run(self, ids: Sequence[int], decode: int) -> tuple[float, float]:
        if decode == 0:
            options = ["-p", str(len(ids)), "-fa", "1", "-rtr", str(int(self.dtype == "bf16"))]
            return self.bench(*options)["avg_ns"] / 1e9, 0.0
        options = ["-fa", "0"]
        if len(ids) >= self.LONG_CONTEXT:
            options = ["-fa", "1", "-ctk", "q8_0", "-ctv", "q8_0"]
        found = self.bench("-p", "0", "-gp", f"{len(ids)},{decode}", "-rtr", "1", *options)
        return 0.0, found["avg_ns"] / 1e9

    def batch(self, prompts: Sequence[Sequence[int]], decode: int) -> float:
        count, length = len(prompts), len(prompts[0])
        sizes = {"-c": count * (length + decode), "-npp": length, "-ntg": decode, "-npl": count}
        given = [str(part) for size in sizes.items() for part in size]
        out = self.call("llama-batched-bench", "-b", "2048", "-ub", "512", *given)
        rows = [line.split("|") for line in out.splitlines() if line.startswith("|")]
        return float(rows[-1][8])  # S_TG t/s


ENGINES: dict[str, Any] = {
    "ropechat": Ropechat,
    "llama.cpp": LlamaCpp,
    "openvino": OpenVino,
    "openvino-f32": OpenVinoF32,
    "onnxruntime": OnnxRuntime,
    "ik_llama.cpp": IkLlamaCpp,
}
PACKAGES = {
    "ropechat": "ropechat",
    "llama.cpp": "llama-cpp-python",
    "openvino": "openvino-genai",
    "openvino-f32": "openvino-genai",
    "onnxruntime": "onnxruntime-genai",
}


def installed() -> dict[str, str]:
    """Version of each engine that this Python has."""
    found = {}
    for name, package in PACKAGES.items():
        try:
            found[name] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def answer(peer: Peer, task: dict[str, Any]) -> dict[str, Any]:
    """What a task gave, and how much of the processor it took."""
    wall, cpu = time.perf_counter(), cpu_seconds()
    values: Any
    if task["task"] == "run":
        values = peer.run(task["ids"], task["decode"])
    else:
        values = peer.batch(task["prompts"], task["decode"])
    return {"values": values, "wall_s": time.perf_counter() - wall, "cpu_s": cpu_seconds() - cpu}


def cpu_seconds() -> float:
    """What this process and the ones it has waited for took of the processors."""
    return sum(os.times()[:4])


def private_stdout() -> Callable[[str], None]:
    """Where answers go: native code may write to stdout, which becomes stderr."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(text: str) -> None:
        out.write(text + "\n")
        out.flush()

    return say


def main() -> None:
    if sys.argv[1] == "--list":
        print(json.dumps(installed()))
        return
    say = private_stdout()
    name, model, threads, dtype, *others = sys.argv[1:]
    folder = [one for one in others if one != "--start"]
    peer = ENGINES[name](model, int(threads), dtype, *folder)
    if "--start" in others:
        peer.run([5, 6, 7, 8], 0)
        say("token")
        return
    say(json.dumps({"about": peer.about()}))
    for line in sys.stdin:
        say(json.dumps(answer(peer, json.loads(line))))


if __name__ == "__main__":
    main()
