"""A quick probe of this machine, once: the expected rates of models that were not measured."""

import json
import tempfile
import time
from pathlib import Path

from ropechat.engine.bench.gguf import write_gguf
from ropechat.engine.bench.memory import Memory
from ropechat.engine.bench.shapes import config_of, header_of
from ropechat.engine.engine import Engine
from ropechat.engine.native import load_core
from ropechat.errors import RopechatError
from ropechat.models.pack_cache import cache_mode
from ropechat.models.speed import Machine, count_products, keep_machine, known_machine
from ropechat.sampling import Sampling

_LAYER = {  # one layer of a model of a billion weights, in a quarter of its size
    **{"hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16, "num_key_value_heads": 4},
    **{"num_hidden_layers": 1, "head_dim": 64, "vocab_size": 512, "max_position_embeddings": 512},
}
_ROWS = 192
_TRIES = 6  # the best counts: other programs only make it slower
_MEGABYTES = 96


def probe_machine() -> Machine | None:
    """The rates of this machine: known from an earlier start, or measured. None without a cache for them."""
    if cache_mode() == "off":
        return None
    version = load_core().__version__
    known = known_machine(version)
    if known is not None:
        return known
    try:
        found = _measure(version)
    except (RopechatError, OSError):  # no memory or no disk for it: then there are no estimates
        return None
    keep_machine(found)
    return found


def _measure(version: str) -> Machine:
    config, products, threads = config_of("llama-3.2-1b") | _LAYER, {}, 1
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_gguf(folder / "q4_k.gguf", config, lambda text: None)
        (folder / "plain").mkdir()
        (folder / "plain" / "config.json").write_text(json.dumps(config), "utf-8")
        header, size = header_of(config)
        with (folder / "plain" / "model.safetensors").open("wb") as file:
            file.write(header)
            file.truncate(len(header) + size)  # zeros: speed does not depend on the values
        for dtype in ("q8_0", "bf16", "q4_k"):
            path = folder / ("q4_k.gguf" if dtype == "q4_k" else "plain")
            own = "auto" if dtype == "q4_k" else dtype
            engine = Engine.load(path, dtype=own, context=512, cache="off", speculative="off")
            engine.stop_ids = frozenset()
            products[dtype] = count_products(engine.facts) * _ROWS / _best_prefill(engine)
            threads = engine.facts["threads"]
            engine.close()
    memory = Memory(_MEGABYTES)
    return Machine(version, max(memory.read(threads) for _ in range(3 * _TRIES)), products)


def _best_prefill(engine: Engine) -> float:
    """Seconds to read a prompt."""
    best = float("inf")
    for number in range(_TRIES):
        begun = time.perf_counter()
        for _ in engine.generate([number + 1] * _ROWS, Sampling(temperature=0, max_tokens=1)):
            pass
        best = min(best, time.perf_counter() - begun)
    return best
