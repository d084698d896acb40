"""Types of one to four bits beside llama.cpp: decode and prefill of random blocks, as a Markdown table.

`python tests/bench/few_bits.py --peer-python PYTHON [--shape llama-3.1-8b] [--types q2_k tq2_0 ...]`;
PYTHON has llama-cpp-python. All matrices of the layers have the type; embedding and output matrix are of
four and six bits. The two engines take turns, each in a process of its own. Speed does not depend on the
values, so blocks are random; a file is made for each type in turn, and removed behind it unless `--keep`
is given, which also takes the files that are there.

`GB/s` is what a decoded token reads in ropechat's memory times tokens per second; `of memory` its share
of what a plain read of as many threads gets in the same rounds; `GOP/s` are multiplications and additions
of the layers' weights in a prefill.
"""

import argparse
import math
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from peers import Peer, PeerError

from ropechat.engine.bench import gguf
from ropechat.engine.bench.measure import Prompts
from ropechat.engine.bench.memory import Memory
from ropechat.engine.bench.shapes import SHAPES, config_of


class Kind(gguf.BlockType):
    """A type whose `bytes` are those of 256 values, maybe of several blocks.

    `spread` is the standard deviation of a block's values where its scale is 1."""


# By ggml's name: number, bytes of 256 values, spread; the bytes of a block, and where its f16 numbers are.
TYPES: dict[str, tuple[Kind, int, tuple[int, ...]]] = {
    "q4_k": (Kind(12, 144, 258.0), 144, (0, 2)),
    "q3_k": (Kind(11, 110, 42.0), 110, (108,)),
    "q2_k": (Kind(10, 84, 13.0), 84, (80, 82)),
    "tq2_0": (Kind(35, 66, 1.1), 66, (64,)),
    "tq1_0": (Kind(34, 54, 0.8), 54, (52,)),
    "q2_0": (Kind(42, 72, 1.1), 18, (0,)),
    "q1_0": (Kind(41, 36, 1.0), 18, (0,)),
    "iq4_nl": (Kind(20, 144, 67.0), 18, (0,)),
    "iq4_xs": (Kind(23, 136, 1200.0), 136, (0,)),
    "iq3_s": (Kind(21, 110, 144.0), 110, (0,)),
    "iq3_xxs": (Kind(18, 98, 140.0), 98, (0,)),
    "iq2_s": (Kind(22, 82, 60.0), 82, (0,)),
    "iq2_xs": (Kind(17, 74, 60.0), 74, (0,)),
    "iq2_xxs": (Kind(16, 66, 60.0), 66, (0,)),
    "iq1_s": (Kind(19, 50, 7.0), 50, (0,)),
}


def tensors_of(shape: str, name: str) -> Iterator[gguf.Tensor]:
    kind = TYPES[name][0]
    for tensor in gguf.tensors_of(config_of(shape)):
        is_layer = tensor.kind is not None and tensor.name.startswith("blk.")
        yield tensor._replace(kind=kind) if is_layer else tensor


def blocks_of(name: str, count: int, spread: float, rng: np.random.Generator) -> np.ndarray:
    """Random values of `count` times 256.  # uint8 [.., bytes of a block]"""
    kind, size, halves = TYPES[name]
    blocks = rng.integers(0, 256, (count * kind.bytes // size, size), dtype=np.uint8)
    for at in halves:
        blocks[:, at : at + 2] = np.array([spread / kind.spread], "<f2").view(np.uint8)
    return blocks


def write(path: Path, shape: str, name: str) -> None:
    """A file of the shape, a part of a tensor at a time."""
    tensors, rng = list(tensors_of(shape, name)), np.random.default_rng(0)
    with path.open("wb") as file:
        file.write(gguf._header(gguf.metadata_of(config_of(shape)), tensors))
        for tensor in tensors:
            if not isinstance(tensor.kind, Kind):
                gguf._write_tensor(file, tensor, rng)
                continue
            count = math.prod(tensor.shape) // 256
            for start in range(0, count, 1 << 16):
                file.write(blocks_of(name, min(1 << 16, count - start), tensor.spread, rng).data)
            file.write(bytes(-tensor.bytes % 32))


def medians(values: list[dict[str, float]]) -> dict[str, float]:
    return {key: statistics.median(one[key] for one in values) for key in values[0]}


def run(peer: Peer, ids: list[int], decode: int) -> tuple[float, float]:
    """Seconds of a prompt, and of tokens after it."""
    first, rest = peer.ask({"task": "run", "ids": ids, "decode": decode})["values"]
    return first, rest


def measured(
    path: Path, vocab_size: int, threads: int, given: argparse.Namespace
) -> tuple[list[dict[str, float]], float]:
    """For each engine its decode and prefill in tokens/s; and bytes/s of memory. Medians of turns."""
    peers = [Peer("ropechat", "", sys.executable, path, "auto", threads)]
    if given.peer_python:
        peers.append(Peer("llama.cpp", "", given.peer_python, path, "auto", threads))
    prompts, memory, reads = Prompts(vocab_size), Memory(512), []
    try:
        for peer in [*peers]:
            try:
                peer.begin()
                run(peer, prompts.draw(8), 1)
            except PeerError as error:
                if peer is peers[0]:
                    raise
                print(f"{path.stem}: {peer.name}: {error}", file=sys.stderr)
                peers.remove(peer)
        found: list[list[dict[str, float]]] = [[] for _ in peers]
        for _ in range(given.rounds):
            reads.append(memory.read(threads))
            for peer, values in zip(peers, found, strict=True):
                _, decode = run(peer, prompts.draw(8), given.decode)
                prefill, _ = run(peer, prompts.draw(given.prefill), 0)
                values.append({"decode": given.decode / decode, "prefill": given.prefill / prefill})
    finally:
        for peer in peers:
            peer.end()
    return [medians(values) for values in found], statistics.median(reads)


def packed_bytes(path: Path, shape: str) -> int:
    """Bytes of the weights in memory that a token reads: all but an untied embedding."""
    from ropechat import Engine

    inside: int = Engine.load(path, context=256).facts["weight_bytes"]
    config = config_of(shape)
    if not config["tie_word_embeddings"]:
        inside -= config["vocab_size"] * config["hidden_size"] * gguf.Q4_K.bytes // 256
    return inside


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--peer-python", help="a Python that has llama-cpp-python")
    parser.add_argument("--shape", choices=list(SHAPES), default="llama-3.1-8b")
    parser.add_argument("--types", nargs="+", choices=list(TYPES), default=list(TYPES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, nargs="+", default=[2])
    parser.add_argument("--prefill", type=int, default=128)
    parser.add_argument("--decode", type=int, default=16)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "ropechat-bench")
    parser.add_argument("--keep", action="store_true", help="leave the files, and take those that are there")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    vocab_size = config_of(given.shape)["vocab_size"]
    layers = [tensor for tensor in tensors_of(given.shape, "q2_k") if tensor.name.startswith("blk.")]
    weights = sum(math.prod(tensor.shape) for tensor in layers)
    print(
        "| type | bits in the file | threads | GB a token | decode | llama.cpp | ratio | GB/s | of memory | "
        "prefill | llama.cpp | ratio | GOP/s |"
    )
    print("| --- " + "| ---: " * 12 + "|")
    for name in given.types:
        path = given.folder / f"{given.shape}-{name}.gguf"
        try:
            if not (given.keep and path.exists()):
                write(path, given.shape, name)
            inside = packed_bytes(path, given.shape)
            for threads in given.threads:
                values, read = measured(path, vocab_size, threads, given)
                print(row_of(name, threads, inside, weights, values, read), flush=True)
        finally:
            if not given.keep:
                path.unlink(missing_ok=True)


def row_of(
    name: str, threads: int, inside: int, weights: int, values: list[dict[str, float]], read: float
) -> str:
    """A line of the table; without llama.cpp its columns are nan."""
    own, other = values[0], values[1] if len(values) > 1 else {"decode": math.nan, "prefill": math.nan}
    cells = [name, f"{TYPES[name][0].bytes / 32:.2f}", str(threads), f"{inside / 1e9:.2f}"]
    rates = {"decode": inside * own["decode"], "prefill": 2 * weights * own["prefill"]}
    for metric, rate in rates.items():
        ratio = own[metric] / other[metric]
        cells += [f"{own[metric]:.1f}", f"{other[metric]:.1f}", f"{ratio:.2f}", f"{rate / 1e9:.1f}"]
        cells += [f"{rate / read:.0%}"] if metric == "decode" else []
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    main()
