"""A soak of `ropechat api`: mixed requests for some minutes; memory, descriptors and threads must stay flat.

    python tests/bench/soak.py [--model builtin] [--minutes 60] [--clients 8]

Each client sends random requests one after the other: whole and streamed, with several choices, scored, with
schemas, hostile, and killed in the middle. Each minute there is a line with memory (and that of the KV cache,
which is kept of ended sequences up to a limit), descriptors and threads. The exit code is 1 if one of the
three has a slope over the second half of the time (least squares: 3 % of the memory without the KV cache,
as many descriptors as there are clients, one thread), if more descriptors or threads are there at rest than
after the first 60 requests, or if a request gets a status that it should not get.
"""

import argparse
import json
import math
import os
import random
import socket
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Sequence
from typing import Any

LAUNCH = [sys.executable, "-c", "import sys; from ropechat.cli import main; sys.exit(main())"]
WORDS = ["what", "is", "a", "token", "why", "does", "the", "key", "turn", "by", "an", "angle"]
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}


def hostile(draw: random.Random) -> bytes:
    """A body that is no request."""
    good = b'{"prompt": "What is a token?", "max_tokens": 2}'
    return draw.choice(
        [
            good[: draw.randrange(1, len(good))],
            draw.randbytes(draw.randrange(1, 500)),
            b"[" * draw.randrange(1, 100_000),
            json.dumps({"prompt": "x", "n": draw.choice([0, 1e9, -1, "x"])}).encode(),
            json.dumps({"prompt": [10**9] * 50}).encode(),
            json.dumps({"prompt": "x", "".join(draw.choices("abcxyz", k=20)): 1}).encode(),
        ]
    )


def request(draw: random.Random) -> tuple[str, bytes, int]:
    """A path, a body and its status."""
    if draw.random() < 0.1:
        return "/v1/completions", hostile(draw), 400
    path, body = good_request(draw)
    return path, json.dumps(body).encode(), 200


def good_request(draw: random.Random) -> tuple[str, dict[str, Any]]:
    """A path and a body."""
    text = " ".join(draw.choices(WORDS, k=draw.randint(1, 60)))
    body: dict[str, Any] = {
        "max_tokens": draw.randint(1, 60),
        "stream": draw.random() < 0.5,
        "n": draw.choice([1, 1, 3]),
    }
    if draw.random() < 0.5:
        if draw.random() < 0.5:
            body |= {"echo": True, "logprobs": draw.randint(0, 5)}
        return "/v1/completions", {**body, "prompt": text}
    if draw.random() < 0.2:
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    if draw.random() < 0.2:
        body |= {"fail_below": 0.5, **({"agree": True} if body["n"] > 1 else {})}
    return "/v1/chat/completions", {**body, "messages": [{"role": "user", "content": text}]}


def ask(port: int, draw: random.Random, *, may_leave: bool = True) -> str:
    """Send a request and read its answer, or go away; return what happened."""
    path, data, status = request(draw)
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", port), timeout=120) as connection:
        connection.sendall(head.encode() + data)
        if may_leave and draw.random() < 0.2:
            if draw.random() < 0.5:
                connection.recv(200)
            return "killed"
        answer = b""
        while piece := connection.recv(65536):
            answer += piece
    found = int(answer.split(b" ", 2)[1])
    if b'data: {"error"' in answer:
        return "status error in a stream"
    return "answered" if found == status else f"status {found} in place of {status}"


def slope(values: Sequence[int]) -> float:
    """By how much the fitted line rises from the first to the last value."""
    if len(values) < 2:
        return 0.0
    line = statistics.linear_regression(range(len(values)), values)
    return line.slope * (len(values) - 1)


def kv_cache(port: int) -> int:
    """KiB of KV cache of the server."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as response:
        lines = response.read().decode().splitlines()
    (line,) = (line for line in lines if line.startswith("ropechat_kv_cache_bytes "))
    return int(float(line.split()[1])) >> 10


def state(pid: int, port: int) -> tuple[int, int, int, int]:
    """Resident KiB without the KV cache, descriptors and threads of a process; KiB of the KV cache."""
    kept = kv_cache(port)
    with open(f"/proc/{pid}/status") as file:
        fields = dict(line.split(":", 1) for line in file)
    resident, descriptors = int(fields["VmRSS"].split()[0]), len(os.listdir(f"/proc/{pid}/fd"))
    return resident - kept, descriptors, int(fields["Threads"]), kept


def told(found: tuple[int, int, int, int]) -> str:
    """A state as text."""
    return f"{found[0]:,} + {found[3]:,} KiB, {found[1]} descriptors, {found[2]} threads"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="builtin")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--clients", type=int, default=8)
    given = parser.parse_args()
    server = subprocess.Popen(
        [*LAUNCH, "api", "-m", given.model, "--port", "0", "--quiet"], stderr=subprocess.PIPE, text=True
    )
    assert server.stderr is not None
    port = int(
        next(line for line in server.stderr if line.startswith("http")).split(":")[2].partition("/")[0]
    )
    warm = random.Random(-1)
    for _ in range(
        60
    ):  # each kind of request: what they start, such as a process that compiles grammars, stays
        ask(port, warm, may_leave=False)
    begin = state(server.pid, port)
    print(f"at the start: {told(begin)}", flush=True)
    end, counts = time.monotonic() + 60 * given.minutes, Counter[str]()

    def work(number: int) -> None:
        draw = random.Random(number)
        while time.monotonic() < end:
            counts[ask(port, draw)] += 1

    clients = [threading.Thread(target=work, args=(number,)) for number in range(given.clients)]
    for client in clients:
        client.start()
    states = list[tuple[int, int, int, int]]()
    while time.monotonic() < end:
        time.sleep(min(60.0, given.minutes * 60 / 20))
        states.append(state(server.pid, port))
        print(f"{sum(counts.values()):,} requests: {told(states[-1])}", flush=True)
    for client in clients:
        client.join()
    time.sleep(2)
    rest = state(server.pid, port)
    server.terminate()
    print(f"at rest: {told(rest)}; {dict(counts)}")
    rises = [slope(values) for values in zip(*states[len(states) // 2 :], strict=True)]
    limits = [0.03 * states[-1][0], given.clients, 1, math.inf]
    print(f"second half: {rises[0]:+.0f} KiB, {rises[1]:+.1f} descriptors, {rises[2]:+.2f} threads")
    left = rest[1] - begin[1], rest[2] - begin[2]
    flat = all(rise <= limit for rise, limit in zip(rises, limits, strict=True)) and max(left) <= 0
    return int(not flat or any(name.startswith("status") for name in counts))


if __name__ == "__main__":
    sys.exit(main())
