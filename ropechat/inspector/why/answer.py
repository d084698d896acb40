"""What is asked of a context: the tokens whose probability is looked at, after any change of the context."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ropechat.conversation import Message, Role, thought_length
from ropechat.engine.score_input import encode_item
from ropechat.inspector.why.context import UNCHANGED, Context, Text
from ropechat.trace import Pair

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ropechat.engine.engine import Engine
    from ropechat.inspector.why.context import Edit, Item
    from ropechat.inspector.why.parts import Span
    from ropechat.inspector.why.result import Asked
    from ropechat.sampling import Thinking
    from ropechat.tokenizer import EncodedToken
    from ropechat.trace import Step, Trace

_LONGEST_CHARACTER = 4  # bytes, so at most so many tokens
SO_FAR = "answer so far"


class Question(Protocol):
    """A context with an answer. text: the answer; length: tokens of both."""

    context: Context
    text: str
    length: int

    def item(self, edit: Edit = UNCHANGED) -> Item:
        """What is scored after a change of the context. Raises as `Engine.prompt_ids`."""

    def inside(self, trace: Trace) -> tuple[int, int]:
        """Which of the scored tokens are asked for: from the first to after the last."""


class TextQuestion:
    """An answer that is a text. of: its characters that are asked for. asked: special and bos."""

    def __init__(self, engine: Engine, context: Context, answer: str, of: Span, asked: Asked) -> None:
        """Raises as `encode_item`."""
        self.context, self._engine, self._asked = context, engine, asked
        self.text = self._shortened(answer, of)
        self._of = tuple(_size(answer[:at]) for at in of)
        self.length = len(self._encoded(self.text))

    def item(self, edit: Edit = UNCHANGED) -> Item:
        return self.context.item(self.text, edit)

    def inside(self, trace: Trace) -> tuple[int, int]:
        """At the start of the answer, spaces before it count too, see `Pair`."""
        begin = _size(trace.meta["text"]) - _size(self.text)
        first, last = (begin + at for at in self._of)
        first = first if self._of[0] else 0
        found = [
            at for at, token in enumerate(trace.tokens) if token.span[0] < last and token.span[1] > first
        ]
        return (found[0], found[-1] + 1) if found else (0, 0)

    def _encoded(self, answer: str) -> list[EncodedToken]:
        item = self.context.item(answer)
        given = encode_item(self._engine.prompts, item, self._asked.special, self._asked.bos)
        return [token for piece in given.pieces for token in piece]

    def _shortened(self, answer: str, of: Span) -> str:
        """The answer up to what is asked, if its tokens are the same without what follows."""
        if of[1] == len(answer):
            return answer
        tokens, left = self._encoded(answer), _size(answer[of[1] :])
        end = tokens[-1].span[1]
        count = next(at for at, token in enumerate(tokens, 1) if token.span[1] >= end - left)
        kept = _size(answer) - (end - tokens[count - 1].span[1])
        shorter = answer.encode("utf-8", "surrogatepass")[:kept].decode("utf-8", "ignore")
        same = [token.id for token in self._encoded(shorter)] == [token.id for token in tokens[:count]]
        return shorter if same else answer


class ReplyQuestion:
    """Tokens of a reply, after the ids that the model read before them.

    The context is the conversation and what the reply says before these tokens: the thought if they are in
    it, else the answer. The first is scored by the reply's own ids; where its text is changed, by those of
    the changed text.
    """

    def __init__(
        self,
        engine: Engine,
        messages: Sequence[Message],
        thinking: Thinking,
        steps: Sequence[Step],
        of: tuple[int, int],
        names: Sequence[str],
    ) -> None:
        """messages: before the reply, with their names. steps: of the reply; of: (start, end) of those asked.

        Raises as `Engine.prompt_ids`.
        """
        self._engine, self._thinking = engine, thinking
        first, last = of
        channel, answer = steps[first].channel, thought_length(steps)
        begins = (step.channel == channel for step in steps[:first])
        start = answer if first >= answer else next((at for at, own in enumerate(begins) if own), first)
        whole, said = _whole_text(steps, start, first)
        ids = [step.id for step in steps[:last]]
        self._head, self._said, self._tail = ids[:start], ids[start:whole], ids[whole:first]
        self._ids = ids[first:]
        self.text = b"".join(step.bytes for step in steps[first:last]).decode("utf-8", "replace")
        made = Context.of_messages([*messages, Message(Role.ASSISTANT, said)])
        named = zip([*names, SO_FAR], made.texts, strict=True)
        texts = tuple(Text(name, text.span) for name, text in named)
        self.context = Context(made.text, texts, made.messages, reply=texts[-1].span)
        pair = self.item()
        self.length = len(pair.context) + len(pair.continuation)

    def item(self, edit: Edit = UNCHANGED) -> Pair:
        changed = self.context.prompt(edit)
        assert not isinstance(changed, str)
        *messages, reply = changed
        prompt = self._engine.prompt_ids(messages, thinking=self._thinking)
        said, new = self._said, reply.content
        if new != self.context.messages[-1].content:
            said = self._engine.reply_ids(messages, new, self._thinking) if new else []
        return Pair([*prompt, *self._head, *said, *self._tail], self._ids)

    def inside(self, trace: Trace) -> tuple[int, int]:
        return 0, len(self._ids)


def _whole_text(steps: Sequence[Step], start: int, end: int) -> tuple[int, str]:
    """The steps from `start` that end with a character, none after `end`, and their text."""
    for whole in range(end, max(start, end - _LONGEST_CHARACTER), -1):
        try:
            return whole, b"".join(step.bytes for step in steps[start:whole]).decode()
        except UnicodeDecodeError:
            continue
    return start, ""


def _size(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))
