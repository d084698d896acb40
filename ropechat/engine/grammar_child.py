"""The child of `grammars`: it compiles a grammar within limits that the kernel enforces."""

import json

from ropechat.engine.native import load_core
from ropechat.errors import RopechatError
from ropechat.util.limited_child import answer_requests, begin, cpu_limit, lock_down

MAX_MEMORY_BYTES = 500_000_000
"""Address space in addition to that of the idle process."""
CPU_SECONDS = 2.0
"""CPU time for a grammar: the largest schemas in use take 0.3 s."""
WALL_SECONDS = 30.0
"""For a process that is stopped or starved; any other one reaches its limit of CPU time first."""


def reply(body: bytes) -> bytes:
    """Check a grammar, given as JSON of (kind, source, flexible). Return JSON: {}, or {"error"}."""
    kind, source, flexible = json.loads(body)
    try:
        with cpu_limit(CPU_SECONDS):
            load_core().check_grammar(kind, source, flexible=flexible)
    except RopechatError as error:
        return json.dumps({"error": str(error)}).encode()
    return b"{}"


def serve() -> None:
    """Answer requests until the input ends."""
    begin()
    load_core().check_grammar("regex", ["a"])  # late imports, before lock_down
    lock_down(MAX_MEMORY_BYTES, threads=True)
    answer_requests(reply)
