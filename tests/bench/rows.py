"""`ropechat batch` beside programs of llama.cpp on the same random weights, and what its journal costs.

    python tests/bench/rows.py LLAMA_BIN [--only shared|decode|journal] [--rounds 3] [--dtype q8_0]

LLAMA_BIN: the folder with llama-server and llama-batched-bench. Needs `pip install gguf` for the twin of the
model of SmolLM2-135M's shape, which is made once. Run it on a quiet machine. Parts:

shared: a file of rows that begin with the same 384 tokens, 24 own ones, 16 new ones, 16 at a time. The server
  gets them from as many clients as it has slots; each slot keeps its last prompt. The server's clock starts
  when it is ready; that of ropechat is the whole process. Rows per second.
decode: 32 and 64 rows in flight, 16 tokens each and 128 new ones: tokens per second of `ropechat batch`, with
  prompts, output and journal, without the load; of llama-batched-bench its decoding alone.
journal: the share of a run's time that goes to the journal's writes and syncs, in the runs of the part before
  and with 2,358 short rows of the built-in model.

Rounds take turns; medians are printed. Prompts are ids; answers are greedy.
"""

import argparse
import http.client
import json
import os
import queue
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from peers import twin_of

from ropechat.engine.bench.shapes import SHAPES, make
from ropechat.util.paths import cache_folder

SHAPE = "smollm2-135m"
SHARED, OWN, NEW, SLOTS = 384, 24, 16, 16
PROMPT, DECODE = 16, 128
SHORT_ROWS, SHORT_TOKENS = 2358, 4
FIRST_ID = 256  # ids before it may be special


def ids(draw: random.Random, count: int) -> list[int]:
    return draw.choices(range(FIRST_ID, SHAPES[SHAPE]["vocab_size"]), k=count)


def ropechat(
    folder: Path, prompts: Sequence[Sequence[int] | str], tokens: int, *words: object
) -> dict[str, Any]:
    """Run `ropechat batch` on a file; return OUT.run.json, with the seconds of the whole process."""
    source, out = folder / "in.jsonl", folder / "out.jsonl"
    with source.open("w") as file:
        for number, prompt in enumerate(prompts):
            body = {"model": "any", "prompt": prompt, "max_tokens": tokens, "temperature": 0}
            line = {"custom_id": f"r{number}", "method": "POST", "url": "/v1/completions", "body": body}
            file.write(json.dumps(line) + "\n")
    timed = [sys.executable, __file__, "--timed", folder / "journal.json"]
    command = [*timed, "batch", source, "-o", out, "--out", "jsonl", "--overwrite", "--quiet", *words]
    begun = time.perf_counter()
    done = subprocess.run([str(word) for word in command], stderr=subprocess.PIPE, text=True)
    seconds = time.perf_counter() - begun
    if done.returncode:
        sys.exit(f"ropechat batch: {done.stderr}")
    facts: dict[str, Any] = json.loads(out.with_name("out.jsonl.run.json").read_text())
    wall, processor = json.loads((folder / "journal.json").read_text())
    shares = {"journal": wall / facts["elapsed_s"], "journal_cpu": processor / facts["elapsed_s"]}
    return {**facts, **shares, "process_s": seconds}


def run_timed(path: str, words: list[str]) -> int:
    """`ropechat WORDS` in this process; the seconds of the journal's writes and syncs go to a file.

    By the clock, and of processor time.
    """
    from ropechat.batch.journal import Journal
    from ropechat.cli import main as command

    wall, processor, working = 0.0, 0.0, False

    def clocked(work: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            nonlocal wall, processor, working
            if working:  # a sync within an append
                return work(*given)
            begun, used, working = time.perf_counter(), time.thread_time(), True
            try:
                return work(*given)
            finally:
                wall += time.perf_counter() - begun
                processor += time.thread_time() - used
                working = False

        return call

    for name in ("append", "sync"):
        setattr(Journal, name, clocked(getattr(Journal, name)))
    code = command(words)
    Path(path).write_text(json.dumps([wall, processor]))
    return code


class Server:
    """llama-server with so many slots, ready."""

    def __init__(self, program: Path, model: Path, threads: int, slots: int, log: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        room = SHARED + OWN + NEW + 32
        words = [
            "-m",
            model,
            "-t",
            threads,
            "-np",
            slots,
            "-c",
            room * slots,
            "--port",
            self.port,
            "-fa",
            "on",
        ]
        with log.open("wb") as out:
            self.process = subprocess.Popen([program, *map(str, words)], stdout=out, stderr=out)
        while self.ask("GET", "/health")[0] != 200:
            if self.process.poll() is not None:
                sys.exit(f"llama-server ended: {log.read_text()[-400:]}")
            time.sleep(0.1)

    def ask(self, method: str, path: str, body: object = None) -> tuple[int, bytes]:
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        try:
            link.request(method, path, json.dumps(body), {"Content-Type": "application/json"})
            answer = link.getresponse()
            return answer.status, answer.read()
        except OSError:
            return 0, b""
        finally:
            link.close()

    def answer_all(self, prompts: Sequence[Sequence[int]], clients: int) -> float:
        """The seconds until all prompts are answered."""
        waiting: queue.SimpleQueue[Sequence[int]] = queue.SimpleQueue()
        for prompt in prompts:
            waiting.put(prompt)
        failed: list[bytes] = []

        def work() -> None:
            while True:
                try:
                    prompt = waiting.get_nowait()
                except queue.Empty:
                    return
                body = {"prompt": prompt, "n_predict": NEW, "temperature": 0, "ignore_eos": True}
                status, text = self.ask("POST", "/completion", {**body, "cache_prompt": True})
                if status != 200 or json.loads(text)["tokens_predicted"] != NEW:
                    failed.append(text)

        threads = [threading.Thread(target=work) for _ in range(clients)]
        begun = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failed:
            sys.exit(f"llama-server: {failed[0][:200]!r}")
        return time.perf_counter() - begun

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


def checked(facts: dict[str, Any], rows: int, tokens: int) -> dict[str, Any]:
    if facts["completion_tokens"] != rows * tokens:
        sys.exit(f"{facts['completion_tokens']} new tokens instead of {rows * tokens}: a row ended early")
    return facts


def told(shares: Sequence[tuple[float, float]]) -> str:
    wall, processor = (100 * median(each) for each in zip(*shares, strict=True))
    return f"{wall:.2f} % of the time, {processor:.2f} % in processor time"


def shared(given: argparse.Namespace, model: Path, twin: Path, folder: Path, settings: list[object]) -> None:
    draw = random.Random(3)
    common = ids(draw, SHARED)
    prompts = [common + ids(draw, OWN) for _ in range(given.rows)]
    ours, theirs = [], {slots: list[float]() for slots in given.slots}
    for _ in range(given.rounds):
        facts = checked(ropechat(folder, prompts, NEW, *settings, "--window", SLOTS), len(prompts), NEW)
        ours.append(len(prompts) / facts["process_s"])
        reuse = facts["cached_tokens"] / facts["prompt_tokens"]
        for slots in given.slots:
            server = Server(given.llama / "llama-server", twin, given.threads, slots, folder / "server.log")
            try:
                theirs[slots].append(len(prompts) / server.answer_all(prompts, slots))
            finally:
                server.close()
    print(f"shared: ropechat {median(ours):.2f} rows/s ({100 * reuse:.1f} % of the prompts from the cache)")
    for slots, found in theirs.items():
        ratio = median(ours) / median(found)
        print(f"shared: llama-server, {slots} slots: {median(found):.2f} rows/s; ropechat {ratio:.2f} times")


def decode(given: argparse.Namespace, model: Path, twin: Path, folder: Path, settings: list[object]) -> None:
    draw = random.Random(4)
    for count in given.in_flight:
        ours, theirs, shares = [], [], []
        for _ in range(given.rounds):
            prompts = [ids(draw, PROMPT) for _ in range(count)]
            facts = checked(ropechat(folder, prompts, DECODE, *settings, "--window", count), count, DECODE)
            ours.append(facts["completion_tokens"] / facts["elapsed_s"])
            shares.append((facts["journal"], facts["journal_cpu"]))
            sizes = ["-npp", PROMPT, "-ntg", DECODE, "-npl", count, "-c", count * (PROMPT + DECODE)]
            words = ["-m", twin, "-t", given.threads, *sizes, "-b", 2048, "-ub", 512, "-fa", "on"]
            program = given.llama / "llama-batched-bench"
            done = subprocess.run([program, *map(str, words)], capture_output=True, text=True, cwd=folder)
            lines = [line.split("|") for line in done.stdout.splitlines() if line.startswith("|")]
            if done.returncode or not lines:
                sys.exit(f"llama-batched-bench: {done.stderr[-400:]}")
            theirs.append(float(lines[-1][8]))  # S_TG t/s
        print(
            f"decode: {count} rows: ropechat batch {median(ours):.0f} tokens/s, llama-batched-bench "
            f"{median(theirs):.0f}: {median(ours) / median(theirs):.2f} times; "
            f"journal {told(shares)}"
        )


def journal(given: argparse.Namespace, model: Path, twin: Path, folder: Path, settings: list[object]) -> None:
    prompts = [f"Tell me about {number}" for number in range(SHORT_ROWS)]
    shares, seconds = [], []
    for _ in range(given.rounds):
        facts = ropechat(folder, prompts, SHORT_TOKENS, "-m", "builtin", "--threads", given.threads)
        shares.append((facts["journal"], facts["journal_cpu"]))
        seconds.append(facts["elapsed_s"])
    print(f"journal: {SHORT_ROWS} rows of {SHORT_TOKENS} tokens in {median(seconds):.1f} s: {told(shares)}")


PARTS = {"shared": shared, "decode": decode, "journal": journal}


def main() -> int:
    if sys.argv[1] == "--timed":
        return run_timed(sys.argv[2], sys.argv[3:])
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("llama", type=Path, help="the folder with llama-server and llama-batched-bench")
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=128, help="of the part shared")
    parser.add_argument("--slots", type=int, nargs="+", default=[SLOTS], help="of the server")
    parser.add_argument("--in-flight", type=int, nargs="+", default=[32, 64], help="rows of the part decode")
    parser.add_argument("--dtype", choices=("q8_0", "q4_0", "bf16"), default="q8_0")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=cache_folder() / "bench", help="where models lie")
    given = parser.parse_args()
    model = make(SHAPE, given.folder, print)
    twin = twin_of("llama.cpp", sys.executable, model, given.dtype)
    if twin is None:
        return 1
    settings = ["-m", model, "--dtype", given.dtype, "--threads", given.threads]
    print(f"{SHAPE}, {given.dtype}, {given.threads} threads, load {os.getloadavg()[0]:.1f}", flush=True)
    with tempfile.TemporaryDirectory() as name:
        for part, measure in PARTS.items():
            if given.only in (None, part):
                measure(given, model, twin, Path(name), settings)
    print(f"load {os.getloadavg()[0]:.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
