"""Escaping control-token names in user text, so that they stay text and are never encoded as the tokens.

In a rendered prompt, the template's control tokens and a user's `<|im_end|>` look the same. So each such name
in a message is replaced, before the template runs, by a stand-in. The names that remain after rendering are
the template's: they get secret names, the stand-ins become the original names again, and a second tokenizer,
which knows control tokens only by their secret names, encodes the text. It is built on first use.
"""

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from ropechat.errors import RequestError
from ropechat.tokenizer.library import LibraryTokenizer, build_tokenizer
from ropechat.tokenizer.vocabulary import Vocabulary

_PRIVATE = str.maketrans("0123456789abcdef", "".join(map(chr, range(0xE000, 0xE010))))
"""Digits of stand-ins: private-use characters, which templates do not change (they may change letters)."""


class EscapedText(NamedTuple):
    """A text with stand-ins, prepared for encoding."""

    vocabulary: "Vocabulary | LibraryTokenizer"
    text: str
    """The text to encode."""
    shown: str
    """The text for display, with the names of control tokens."""
    places: Sequence[int]
    """The position in `shown` of each character of `text`, and of its end."""


class ControlTokenEscaper:
    """Escapes control-token names in text.

    names: control token -> id. encode: encodes a text with `vocabulary`, or with one derived from it.
    """

    def __init__(
        self,
        where: str,
        vocabulary: Vocabulary,
        names: Mapping[str, int],
        encode: "Callable[[Vocabulary | LibraryTokenizer, str], list[int]]",
    ) -> None:
        self._where = where
        self._vocabulary = vocabulary
        self._names = dict(names)
        self._encode = encode
        self._nonce = os.urandom(8).hex()
        longest_first = sorted(self._names, key=len, reverse=True)
        self._name = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        self._open, self._close = f"\ue010{self._nonce.translate(_PRIVATE)}\ue011", "\ue012"
        self._stand_in = re.compile(f"{self._open}([^{self._close}]+){self._close}")
        self._cut = re.compile(f"{self._open[:5]}|{self._open[-5:]}")
        self._texts = {self._number(name): name for name in self._names}
        self.mark = f"\ue013{self._nonce.translate(_PRIVATE)}\ue014"
        """A text that occurs in no message."""

    def escape(self, text: str) -> str:
        """Replace each control-token name by a stand-in."""
        return self._name.sub(lambda match: self._open + self._number(match[0]) + self._close, text)

    def encode(self, rendered: str) -> list[int]:
        """Encode a text with stand-ins, without adding special tokens.

        Raises as `Tokenizer.encode`, and RequestError if a template cut a stand-in.
        """
        found = self.read(rendered)
        return self._encode(found.vocabulary, found.text)

    def unescape(self, rendered: str) -> str:
        """Replace stand-ins by the original names."""
        return self._stand_in.sub(lambda match: self._texts[match[1]], rendered)

    def read(self, rendered: str) -> EscapedText:
        """Prepare a text with stand-ins for encoding. Raises as `encode`."""
        if self._cut.search(self._stand_in.sub("", rendered)):
            raise RequestError(
                "messages: the chat template cuts the name of a control token; remove it from the message"
            )
        if self._stand_in.search(rendered) is None:
            return EscapedText(self._vocabulary, rendered, rendered, range(len(rendered) + 1))
        text, places, begin, at = "", list[int](), 0, 0
        for match in self._name.finditer(rendered):
            before, secret = self.unescape(rendered[begin : match.start()]), self._secret(match[0])
            text += before + secret
            places += [*range(at, at + len(before)), *[at + len(before)] * len(secret)]
            begin, at = match.end(), at + len(before) + len(match[0])
        rest = self.unescape(rendered[begin:])
        return EscapedText(
            self._guarded, text + rest, self.unescape(rendered), [*places, *range(at, at + len(rest) + 1)]
        )

    @cached_property
    def _guarded(self) -> LibraryTokenizer:
        """The vocabulary with control tokens under their secret names only, and without merges to them."""
        data: dict[str, Any] = json.loads(self._vocabulary.library().to_str())
        for token in data["added_tokens"]:
            if token["content"] in self._names:
                token.update(content=self._secret(token["content"]), normalized=False)
        model = data["model"]
        if isinstance(model["vocab"], dict):
            model["vocab"] = {self._renamed(token): id for token, id in model["vocab"].items()}
        else:
            model["vocab"] = [[self._renamed(token), score] for token, score in model["vocab"]]
        if "merges" in model:
            model["merges"] = [
                [left, right]
                for left, right in model["merges"]
                if not (left in self._names or right in self._names or left + right in self._names)
            ]
        if model.get("unk_token") is not None:
            model["unk_token"] = self._renamed(model["unk_token"])
        data["post_processor"] = None
        inner, _ = build_tokenizer(self._where, data)
        return inner

    def _renamed(self, token: str) -> str:
        return self._secret(token) if token in self._names else token

    def _number(self, name: str) -> str:
        return f"{self._names[name]:x}".translate(_PRIVATE)

    def _secret(self, name: str) -> str:
        return f"c{self._nonce}{self._names[name]}z"
