"""What a server counts, as text for Prometheus (exposition format 0.0.4)."""

import bisect
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from ropechat.engine.scheduler import RunState

_SECONDS = (0.005, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)


class Histogram:
    """Counts of values up to each bound."""

    def __init__(self, help: str, bounds: Sequence[float] = _SECONDS) -> None:
        self.help, self._bounds = help, bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect.bisect_left(self._bounds, value)] += 1
        self._sum += value

    def lines(self, name: str) -> Iterator[str]:
        """The lines of the text."""
        total = 0
        for bound, count in zip((*map(str, self._bounds), "+Inf"), self._counts, strict=True):
            total += count
            yield f'{name}_bucket{{le="{bound}"}} {total}'
        yield f"{name}_sum {self._sum}"
        yield f"{name}_count {total}"


class Metrics:
    """Counters of one server; used in its event loop, except `take_pass`."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()
        self.prompt_tokens = self.cached_tokens = self.completion_tokens = self.disconnects = 0
        self.in_progress = self.running = 0
        self.histograms = {
            "first_token_seconds": Histogram("Time from a request to its first token."),
            "request_seconds": Histogram("Time of answered requests."),
            "event_seconds": Histogram("Time from a token to the event of a stream that has it."),
        }

    def take_pass(self, state: RunState) -> None:
        """Take the state of a forward pass, in the engine's thread."""
        self.running = len(state.rows)

    def text(self, kv_bytes: int) -> str:
        """The metrics. kv_bytes: of the KV cache."""
        gauges = {
            "requests_in_progress": (self.in_progress, "Requests that are read, wait or are answered."),
            "sequences_running": (
                self.running if self.in_progress else 0,
                "Sequences of the last forward pass.",
            ),
            "kv_cache_bytes": (kv_bytes, "Bytes of KV cache, with what is kept of ended sequences."),
        }
        counters = {
            "prompt_tokens_total": (self.prompt_tokens, "Tokens of prompts."),
            "cached_prompt_tokens_total": (self.cached_tokens, "Tokens of prompts that were cached."),
            "completion_tokens_total": (self.completion_tokens, "Tokens that were made."),
            "disconnects_total": (self.disconnects, "Requests whose client went away."),
        }
        lines = [*_numbers("gauge", gauges), *_numbers("counter", counters)]
        lines += [
            "# HELP ropechat_requests_total Requests by path and status.",
            "# TYPE ropechat_requests_total counter",
        ]
        lines += [
            f'ropechat_requests_total{{path="{path}",status="{status}"}} {count}'
            for (path, status), count in sorted(self.requests.items())
        ]
        for name, histogram in self.histograms.items():
            lines += [f"# HELP ropechat_{name} {histogram.help}", f"# TYPE ropechat_{name} histogram"]
            lines += histogram.lines(f"ropechat_{name}")
        return "\n".join(lines) + "\n"


def _numbers(kind: str, values: Mapping[str, tuple[int, str]]) -> Iterator[str]:
    for name, (value, help) in values.items():
        yield f"# HELP ropechat_{name} {help}"
        yield f"# TYPE ropechat_{name} {kind}"
        yield f"ropechat_{name} {value}"
