"""What can be scored: a text, ids, a conversation, a continuation of a context, an answer to messages."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeGuard, cast

from ropechat.conversation import Message
from ropechat.engine.prompt import Bos, PromptBuilder, Special
from ropechat.engine.validation import split_prompt, validate_ids, validate_messages
from ropechat.errors import RequestError
from ropechat.tokenizer import EncodedToken
from ropechat.trace import Pair, TokenScore

Answered = tuple[Sequence[Message], str]
"""Messages, and an answer of which each token is scored."""
ScoreItem = str | Sequence[int] | Sequence[Message] | Pair | Answered
"""An item of `Engine.score_many`."""

ANSWER_ROLES = ("assistant",)
_COUNTED = 1 << 16
"""Up to this many characters a text is encoded at once, so its number of tokens is known."""
_NO_ANSWER = "answer: must have at least one token (got none)"


@dataclass
class ScoreInput:
    """An encoded item.

    text: the text of the spans; None without a tokenizer. pieces: its tokens, maybe encoded when they are
    needed. first: the index of the first token to score; those before it are its context. joined: whether
    that token also covers bytes of the context. meta: what the trace says about it.
    """

    text: str | None
    pieces: Iterable[list[EncodedToken]]
    first: int = 0
    joined: bool = False
    meta: dict[str, Any] = field(default_factory=dict)

    def buffer(self, *, whole: bool = False) -> "TokenBuffer":
        """The tokens, at least the first one. whole: all of them, so that their number is known."""
        whole = whole or self.text is None or len(self.text) <= _COUNTED
        tokens = TokenBuffer(self.pieces)
        if not tokens.reaches(sys.maxsize if whole else 1) and not tokens.known:
            raise RequestError("prompt: must have at least one token (got none)")
        return tokens


def encode_item(
    chat: PromptBuilder, item: ScoreItem, special: Special = "tokens", bos: Bos = "auto"
) -> ScoreInput:
    """Encode an item. bos: whether a text begins with the BOS token.

    Raises RequestError, TokenizerError, ChatTemplateError.
    """
    if isinstance(item, Pair):
        return _pair(chat, item, special, bos)
    if isinstance(item, str):
        return ScoreInput(item, chat.encode_long(item, special, bos))
    if is_answered(item):
        return _answered(chat, *item)
    text, tokens = chat.encode_prompt(cast("Sequence[int] | Sequence[Message]", item), special)
    return ScoreInput(text, [tokens])


def encode_by_author(chat: PromptBuilder, item: ScoreItem) -> ScoreInput:
    """Encode messages, or messages and an answer; texts have their author's role, and sums cover answers.

    All tokens are scored. If the last message is the assistant's, the prompt for another answer is not added.
    meta["messages"] has the byte range of each text that could be located.
    """
    messages, answer = _conversation(item)
    if is_answered(item) and not answer:
        raise RequestError(_NO_ANSWER)
    text, tokens, places = chat.encode_by_author(messages, answer)
    roles = [*(str(message.role) for message in messages), *ANSWER_ROLES]
    found = [{"index": i, "role": roles[i], "span": list(span)} for i, span in places]
    return ScoreInput(text, [tokens], meta={"roles": ANSWER_ROLES, "messages": found})


def _conversation(item: ScoreItem) -> tuple[list[Message], str]:
    given, answer = (item[0], item[1]) if is_answered(item) else (item, "")
    if isinstance(given, str | Pair) or not (messages := split_prompt(given)[0]):
        raise RequestError("prompt: must be messages to be scored by author")
    return messages, answer


def is_answered(item: ScoreItem) -> TypeGuard[Answered]:
    """Whether an item is messages with an answer."""
    return isinstance(item, tuple) and len(item) == 2 and isinstance(item[1], str)


def counts(token: TokenScore, item: ScoreItem) -> bool:
    """Whether the token is part of the item's sums."""
    if token.logprob is None:
        return False
    if isinstance(item, Pair):  # all but tokens that the tokenizer adds after a text
        return token.role == "text" or token.span[0] < token.span[1] or not isinstance(item.context, str)
    return token.role in ("text", "assistant")


def _pair(chat: PromptBuilder, pair: Pair, special: Special, bos: Bos) -> ScoreInput:
    context, continuation = pair.context, pair.continuation
    if isinstance(context, str) != isinstance(continuation, str):
        raise RequestError("continuation: must be text or ids, like the context")
    if not len(continuation):
        raise RequestError("continuation: must have at least one token (got none)")
    if isinstance(context, str) and isinstance(continuation, str):
        text = context + continuation
        _, tokens = chat.encode_prompt(text, special, bos)
        found = _after(text, tokens, len(context.rstrip(" ").encode("utf-8", "surrogatepass")))
    else:
        before, after = (validate_ids(cast("Sequence[int]", ids)) for ids in (context, continuation))
        whole, tokens = chat.encode_prompt([*before, *after])
        found = ScoreInput(whole, [tokens], len(before))
    if found.first == 0:
        raise RequestError(
            "context: must have at least one token (got none); this model has no BOS token to begin with"
        )
    return found


def _answered(chat: PromptBuilder, messages: Sequence[Message], answer: str) -> ScoreInput:
    if not answer:
        raise RequestError(_NO_ANSWER)
    text, tokens, start = chat.encode_answer(validate_messages(messages), answer)
    found = _after(text, tokens, start)
    found.meta["roles"] = ANSWER_ROLES
    if found.first == 0:
        raise RequestError("messages: must render to at least one token before the answer (got none)")
    return found


def _after(text: str, tokens: list[EncodedToken], start: int) -> ScoreInput:
    """The input whose tokens from byte `start` of the text on are scored."""
    first = next((i for i, token in enumerate(tokens) if token.span[1] > start), len(tokens))
    if first == len(tokens):
        raise RequestError("continuation: must have at least one token (got none)")
    return ScoreInput(text, [tokens], first, joined=tokens[first].span[0] < start)


class TokenBuffer:
    """The tokens of a text, encoded when they are needed and released afterwards."""

    def __init__(self, pieces: Iterable[list[EncodedToken]]) -> None:
        self._pieces: Iterator[list[EncodedToken]] = iter(pieces)
        self._tokens: list[EncodedToken] = []
        self._forgotten = 0
        self.complete = False

    @property
    def known(self) -> int:
        """Number of tokens encoded so far: of all, if `complete`."""
        return self._forgotten + len(self._tokens)

    def reaches(self, count: int) -> bool:
        """Whether the text has at least `count` tokens."""
        while self.known < count and not self.complete:
            piece = next(self._pieces, None)
            if piece is None:
                self.complete = True
            else:
                self._tokens += piece
        return self.known >= count

    def __getitem__(self, part: slice) -> list[EncodedToken]:
        return self._tokens[part.start - self._forgotten : part.stop - self._forgotten]

    def forget(self, before: int) -> None:
        """Release the tokens before an index."""
        count = before - self._forgotten
        if count > 0:
            del self._tokens[:count]
            self._forgotten = before
