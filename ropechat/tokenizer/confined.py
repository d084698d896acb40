"""A tokenizer that encodes in a child process, for files whose time and memory nothing bounds.

Published tokenizers are linear by their form (`hazards.is_linear_time`) and never come here.
"""

import json
from array import array
from base64 import b64decode
from collections.abc import Sequence
from typing import Any, NamedTuple

from ropechat.tokenizer.hazards import is_linear_time
from ropechat.tokenizer.limits import LOAD_SECONDS, MAX_REPLY_BYTES, WALL_SECONDS, cpu_seconds
from ropechat.util.limited_process import LimitedProcess, LimitExceededError

_UNTRUSTED = ("normalizer", "pre_tokenizer", "post_processor", "decoder")


class ConfinedEncoding(NamedTuple):
    """As `tokenizers.Encoding`, as far as it is used."""

    ids: list[int]
    offsets: list[tuple[int, int]]
    special_tokens_mask: list[int]


class ConfinedFailureError(Exception):
    """The library failed on a text or on the file, or exceeded a limit."""


class ConfinedTokenizer:
    """As `tokenizers.Tokenizer`, as far as it is used.

    Tokens are looked up in this process, where the library has only the vocabulary; it also decodes here if
    the decoder is harmless. Raises ConfinedFailureError.
    """

    def __init__(self, data: dict[str, Any], content: bytes) -> None:
        """data: of tokenizer.json; content: the same as JSON."""
        import tokenizers

        self._sections = {name: data.get(name) for name in _UNTRUSTED}
        self._decodes_here = is_linear_time({"model": {}, "decoder": data.get("decoder")})
        kept = {"decoder": data.get("decoder") if self._decodes_here else None}
        known = data | dict.fromkeys(_UNTRUSTED) | kept | {"padding": None, "truncation": None}
        self._known = tokenizers.Tokenizer.from_buffer(json.dumps(known).encode())
        self._process = LimitedProcess(
            "ropechat.tokenizer.confined_child",
            ("tokenizers",),
            "runs the tokenizer",
            wall_seconds=WALL_SECONDS,
            max_reply=MAX_REPLY_BYTES,
            greeting=(content, LOAD_SECONDS),
        )
        self.encode("", add_special_tokens=True)

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        data = json.dumps(request, ensure_ascii=False).encode()
        try:
            reply = self._process.ask(data, cpu_seconds(len(data)))
        except LimitExceededError as error:
            raise ConfinedFailureError(error.what) from None
        if "error" in reply:
            raise ConfinedFailureError(str(reply["error"]))
        return reply

    def encode(self, text: str, *, add_special_tokens: bool) -> ConfinedEncoding:
        reply = self._ask({"encode": text, "add_special_tokens": add_special_tokens})
        places = _numbers(reply["offsets"])
        offsets = list(zip(places[::2], places[1::2], strict=True))
        return ConfinedEncoding(_numbers(reply["ids"]), offsets, _numbers(reply["special_tokens_mask"]))

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        if self._decodes_here or skip_special_tokens:
            return str(self._known.decode(list(ids), skip_special_tokens=skip_special_tokens))
        return str(self._ask({"decode": list(ids)})["text"])

    def token_to_id(self, token: str) -> int | None:
        return self._known.token_to_id(token)

    def id_to_token(self, id: int) -> str | None:
        return self._known.id_to_token(id)

    def get_vocab(self, *, with_added_tokens: bool) -> dict[str, int]:
        return dict(self._known.get_vocab(with_added_tokens=with_added_tokens))

    def to_str(self) -> str:
        return json.dumps(json.loads(self._known.to_str()) | self._sections)


def _numbers(text: str) -> list[int]:
    return array("I", b64decode(text)).tolist()
