"""The text of a comparison as each of two models reads it: ids, spans, and the windows of a long text."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ropechat.conversation import Message
from ropechat.errors import RequestError
from ropechat.tokenizer import EncodedToken

if TYPE_CHECKING:
    from ropechat.engine.engine import Engine

Given = str | Sequence[Message]
"""What stands before a compared text: a text, or the messages that it replies to."""
Span = tuple[int, int]


class Window(NamedTuple):
    """Tokens start to end of a sequence; those from `scored` on are scored in it."""

    start: int
    end: int
    scored: int


class SideText(NamedTuple):
    """The ids that a model gets. The text begins at ids[first]; `spans`: byte ranges in it, from there on."""

    engine: "Engine"
    ids: list[int]
    first: int
    spans: list[Span]

    def span(self, position: int) -> Span:
        """The byte range of ids[position] in the text."""
        return self.spans[position - self.first]


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
    """Encode a text for two models. given: what stands before it; against_given: before the second one's.

    Raises RequestError if nothing can be scored, and as `Engine.score`.
    """
    left, shown = read_text(a, text, given)
    right, _ = read_text(b, text, given if against_given is None else against_given)
    return join_sides(left, right, shown)


def join_sides(a: SideText, b: SideText, text: bytes) -> Pairing:
    """Pair what `read_text` says for two models."""
    if any(len(side.ids) <= max(1, side.first) for side in (a, b)):
        raise RequestError("text: must have at least two tokens, or one behind a prompt; give more text")
    return Pairing(text, a, b, _shared_tokens(a, b) if same_vocabulary(a.engine, b.engine) else 0)


def read_text(engine: "Engine", text: str | Sequence[int], given: Given = "") -> tuple[SideText, bytes]:
    """A text, or ids, behind a prompt as a model reads it, and its bytes. Typed text stays text.

    Behind messages it is the reply. A token on the border of prompt and text counts as text.
    """
    if not isinstance(text, str):
        if given:
            raise RequestError("text: must be a string behind a prompt (got ids)")
        shown, tokens = engine.chat.encode_prompt(text, "text")
        return SideText(engine, list(text), 0, [token.span for token in tokens]), (shown or "").encode()
    if isinstance(given, str):
        _, tokens = engine.chat.encode_prompt(given + text, "text")
        return _side(engine, tokens, len(given.encode())), text.encode()
    prompt, reply = engine.prompt_ids(given), engine.reply_ids(given, text)
    spans = [token.span for token in engine.tokenizer.align(reply)]
    return SideText(engine, [*prompt, *reply], len(prompt), spans), engine.tokenizer.decode(reply).encode()


def _side(engine: "Engine", tokens: Sequence[EncodedToken], begin: int) -> SideText:
    """The side of a text whose first byte is `begin` in the spans; what is added after a text is left out."""
    own = [i for i, token in enumerate(tokens) if token.role == "text" and token.span[1] > begin]
    first, last = (own[0], own[-1] + 1) if own else (len(tokens), len(tokens))
    spans = [(max(0, token.span[0] - begin), max(0, token.span[1] - begin)) for token in tokens[first:last]]
    return SideText(engine, [token.id for token in tokens[:last]], first, spans)


def _shared_tokens(a: SideText, b: SideText) -> int:
    """How many of the last tokens are the same, without one that has no context."""
    most = min(len(side.ids) - max(1, side.first) for side in (a, b))
    for count in range(most):
        if a.ids[-1 - count] != b.ids[-1 - count]:
            return count
    return max(0, most)


def same_vocabulary(a: "Engine", b: "Engine") -> bool:
    """Whether each id means the same bytes to both models."""
    size: int = a.facts["vocab_size"]
    if a is b or size != b.facts["vocab_size"]:
        return a is b
    if not (a.tokenizer.present and b.tokenizer.present):
        return a.tokenizer.present == b.tokenizer.present
    return all(a.token_bytes(id) == b.token_bytes(id) for id in range(size))


def windows(side: SideText, size: int) -> list[Window]:
    """The windows of a text: `size` tokens, each half a window further; each token is scored once.

    The first window scores all of its tokens but one without a context, a later one those that the windows
    before it do not have, so that at least half a window is before them.
    """
    count, stride = len(side.ids), max(1, size // 2)
    found, scored, start = list[Window](), max(1, side.first), 0
    while scored < count:
        end = min(start + size, count)
        if end > scored:
            found.append(Window(start, end, scored))
            scored = end
        start += stride
    return found


def window_size(pairing: Pairing, wanted: int | None = None) -> int | None:
    """The size of the windows, the same for both models; None: the text fits into one.

    wanted: at most so many tokens; by default as many as both were trained for. Raises RequestError if two
    prompts of different lengths stand before a text that does not fit.
    """
    a, b = pairing.a, pairing.b
    trained = min(side.engine.facts["max_position_embeddings"] for side in (a, b))
    size = trained if wanted is None else wanted
    if size < 2:
        raise RequestError(f"window: must be at least 2 tokens (got {size})")
    longest = max(len(a.ids), len(b.ids))
    if longest <= size:
        return None
    if pairing.shared and (len(a.ids) != len(b.ids) or a.ids[: a.first] != b.ids[: b.first]):
        raise RequestError(
            f"text: must fit into {size} tokens with its prompt, as the prompts differ (got {longest}); "
            "shorten the text"
        )
    return size


def iterate_windows(side: SideText, size: int | None) -> Iterator[Window]:
    """The windows of a side; one without a size."""
    yield from windows(side, len(side.ids) if size is None else size)


def side_facts(side: SideText) -> dict[str, Any]:
    """What describes one model in the outputs."""
    engine = side.engine
    return {
        "model": engine.name,
        "revision": engine.revision,
        **{name: engine.facts[name] for name in ("dtype", "kv_dtype", "isa", "vocab_size")},
        "trained_length": engine.facts["max_position_embeddings"],
    }
