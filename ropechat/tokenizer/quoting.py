"""The names of control tokens in text that people wrote: they stay text, and never become the tokens.

A template's own control tokens and a message that holds `<|im_end|>` look the same once they are one text. So each
such name in a message is replaced, before the template runs, by a stand-in that neither templates nor vocabularies
know. Afterwards the names that are left are the template's: they get secret names, the stand-ins become the names
again, and a second tokenizer that knows control tokens only by their secret names encodes the whole.
"""

import json
import re
import secrets
from collections.abc import Callable, Mapping
from typing import Any

from ropechat.tokenizer.library import build


class Quoting:
    """names: control token -> id. serialized: the vocabulary as a tokenizer.json; asked for when a name was seen."""

    def __init__(self, where: str, names: Mapping[str, int], serialized: Callable[[], str]) -> None:
        self._where = where
        self._names = dict(names)
        self._serialized = serialized
        self._nonce = secrets.token_hex(8)
        longest_first = sorted(self._names, key=len, reverse=True)
        self._name = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        self._stand_in = re.compile(f"q{self._nonce}([0-9]+)z")
        self._encode: Callable[..., Any] | None = None

    def quote(self, text: str) -> str:
        """The text with a stand-in for each name of a control token."""
        return self._name.sub(lambda match: f"q{self._nonce}{self._names[match[0]]}z", text)

    def encode(self, rendered: str) -> list[int]:
        """Ids of a text with stand-ins in it; no tokens are added."""
        texts = {str(id): name for name, id in self._names.items()}
        secret = self._name.sub(lambda match: self._secret(match[0]), rendered)
        plain = self._stand_in.sub(lambda match: texts[match[1]], secret)
        if self._encode is None:
            inner, _ = build(self._where, self._renamed())
            self._encode = inner.encode
        return list(self._encode(plain, add_special_tokens=False).ids)

    def _secret(self, name: str) -> str:
        return f"c{self._nonce}{self._names[name]}z"

    def _renamed(self) -> dict[str, Any]:
        """The vocabulary in which control tokens have their secret names only; no merge leads to one."""
        data: dict[str, Any] = json.loads(self._serialized())
        for token in data["added_tokens"]:
            if token["content"] in self._names:
                token.update(content=self._secret(token["content"]), normalized=False)
        model = data["model"]
        if isinstance(model["vocab"], dict):
            model["vocab"] = {self._new(token): id for token, id in model["vocab"].items()}
        else:
            model["vocab"] = [[self._new(token), score] for token, score in model["vocab"]]
        if "merges" in model:
            model["merges"] = [
                [left, right]
                for left, right in model["merges"]
                if not self._names.keys() & {left, right, left + right}
            ]
        if model.get("unk_token") in self._names:
            model["unk_token"] = self._secret(model["unk_token"])
        data["post_processor"] = None
        return data

    def _new(self, token: str) -> str:
        return self._secret(token) if token in self._names else token
