"""A chat that is closed and opened again: seconds to the first token, with what was read kept on disk or not.

    python tests/bench/reopen.py [-m MODEL | --shape NAME] [--tokens 2000] [--dtype q8_0] [--threads N]

Also: the file's size, and the seconds to write it (synced) and to take it in. Each is the real engine with
the chat's own thread, without a screen.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

sys.path[:0] = [str(Path(__file__).parents[1] / "support"), str(Path(__file__).parents[2])]

import live_chat  # noqa: E402
from live_chat import Program  # noqa: E402

from ropechat.chat import events as ev  # noqa: E402
from ropechat.engine.bench.shapes import SHAPES, make  # noqa: E402
from ropechat.engine.native import load_core  # noqa: E402
from ropechat.sampling import Sampling  # noqa: E402
from ropechat.store.store import Store  # noqa: E402

if TYPE_CHECKING:
    from ropechat.chat.answer import Turn

live_chat.LIMIT_S = 3600.0
SAMPLING = Sampling(temperature=0, max_tokens=8, seed=0)
TOTAL = 4_000_000_000


def first_token(one: Program, question: str = "And then?", turn: Turn | None = None) -> float:
    """Seconds from a question to the first token of its answer. turn: that is answered instead."""
    begun, seen = time.perf_counter(), len(one.seen)
    one.cached = one.prompt = 0
    turn = turn or one.session.ask(question)
    assert turn.request is not None
    one.chat.submit(turn.request)
    one.until(
        lambda: (
            any(isinstance(event, ev.TokenGenerated) for event in one.seen[seen:])
            or not one.session.generating
        )
    )
    if turn.answer.error is not None or not turn.answer.node.steps:
        raise SystemExit(f"no answer: {turn.answer.error or 'the question does not fit into the context'}")
    found = time.perf_counter() - begun
    one.until(lambda: not one.session.generating)
    return found


def reopened(model: str, store: Store, chat: str, load: dict[str, object], **options: object) -> float:
    """Seconds to the first token, and where it reads ahead, after that has ended."""
    one = Program(model, store, SAMPLING, load=load, **options)
    one.open(chat)
    if options.get("reads_ahead"):
        one.read_ahead()
    found = first_token(one)
    one.session.withdraw()
    one.inference.shutdown(30.0)
    return found


def measure(model: str, tokens: int, load: dict[str, object]) -> dict[str, float]:
    """The figures of one run, in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = str(Path(folder) / "cache")
        store = Store(Path(folder) / "data")
        one = Program(model, store, SAMPLING, load=load, kv_bytes=TOTAL)
        text = ""
        while len(ids := one.engines[0].prompt_ids(one.session.messages(text or "a"))) < tokens:
            text += " and the cat saw a big red dog" * max(1, (tokens - len(ids)) // 60)
        begun = time.perf_counter()
        one.answer(one.session.ask(text))
        read = time.perf_counter() - begun
        chat, engine = one.session.recorder.id, one.engines[0]
        ids = engine.certain_ids(one.session.messages())
        prefix, path = engine.begin_prefill(ids).keep(), Path(folder) / "cache" / "figures.kv"
        assert prefix is not None
        path.parent.mkdir(parents=True, exist_ok=True)
        begun = time.perf_counter()
        assert prefix.write(path, load_core().CancelToken(), total=TOTAL, keep_free=0)
        written = time.perf_counter() - begun
        one.close()
        other = Program(model, None, SAMPLING, load=load)
        begun = time.perf_counter()
        prefill = other.engines[0].begin_prefill(ids)
        assert prefill.take(path) is None
        taken = time.perf_counter() - begun
        other.close()
        figures = {
            "tokens": prefix.tokens,
            "read_all_s": read,
            "file_mb": path.stat().st_size / 1e6,
            "write_s": written,
            "take_s": taken,
            "again_without_s": reopened(model, store, chat, load, reads_ahead=False),
            "again_from_disk_s": reopened(model, store, chat, load, reads_ahead=False, kv_bytes=TOTAL),
            "again_read_ahead_s": reopened(model, store, chat, load, reads_ahead=True, kv_bytes=TOTAL),
        }
        store.close()
        return {name: round(value, 4) for name, value in figures.items()}


def main() -> None:
    """Print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("-m", "--model", default="builtin")
    parser.add_argument("--shape", choices=list(SHAPES))
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "ropechat-bench")
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--threads", type=int, default=None)
    given = parser.parse_args()
    model = given.model
    if given.shape is not None:
        given.folder.mkdir(parents=True, exist_ok=True)
        model = str(make(given.shape, given.folder, lambda *words: None))
    load = {"dtype": given.dtype, "threads": given.threads, "context": 2 * given.tokens}
    print(json.dumps(measure(model, given.tokens, load)))


if __name__ == "__main__":
    main()
