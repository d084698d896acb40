"""The text of a comparison as each of two models reads it: ids, spans, and the windows of a long text."""

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from ropechat.conversation import Message
from ropechat.engine.score_input import ScoreItem, TokenBuffer, encode_item
from ropechat.engine.scoring import Window, windows
from ropechat.engine.validation import validate_stride, validate_window
from ropechat.errors import RequestError
from ropechat.tokenizer import EncodedToken
from ropechat.trace import Pair

if TYPE_CHECKING:
    from ropechat.engine.engine import Engine

Given = str | Sequence[Message]
"""What comes before a compared text: a text, or the messages that it replies to."""
Span = tuple[int, int]
_PIECE = 4096
_EMPTY = (0, 0)


@dataclass(frozen=True)
class SideText:
    """What one model gets. The text begins at ids[first]; starts, ends: of each id, in bytes of the text.

    begin: bytes before the text in the spans of `Engine.score_stream(item)`.
    """

    engine: "Engine"
    item: ScoreItem
    begin: int
    first: int
    ids: "array[int]"
    starts: "array[int]"
    ends: "array[int]"

    def span(self, position: int) -> Span:
        """The byte range of ids[position] in the text."""
        return self.starts[position], self.ends[position]

    @property
    def scored(self) -> int:
        """The position of the first id of the text that has a context."""
        return max(1, self.first)

    def windows(self, size: int) -> Iterator[Window]:
        """The windows that score the text, as `Engine.score_stream` has them."""
        bos, ids = self.engine.tokenizer.bos_id, self.ids
        begins = "bos" if ids[0] == bos else "text"
        pieces = (
            [EncodedToken(id, _EMPTY, begins if at + i == 0 else "text") for i, id in enumerate(piece)]
            for at in range(0, len(ids), _PIECE)
            if (piece := ids[at : at + _PIECE])
        )
        return windows(TokenBuffer(pieces), self.scored, size, validate_stride(None, size))


class Pairing(NamedTuple):
    """A text as two models read it.

    shared: number of tokens at the end that both have under the same vocabulary, and that have a context:
    these are compared token by token. 0: the tokenizers differ, and spans of bytes are compared.
    """

    text: bytes
    a: SideText
    b: SideText
    shared: int


def pair_text(
    a: "Engine", b: "Engine", text: str | Sequence[int], given: Given = "", against_given: Given | None = None
) -> Pairing:
    """Encode a text for two models. given: what comes before it; against_given: before the second one's.

    Raises RequestError if nothing can be scored, and as `Engine.score`.
    """
    left, shown = read_text(a, text, given)
    if isinstance(given, str) and against_given in (None, given) and a.tokenizer.source == b.tokenizer.source:
        return join_sides(left, replace(left, engine=b), shown)
    right, _ = read_text(b, text, given if against_given is None else against_given)
    return join_sides(left, right, shown)


def join_sides(a: SideText, b: SideText, text: bytes) -> Pairing:
    """Pair what `read_text` says for two models."""
    if any(len(side.ids) <= side.scored for side in (a, b)):
        raise RequestError("text: must have at least two tokens, or one after a prompt; give more text")
    return Pairing(text, a, b, _shared_tokens(a, b) if same_vocabulary(a.engine, b.engine) else 0)


def read_text(engine: "Engine", text: str | Sequence[int], given: Given = "") -> tuple[SideText, bytes]:
    """A text, or ids, behind a prompt as a model reads it, and its bytes. Typed text stays text.

    Behind messages it is the reply. A token on the border of prompt and text counts as text.
    """
    item: ScoreItem = text
    if given:
        if not isinstance(text, str):
            raise RequestError("text: must be a string after a prompt (got ids)")
        item = Pair(given, text) if isinstance(given, str) else (given, text)
    found = encode_item(engine.prompts, item, "text")
    ids, starts, ends = array("I"), array("I"), array("I")
    for piece in found.pieces:
        for id, (start, end), _ in piece:
            ids.append(id)
            starts.append(start)
            ends.append(end)
    if isinstance(text, str):
        _drop_added(ids, starts, ends)
    begin = len(given.encode()) if isinstance(given, str) else starts[found.first]
    first = next((i for i in range(found.first, len(ids)) if ends[i] > begin), len(ids)) if given else 0
    if begin:
        starts, ends = (array("I", (max(0, at - begin) for at in places)) for places in (starts, ends))
    shown = (found.text or "").encode("utf-8", "replace")[begin:]
    return SideText(engine, item, begin, first, ids, starts, ends), shown


def _drop_added(ids: "array[int]", starts: "array[int]", ends: "array[int]") -> None:
    """Remove what the tokenizer adds after a text."""
    while ids and starts[-1] == ends[-1]:
        for values in (ids, starts, ends):
            values.pop()


def _shared_tokens(a: SideText, b: SideText) -> int:
    """How many of the last tokens are the same, without one that has no context."""
    most = min(len(side.ids) - side.scored for side in (a, b))
    return next((count for count in range(most) if a.ids[-1 - count] != b.ids[-1 - count]), most)


def same_vocabulary(a: "Engine", b: "Engine") -> bool:
    """Whether each id means the same bytes to both models."""
    size: int = a.facts["vocab_size"]
    if a is b or size != b.facts["vocab_size"]:
        return a is b
    if not (a.tokenizer.present and b.tokenizer.present):
        return a.tokenizer.present == b.tokenizer.present
    return a.tokenizer.source == b.tokenizer.source or all(
        a.token_bytes(id) == b.token_bytes(id) for id in range(size)
    )


def window_size(pairing: Pairing, wanted: int | None = None) -> int | None:
    """The size of the windows, the same for both models; None: the text fits into one.

    wanted: at most so many tokens; by default as many as both were trained for, or the stated context. Raises
    RequestError if a text with two different prompts does not fit.
    """
    a, b = pairing.a, pairing.b
    size = min(side.engine.window for side in (a, b)) if wanted is None else validate_window(wanted)
    longest = max(len(a.ids), len(b.ids))
    if longest <= size:
        return None
    if pairing.shared and a.ids[: a.first] != b.ids[: b.first]:
        raise RequestError(
            f"text: must fit into {size} tokens with its prompt, as the prompts differ (got {longest}); "
            "shorten the text"
        )
    return size


def side_facts(side: SideText) -> dict[str, Any]:
    """What describes one model in the outputs."""
    engine = side.engine
    return {
        "model": engine.name,
        "revision": engine.revision,
        **{name: engine.facts[name] for name in ("dtype", "kv_dtype", "isa", "vocab_size")},
        "trained_length": engine.facts["max_position_embeddings"],
    }
