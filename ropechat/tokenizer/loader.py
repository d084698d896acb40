"""Loading a vocabulary: read, validate, build with the library, and cache for the next start."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ropechat.errors import TokenizerError
from ropechat.tokenizer.cache import CachedVocabulary, key_of, pack, strip_vocabulary
from ropechat.tokenizer.cache import save as store
from ropechat.tokenizer.hazards import is_linear_time, replace_slow_regexes
from ropechat.tokenizer.library import LibraryTokenizer, build_tokenizer, has_wrong_ids, parse_tokenizer
from ropechat.tokenizer.partial_bpe import PartialBpe, base_tokens
from ropechat.tokenizer.vocabulary import Vocabulary
from ropechat.util.files import parse_json, read_bytes

_MAX_FILE_BYTES = 64 << 20
"""Published vocabularies of 262,144 tokens have up to 35 MB."""


class ParsedVocabulary(NamedTuple):
    """A validated vocabulary.

    data: the content of a tokenizer.json. config: of a tokenizer_config.json; None if that is a separate
    file. holes: ids without a token. end_ids: ids that end a text.
    """

    data: dict[str, Any]
    config: dict[str, Any] | None = None
    holes: frozenset[int] = frozenset()
    end_ids: frozenset[int] = frozenset()


class BuiltVocabulary(NamedTuple):
    """A vocabulary built by the library. parsed: without tokens and merges, with all holes.

    confined: whether it works in a process with limits.
    """

    inner: LibraryTokenizer
    parsed: ParsedVocabulary
    confined: bool


Read = Callable[[], ParsedVocabulary | None]


def read_json_file(where: Path, vocab_size: int) -> ParsedVocabulary | None:
    """Read and validate a tokenizer.json for a model with `vocab_size` ids; None if the file is missing.

    Raises TokenizerError naming the file and the field.
    """
    content = read_bytes(where.parent, where.name, _MAX_FILE_BYTES)
    if content is None:
        return None
    from ropechat.tokenizer.validate import (
        FileCheck,
        drop_dropout,
    )  # imported here: a cached file was validated before

    data = parse_json(content, where, TokenizerError)
    FileCheck(str(where), data, vocab_size).run()
    replace_slow_regexes(data)
    drop_dropout(data)
    return ParsedVocabulary(data)


def read_gguf(where: Path, metadata: Mapping[str, Any], vocab_size: int) -> ParsedVocabulary | None:
    """Read the vocabulary in the metadata of a GGUF file; None if it has no vocabulary.

    Raises TokenizerError, ConfigError or UnsupportedModelError naming file and key.
    """
    from ropechat.tokenizer.gguf import vocabulary  # imported here, as above

    found = vocabulary(str(where), metadata, vocab_size)
    return None if found is None else ParsedVocabulary(found.data, found.config, found.holes, found.end_ids)


def build_and_cache(
    where: Path, vocab_size: int, parsed: ParsedVocabulary | None, *, keep: bool = True
) -> BuiltVocabulary | None:
    """Build a vocabulary with the library and cache it.

    Frees the parsed JSON before the library parses it again: together they dominate peak memory at first
    start. Raises TokenizerError.
    """
    if parsed is None:
        return None
    data, config, holes, end_ids = parsed
    del parsed
    is_kept = keep and key_of(where, vocab_size) is not None
    confined = not is_linear_time(data)
    in_pages = is_kept and not confined
    packed = pack(data, base_tokens(data) if in_pages else None)
    content = json.dumps(data).encode() if packed is None else packed.content
    data = strip_vocabulary(data)
    inner = parse_tokenizer(str(where), content, confined=confined)
    if has_wrong_ids(inner, data):
        whole = json.loads(content)
        inner, more = build_tokenizer(str(where), whole)
        holes |= more
        packed = pack(whole, base_tokens(whole) if in_pages else None)
    if is_kept and packed is not None:
        store(where, vocab_size, packed, holes, config, end_ids, confined=confined)
    return BuiltVocabulary(inner, ParsedVocabulary(data, config, holes, end_ids), confined)


def open_cached(where: Path, vocab_size: int, kept: CachedVocabulary, read: Read) -> Vocabulary:
    """A cached vocabulary, built completely only when a text needs it. read: reads its original file."""

    def whole() -> LibraryTokenizer:
        content = kept.content()
        if content is not None:
            return parse_tokenizer(str(where), content, confined=kept.confined)
        if key_of(where, vocab_size) == kept.key:
            found = build_and_cache(where, vocab_size, read())
            if found is not None:
                return found.inner
        raise TokenizerError(f"{where}: the file changed after the model was loaded; load the model again")

    if kept.pages is None:
        return Vocabulary(whole)
    return Vocabulary(whole, PartialBpe(str(where), kept.data, kept.pages))
