"""Every wait of a chat with a model: seconds to the first token, and those of llama.cpp's server beside them.

    python tests/bench/waits.py [-m MODEL | --shape NAME [--dtype q4_k_m]] [--tokens 500,2000] [--file 25000]
                                [--typed 20] [--cases start,prompt,open,switch,file] [--llama FOLDER] [--json]

start: `ropechat run` with an empty cache, and again when the weights are packed. prompt: a first question
of so many tokens; with the last of them also the same question again, and a short second one. open: that
chat opened after a restart, with the question at once, with the question when all is read ahead, and
without kept keys and values. switch: to the built-in model and back, question at once. file: a draft of so
many tokens (25,000 are 100 KB of English), and --typed seconds until it is sent; also with reading ahead
turned off. Except for start, it is the chat's own thread without a screen, and loading is not counted (but
in switch).

--llama: a folder with llama-server and llama-completion (or llama-cli). The server gets the ids of the same
texts; `open` restores its slot file, and the command line its prompt cache.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path[:0] = [str(Path(__file__).parents[1] / "support"), str(Path(__file__).parents[2])]

from live_chat import Program  # noqa: E402
from reopen import SAMPLING, TOTAL, first_token, reopened  # noqa: E402
from subject import add_options, chosen  # noqa: E402

from ropechat.chat import events as ev  # noqa: E402
from ropechat.chat.live import LONG_DRAFT  # noqa: E402
from ropechat.engine.bench.start import run_command, start_process  # noqa: E402
from ropechat.engine.engine import Engine  # noqa: E402
from ropechat.store.store import Store  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Sequence

CASES = ("start", "prompt", "open", "switch", "file")
PHRASE = " and the cat saw a big red dog"
PACK_S = 1800.0  # a pack is given up after so long
Figures = dict[str, float | None]


def text_of(engine: Engine, tokens: int) -> str:
    """A text of about so many tokens."""
    each = len(engine.tokenizer.encode(PHRASE * 8)) / 8
    return PHRASE * max(1, round(tokens / each))


def starts(model: str, load: dict[str, Any]) -> Figures:
    """The first start, and one with packed weights."""
    options = ["-m", model, "--dtype", load["dtype"], "--context", str(load["context"])]
    options += [] if load["threads"] is None else ["--threads", str(load["threads"])]
    found: Figures = {}
    for name in ("first start", "second start"):
        start = start_process(run_command(options))
        found[name] = None if isinstance(start, str) else start.seconds
        engine = Engine.load(model, **load)  # stays until its pack is written, as a chat does
        list(engine.generate("a", SAMPLING))
        engine.finish_pack(PACK_S)
        engine.close()
    return found


class Chats:
    """The cases of a chat. texts: the prompts by their number of tokens."""

    def __init__(self, model: str, load: dict[str, Any], texts: dict[int, str], store: Store) -> None:
        self.model, self.load, self.texts, self.store = model, load, texts, store
        self.one = self.program(reads_ahead=True)
        self.found: Figures = {}

    def program(self, **options: Any) -> Program:
        return Program(self.model, self.store, SAMPLING, load=self.load, **{"kv_bytes": TOTAL, **options})

    def prompts(self) -> None:
        one = self.one
        for tokens, text in self.texts.items():
            one.new()
            self.found[f"prompt of {tokens}"] = first_token(one, text)
        asked = one.session.turns[-1].asked
        self.found["regenerate"] = first_token(one, turn=one.session.answer(asked))
        one.read_ahead()  # as the app does after each answer
        self.found["second question"] = first_token(one)
        self.found["second question: tokens"] = one.prompt - one.cached

    def opened(self) -> None:
        """Needs `prompts`."""
        chat = self.one.session.recorder.id
        self.one.close()
        for name, options in (
            ("opened, at once", {"reads_ahead": False, "kv_bytes": TOTAL}),
            ("opened, when read", {"reads_ahead": True, "kv_bytes": TOTAL}),
            ("opened, nothing kept", {"reads_ahead": False}),
        ):
            self.found[name] = reopened(self.model, self.store, chat, self.load, **options)
        self.one = self.program(reads_ahead=True)
        self.one.open(chat)
        self.one.read_ahead()

    def switched(self) -> None:
        """Needs `prompts`."""
        one = self.one
        engines = iter([lambda: Engine.load("builtin"), lambda: Engine.load(self.model, **self.load)])
        for _ in range(2):
            loaded = sum(isinstance(event, ev.ModelLoaded) for event in one.seen)
            begun = time.perf_counter()
            one.chat.submit(ev.Load(next(engines)))
            one.until(lambda: sum(isinstance(event, ev.ModelLoaded) for event in one.seen) > loaded)  # noqa: B023
        loading = time.perf_counter() - begun
        self.found["switched back: load"] = loading
        self.found["switched back, at once"] = loading + first_token(one)

    def file(self, text: str, typed: float) -> None:
        if len(text) < LONG_DRAFT:
            raise SystemExit(f"--file: drafts under {LONG_DRAFT} characters are not read ahead")
        question = f"{text}\n\nWhat does the cat do?"
        for name, seconds in ((f"file, typed for {typed:g} s", typed), ("file, not read ahead", 0.0)):
            one = self.one
            one.new()
            if seconds:
                one.chat.read_ahead(question)
                end = time.monotonic() + seconds
                one.until(lambda: time.monotonic() >= end)  # noqa: B023
            else:  # nothing of it may be cached
                one.close()
                self.one = one = self.program(reads_ahead=False, kv_bytes=0)
            self.found[name] = first_token(one, question)
            self.found["file: tokens"] = one.prompt


class Llama:
    """llama.cpp's server with one slot. folder: its binaries; saved: where slot files go."""

    def __init__(self, folder: Path, model: str, load: dict[str, Any], saved: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self._command = [
            *(str(folder / "llama-server"), "-m", model, "-c", str(load["context"]), "-np", "1"),
            *("--port", str(self._port), "--slot-save-path", f"{saved}/"),
            *([] if load["threads"] is None else ["-t", str(load["threads"])]),
        ]
        self._server: subprocess.Popen[bytes] | None = None

    def start(self) -> float:
        """Seconds until it serves."""
        begun = time.perf_counter()
        quiet = subprocess.DEVNULL
        self._server = subprocess.Popen(self._command, stdin=quiet, stdout=quiet, stderr=quiet)
        while True:
            try:
                self._get("health")
            except OSError:
                if self._server.poll() is not None:
                    raise SystemExit(f"llama-server ended with {self._server.returncode}") from None
                time.sleep(0.02)
            else:
                return time.perf_counter() - begun

    def _get(self, path: str, **body: Any) -> Any:
        data = json.dumps(body).encode() if body else None
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._port}/{path}", data, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=3600) as answer:
            return json.loads(answer.read())

    def ask(self, ids: Sequence[int]) -> float:
        """Seconds to the first token."""
        begun = time.perf_counter()
        self._get("completion", prompt=list(ids), n_predict=1, temperature=0, cache_prompt=True, id_slot=0)
        return time.perf_counter() - begun

    def slot(self, action: str) -> float:
        """Seconds to save or restore what was read."""
        begun = time.perf_counter()
        self._get(f"slots/0?action={action}", filename="chat.bin")
        return time.perf_counter() - begun

    def stop(self) -> None:
        if self._server is not None:
            self._server.terminate()
            self._server.wait(60)


def llama_figures(
    folder: Path,
    model: str,
    load: dict[str, Any],
    prompts: dict[int, list[int]],
    file: list[int],
    text: str,
    work: Path,
) -> Figures:
    """The same cases of llama.cpp, where it has the function. prompts: the ids by their number.

    text: the longest prompt, for the command line.
    """
    server, found = Llama(folder, model, load, work), Figures()
    try:
        for name in ("first start", "second start"):
            found[name] = server.start() + server.ask(file[:4])
            server.stop()
        server.start()
        ids = list[int]()
        for tokens, ids in prompts.items():
            found[f"prompt of {tokens}"] = server.ask(ids)
        found["regenerate"] = server.ask(ids)
        more = [*ids, *file[:16]]
        found["second question"] = server.ask(more)
        found["slot saved"] = server.slot("save")
        server.stop()
        start = server.start()
        restored = server.slot("restore")
        found["opened, at once"] = restored + server.ask([*more, *file[:16]])
        found["switched back, at once"] = start + found["opened, at once"]
        if file:
            found["file, not read ahead"] = server.ask(file)
    finally:
        server.stop()
    names = ("llama-completion", "llama-cli")
    program = next((folder / name for name in names if (folder / name).exists()), None)
    if program is not None:
        found |= llama_command(program, model, load, text, work)
    return found


def llama_command(program: Path, model: str, load: dict[str, Any], text: str, work: Path) -> Figures:
    """The command line with a file of its prompt cache: a whole process, with its start."""
    (work / "prompt.txt").write_text(text)
    command = [
        *(str(program), "-m", model, "-c", str(load["context"]), "-n", "1", "-no-cnv", "--temp", "0"),
        *("-f", str(work / "prompt.txt"), "--prompt-cache", str(work / "prompt.bin")),
        *([] if load["threads"] is None else ["-t", str(load["threads"])]),
    ]
    found: Figures = {}
    for name in ("command, first", "command, prompt cache"):
        begun = time.perf_counter()
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=3600)
        found[name] = time.perf_counter() - begun if done.returncode == 0 else None
    return found


def measure(model: str, given: argparse.Namespace, load: dict[str, Any], work: Path) -> dict[str, Figures]:
    """The figures of ropechat and of llama.cpp."""
    cases, sizes = given.cases.split(","), [int(one) for one in given.tokens.split(",")]
    found: Figures = starts(model, load) if "start" in cases else {}
    store = Store(work / "data")
    engine = Engine.load(model, **load)
    texts = {tokens: f"{tokens}{text_of(engine, tokens)}" for tokens in sizes}  # none begins like another
    ids = {tokens: engine.tokenizer.encode(text) for tokens, text in texts.items()}
    text = f"A file{text_of(engine, given.file if 'file' in cases else 100)}"
    file = engine.tokenizer.encode(text)
    engine.close()
    del engine
    if set(cases) - {"start"}:
        chats = Chats(model, load, texts, store)
        chats.prompts()
        if "open" in cases:
            chats.opened()
        if "switch" in cases:
            chats.switched()
        if "file" in cases:
            chats.file(text, given.typed)
        chats.one.close()
        found |= chats.found
    store.close()
    figures = {"ropechat": found}
    if given.llama is not None:
        figures["llama.cpp"] = llama_figures(
            given.llama, given.llama_model or model, load, ids, file, texts[max(texts)], work
        )
    return figures


def table(figures: dict[str, Figures]) -> str:
    """A line for each case, a column for each program."""
    names = dict.fromkeys(name for found in figures.values() for name in found)
    lines = [" " * 26 + "".join(f"{program:>12}" for program in figures)]
    for name in names:
        values = [found.get(name) for found in figures.values()]
        lines.append(f"{name:26}" + "".join(f"{'–' if v is None else f'{v:,.2f}':>12}" for v in values))
    return "\n".join(lines)


def main() -> None:
    """Parse, run, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_options(parser)
    parser.add_argument("--tokens", default="500,2000")
    parser.add_argument("--file", type=int, default=25_000)
    parser.add_argument("--typed", type=float, default=20)
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--llama", type=Path, help="folder of llama.cpp's binaries")
    parser.add_argument("--llama-model", help="its GGUF file, where MODEL is a folder")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    model, dtype = chosen(given)
    longest = max(given.file if "file" in given.cases else 0, *map(int, given.tokens.split(",")))
    load = {
        "dtype": dtype,
        "threads": given.threads,
        "context": longest + longest // 4 + 512,
        "cache": "auto",
    }
    with tempfile.TemporaryDirectory(dir=given.folder if given.folder.is_dir() else None) as work:
        os.environ["XDG_CACHE_HOME"] = str(Path(work) / "cache")
        figures = measure(model, given, load, Path(work))
    print(json.dumps(figures) if given.json else table(figures))


if __name__ == "__main__":
    main()
