"""The tree of continuations: the numbers of scoring each path alone, complete, the same in any schedule."""

import itertools
import math
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from models import write_llama

from ropechat import Message, Role, TreeSpec, TreeWatcher
from ropechat.engine.engine import Engine
from ropechat.errors import ContextFullError, RequestError
from ropechat.inspector import tree as search
from ropechat.inspector.tree import Limits, Tree, grow

TEXT = "The capital of Italy is"


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine.load("builtin", threads=1)


@pytest.fixture(scope="module")
def ids(engine: Engine) -> list[int]:
    return engine.tokenizer.encode(TEXT)


@pytest.fixture(scope="module")
def tree(engine: Engine, ids: list[int]) -> Tree:
    return grow(engine, ids, Limits(nodes=60, depth=6, top_k=4))


def path(tree: Tree, index: int) -> list[int]:
    return [node.id for node in tree.path(index)]


def logprobs(engine: Engine, ids: Sequence[int]) -> np.ndarray:
    row = engine.logits(ids)[-1].astype(np.float64)
    return row - row.max() - np.log(np.exp(row - row.max()).sum())


def test_each_path_has_the_bits_of_scoring_it_alone(engine: Engine, ids: list[int], tree: Tree) -> None:
    paths = [path(tree, index) for index in range(1, len(tree.nodes))]
    assert len(paths) == 60
    for index, alone in enumerate(paths, 1):
        (score,) = engine.rank(ids, [alone])
        assert tree.nodes[index].path_logprob == score.logprob
        assert [node.logprob for node in tree.path(index)] == [token.logprob for token in score.trace.tokens]
        assert [node.rank for node in tree.path(index)] == [token.rank for token in score.trace.tokens]
        if tree.nodes[index].entropy is not None:
            assert tree.nodes[index].entropy == score.trace.next.entropy


@pytest.mark.parametrize("name", ["bamba", "kimi_linear", "gemma3_text_new", "deepseek_v4"])
def test_the_same_of_families_with_states_and_windows(name: str) -> None:
    engine = Engine.load(Path(__file__).parents[1] / "golden" / name, threads=1)
    prompt = [*range(3, 45)]
    tree = grow(engine, prompt, Limits(nodes=40, depth=5, top_k=4))
    for index in range(1, 41):
        (score,) = engine.rank(prompt, [path(tree, index)])
        assert tree.nodes[index].path_logprob == score.logprob


def test_nodes_come_by_falling_probability(tree: Tree) -> None:
    costs = [node.path_logprob for node in tree.nodes]
    assert costs == sorted(costs, reverse=True)
    assert all(
        node.parent is not None and node.parent < index for index, node in enumerate(tree.nodes) if index
    )


def test_leaves_and_rests_are_everything(engine: Engine, ids: list[int], tree: Tree) -> None:
    assert abs(tree.mass + tree.remainder - 1.0) < 1e-9
    for index, node in enumerate(tree.nodes):
        if node.children:
            others = np.exp(logprobs(engine, [*ids, *path(tree, index)]))
            others[[tree.nodes[child].id for child in node.children]] = 0.0
            assert tree.rest(index) == pytest.approx(node.prob * others.sum(), abs=1e-9)
        else:
            assert tree.rest(index) == 0.0


def test_the_tree_has_the_likeliest_of_all_paths(tmp_path: Path) -> None:
    engine = Engine.load(write_llama(tmp_path / "odd", vocab_size=40, seed=3), threads=1)
    prompt, limits = [5, 6, 7], Limits(nodes=70, depth=3, top_k=4)
    tree = grow(engine, prompt, limits)
    found: dict[tuple[int, ...], float] = {}
    for depth in range(limits.depth):
        for before in [()] if depth == 0 else [one for one in found if len(one) == depth]:
            if before and before[-1] in engine.stop_ids:
                continue
            row = logprobs(engine, [*prompt, *before])
            for id in np.argsort(-row)[: limits.top_k]:
                found[(*before, int(id))] = found.get(before, 0.0) + row[id]
    best = sorted(found, key=lambda one: -found[one])[: limits.nodes]
    assert [tuple(path(tree, index)) for index in range(1, len(tree.nodes))] == best


@pytest.mark.parametrize(("rows", "likely"), [(1, 1 / 8), (3, 1e-9), (16, 1.0), (64, 1e-9)])
def test_the_tree_does_not_depend_on_what_is_computed_together(
    engine: Engine, ids: list[int], tree: Tree, monkeypatch: pytest.MonkeyPatch, rows: int, likely: float
) -> None:
    monkeypatch.setattr(search, "ROWS", rows)
    monkeypatch.setattr(search, "_LIKELY", likely)
    assert grow(engine, ids, Limits(nodes=60, depth=6, top_k=4)).nodes == tree.nodes


def test_a_smaller_tree_is_the_beginning_of_a_larger_one(engine: Engine, ids: list[int], tree: Tree) -> None:
    small = grow(engine, ids, Limits(nodes=20, depth=6, top_k=4))
    assert [path(small, index) for index in range(21)] == [path(tree, index) for index in range(21)]


def test_depth_and_end_of_text_end_a_path(engine: Engine) -> None:
    prompt = engine.prompt_ids([Message(Role.USER, "hi")])
    tree = grow(engine, prompt, Limits(nodes=200, depth=3, top_k=8))
    ends = [node for node in tree.nodes if node.is_end]
    assert ends
    assert all(node.id in engine.stop_ids and not node.children for node in ends)
    assert max(node.depth for node in tree.nodes) == 3


def test_a_mass_ends_the_search(engine: Engine, ids: list[int]) -> None:
    limits = Limits(nodes=5_000, depth=2, top_k=50, mass=0.6)
    tree = grow(engine, ids, limits)
    complete = [node.prob for node in tree.nodes if node.depth == 2 or node.is_end]
    assert math.fsum(complete) >= 0.6 > math.fsum(complete[:-1])
    assert len(tree.nodes) < 5_000


def test_texts_that_meet_again_are_joined(engine: Engine, ids: list[int]) -> None:
    tree = grow(engine, ids, Limits(nodes=1_500, depth=3, top_k=300))
    texts: dict[tuple[bytes, ...], int] = {}
    joined = [index for index, node in enumerate(tree.nodes) if node.joined is not None]
    assert joined
    for index in joined:
        first = tree.nodes[index].joined
        assert first is not None
        assert first < index
        assert tree.text(first) == tree.text(index)
        assert path(tree, first) != path(tree, index)
        assert not tree.nodes[index].children  # its likelier twin goes on
        assert tree.text_prob(first) >= tree.nodes[first].prob + tree.nodes[index].prob
    control = engine.tokenizer.control_ids | engine.stop_ids
    for index, node in enumerate(tree.nodes):
        if node.joined is None and not control & {*path(tree, index)}:
            assert texts.setdefault((tree.text(index),), index) == index
    assert abs(tree.mass + tree.remainder - 1.0) < 1e-9


def test_what_is_there_is_kept_when_it_is_stopped(engine: Engine, ids: list[int], tree: Tree) -> None:
    count = itertools.count()
    stopped = grow(engine, ids, Limits(nodes=60, depth=6, top_k=4), is_stopped=lambda: next(count) >= 25)
    assert stopped.stopped
    assert not tree.stopped
    assert [path(stopped, i) for i in range(26)] == [path(tree, i) for i in range(26)]
    assert len(stopped.nodes) == 26
    assert abs(stopped.mass + stopped.remainder - 1.0) < 1e-9


def test_a_cancel_during_a_pass_keeps_what_is_there(engine: Engine, ids: list[int]) -> None:
    seen = threading.Event()

    def cancel() -> None:
        seen.wait(60)
        while not done.is_set():
            engine.cancel()

    done, thread = threading.Event(), threading.Thread(target=cancel)
    thread.start()
    tree = grow(
        engine,
        ids,
        Limits(nodes=100_000, depth=60, top_k=3),
        on_node=lambda index: seen.set() if index == 30 else None,
    )
    done.set()
    thread.join()
    assert tree.stopped
    assert 30 <= len(tree.nodes) < 100_000
    assert abs(tree.mass + tree.remainder - 1.0) < 1e-9


def test_a_tree_at_a_position_marks_what_stands_there(engine: Engine) -> None:
    notes: list[str] = []

    class Watcher(TreeWatcher):
        def note(self, text: str) -> None:
            notes.append(text)

    tokens = engine.tokenizer.encode(f"{TEXT} Rome.")
    place = len(engine.tokenizer.encode(TEXT))
    tree = TreeSpec(f"{TEXT} Rome.", at=place, nodes=30).grow(engine, Watcher())
    assert tree.meta["text"] == TEXT
    given = [index for index, node in enumerate(tree.nodes) if index and node.is_given]
    assert [path(tree, index) for index in given] == [
        tokens[place : place + n] for n in range(1, len(given) + 1)
    ]
    assert given
    assert notes == []  # it is over at once


def test_a_chat_begins_where_an_answer_does(engine: Engine) -> None:
    messages = [Message(Role.USER, "Hello")]
    (first,) = itertools.islice(engine.next_distributions([engine.prompt_ids(messages)], top_k=1), 1)
    tree = TreeSpec(messages, nodes=1).grow(engine)
    assert (tree.nodes[1].id, tree.nodes[1].logprob) == first.top[0]
    after = TreeSpec((messages, "Hello"), nodes=1).grow(engine)
    assert after.meta["text"].endswith("Hello")


def test_rows_after_many_prompts_are_those_of_logits(engine: Engine) -> None:
    prompts = [
        engine.tokenizer.encode(text) for text in ("The", "The cat", "The cat sat", "A dog ran to")
    ] * 3
    for prompt, row in zip(prompts, engine.next_distributions(prompts, top_k=3, window=5), strict=True):
        wanted = logprobs(engine, prompt)
        assert [id for id, _ in row.top] == np.argsort(-wanted, kind="stable")[:3].tolist()
        assert [value for _, value in row.top] == pytest.approx(np.sort(wanted)[::-1][:3].tolist(), abs=1e-12)
        assert row.position == len(prompt) - 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"nodes": 0}, "nodes: must be at least 1"),
        ({"depth": 0}, "depth: must be at least 1"),
        ({"depth": 201}, "depth: must be at most 200"),
        ({"top_k": 0}, "top_k: must be at least 1"),
        ({"mass": 0.0}, "mass: must be above 0"),
        ({"mass": math.nan}, "mass: must be above 0"),
        ({"at": 0}, "at: must be from 1 to 5"),
        ({"at": 6}, "at: must be from 1 to 5"),
        ({"form": "png"}, "form: must be one of table"),
    ],
)
def test_bad_arguments(engine: Engine, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        "".join(TreeSpec("The capital of Italy is", **changes).pieces(engine))


def test_a_prompt_that_fills_the_context(tmp_path: Path) -> None:
    engine = Engine.load(write_llama(tmp_path / "small", vocab_size=40), threads=1, context=16)
    assert len(grow(engine, [5] * 14, Limits(nodes=9, depth=3)).nodes) == 10
    with pytest.raises(ContextFullError, match="14 tokens and a depth of 4 exceed the context of 16"):
        grow(engine, [5] * 14, Limits(depth=4))
