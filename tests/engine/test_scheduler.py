"""The scheduler alone: which prompts start together, and what it says of its progress."""

from collections import deque
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from ropechat.engine.arrivals import Arrivals
from ropechat.engine.scheduler import BLOCK, Job, RunState, Scheduler
from ropechat.errors import CancelledError


class Backend:
    """Takes prompts of ids, and has given events. added: the prompts in the order of their start."""

    seed = 0

    def __init__(self, passes: Sequence[Sequence[tuple[str, int]]]) -> None:
        """passes: (kind, tokens of the prompt that are read) of the first sequence's events in each pass."""
        self._passes = deque(passes)
        self.added: list[list[int]] = []
        self.freed: list[int] = []
        self.stepped: list[list[int]] = []

    def encode(self, job: Job) -> list[int]:
        assert isinstance(job.prompt, list)
        return job.prompt

    def add(self, job: Job, ids: list[int], seed: int, stream: int) -> tuple[int, Any]:
        self.added.append(ids)
        return len(self.added), None

    def step(self, sequences: Sequence[int]) -> list[Any]:
        self.stepped.append(list(sequences))
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
        self.freed.append(sequence)


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


class Watcher:
    """Leaves after so many tokens."""

    def __init__(self, after: int) -> None:
        self.left, self.begun, self.steps = after, 0, 0

    @property
    def is_gone(self) -> bool:
        return self.steps >= self.left

    def begin(self, prompt_tokens: int, cached_tokens: int) -> None:
        self.begun = prompt_tokens

    def take(self, step: Any) -> None:
        self.steps += 1


def test_a_sequence_that_nobody_wants_is_freed_before_the_next_pass() -> None:
    """The first sequence has a token in each pass; the second one has none until the end."""
    backend = Backend([[("token", 0)]] * 4)
    watcher, gone = Watcher(2), Watcher(0)
    jobs = [Job([1], watcher=watcher), Job([2, 3]), Job([4], watcher=gone)]
    found = dict(Scheduler(backend, 3, None).run(iter(jobs)))
    assert backend.stepped[:3] == [[1, 2], [1, 2], [2]]
    assert backend.added == [[1], [2, 3]]  # the third was left before its start
    assert sorted(backend.freed) == [1, 2]
    assert (watcher.begun, watcher.steps, found[0].finish_reason) == (1, 2, "cancelled")
    assert found[1].finish_reason == "stop"
    assert isinstance(found[2].error, CancelledError)


def test_lanes_take_turns() -> None:
    arrivals = Arrivals[str]()
    for item in ("a1", "a2", "a3", "b1", "c1", "b2", "d1"):
        arrivals.put(item, item[0])
    assert arrivals.wait()
    taken = arrivals.take(lambda: False)
    assert [next(taken) for _ in range(3)] == ["a1", "b1", "c1"]
    assert arrivals.drop("a") == ["a2", "a3"]
    assert list(taken) == ["d1", "b2"]
    arrivals.put("e1")
    assert arrivals.close(drop=True) == ["e1"]
    assert not arrivals.put("f1")
    assert not arrivals.wait()
