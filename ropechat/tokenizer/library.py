"""The one door to the `tokenizers` library: what it panics on or refuses becomes a TokenizerError."""

import contextlib
import json
import os
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ropechat.errors import TokenizerError

if TYPE_CHECKING:
    import tokenizers

MISNUMBERED = "added_tokens: ids that the tokenizers library does not keep"
_stderr_lock = threading.Lock()


@contextlib.contextmanager
def silence_stderr(active: bool) -> Iterator[None]:
    """Keep a Rust panic's text off file descriptor 2 while the library runs something it may panic on."""
    if not active or sys.stderr is None:  # None: it was closed when the process began
        yield
        return
    with _stderr_lock:
        with contextlib.suppress(OSError, ValueError):  # a broken pipe is no matter of ours here
            sys.stderr.flush()
        saved = os.dup(2)
        sink = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(sink, 2)
            yield
        finally:
            os.dup2(saved, 2)
            os.close(saved)
            os.close(sink)


def is_library_failure(error: BaseException) -> bool:
    """PyO3's PanicException derives from BaseException, so it is known by name only."""
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


def first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def build_tokenizer(where: str, data: dict[str, Any]) -> "tuple[tokenizers.Tokenizer, frozenset[int]]":
    """The library's tokenizer of a checked tokenizer.json, and the ids below its largest that have no token.

    Raises TokenizerError where the library refuses it.
    """
    inner, holes = parse_tokenizer(where, json.dumps(data).encode()), frozenset[int]()
    if has_wrong_ids(inner, data):
        from ropechat.tokenizer.validate import fix_numbers  # late: few files take it

        holes = fix_numbers(data)
        inner = parse_tokenizer(where, json.dumps(data).encode())
        if has_wrong_ids(inner, data):
            raise TokenizerError(f"{where}: {MISNUMBERED}")
    return inner, holes


def parse_tokenizer(where: str, content: bytes) -> "tokenizers.Tokenizer":
    """The library's tokenizer of a checked file. It may have numbered added tokens by itself.

    Raises TokenizerError where the library refuses it.
    """
    import tokenizers

    try:
        with silence_stderr(active=True):
            inner = tokenizers.Tokenizer.from_buffer(content)
            inner.no_padding()
            inner.no_truncation()
    except BaseException as error:
        if not is_library_failure(error):
            raise
        from ropechat.tokenizer.validate import locate_fault

        reason = first_line(error).removeprefix("Cannot instantiate Tokenizer from buffer: ")
        fault = locate_fault(json.loads(content))
        raise TokenizerError(f"{where}: {fault}: {reason}; the tokenizers library refuses it") from None
    return inner


def has_wrong_ids(inner: "tokenizers.Tokenizer", data: dict[str, Any]) -> bool:
    """The library numbers added tokens by the size of the vocabulary: wrong where that has holes."""
    added = data.get("added_tokens") or []
    return any(inner.token_to_id(token["content"]) != token["id"] for token in added)
