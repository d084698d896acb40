"""Streams of `ropechat api` beside `generate_many`: tokens per second, and the delay of each token's event.

    python tests/bench/streams.py MODEL [--streams 64] [--tokens 64] [--rounds 3] [--threads 2]

The server, the client of all streams and `generate_many` are processes of their own. The two are measured in
turns; each figure is the median of its rounds, the ratio that of a round's two figures. The client takes its
part of the same cores. Every prompt begins in its own way, so that none is shared. The delay is measured at
the client: from the end of the forward pass that made the token, which the server notes by the clock that
all processes share, until the client has read its event. CPU time per token, of the server and of the
process with `generate_many`, says on a busy machine, too, what a stream costs; there take --threads 1, since
threads that wait for each other compute nothing.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any


def prompts(count: int) -> list[str]:
    return [
        f"{number}. Write a long story about {number + 2} animals and a river." for number in range(count)
    ]


def body_of(prompt: str, tokens: int, banned: dict[str, int]) -> dict[str, Any]:
    return {"prompt": prompt, "max_tokens": tokens, "stream": True, "logit_bias": banned}


async def stream(port: int, body: dict[str, Any]) -> tuple[int, list[float]]:
    """Read a stream to its end; return how many tokens came, and when each event with text was read."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    data = json.dumps({**body, "stream_options": {"include_usage": True}}).encode()
    writer.write(
        f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
        f"Connection: close\r\nContent-Length: {len(data)}\r\n\r\n".encode()
        + data
    )
    read: list[tuple[float, bytes]] = []
    while line := await reader.readline():
        if line.startswith(b"data: {"):
            read.append((time.monotonic(), line))
    writer.close()
    chunks = [(at, json.loads(line[6:])) for at, line in read]
    times = [at for at, chunk in chunks if chunk["choices"] and chunk["choices"][0]["text"]]
    return int(chunks[-1][1]["usage"]["completion_tokens"]), times


def serve(model: str, notes: Path, options: Sequence[str]) -> int:
    """`ropechat api`; `notes` then says, by a request's seed, when the pass of each token with text ended."""
    from ropechat.api.answering import _Watcher
    from ropechat.cli import main as ropechat
    from ropechat.engine.engine import _Many

    ended, times = 0.0, defaultdict[int, list[float]](list)
    step, take = _Many.step, _Watcher.take

    def timed(many: Any, sequences: Any) -> Any:
        nonlocal ended
        events = step(many, sequences)
        ended = time.monotonic()
        return events

    def noted(watcher: Any, made: Any) -> None:
        if made.text:
            times[watcher._call.ask.first.sampling["seed"]].append(ended)
        take(watcher, made)

    _Many.step, _Watcher.take = timed, noted  # type: ignore[assignment, method-assign]
    code = ropechat(["api", "-m", model, *options])
    notes.write_text(json.dumps(times))
    return code


def cpu_seconds(pid: int) -> float:
    """The CPU time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def stream_all(port: int, bodies: list[dict[str, Any]]) -> tuple[float, dict[int, list[float]]]:
    """Tokens per second of all streams together, and when the events of each, by its seed, were read."""
    begun = time.perf_counter()
    found = await asyncio.gather(*(stream(port, body) for body in bodies))
    rate = sum(made for made, _ in found) / (time.perf_counter() - begun)
    return rate, {body["seed"]: times for body, (_, times) in zip(bodies, found, strict=True)}


def many(given: argparse.Namespace) -> Iterator[float]:
    """Tokens per second of `generate_many`, each time a line comes on stdin."""
    from ropechat.engine.engine import Engine
    from ropechat.engine.scheduler import Job

    engine = Engine.load(given.model, threads=given.threads)
    bias = tuple((id, -100.0) for id in sorted(engine.stop_ids))
    print(json.dumps(sorted(engine.stop_ids)), flush=True)
    for _ in sys.stdin:
        sampling = engine.sampling(seed=1, max_tokens=given.tokens, logit_bias=bias)
        begun, made = time.perf_counter(), 0
        for _, completion in engine.generate_many(
            [Job(prompt, sampling) for prompt in prompts(given.streams)], window=given.streams
        ):
            made += completion.completion_tokens
        yield made / (time.perf_counter() - begun)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--notes", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.notes is not None:
        options = ["--port", "0", "--window", given.streams, "--threads", given.threads, "--quiet"]
        return serve(given.model, given.notes, [*map(str, options)])
    if given.worker:
        for rate in many(given):
            print(rate, flush=True)
        return 0
    worker = subprocess.Popen(
        [sys.executable, *sys.argv, "--worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    folder = tempfile.TemporaryDirectory()
    notes = Path(folder.name, "notes.json")
    server = subprocess.Popen(
        [sys.executable, *sys.argv, "--notes", str(notes)], stderr=subprocess.PIPE, text=True
    )
    assert worker.stdout is not None
    assert worker.stdin is not None
    assert server.stderr is not None
    rates: list[tuple[float, float]] = []
    costs: list[tuple[float, float]] = []
    read: dict[int, list[float]] = {}
    try:
        banned = {str(id): -100 for id in json.loads(worker.stdout.readline())}
        port = int(
            next(line for line in server.stderr if line.startswith("http")).split(":")[2].partition("/")[0]
        )
        bodies = [body_of(prompt, given.tokens, banned) for prompt in prompts(given.streams)]
        for number in range(given.rounds + 1):
            before = cpu_seconds(server.pid), cpu_seconds(worker.pid)
            seeded = [{**body, "seed": number * given.streams + at} for at, body in enumerate(bodies)]
            over_http, times = asyncio.run(stream_all(port, seeded))
            worker.stdin.write("\n")
            worker.stdin.flush()
            alone = float(worker.stdout.readline())
            spent = cpu_seconds(server.pid) - before[0], cpu_seconds(worker.pid) - before[1]
            if number:  # the first round warms up
                read |= times
                rates.append((over_http, alone))
                made = given.streams * given.tokens
                costs.append((1000 * spent[0] / made, 1000 * spent[1] / made))
                print(
                    f"round {number}: api {over_http:.1f} tok/s, {costs[-1][0]:.3f} ms of CPU per token; "
                    f"generate_many {alone:.1f} tok/s, {costs[-1][1]:.3f} ms",
                    flush=True,
                )
    finally:
        server.terminate()
        worker.stdin.close()
    server.wait()
    made_at = {int(seed): times for seed, times in json.loads(notes.read_text()).items()}
    folder.cleanup()
    pairs = (
        (at, made) for seed, times in read.items() for at, made in zip(times, made_at[seed], strict=True)
    )
    delays = sorted(1000 * (at - made) for at, made in pairs)
    ratio = statistics.median(a / b for a, b in rates)
    http, alone = (statistics.median(pair[side] for pair in rates) for side in (0, 1))
    of_api, of_many = (statistics.median(pair[side] for pair in costs) for side in (0, 1))
    print(
        f"{given.streams} streams: api {http:.1f} tok/s, generate_many {alone:.1f} tok/s, ratio {ratio:.3f}; "
        f"CPU per token {of_api:.3f} and {of_many:.3f} ms, {of_api - of_many:.3f} ms for the stream"
    )
    median, most = (delays[int(share * (len(delays) - 1))] for share in (0.5, 0.99))
    print(
        f"from the end of a token's pass to its event at the client, {len(delays)} events: "
        f"median {median:.1f} ms, p99 {most:.1f} ms, largest {delays[-1]:.1f} ms"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
