"""Conversion of messages, or of a given text, to the token ids of a prompt.

Three rules: the model's chat template decides the form; there is exactly one BOS; user text stays text, even
if it spells a control token such as <|im_end|>.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from ropechat.conversation import Message, Role
from ropechat.engine.reasoning import Thoughts
from ropechat.engine.templates.template import SYSTEM_FOLDED, ChatTemplate, validate_variables
from ropechat.engine.validation import split_prompt
from ropechat.errors import ChatTemplateError, RequestError
from ropechat.sampling import AUTO, Thinking
from ropechat.tokenizer import ControlTokenEscaper, EncodedToken, Tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

Special = Literal["text", "tokens"]
"""Whether the name of a control token in a given text is encoded as text or as the token."""
Bos = Literal["auto", "yes", "no"]
"""Whether a text to score begins with the BOS token; auto: as the tokenizer says."""
MESSAGE_NOT_LOCATED = (
    "this model's chat template changes the message, so its words are not distinguishable from the "
    "template's; they have the role template"
)
MAX_CACHED_PROMPTS = 4
"""Number of cached prompts: one reply requests the same ids several times, and so do further answers."""


class PromptBuilder:
    """Builds the prompts of a model. template: None joins the texts of the messages.

    control_ids: tokens that user text is never encoded to. variables: template variables of all prompts.
    on_note: called once with a message for the user about the prompt.
    """

    def __init__(
        self, tokenizer: Tokenizer, template: ChatTemplate | None, control_ids: frozenset[int]
    ) -> None:
        self.tokenizer = tokenizer
        self.template = template
        self.control_ids = control_ids
        self.variables: dict[str, Any] = {}
        self.on_note: Callable[[str], None] = lambda text: None
        self._noted = False
        self._known: tuple[tuple[object, list[int]], ...] = ()  # newest first
        self._thoughts: tuple[ChatTemplate, Thoughts | None] | None = None

    def use(self, name: str | None = None, variables: Mapping[str, Any] | None = None) -> None:
        """Select one of the model's templates by name and set its variables.

        Raises ChatTemplateError for an unknown name, RequestError for invalid variables.
        """
        checked = validate_variables(variables or {})
        if self.template is None:
            if name is not None or checked:
                raise ChatTemplateError("chat_template: this model has none; omit the template options")
            return
        if name is not None:
            self.template = self.template.select(name)
        self.variables = checked

    @property
    def thoughts(self) -> Thoughts | None:
        """How replies are divided into thought and answer; None for a model that does not think."""
        if self.template is None or not self.tokenizer.present:
            return None
        if self._thoughts is None or self._thoughts[0] is not self.template:
            names = {self.tokenizer.token(id) or "" for id in self.tokenizer.added_ids}
            form = self.template.find_thoughts(names)
            encode = self.tokenizer.escaper(self.control_ids).encode
            self._thoughts = self.template, None if form is None else Thoughts(self.tokenizer, form, encode)
        return self._thoughts[1]

    def unused(self) -> list[str]:
        """The variables set by `use` that the template does not mention: possibly typos."""
        template = self.template
        return [] if template is None else [name for name in self.variables if not template.mentions(name)]

    def ids(
        self,
        messages: Sequence[Message],
        variables: Mapping[str, Any] | None = None,
        prefix: str = "",
        thinking: Thinking = AUTO,
    ) -> list[int]:
        """The ids of a conversation up to the start of the reply, followed by those of `prefix`.

        variables: override those of `use` and of `thinking`. Raises ChatTemplateError, TokenizerError,
        RequestError.
        """
        told = repr(
            {**self.variables, **(variables or {})}
        )  # repr: 1 and True are equal, but render differently
        asked = (tuple(messages), told, variables is None, prefix, thinking, self.template, self.control_ids)
        known = next((ids for before, ids in self._known if before == asked), None)
        if known is None:
            known = self._ids(messages, variables, prefix, thinking)
            self._known = ((asked, known), *self._known)[:MAX_CACHED_PROMPTS]
        return list(known)

    def encode_prompt(
        self, prompt: str | Sequence[int] | Sequence[Message], special: Special = "text", bos: Bos = "auto"
    ) -> tuple[str | None, list[EncodedToken]]:
        """The tokens of a text, ids or messages to score, and the text that their spans refer to.

        That text is the given one, the decoded ids (None without a tokenizer), or the rendered messages as
        `ropechat template` prints them. special: whether the name of a control token in a text stays text or
        becomes the token. bos: for a text only. Raises as `ids`.
        """
        if isinstance(prompt, str):
            quoted = self.control_ids if special == "text" else frozenset[int]()
            return prompt, self._with_bos(self.tokenizer.encode_aligned(prompt, quoted), bos)
        messages, ids = split_prompt(prompt)
        if messages:
            return self._aligned(messages)
        return self.tokenizer.decode(ids) if self.tokenizer.present else None, self.tokenizer.align(ids)

    def line_ids(self, text: str) -> tuple[int, ...]:
        """The ids of a text at the beginning of a line, without what the tokenizer adds. Raises as `ids`."""

        def plain(part: str) -> list[int]:
            """The ids without those that have no text."""
            return [token.id for token in self.encode_prompt(part)[1] if token.span != (0, 0)]

        before, whole = plain("\n"), plain("\n" + text)
        joined = whole[: len(before)] != before or len(whole) == len(before)
        return tuple(plain(text) if joined else whole[len(before) :])

    def _with_bos(self, tokens: list[EncodedToken], bos: Bos) -> list[EncodedToken]:
        """The tokens of a text, with or without a BOS that is not part of the text."""
        has = bool(tokens) and tokens[0].role == "bos" and tokens[0].span == (0, 0)
        if bos == "no" and has:
            return tokens[1:]
        if bos == "yes" and not has:
            if self.tokenizer.bos_id is None:
                raise RequestError("bos: this model's tokenizer has no BOS token; use auto or no")
            return [EncodedToken(self.tokenizer.bos_id, (0, 0), "bos"), *tokens]
        return tokens

    def _aligned(self, messages: Sequence[Message]) -> tuple[str, list[EncodedToken]]:
        control = self.tokenizer.escaper(self.control_ids)
        rendered = self._rendered(control, messages, None)
        reading = control.read(rendered)
        tokens = self.tokenizer.read_aligned(reading)
        said = [place for _, place in self._places(messages, rendered)]
        if len(said) < sum(bool(message.content.strip()) for message in messages):
            self.on_note(MESSAGE_NOT_LOCATED)
        self._put_bos(tokens)
        return reading.shown, [
            token._replace(role="template")
            if token.role == "text" and not _within(token.span, said)
            else token
            for token in tokens
        ]

    def _put_bos(self, tokens: list[EncodedToken]) -> None:
        """Put a BOS in front if the tokenizer adds one and the template did not; give it its role."""
        bos = self.tokenizer.bos_id
        if self.tokenizer.adds_bos and bos is not None and tokens[:1] and tokens[0].id != bos:
            tokens.insert(0, EncodedToken(bos, (0, 0), "bos"))
        if tokens[:1] and tokens[0].id == bos:
            tokens[0] = tokens[0]._replace(role="bos")

    def encode_long(
        self, text: str, special: Special = "text", bos: Bos = "auto"
    ) -> Iterator[list[EncodedToken]]:
        """The tokens of a text of any length to score, as `encode_prompt`, in lists of bounded size."""
        quoted = self.control_ids if special == "text" else frozenset[int]()
        pieces = self.tokenizer.encode_pieces(text, quoted)
        yield self._with_bos(next(pieces, []), bos)
        yield from pieces

    def encode_by_author(
        self, messages: Sequence[Message], answer: str = ""
    ) -> tuple[str, list[EncodedToken], list[tuple[int, tuple[int, int]]]]:
        """`encode_prompt` of messages and of an answer to them; texts have the role of their author.

        Also returns (index, byte range) of each message that can be located, and of the answer. Without an
        answer, the prompt for one is not added after a message of the assistant.
        """
        asks = bool(answer) or not messages or messages[-1].role is not Role.ASSISTANT
        control = self.tokenizer.escaper(self.control_ids)
        rendered = self._rendered(control, messages, None, asks=asks)
        places = self._places(messages, rendered, asks=asks)
        if len(places) < sum(bool(message.content.strip()) for message in messages):
            self.on_note(MESSAGE_NOT_LOCATED)
        roles = [str(messages[index].role) for index, _ in places]
        if answer:
            start = len(control.unescape(rendered).encode())
            places.append((len(messages), (start, start + len(answer.encode()))))
            roles.append(str(Role.ASSISTANT))
        reading = control.read(rendered + control.escape(answer))
        tokens = self.tokenizer.read_aligned(reading)
        self._put_bos(tokens)
        spans = [(role, place) for role, (_, place) in zip(roles, places, strict=True)]
        return reading.shown, [_with_author(token, spans) for token in tokens], places

    def encode_answer(self, messages: Sequence[Message], answer: str) -> tuple[str, list[EncodedToken], int]:
        """The tokens of a prompt and of an answer to it, the text, and the byte where the answer begins.

        The prompt's tokens have the role "template" whoever wrote them, those of the answer "assistant".
        """
        control = self.tokenizer.escaper(self.control_ids)
        rendered = self._rendered(control, messages, None)
        start = len(control.unescape(rendered).encode())
        reading = control.read(rendered + control.escape(answer))
        tokens = self.tokenizer.read_aligned(reading)
        self._put_bos(tokens)
        for index, token in enumerate(tokens):
            if token.role == "text":
                role = "assistant" if token.span[1] > start else "template"
                tokens[index] = token._replace(role=role)
        return reading.shown, tokens, start

    def _places(
        self, messages: Sequence[Message], rendered: str, *, asks: bool = True
    ) -> list[tuple[int, tuple[int, int]]]:
        """(index, byte range) of each message's content in the rendered text, if it can be determined.

        One rendering with a mark in place of each content shows what the template writes between them. If the
        contents themselves were changed, each is searched separately.
        """
        control = self.tokenizer.escaper(self.control_ids)
        others = [
            replace(message, content=f"{control.mark}{index}{control.mark}")
            for index, message in enumerate(messages)
        ]
        try:
            marked = self._rendered(control, others, None, asks=asks)
        except ChatTemplateError:
            marked = ""
        parts = re.split(f"{control.mark}([0-9]+){control.mark}", marked)
        contents = [control.escape(message.content) for message in messages]
        pieces = _contents_between(parts, contents, rendered)
        if pieces is None:
            return [
                (index, place)
                for index in range(len(messages))
                if (place := self._place(messages, index, rendered, asks=asks))
            ]
        places, at = [], 0
        for index, (before, content) in enumerate(pieces):
            start = at + len(control.unescape(before).encode())
            at = start + len(control.unescape(content).encode())
            places.append((index, (start, at)))
        return places

    def _place(
        self, messages: Sequence[Message], index: int, rendered: str, *, asks: bool = True
    ) -> tuple[int, int] | None:
        """The byte range of a message's content in the rendered text; None if it cannot be determined.

        It is found by rendering the conversation with another content in the message's place.
        """
        control = self.tokenizer.escaper(self.control_ids)
        others = [*messages]
        others[index] = replace(messages[index], content=control.mark)
        try:
            before, *after = self._rendered(control, others, None, asks=asks).split(control.mark)
        except ChatTemplateError:
            return None
        if len(after) != 1 or len(before) + len(after[0]) > len(rendered):
            return None
        if not rendered.startswith(before) or not rendered.endswith(after[0]):
            return None
        middle = rendered[len(before) : len(rendered) - len(after[0])]
        start = len(control.unescape(before).encode())
        return start, start + len(control.unescape(middle).encode())

    def _rendered(
        self,
        control: ControlTokenEscaper,
        messages: Sequence[Message],
        variables: Mapping[str, Any] | None,
        *,
        asks: bool = True,
    ) -> str:
        """Render the conversation, with stand-ins for the control-token names in user text.

        asks: whether the text ends where a reply starts.
        """
        quoted = [
            Message(message.role, control.escape(message.content), control.escape(message.reasoning))
            for message in messages
        ]
        if self.template is None:
            if variables:
                raise RequestError("template variables: this model has no chat template; omit them")
            return "".join(message.content for message in quoted)
        chosen = {**self.variables, **(variables or {})}
        render = self.template.prompt
        text = render(quoted, chosen) if asks else render(quoted, chosen, add_generation_prompt=False)
        self._note_folding(self.template)
        return text

    def _ids(
        self,
        messages: Sequence[Message],
        variables: Mapping[str, Any] | None,
        prefix: str,
        thinking: Thinking,
    ) -> list[int]:
        control = self.tokenizer.escaper(self.control_ids)
        thoughts, skip = self.thoughts, ""
        if thoughts is not None and self.template is not None:
            own = {
                **thoughts.variables(thinking, self.template.source),
                **self.variables,
                **(variables or {}),
            }
            rendered = self._rendered(control, messages, own)
            skip = thoughts.skips(thinking, rendered)
        elif thinking.think not in ("auto", "off"):
            raise RequestError(
                f"think: this model has no thoughts (got {thinking.think}); use auto or off, or another model"
            )
        else:
            rendered = self._rendered(control, messages, variables)
        ids = control.encode(rendered + skip + control.escape(prefix))
        bos = self.tokenizer.bos_id
        if self.tokenizer.adds_bos and bos is not None and ids[:1] != [bos]:
            ids.insert(0, bos)
        return ids

    def reply_ids(
        self,
        messages: Sequence[Message],
        text: str,
        thinking: Thinking = AUTO,
    ) -> list[int]:
        """The ids of a reply written by the user, as they follow the conversation. Raises as `ids`."""
        prompt, whole = self.ids(messages, None, "", thinking), self.ids(messages, None, text, thinking)
        if whole[: len(prompt)] == prompt:
            return whole[len(prompt) :]
        control = self.tokenizer.escaper(self.control_ids)  # a token spans the boundary
        return control.encode(control.escape(text))

    def _note_folding(self, template: ChatTemplate) -> None:
        if template.folds_system and not self._noted:
            self._noted = True
            self.on_note(SYSTEM_FOLDED)


def _contents_between(
    parts: Sequence[str], contents: Sequence[str], rendered: str
) -> list[tuple[str, str]] | None:
    """(text before it, content) of each content in a rendered text; None if the text is not made of these.

    parts: what is before the first content, then for each its index and what follows it. A content may have
    lost spaces at its ends.
    """
    if [*parts[1::2]] != [str(index) for index in range(len(contents))]:
        return None
    texts, at, pieces = parts[::2], 0, []
    for index, content in enumerate(contents):
        before, after = texts[index], texts[index + 1]
        at += len(before)
        is_last = index == len(contents) - 1
        for form in (content, content.strip(), content.lstrip(), content.rstrip()):
            end = at + len(form) + len(after)
            if rendered.startswith(form + after, at) and (not is_last or end == len(rendered)):
                pieces.append((before, form))
                at += len(form)
                break
        else:
            return None
    return pieces if rendered.startswith(texts[0]) else None


def _with_author(token: EncodedToken, places: Sequence[tuple[str, tuple[int, int]]]) -> EncodedToken:
    """The token with the role of the message that it belongs to, else "template"; special ones stay."""
    if token.role != "text":
        return token
    role = next((role for role, place in places if _within(token.span, [place])), "template")
    return token._replace(role=role)


def _within(span: tuple[int, int], ranges: Sequence[tuple[int, int]]) -> bool:
    """Whether a token overlaps one of the ranges; for a token without bytes, whether it is inside one."""
    start, end = span
    return any(first < max(end, start + 1) and start < last for first, last in ranges)
