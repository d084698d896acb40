"""What is asked: a context that can be shown to the model without some of its parts, and an answer to it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from ropechat.conversation import Message, Role
from ropechat.trace import Pair

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ropechat.inspector.why.parts import Span

    Item = Pair | tuple[tuple[Message, ...], str]
BETWEEN = "\n\n"
"""Between files, and before a question."""


class Text(NamedTuple):
    """A text of a context. name: of its file, or its author. span: in `Context.text`, in characters."""

    name: str
    span: Span


class Edit(NamedTuple):
    """A change of a context. cuts: what is removed, in order. insert: what comes in place of the first."""

    cuts: tuple[Span, ...]
    insert: str = ""


UNCHANGED = Edit(())


@dataclass(frozen=True)
class Context:
    """Texts, and what follows them.

    text: all texts, with empty lines between them. messages: whose contents the texts are; () for texts
    themselves, which with `chat` are one message of the user. question: follows them and is never changed.
    reply: where in `text` the beginning of the answer itself is; its parts are compared with each other only.
    """

    text: str
    texts: tuple[Text, ...]
    messages: tuple[Message, ...] = ()
    question: str = ""
    chat: bool = False
    reply: Span = (0, 0)

    def is_reply(self, span: Span) -> bool:
        """Whether a stretch of `text` is in the beginning of the answer."""
        return self.reply[0] <= span[0] < self.reply[1]

    @classmethod
    def of_texts(cls, named: Sequence[tuple[str, str]], question: str = "", *, chat: bool = False) -> Context:
        """The context of texts with their names."""
        texts, text = _placed(named)
        # The white space around a text stays when the text is left out.
        stripped = tuple(Text(name, _stripped(text, span)) for name, span in texts)
        return cls(text, stripped, (), question, chat)

    @classmethod
    def of_messages(cls, messages: Sequence[Message], question: str = "") -> Context:
        """The context of a conversation."""
        texts, text = _placed([(str(message.role), message.content) for message in messages])
        return cls(text, texts, tuple(messages), question)

    def prompt(self, edit: Edit = UNCHANGED) -> str | tuple[Message, ...]:
        """The text or the messages before the answer."""
        asked = (Message(Role.USER, self.question),) if self.question else ()
        if self.messages:
            contents = (self._edited(text.span, edit) for text in self.texts)
            changed = [
                replace(one, content=content) for one, content in zip(self.messages, contents, strict=True)
            ]
            return (*changed, *asked)
        body = self._edited((0, len(self.text)), edit)
        if self.question:
            body = f"{body}{BETWEEN}{self.question}" if body.strip() else self.question
        return (Message(Role.USER, body),) if self.chat else body

    def item(self, answer: str, edit: Edit = UNCHANGED) -> Item:
        """The prompt and the answer, as `Engine.score_many` takes them."""
        prompt = self.prompt(edit)
        return Pair(prompt, answer) if isinstance(prompt, str) else (prompt, answer)

    def _edited(self, span: Span, edit: Edit) -> str:
        """A stretch of the text after a change."""
        at, kept = span[0], list[str]()
        for number, (first, last) in enumerate(edit.cuts):
            start, end = max(at, first), min(span[1], last)
            if start < end:
                inserted = edit.insert if number == 0 and start == first else ""
                kept += [self.text[at:start], inserted]
                at = end
        return "".join([*kept, self.text[at : span[1]]])


def _placed(named: Sequence[tuple[str, str]]) -> tuple[tuple[Text, ...], str]:
    at, texts = 0, list[Text]()
    for name, text in named:
        texts.append(Text(name, (at, at + len(text))))
        at += len(text) + len(BETWEEN)
    return tuple(texts), BETWEEN.join(text for _, text in named)


def _stripped(text: str, span: Span) -> Span:
    body = text[slice(*span)]
    start = span[0] + len(body) - len(body.lstrip())
    return start, max(start, span[0] + len(body.rstrip()))
