"""A chat in which all texts are of one kind: titles, questions, answers, names."""

import os
import random
from pathlib import Path

from fakes import FakeEngine
from payloads import BRACKETS, ESCAPES, in_markdown

from ropechat.chat.live import LiveChat
from ropechat.conversation import ConversationTree, NodeState, Origin, Role
from ropechat.engine.engine import SpelledToken
from ropechat.sampling import AUTO, Sampling
from ropechat.store.queries import Chat
from ropechat.store.store import Store
from ropechat.trace import Step, TokenDistribution

CHATS = 40
TEXTS = {"plain": ["plain"] * 40, "escapes": list(ESCAPES), "brackets": BRACKETS}


def texts(kind: str) -> list[str]:
    """Each with a mark behind it, by which it is found on the screen."""
    return [f"{text}Q{number}Q" for number, text in enumerate(TEXTS[kind])]


def step(text: str, position: int) -> Step:
    """A token of this text; its alternatives have numbers that `token_bytes` spells with other texts."""
    top = tuple((position + number, -0.1 - number) for number in range(20))
    data = text.encode("utf-8", "surrogatepass")
    shown = data.decode("utf-8", "replace")
    return Step(
        position,
        data,
        shown,
        -3.0,
        1,
        1.0,
        top,
        None,
        position,
        TokenDistribution(position, top, 9.0, 1.0, 0.9),
        (),
        0.5,
    )


def tree(said: list[str], model: str) -> ConversationTree:
    """A system text, a question, a short answer for each text, and two answers that hold all of them."""
    made, draw = ConversationTree(), random.Random(1)
    made.write(Role.SYSTEM, " ".join(said[:40]))
    question = made.write(Role.USER, "\n".join(said[:40]))
    both = ["\n".join(map(in_markdown, said[:40])), *said]
    answers = [[text, " and more"] for text in said[:CHATS]] + [both, [*both[1:], "end"]]
    first = ""
    for words in answers:
        origin = Origin(first, 1, "fork") if first and draw.random() < 0.5 else None
        node = made.answer(question.id, model, Sampling(seed=1, temperature=0.7, top_k=40), origin)
        first = first or node.id
        for number, word in enumerate(words):
            made.add(node.id, step(f"{word}\n", number))
        made.end(node.id, NodeState.STOPPED, "cancelled", words[0])
    return made


def furnish(folder: Path, kind: str) -> None:
    """Chats, personas and files to attach."""
    said = texts(kind)
    folder.mkdir()
    store = Store(folder / "data")
    for number, title in enumerate(said[:CHATS]):
        short = ConversationTree()
        short.write(Role.USER, title)
        store.insert(Chat(f"chat{number:02}", title, short)).result(60)
    store.insert(Chat("whole", said[0], tree(said, said[0]))).result(60)
    store.set_current("whole", None).result(60)
    store.close()
    personas = folder / "settings" / "ropechat" / "personas"
    personas.mkdir(parents=True)
    for number, text in enumerate(said[:8]):
        (personas / f"p{number}.txt").write_bytes(text.encode("utf-8", "surrogatepass"))
    files = folder / "files"
    files.mkdir()
    for text in said[:40]:
        name = text.replace("/", "").replace("\0", "").encode("utf-8", "surrogatepass")
        (files / os.fsdecode(name)).write_bytes(text.encode("utf-8", "replace"))


def chat(kind: str, folder: Path) -> LiveChat:
    """A chat that opens `whole`."""
    said = texts(kind)
    engine = FakeEngine(" ".join(said), context=10**6, name=said[0], facts={"dtype": said[1], "isa": said[2]})
    engine.token_bytes = lambda id: said[id % len(said)].encode("utf-8", "surrogatepass")  # type: ignore[method-assign]
    engine.spell = lambda messages, ids, after=(), thinking=AUTO: [  # type: ignore[method-assign]
        SpelledToken(b"x", said[id % len(said)], "", "answer") for id in ids
    ]
    engine.prompts.told_in_vain = said[3:6]
    return LiveChat(lambda: engine, said[0], Sampling(), None, Store(folder / "data"))
