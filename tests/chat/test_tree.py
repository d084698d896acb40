"""The tree of a chat: whatever is done to it, nothing that was said changes or gets lost."""

import itertools
import math
import random

import pytest

from ropechat.conversation import (
    ConversationTree,
    Message,
    Node,
    NodeState,
    Origin,
    Role,
    common_prefix_length,
    remaining_sampling,
    replace_token,
    surprisal_bits,
    unscored_step,
    with_seed,
)
from ropechat.sampling import MAX_SEED, Sampling
from ropechat.trace import Step, TokenDistribution

TOP = ((5, -0.5), (6, -1.0), (7, -2.0))


def step(id: int, text: str = "x", logprob: float = -1.0) -> Step:
    row = TokenDistribution(8, TOP, 10.0, 1.0, 0.9)
    return Step(id, text.encode(), text, logprob, 1, 1.0, TOP, None, 9, row, (), 0.25)


def grown() -> ConversationTree:
    numbers, times = itertools.count(), itertools.count(100)
    return ConversationTree(lambda: f"n{next(numbers)}", lambda: float(next(times)))


def answered(tree: ConversationTree, text: str, state: NodeState = NodeState.DONE) -> Node:
    """An answer to the current node, a letter a token."""
    assert tree.current is not None
    node = tree.answer(tree.current, "m", Sampling(seed=1))
    for letter in text:
        tree.add(node.id, step(ord(letter), letter))
    tree.end(node.id, state, "stop" if state is NodeState.DONE else None)
    return node


def test_a_chat_is_a_path() -> None:
    tree = grown()
    tree.write(Role.SYSTEM, "s")
    tree.write(Role.USER, "q")
    answer = answered(tree, "abc")
    assert tree.messages() == (
        Message(Role.SYSTEM, "s"),
        Message(Role.USER, "q"),
        Message(Role.ASSISTANT, "abc"),
    )
    assert [node.id for node in tree.path()] == ["n0", "n1", "n2"]
    assert tree.current == answer.id
    assert answer.created == 102.0


def test_regenerating_and_editing_make_siblings() -> None:
    tree = grown()
    question = tree.write(Role.USER, "q")
    first = answered(tree, "one")
    tree.current = question.id
    second = answered(tree, "two")
    assert tree.sibling_position(first.id) == (1, 2)
    assert tree.sibling_position(second.id) == (2, 2)
    tree.write(Role.USER, "more")
    last = answered(tree, "end")
    other = tree.rewrite(question.id, "other q")
    assert other.origin == Origin(question.id, 0, "edit")
    assert tree.messages() == (Message(Role.USER, "other q"),)
    assert tree.step(other.id, -1) is question
    assert tree.current == last.id  # the newest of that branch
    assert tree.step(first.id, -1) is None
    assert [node.id for node in tree.leaves()] == [first.id, last.id, other.id]


def test_what_broke_off_before_its_first_token_is_not_read_again() -> None:
    tree = grown()
    tree.write(Role.USER, "lost")
    answered(tree, "", NodeState.STOPPED)
    assert tree.messages() == ()
    tree.write(Role.USER, "q")
    assert tree.messages() == (Message(Role.USER, "q"),)
    answered(tree, "")
    assert tree.messages()[-1] == Message(Role.ASSISTANT, "")  # an empty answer that is done is one


def test_where_the_shown_answer_was_removed_the_newest_is_shown() -> None:
    tree = grown()
    question = tree.write(Role.USER, "q")
    for text in ("one", "two", "three", "four"):
        tree.follow(question.id)
        answered(tree, text)
    for removed, shown in (("four", "three"), ("one", "three"), ("three", "two")):
        [gone] = [node.id for node in tree.children(question.id) if node.text == removed]
        assert tree.remove(gone) == [gone]
        assert tree.messages()[-1].content == shown
    assert tree.current is not None
    tree.remove(tree.current)
    assert tree.current == question.id


def test_what_has_ended_stays() -> None:
    tree = grown()
    tree.write(Role.USER, "q")
    node = answered(tree, "abc", NodeState.STOPPED)
    with pytest.raises(ValueError, match="stopped"):
        tree.add(node.id, step(1))
    with pytest.raises(ValueError, match="stopped"):
        tree.end(node.id, NodeState.DONE)
    with pytest.raises(ValueError, match="in use"):
        tree.restore(node)
    with pytest.raises(KeyError):
        tree.restore(Node("new", "nowhere", Role.USER))


def test_a_forced_token_is_scored_under_the_row_it_replaces() -> None:
    drawn = step(6, " dangle", -1.0)._replace(finish_reason="length")
    other = replace_token(drawn, 7)
    assert (other.id, other.logprob, other.rank) == (7, -2.0, 3)
    assert (other.bytes, other.text, other.u, other.finish_reason) == (b"", "", None, None)
    assert other.row is drawn.row
    unseen = replace_token(drawn, 99)
    assert math.isnan(unseen.logprob)
    assert unseen.rank == 0
    assert replace_token(drawn, 6) == drawn._replace(finish_reason=None)


def test_figures() -> None:
    node = Node("n", None, Role.ASSISTANT, steps=[step(1, "a", -math.log(2)), step(2, "b", -3 * math.log(2))])
    assert node.bits == pytest.approx(4)
    assert node.ppl == pytest.approx(4)
    node.steps.append(unscored_step(3, 11))
    assert (node.scored, surprisal_bits(node.steps[-1])) == (2, 0.0)
    assert node.ppl == pytest.approx(4)
    assert math.isnan(Node("n", None, Role.ASSISTANT).ppl)
    assert common_prefix_length(node.steps, node.steps[:1]) == 1


def test_seeds_and_what_is_left() -> None:
    locked = Sampling(seed=MAX_SEED)
    assert [with_seed(locked, number).seed for number in (0, 1)] == [MAX_SEED, 0]
    assert with_seed(Sampling(), 0).seed != with_seed(Sampling(), 0).seed
    exact = 2**53  # numbers that jq and JavaScript hold
    assert all((with_seed(Sampling(), 0).seed or 0) < exact for _ in range(50))
    assert [with_seed(Sampling(seed=exact - 1), number).seed for number in (0, 1, 2)] == [exact - 1, 0, 1]
    assert with_seed(Sampling(seed=exact), 1).seed == exact + 1
    answer = Node("n", None, Role.ASSISTANT, sampling=Sampling(max_tokens=100))
    assert remaining_sampling(answer, 10).max_tokens == 89
    fork = Node("f", None, Role.ASSISTANT, sampling=Sampling(max_tokens=89), prefix_length=11)
    assert remaining_sampling(fork, 20).max_tokens == 79
    assert remaining_sampling(fork, 5).max_tokens == 94
    assert remaining_sampling(answer, 500).max_tokens == 1


def check(tree: ConversationTree) -> None:
    """What holds for every tree."""
    seen = [node for node, _ in tree.walk()]
    assert {node.id for node in seen} == set(tree.nodes)
    assert len(seen) == len(tree.nodes)
    for node in seen:
        assert node in tree.children(node.parent)
        place, of = tree.sibling_position(node.id)
        assert tree.siblings(node.id)[place - 1] is node
        assert len(tree.siblings(node.id)) == of
        path = tree.path(node.id)
        assert path[0].parent is None
        assert path[-1] is node
        assert all(child.parent == parent.id for parent, child in itertools.pairwise(path))
    assert tree.current is None or tree.current in tree.nodes
    assert (tree.current is None) == (not tree.nodes)
    roles = [message.role for message in tree.messages()]
    assert all(one != other or one is not Role.ASSISTANT for one, other in itertools.pairwise(roles))


def act(tree: ConversationTree, draw: random.Random) -> None:
    """One thing that a user may do; what ended before is not named."""
    ids = list(tree.nodes)
    answers = [node for node in tree.nodes.values() if node.role is Role.ASSISTANT]
    kind = draw.choice(["ask", "ask", "regenerate", "fork", "edit", "go", "sibling", "remove"])
    if kind == "ask" or not answers:
        tree.write(Role.USER, f"q{draw.random()}")
        state = draw.choice([NodeState.DONE, NodeState.STOPPED, NodeState.FAILED])
        answered(tree, "abcdef"[: draw.randint(0, 6)], state)
    elif kind == "regenerate":
        tree.current = draw.choice(answers).parent
        answered(tree, "other")
    elif kind == "fork":
        old = draw.choice(answers)
        index = draw.randint(0, len(old.steps))
        assert old.parent is not None
        new = tree.answer(old.parent, "m", Sampling(), Origin(old.id, index, "fork"))
        tree.add_prefix(new.id, [*old.steps[:index], step(7, "7")])
        tree.end(new.id, NodeState.DONE)
        assert common_prefix_length(old.steps, new.steps) >= index
    elif kind == "edit":
        tree.rewrite(draw.choice(ids), f"e{draw.random()}")
    elif kind == "go":
        tree.go(draw.choice(ids))
    elif kind == "sibling":
        tree.step(draw.choice(ids), draw.choice([-1, 1]))
    else:
        tree.remove(draw.choice(ids))


@pytest.mark.parametrize("seed", range(20))
def test_nothing_that_was_said_changes(seed: int) -> None:
    draw, tree = random.Random(seed), grown()
    said: dict[str, tuple[str | None, str, list[Step], NodeState]] = {}
    for _ in range(60):
        act(tree, draw)
        check(tree)
        for id, then in said.items():
            if id in tree.nodes:
                node = tree[id]
                assert (node.parent, node.text, node.steps, node.state) == then
        said = {n.id: (n.parent, n.text, list(n.steps), n.state) for n in tree.nodes.values()}
