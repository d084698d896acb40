"""Made-up chats for tests of the store."""

import random

from ropechat.conversation import ConversationTree, Node, NodeState, Origin, Role
from ropechat.sampling import Sampling
from ropechat.trace import Stage, Step, TokenDistribution


def record(draw: random.Random, text: str, position: int) -> Step:
    """A token record with 20 alternatives; its numbers survive f32 where they are kept so."""
    top = tuple((draw.randrange(50_000), -draw.randrange(1, 4000) / 256) for _ in range(20))
    stages = (
        Stage("temperature", 50_000, 1.0, 2.5),
        Stage("top_p", 12, 0.9375, 1.25),
        Stage("mine", 3, 0.5, 0.25),
    )
    row = TokenDistribution(position - 1, top, draw.uniform(1, 40), draw.uniform(0, 5), draw.random())
    return Step(
        top[0][0],
        text.encode(),
        text,
        top[0][1],
        1,
        row.entropy,
        top,
        None,
        position,
        row,
        stages,
        draw.random(),
    )


def thought_of(draw: random.Random, text: str, position: int) -> list[Step]:
    """The tokens of a thought of words, between two markers."""
    made = [
        record(draw, f" {word}", position + place) for place, word in enumerate(("", *text.split(" "), ""))
    ]
    inside = [step._replace(text="", reasoning=step.text, channel="thought") for step in made[1:-1]]
    first, last = (step._replace(text="", channel="marker") for step in (made[0], made[-1]))
    return [first, *inside, last]


def answer(
    draw: random.Random,
    tree: ConversationTree,
    text: str,
    origin: Origin | None = None,
    thought: str = "",
) -> Node:
    """An answer of words to the current node, done."""
    assert tree.current is not None
    node = tree.answer(tree.current, "m", Sampling(seed=5, temperature=0.5), origin)
    for step in thought_of(draw, thought, 10) if thought else ():
        tree.add(node.id, step)
    for index, word in enumerate(text.split(" ")):
        tree.add(node.id, record(draw, word if not index else " " + word, 10 + len(node.steps)))
    tree.end(node.id, NodeState.DONE, "stop")
    node.prompt_tokens, node.first_after, node.ended_after = 10, 0.25, 1.5
    return node


def branched(seed: int = 0) -> ConversationTree:
    """A system text, two questions, two answers to the first."""
    draw, tree = random.Random(seed), ConversationTree()
    tree.write(Role.SYSTEM, "Be brief.")
    question = tree.write(Role.USER, "Why is the sky blue?\0 <b>&\x1b[31m 你好")
    first = answer(draw, tree, "Rayleigh scattering of light")
    tree.current = question.id
    answer(draw, tree, "Rayleigh, mostly.", Origin(first.id, 1, "fork"))
    tree.write(Role.USER, "And red at dusk?")
    answer(draw, tree, "A longer way through air.", thought="The sun is low.")
    return tree
