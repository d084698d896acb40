"""The scheduler alone: which prompts start together, and what it says of its progress."""

from collections import deque
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from ropechat.engine.scheduler import BLOCK, Job, RunState, Scheduler


class Backend:
    """Takes prompts of ids, and has given events. added: the prompts in the order of their start."""

    seed = 0

    def __init__(self, passes: Sequence[Sequence[tuple[str, int]]]) -> None:
        """passes: (kind, tokens of the prompt that are read) of the first sequence's events in each pass."""
        self._passes = deque(passes)
        self.added: list[list[int]] = []

    def encode(self, job: Job) -> list[int]:
        assert isinstance(job.prompt, list)
        return job.prompt

    def add(self, job: Job, ids: list[int], seed: int, stream: int) -> tuple[int, Any]:
        self.added.append(ids)
        return len(self.added), None

    def step(self, sequences: Sequence[int]) -> list[Any]:
        if not self._passes:  # every sequence ends with its first token
            return [SimpleNamespace(sequence=number, kind="token", done=0) for number in sequences]
        given = self._passes.popleft()
        return [SimpleNamespace(sequence=sequences[0], kind=kind, done=done) for kind, done in given]

    def record(self, event: Any, text_filter: Any) -> Any:
        reason = None if self._passes else "stop"
        return SimpleNamespace(id=0, logprob=0.0, text="", top=(), finish_reason=reason, channel="answer")

    def reused(self, sequence: int) -> int:
        return 0

    def free(self, sequence: int) -> None:
        pass


def started(prompts: list[list[int]]) -> list[int]:
    """The order in which a grouped run starts these prompts."""
    backend = Backend([])
    done = [index for index, _ in Scheduler(backend, 2, None, grouped=True).run(iter(prompts))]
    assert done == list(range(len(prompts)))
    return [prompts.index(ids) for ids in backend.added]


def test_prompts_start_beside_those_that_they_share_blocks_with() -> None:
    a, b = [1] * BLOCK, [2] * BLOCK
    assert started([[*a, 7], [*b, 7], [*a, 8], [*b, 8]]) == [0, 2, 1, 3]
    assert started([[*a, *a, 7], [*a, *b, 7], [*a, *a, 8], [*b, 7], [*a, *b, 8]]) == [0, 2, 1, 4, 3]


def test_only_blocks_that_can_be_shared_move_a_prompt() -> None:
    """The last token of a prompt is always computed, so the block that holds it is shared by nobody."""
    a, b = [1] * BLOCK, [2] * BLOCK
    assert started([[7, 1], [8, 1], [7, 1, 2]]) == [0, 1, 2]
    assert started([[*a, *a], [*a, *b], [*a, *a, 9]]) == [0, 1, 2]
    assert started([[*a, 7, 1], [*a, 8, 1], [*a, 7, 2]]) == [0, 1, 2]


def test_a_prompt_that_is_read_again_counts_once() -> None:
    """As where the rotation depends on the length: the cache begins again with each length."""
    read = [("prefill", 4), ("prefill", 8)]
    passes = [[one] for one in [*read, ("token", 0), *read, ("token", 0)]]
    states: list[RunState] = []
    scheduler = Scheduler(Backend(passes), 1, None, on_pass=states.append)
    [(_, completion)] = scheduler.run(iter([[1] * 9]))
    assert completion.completion_tokens == 2
    assert [state.read for state in states] == [0, 4, 8, 9, 9, 9]
    assert [state.made for state in states] == [0, 0, 0, 1, 1, 1]
