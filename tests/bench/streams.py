"""Streams of `ropechat api` beside `generate_many`: tokens per second, and the delay of each token's event.

    python tests/bench/streams.py MODEL [--streams 64] [--tokens 64] [--rounds 3] [--threads 2]

The server, the client of all streams and `generate_many` are processes of their own. The two are measured in
turns; each figure is the median of its rounds, the ratio that of a round's two figures. The client takes its
part of the same cores. Every prompt begins in its own way, so that none is shared. The delay is the server's
own measure: from the token's step to the end of sending its event. CPU time per token, of the server and of
the process with `generate_many`, says on a busy machine, too, what a stream costs; there take --threads 1,
since threads that wait for each other compute nothing.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

LAUNCH = [sys.executable, "-c", "import sys; from ropechat.cli import main; sys.exit(main())"]


def prompts(count: int) -> list[str]:
    return [
        f"{number}. Write a long story about {number + 2} animals and a river." for number in range(count)
    ]


def body_of(prompt: str, tokens: int, banned: dict[str, int]) -> dict[str, Any]:
    return {"prompt": prompt, "max_tokens": tokens, "seed": 1, "stream": True, "logit_bias": banned}


async def stream(port: int, body: dict[str, Any]) -> int:
    """Read a stream to its end; return how many tokens came."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    data = json.dumps({**body, "stream_options": {"include_usage": True}}).encode()
    writer.write(
        f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
        f"Connection: close\r\nContent-Length: {len(data)}\r\n\r\n".encode()
        + data
    )
    last = b""
    while line := await reader.readline():
        if line.startswith(b"data: {"):
            last = line
    writer.close()
    return int(json.loads(last[6:])["usage"]["completion_tokens"])


def cpu_seconds(pid: int) -> float:
    """The CPU time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def stream_all(port: int, bodies: list[dict[str, Any]]) -> float:
    """Tokens per second of all streams together."""
    begun = time.perf_counter()
    made = sum(await asyncio.gather(*(stream(port, body) for body in bodies)))
    return made / (time.perf_counter() - begun)


async def metrics(port: int) -> dict[str, float]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n".encode())
    text = (await reader.read()).decode().partition("\r\n\r\n")[2]
    writer.close()
    return {
        name: float(value)
        for name, value in (line.rsplit(" ", 1) for line in text.splitlines() if line[0] != "#")
    }


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
    given = parser.parse_args()
    if given.worker:
        for rate in many(given):
            print(rate, flush=True)
        return 0
    worker = subprocess.Popen(
        [sys.executable, *sys.argv, "--worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    options = ["--port", "0", "--window", given.streams, "--threads", given.threads, "--quiet"]
    server = subprocess.Popen(
        [*LAUNCH, "api", "-m", given.model, *map(str, options)], stderr=subprocess.PIPE, text=True
    )
    assert worker.stdout is not None
    assert worker.stdin is not None
    assert server.stderr is not None
    try:
        banned = {str(id): -100 for id in json.loads(worker.stdout.readline())}
        port = int(
            next(line for line in server.stderr if line.startswith("http")).split(":")[2].partition("/")[0]
        )
        bodies = [body_of(prompt, given.tokens, banned) for prompt in prompts(given.streams)]
        rates: list[tuple[float, float]] = []
        costs: list[tuple[float, float]] = []
        for number in range(given.rounds + 1):
            before = cpu_seconds(server.pid), cpu_seconds(worker.pid)
            over_http = asyncio.run(stream_all(port, bodies))
            worker.stdin.write("\n")
            worker.stdin.flush()
            alone = float(worker.stdout.readline())
            spent = cpu_seconds(server.pid) - before[0], cpu_seconds(worker.pid) - before[1]
            if number:  # the first round warms up
                rates.append((over_http, alone))
                made = given.streams * given.tokens
                costs.append((1000 * spent[0] / made, 1000 * spent[1] / made))
                print(
                    f"round {number}: api {over_http:.1f} tok/s, {costs[-1][0]:.3f} ms of CPU per token; "
                    f"generate_many {alone:.1f} tok/s, {costs[-1][1]:.3f} ms",
                    flush=True,
                )
        found = asyncio.run(metrics(port))
    finally:
        server.terminate()
        worker.stdin.close()
    ratio = statistics.median(a / b for a, b in rates)
    http, alone = (statistics.median(pair[side] for pair in rates) for side in (0, 1))
    of_api, of_many = (statistics.median(pair[side] for pair in costs) for side in (0, 1))
    total = found["ropechat_event_seconds_count"]
    print(
        f"{given.streams} streams: api {http:.1f} tok/s, generate_many {alone:.1f} tok/s, ratio {ratio:.3f}; "
        f"CPU per token {of_api:.3f} and {of_many:.3f} ms, {of_api - of_many:.3f} ms for the stream"
    )
    for bound in ("0.005", "0.01", "0.03", "0.1"):
        share = found[f'ropechat_event_seconds_bucket{{le="{bound}"}}'] / total
        print(f"events within {float(bound) * 1000:.0f} ms: {share:.2%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
