"""A model's tokenizer.json: checked, handed to the library, and kept for the next start."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ropechat.errors import TokenizerError
from ropechat.model_files import parse_json, read_bytes
from ropechat.tokenizer.hazards import straighten
from ropechat.tokenizer.library import build, hand_over, misnumbered
from ropechat.tokenizer.short_texts import ShortTexts, letters_of
from ropechat.tokenizer.vocabulary import Vocabulary
from ropechat.tokenizer_cache import Kept, keep, key_of, pack, slim

if TYPE_CHECKING:
    import tokenizers


class Checked(NamedTuple):
    """A file that was read and checked.

    data: what it says, without vocabulary and merges. holes: ids below its largest without a token.
    """

    inner: "tokenizers.Tokenizer"
    data: dict[str, Any]
    holes: frozenset[int]


def checked(where: Path, vocab_size: int) -> Checked | None:
    """Read a tokenizer.json for a model with `vocab_size` ids; None where there is none.

    What Python parsed is let go before the library parses: both together are most of a first start's memory.
    Raises TokenizerError that names the file and the field.
    """
    content = read_bytes(where.parent, where.name)
    if content is None:
        return None
    from ropechat.tokenizer.file_check import FileCheck, drop_dropout  # late: a kept file was checked before

    data = parse_json(content, where, TokenizerError)
    FileCheck(str(where), data, vocab_size).run()
    straighten(data)
    drop_dropout(data)
    is_kept = key_of(where, vocab_size) is not None
    packed = pack(data, letters_of(data) if is_kept else None)
    content = json.dumps(data).encode() if packed is None else packed.content
    data, holes = slim(data), frozenset[int]()
    inner = hand_over(str(where), content)
    if misnumbered(inner, data):
        whole = json.loads(content)
        inner, holes = build(str(where), whole)
        packed = pack(whole, letters_of(whole) if is_kept else None)
    if packed is not None:
        keep(where, vocab_size, packed, holes)
    return Checked(inner, data, holes)


def kept_vocabulary(where: Path, vocab_size: int, kept: Kept) -> Vocabulary:
    """The vocabulary of a kept file, which is built when a text needs all of it."""

    def whole() -> "tokenizers.Tokenizer":
        content = kept.content()
        if content is not None:
            return hand_over(str(where), content)
        if key_of(where, vocab_size) == kept.key and (found := checked(where, vocab_size)) is not None:
            return found.inner
        raise TokenizerError(f"{where}: changed since the model was loaded; load it again")

    if kept.pages is None:
        return Vocabulary(whole)
    return Vocabulary(whole, ShortTexts(str(where), kept.data, kept.pages))
