"""The thought of a reply: its markers as tokens, what turns it on and off in a prompt, and its text.

`templates/thoughts.py` finds the markers' texts; the compiled engine gives each token its channel.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from ropechat.engine.native import load_core
from ropechat.engine.stop_strings import StopStringFilter, open_length
from ropechat.engine.templates.thoughts import BUDGET, EFFORT, EFFORTS
from ropechat.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ropechat.engine import _core
    from ropechat.engine.templates.thoughts import ThoughtFormat
    from ropechat.sampling import Thinking
    from ropechat.tokenizer import Tokenizer
    from ropechat.tokenizer.stream import Detokenizer
    from ropechat.trace import Channel

_TAIL = 64  # tokens of a prompt that say whether it ends inside a thought


class Thoughts:
    """How a model's replies are divided into thought and answer. format: what the chat template says.

    encode: a template's text to ids.
    """

    def __init__(
        self, tokenizer: Tokenizer, format: ThoughtFormat, encode: Callable[[str], list[int]]
    ) -> None:
        self.format = format
        self._tokenizer, self._encode = tokenizer, encode

    @cached_property
    def _ids(self) -> tuple[list[int], list[int]]:
        return self._encode(self.format.start), self._encode(self.format.end)

    @cached_property
    def is_text(self) -> bool:
        """Whether the markers are ordinary text, which any tokens may spell."""
        return not all(any(id in self._tokenizer.added_ids for id in ids) for ids in self._ids)

    @cached_property
    def closing_ids(self) -> list[int]:
        """What closes a thought."""
        return self._encode(self.format.close)

    @cached_property
    def markers(self) -> _core.Markers:
        """The markers, for the compiled engine."""
        form, (start, end) = self.format, self._ids
        texts, token_bytes = None, list[bytes]()
        if self.is_text:
            texts = (form.start.encode(), form.end.encode())
            token_bytes = [self._tokenizer.token_bytes(id) for id in range(self._tokenizer.vocab_size)]
        answer = self._encode(form.answer) if form.answer else []
        made: _core.Markers = load_core().Markers(
            start, end, answer=answer, close=self.closing_ids, texts=texts, token_bytes=token_bytes
        )
        return made

    def opening(self, ids: Sequence[int]) -> str:
        """Where a reply to a prompt begins, as `ThoughtFormat.opening`."""
        return self.format.opening(self._tokenizer.decode(ids[-_TAIL:], skip_special_tokens=False))

    def variables(self, thinking: Thinking, source: str) -> dict[str, Any]:
        """The template's variables for a request. source: the template. Raises RequestError."""
        form = self.format
        found = dict[str, Any]({"on": form.on, "off": form.off}.get(thinking.think, {}))
        if thinking.think in EFFORTS:
            if not form.has_effort:
                raise RequestError(
                    f"think: this model's chat template has no efforts (got {thinking.think}); use on, "
                    "off or a number of tokens"
                )
            found = {EFFORT: thinking.think}
        if thinking.budget >= 0 and BUDGET in source and thinking.think != "off":
            found[BUDGET] = thinking.budget
        return found

    def skips(self, thinking: Thinking, rendered: str) -> str:
        """What follows a rendered prompt so that the model answers without a thought; mostly nothing."""
        if thinking.think != "off" or self.format.opening(rendered) == "answer" or self.format.off:
            return ""
        return self.format.skip


def channels_of(thoughts: Thoughts | None, prompt: Sequence[int], reply: Sequence[int]) -> list[Channel]:
    """The channel of each id of a reply to a prompt."""
    opening = "answer" if thoughts is None or not reply else thoughts.opening(prompt)
    if thoughts is None or opening == "answer":
        return ["answer"] * len(reply)
    return thoughts.markers.label(reply, is_open=opening == "open")


class Piece(NamedTuple):
    """Text that became final with a token."""

    text: str
    reasoning: str


class ReplyText:
    """The text of a reply as its tokens come, divided into thought and answer.

    stream: decodes all ids. stops: strings that end the answer. thoughts: None for a reply without a thought.
    """

    def __init__(
        self, stream: Detokenizer, stops: Sequence[str] = (), thoughts: Thoughts | None = None
    ) -> None:
        self._stream = stream
        self._answer = StopStringFilter(stops)
        form = None if thoughts is None else thoughts.format
        self._start, self._end = (
            (form.start, form.end) if form and thoughts and thoughts.is_text else ("", "")
        )
        self._tags = ("", "") if form is None else form.wrapper
        self._held = ""  # of a thought or a marker: text that may become a marker
        self._begun = True  # whether the space behind a thought is over

    @property
    def stopped(self) -> bool:
        """Whether a stop string was found."""
        return self._answer.stopped

    def push(self, id: int, channel: Channel = "answer") -> Piece:
        """Add an id and return the text that became final."""
        if channel == "marker" and not self._end:
            self._begun = False
            return Piece("", self._push_marker(id))
        text = self._stream.push(id)
        if channel == "answer":
            return Piece(self._add(text, self._stream.peek()), "")
        self._begun = False
        if not self._end:
            return Piece("", text)
        self._held += text
        before, found, behind = self._held.partition(self._end)
        if found:
            self._held = ""
            return Piece(self._add(behind, ""), before)
        if channel == "marker":
            self._held = self._held.removeprefix(self._start)
            return Piece("", "")
        size = len(self._held) - open_length(self._held, (self._end,))
        piece, self._held = self._held[:size], self._held[size:]
        return Piece("", piece)

    def _push_marker(self, id: int) -> str:
        """Add a token of a marker, whose text is dropped; return what the stream held back of the thought."""
        before = self._stream.flush()
        self._stream.push(id)
        self._stream.flush()
        return before

    def _add(self, text: str, incomplete: str) -> str:
        """Add text of the answer, without the space and the tag that follow a thought."""
        if not self._begun:
            text, self._held = self._held + text, ""
            text = text.lstrip()
            before, behind = self._tags
            if before and text and before.startswith(text) and text != before:
                self._held = text
                return ""
            if before and text.startswith(before):
                self._tags = ("", "")
                self._answer.stops = (*self._answer.stops, behind)
                text = text.removeprefix(before).lstrip()
            self._begun = bool(text)
        return self._answer.push(text, incomplete)

    def skip(self, ids: Sequence[int], channels: Sequence[Channel]) -> None:
        """Add ids without returning their text."""
        if not self._answer.stops and "thought" not in channels and "marker" not in channels:
            self._stream.skip(ids)
        else:
            for id, channel in zip(ids, channels, strict=True):
                self.push(id, channel)

    def finish(self, channel: Channel = "answer") -> Piece:
        """End the text and return what was held back; an incomplete character becomes U+FFFD."""
        rest = self._held + self._stream.flush()
        self._held = ""
        if channel != "answer":
            return Piece("", rest if channel == "thought" else "")
        return Piece(self._answer.finish(rest), "")
