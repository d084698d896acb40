"""A model's tokenizer.json: checked, handed to the library, and kept for the next start."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ropechat.errors import TokenizerError
from ropechat.model_files import parse_json, read_bytes
from ropechat.tokenizer.file_check import FileCheck, without_dropout
from ropechat.tokenizer.hazards import straighten
from ropechat.tokenizer.library import build
from ropechat.tokenizer.short_texts import ShortTexts, letters_of
from ropechat.tokenizer.vocabulary import Vocabulary
from ropechat.tokenizer_cache import Kept, keep, key_of

if TYPE_CHECKING:
    import tokenizers


class Checked(NamedTuple):
    """A file that was read and checked. data: what it says. holes: ids below its largest without a token."""

    inner: "tokenizers.Tokenizer"
    data: dict[str, Any]
    holes: frozenset[int]


def size_of(inner: "tokenizers.Tokenizer") -> int:
    """1 + the largest id that has a token."""
    return 1 + max(inner.get_vocab(with_added_tokens=True).values(), default=-1)


def checked(where: Path, vocab_size: int) -> Checked | None:
    """Read a tokenizer.json for a model with `vocab_size` ids; None where there is none.

    Raises TokenizerError that names the file and the field.
    """
    content = read_bytes(where.parent, where.name)
    if content is None:
        return None
    data = parse_json(content, where, TokenizerError)
    FileCheck(str(where), data, vocab_size).run()
    changed = straighten(data) | without_dropout(data)
    inner, holes = build(str(where), data, None if changed else content)
    if key_of(where, vocab_size) is not None:
        tokens = [inner.id_to_token(id) for id in range(size_of(inner))]
        keep(where, vocab_size, data, holes, tokens, letters_of(data))
    return Checked(inner, data, holes)


def kept_vocabulary(where: Path, vocab_size: int, kept: Kept) -> Vocabulary:
    """The vocabulary of a kept file, which is built when a text needs all of it."""

    def whole() -> "tokenizers.Tokenizer":
        content = kept.content()
        if content is not None:
            return build(str(where), kept.data, content)[0]
        if key_of(where, vocab_size) == kept.key and (found := checked(where, vocab_size)) is not None:
            return found.inner
        raise TokenizerError(f"{where}: changed since the model was loaded; load it again")

    if kept.pages is None:
        return Vocabulary(whole)
    return Vocabulary(whole, ShortTexts(str(where), kept.data, kept.pages))
