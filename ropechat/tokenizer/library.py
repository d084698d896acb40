"""Building tokenizers with the `tokenizers` library; its panics and errors become TokenizerError."""

import contextlib
import json
import os
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

from ropechat.errors import FileAccessError, TokenizerError
from ropechat.tokenizer.hazards import is_linear_time

if TYPE_CHECKING:
    import tokenizers

    from ropechat.tokenizer.confined import ConfinedTokenizer

LibraryTokenizer: TypeAlias = "tokenizers.Tokenizer | ConfinedTokenizer"
MISNUMBERED = "added_tokens: the tokenizers library does not keep these ids"
_stderr_lock = threading.Lock()


@contextlib.contextmanager
def silence_stderr(active: bool) -> Iterator[None]:
    """Redirect file descriptor 2 to /dev/null while the library may panic and print to it."""
    if not active or sys.stderr is None:  # None: closed at process start
        yield
        return
    with _stderr_lock:
        with contextlib.suppress(OSError, ValueError):  # a broken pipe is reported elsewhere
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
    """Whether an exception is the library's: an Exception, or PyO3's PanicException (known by name only)."""
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


def first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def build_tokenizer(where: str, data: dict[str, Any]) -> "tuple[LibraryTokenizer, frozenset[int]]":
    """Build a validated tokenizer.json; return it with the ids below the largest that have no token.

    Raises TokenizerError if the library rejects it.
    """
    confined = not is_linear_time(data)
    inner, holes = parse_tokenizer(where, json.dumps(data).encode(), confined=confined), frozenset[int]()
    if has_wrong_ids(inner, data):
        from ropechat.tokenizer.validate import fix_numbers  # imported here: rarely needed

        holes = fix_numbers(data)
        inner = parse_tokenizer(where, json.dumps(data).encode(), confined=confined)
        if has_wrong_ids(inner, data):
            raise TokenizerError(f"{where}: {MISNUMBERED}")
    return inner, holes


def parse_tokenizer(where: str, content: bytes, *, confined: bool) -> "LibraryTokenizer":
    """Parse a validated tokenizer.json with the library, which may assign its own ids to added tokens.

    confined: let it work in a process with limits, because its form does not guarantee linear time.
    Raises TokenizerError if the library rejects it.
    """
    import tokenizers

    try:
        with silence_stderr(active=True):
            if confined:
                from ropechat.tokenizer.confined import ConfinedTokenizer

                return ConfinedTokenizer(json.loads(content), content)
            inner = tokenizers.Tokenizer.from_buffer(content)
            inner.no_padding()
            inner.no_truncation()
            return inner
    except FileAccessError:
        raise
    except BaseException as error:
        if not is_library_failure(error):
            raise
        from ropechat.tokenizer.validate import locate_fault

        reason = first_line(error).removeprefix("Cannot instantiate Tokenizer from buffer: ")
        fault = locate_fault(json.loads(content))
        raise TokenizerError(f"{where}: {fault}: rejected by the tokenizers library: {reason}") from None


def has_wrong_ids(inner: "LibraryTokenizer", data: dict[str, Any]) -> bool:
    """Whether added tokens have other ids than in the file: the library may assign its own."""
    added = data.get("added_tokens") or []
    return any(inner.token_to_id(token["content"]) != token["id"] for token in added)
