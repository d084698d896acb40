"""Thought and answer are the tokens that were drawn: none is lost or doubled, whatever one does to them."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from repeats import repeats
from stores import done
from thinking_models import CHATML, OPENED, sentencepiece_thinker, tiny_thinker

from ropechat import Engine
from ropechat.chat import events as ev
from ropechat.chat.answering import prefix_steps
from ropechat.chat.export import format_chat
from ropechat.chat.inference import Inference, describe
from ropechat.chat.recorder import ConversationRecorder
from ropechat.chat.session import Session
from ropechat.conversation import (
    Message,
    NodeState,
    Origin,
    Role,
    replace_token,
    steps_to_continue,
    unscored_step,
)
from ropechat.sampling import Sampling
from ropechat.store.imports.read import read_file
from ropechat.store.queries import Chat
from ropechat.store.store import Store
from ropechat.tokenizer.stream import WindowStream

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ropechat.conversation import Node
    from ropechat.trace import Step

DEEDS = ("ask", "again", "continue", "fork", "now", "edit", "rewrite", "import")


@pytest.fixture(scope="module", params=[CHATML, OPENED, None], ids=["may think", "thinks", "sentencepiece"])
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    folder = tmp_path_factory.mktemp("model") / "tiny"
    made = tiny_thinker(folder, request.param) if request.param else sentencepiece_thinker(folder)
    return Engine.load(made, cache="off")


class Chats:
    """A chat with a model that thinks, driven as the screen drives it; each answer is checked as it ends."""

    def __init__(
        self, engine: Engine, store: Store, draw: random.Random, folder: Path, patch: pytest.MonkeyPatch
    ) -> None:
        self.engine, self.store, self.draw, self.folder = engine, store, draw, folder
        self.drawn: list[Step] = []
        self.stop_at, self.request = 0, None
        whole = engine.reply

        def reply(*arguments: Any, **options: Any) -> Iterator[Step]:
            for step in whole(*arguments, **options):
                self.drawn.append(step)
                if len(self.drawn) == self.stop_at:
                    self.request.cancelled.set()  # type: ignore[attr-defined]
                yield step

        patch.setattr(engine, "reply", reply)
        self.inference = Inference()
        self.inference._engine = engine
        self.open()

    def open(self, chat: Chat | None = None) -> None:
        self.session = Session("m", Sampling(), recorder=ConversationRecorder(self.store))
        self.session.apply(ev.ModelLoaded(describe(self.engine)))
        if chat is not None:
            self.session.open(chat)

    def settings(self) -> Sampling:
        """Any budget; the marker that ends a thought is likely or not, no other control token is drawn."""
        thoughts, draw = self.engine.prompts.thoughts, self.draw
        assert thoughts is not None
        start, end = (self.engine.tokenizer.encode(text)[-1] for text in ("<think>", "</think>"))
        never = self.engine.tokenizer.added_ids - {start, end}
        bias = [(id, -100.0) for id in sorted(never)]
        bias += [(start, draw.choice((0.0, 8.0))), (end, draw.choice((0.0, 7.0)))]
        budget = draw.choice((-1, -1, 0, 3, 12))
        most = draw.randint(1, 12)
        return Sampling(
            temperature=1.0,
            top_k=0,
            max_tokens=most,
            thinking_budget=budget,
            logit_bias=tuple(bias),
            seed=draw.getrandbits(32),
        )

    def answer(self, turn: Any) -> None:
        """Have it written, perhaps stop it, and compare what the tree has with what was drawn."""
        self.drawn, self.request = [], turn.request
        self.stop_at = self.draw.choice((0, 1, 2, 5, 9))
        if not self.stop_at and turn.request.sampling.thinking_budget < 0:
            self.stop_at = 40  # a thought without a limit
        self.inference._serve(turn.request)
        for event in self.inference.drain():
            self.session.apply(event)
        node = self.session.tree[turn.node]
        assert node.state in (NodeState.DONE, NodeState.STOPPED)
        assert node.steps[node.prefix_length :] == self.drawn
        prefix = turn.request.prefix
        given = [] if prefix is None else [step.id for step in prefix.steps]
        if prefix is not None and prefix.closes:
            given += self.engine.closing_ids
        if prefix is None or prefix.written is None:
            assert [step.id for step in node.steps[: node.prefix_length]] == given
        else:
            assert node.text == prefix.written
            thought = [step.id for step in prefix.steps if step.channel == "thought"]
            kept = [step.id for step in node.steps if step.channel == "thought"]
            assert kept[: len(thought)] == thought
            assert not b"".join(map(self.engine.token_bytes, kept[len(thought) :])).strip()
        thinking = turn.request.sampling.thinking
        again = self.engine.spell(turn.request.messages, [step.id for step in node.steps], thinking=thinking)
        for step, one in zip(node.steps, again, strict=True):
            if step.channel != one.channel:  # newlines around the end marker: forced, or the model's own
                assert "marker" in (step.channel, one.channel)
                assert step.id in self.engine.closing_ids
                assert not step.bytes.strip()
        for name in ("reasoning", "text") if prefix is None or prefix.written is None else ("reasoning",):
            spelled = "".join(getattr(one, name) for one in again).strip()
            assert getattr(node, name).strip().startswith(spelled)  # the end of a text is not spelled
        check(node, byte_level=not isinstance(self.engine.tokenizer.stream(), WindowStream))

    def do(self, deed: str) -> None:
        session, draw = self.session, self.draw
        session.sampling = self.settings()
        nodes = [node for node in session.tree.nodes.values() if node.steps]
        if deed == "ask" or not nodes:
            self.answer(session.ask("Who are you?"))
            return
        node = draw.choice(nodes)
        parent, steps = node.parent or "", tuple(node.steps)
        if deed == "import":
            self.import_again()
        elif deed == "again":
            self.answer(session.answer(parent))
        elif deed == "continue":
            steps = tuple(steps_to_continue(node))
            origin = Origin(node.id, len(steps), "continue")
            self.answer(session.answer(parent, ev.AssistantPrefix(steps), origin))
        elif deed == "fork":
            index = draw.randrange(len(steps))
            id = draw.choice(steps[index].top or [(steps[index].id, 0.0)])[0]
            prefix = ev.AssistantPrefix((*steps[:index], replace_token(steps[index], id)))
            self.answer(session.answer(parent, prefix, Origin(node.id, index, "fork")))
        elif deed == "now" and steps[-1].channel == "thought":
            prefix = ev.AssistantPrefix(steps, closes=True)
            self.answer(session.answer(parent, prefix, Origin(node.id, len(steps), "fork")))
        elif deed == "edit":
            prefix = ev.AssistantPrefix(steps, written="I am a tiny model.")
            self.answer(session.answer(parent, prefix, Origin(node.id, 0, "edit")))
        elif deed == "rewrite":
            self.answer(session.rewrite(parent, "What are you?"))

    def import_again(self) -> None:
        """Go on in the chat that an export of this one gives."""
        chat = done(self.store.load(self.session.recorder.id))
        path = self.folder / "export.json"
        path.write_text(format_chat(chat, "json"))
        [read] = read_file(path).chats
        same(list(self.session.tree.nodes.values()), list(read.tree.nodes.values()))
        done(self.store.insert(read))
        self.open(done(self.store.load(read.id)))


def check(node: Node, *, byte_level: bool) -> None:
    """The texts of a node are those of its tokens, each in its channel. byte_level: bytes are text."""
    order = [step.channel for step in node.steps if step.bytes.strip()]  # of newlines see `Chats.answer`
    assert node.reasoning == "".join(step.reasoning for step in node.steps)
    assert node.text == "".join(step.text for step in node.steps)
    assert not any(step.text for step in node.steps if step.channel == "thought")
    assert not any(step.reasoning for step in node.steps if step.channel == "answer")
    answers = [place for place, channel in enumerate(order) if channel == "answer"]
    assert not answers or answers == list(range(answers[0], len(order)))
    if not byte_level:
        return
    for channel, text in (("thought", node.reasoning), ("answer", node.text)):
        spoken = [step for step in node.steps if step.bytes != b"<|im_end|>"]  # ends a text, and has none
        said = b"".join(step.bytes for step in spoken if step.channel == channel)
        assert tidy(text) == tidy(said.decode("utf-8", "replace"))


def tidy(text: str) -> str:
    """Without what a channel may lack at its ends: space, and a character that was cut behind it."""
    return re.sub(r"[\s\ufffd]+\Z", "", text.lstrip())


def same(nodes: list[Node], others: list[Node]) -> None:
    assert len(nodes) == len(others)
    for one, other in zip(nodes, others, strict=True):
        assert [step.id for step in one.steps] == [step.id for step in other.steps]
        assert [step.channel for step in one.steps] == [step.channel for step in other.steps]
        assert (one.text, one.reasoning) == (other.text, other.reasoning)


def test_a_written_answer_is_no_thought(engine: Engine) -> None:
    """Also of an answer without a thought, where the prompt itself opens one."""
    asked = (Message(Role.USER, "Count"),)
    found = prefix_steps(engine, ev.Preview(asked, ev.AssistantPrefix((), written="Six."), 1), 5)
    assert "".join(step.text for step in found) == "Six."
    assert "".join(step.reasoning for step in found).strip() == ""


def test_a_marker_that_was_begun(engine: Engine) -> None:
    """It is of the thought where another token follows, and written whole where the answer is edited."""
    asked, closing = (Message(Role.USER, "Count"),), engine.closing_ids
    thoughts = engine.prompts.thoughts
    assert thoughts is not None
    opens = thoughts.opening(engine.prompt_ids(asked)) == "open"
    thought = engine.tokenizer.encode("One" if opens else "<think>One", add_special_tokens=False)
    begun = closing[: closing.index(engine.tokenizer.encode("</think>")[-1])]
    spelled = engine.spell(asked, [*thought, *begun])
    steps = [
        unscored_step(id, 0)._replace(**one._asdict()) for id, one in zip(thought, spelled, strict=False)
    ]
    drawn = [unscored_step(id, 0)._replace(channel="marker") for id in begun]

    other = [unscored_step(id, 0) for id in engine.tokenizer.encode("two", add_special_tokens=False)]
    forked = ev.AssistantPrefix((*steps, *drawn, *other), new=len(other))
    found = prefix_steps(engine, ev.Preview(asked, forked, 1), 5)
    assert re.fullmatch(r" *One *\n *two", "".join(step.reasoning for step in found))
    edited = ev.AssistantPrefix((*steps, *drawn), written="Six.")
    found = prefix_steps(engine, ev.Preview(asked, edited, 1), 5)
    assert [step.id for step in found[: len(thought) + len(closing)]] == [*thought, *closing]
    assert "".join(step.text for step in found) == "Six."


@repeats(4, 1000)
def test_thought_and_answer_are_what_was_drawn(engine: Engine, tmp_path: Path, count: int) -> None:
    for number in range(count):
        seed = random.randrange(2**32)
        print("seed", seed)
        with pytest.MonkeyPatch.context() as patch:
            chats_of(seed, engine, tmp_path / str(number), patch)


def chats_of(seed: int, engine: Engine, folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Do things at random in a chat; what was written is read again."""
    draw, store = random.Random(seed), Store(folder / "data")
    chats = Chats(engine, store, draw, folder, patch)
    for _ in range(14):
        chats.do(draw.choice(DEEDS))
    id, tree = chats.session.recorder.id, chats.session.tree
    assert store.close(10)
    assert store.trouble is None
    again = Store(folder / "data")
    chat = done(again.load(id))
    assert again.close(10)
    assert chat.damaged == ()
    same(list(tree.nodes.values()), list(chat.tree.nodes.values()))
