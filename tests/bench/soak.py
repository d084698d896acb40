"""A soak of `ropechat api`: mixed requests for some minutes; memory, descriptors and threads must stay flat.

    python tests/bench/soak.py [--model builtin] [--minutes 60] [--clients 8]

Each client sends random requests one after the other: whole and streamed, with several choices, scored, with
schemas, refused, and killed in the middle. The exit code is 1 if the second half of the time needs more than
the first half (5 % of memory, any thread, more descriptors than there are clients), or if a request gets a
status that it should not get. What is kept of ended sequences grows to its limit first, within minutes.
"""

import argparse
import json
import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from typing import Any

LAUNCH = [sys.executable, "-c", "import sys; from ropechat.cli import main; sys.exit(main())"]
WORDS = ["what", "is", "a", "token", "why", "does", "the", "key", "turn", "by", "an", "angle"]
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}


def request(draw: random.Random) -> tuple[str, dict[str, Any], int]:
    """A path, a body and its status."""
    text = " ".join(draw.choices(WORDS, k=draw.randint(1, 60)))
    body: dict[str, Any] = {
        "max_tokens": draw.randint(1, 60),
        "stream": draw.random() < 0.5,
        "n": draw.choice([1, 1, 3]),
    }
    if draw.random() < 0.1:
        return "/v1/completions", {**body, "prompt": text, "tools": [1]}, 400
    if draw.random() < 0.5:
        if draw.random() < 0.5:
            body |= {"echo": True, "logprobs": draw.randint(0, 5)}
        return "/v1/completions", {**body, "prompt": text}, 200
    if draw.random() < 0.2:
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    return "/v1/chat/completions", {**body, "messages": [{"role": "user", "content": text}]}, 200


def ask(port: int, draw: random.Random) -> str:
    """Send a request and read its answer, or go away; return what happened."""
    path, body, status = request(draw)
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", port), timeout=120) as connection:
        connection.sendall(head.encode() + data)
        if draw.random() < 0.2:
            if draw.random() < 0.5:
                connection.recv(200)
            return "killed"
        answer = b""
        while piece := connection.recv(65536):
            answer += piece
    found = int(answer.split(b" ", 2)[1])
    return "answered" if found == status else f"status {found} in place of {status}"


def state(pid: int) -> tuple[int, int, int]:
    """Resident KiB, descriptors and threads of a process."""
    with open(f"/proc/{pid}/status") as file:
        fields = dict(line.split(":", 1) for line in file)
    return int(fields["VmRSS"].split()[0]), len(os.listdir(f"/proc/{pid}/fd")), int(fields["Threads"])


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
    end, counts = time.monotonic() + 60 * given.minutes, Counter[str]()

    def work(number: int) -> None:
        draw = random.Random(number)
        while time.monotonic() < end:
            counts[ask(port, draw)] += 1

    clients = [threading.Thread(target=work, args=(number,)) for number in range(given.clients)]
    for client in clients:
        client.start()
    states = list[tuple[int, int, int]]()
    while time.monotonic() < end:
        time.sleep(given.minutes * 60 / 20)
        states.append(state(server.pid))
        memory, descriptors, threads = states[-1]
        print(
            f"{sum(counts.values())} requests: {memory} KiB, {descriptors} descriptors, {threads} threads",
            flush=True,
        )
    for client in clients:
        client.join()
    rest = state(server.pid)
    server.terminate()
    print(f"at rest: {rest[0]} KiB, {rest[1]} descriptors, {rest[2]} threads; {dict(counts)}")
    half = len(states) // 2
    early, late = (tuple(map(max, zip(*part, strict=True))) for part in (states[:half], states[half:]))
    flat = late[0] <= 1.05 * early[0] and late[1] <= early[1] + given.clients and late[2] <= early[2]
    return int(not flat or any(name.startswith("status") for name in counts))


if __name__ == "__main__":
    sys.exit(main())
