"""Grammars for an engine: read from files, checked, and compiled for a tokenizer."""

import functools
import json
import threading
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ropechat.engine.grammar_child import CPU_SECONDS, MAX_MEMORY_BYTES, WALL_SECONDS
from ropechat.engine.native import load_core
from ropechat.errors import FileAccessError, RequestError
from ropechat.sampling.grammar import Grammar
from ropechat.tokenizer import Tokenizer
from ropechat.util.limited_process import LimitedProcess, LimitExceededError
from ropechat.util.paths import expand_home
from ropechat.util.text import format_bytes, is_unicode

if TYPE_CHECKING:
    from ropechat.engine import _core

MAX_BYTES = 1 << 20
"""Most bytes of a grammar's text."""
_KEPT = 64


def check_grammar(grammar: Grammar, where: str = "grammar") -> Grammar:
    """Return the grammar. Raises RequestError if it cannot be used; no model is needed.

    where: its origin, for the error. Special tokens that a Lark grammar names are not checked.
    """
    try:
        _check(grammar)
    except RequestError as error:
        raise RequestError(f"{where}: {error}") from None
    return grammar


def _check(grammar: Grammar) -> None:
    """Raise RequestError if a grammar cannot be used, FileAccessError if that cannot be found out."""
    fault = _fault(grammar)
    if fault:
        raise RequestError(fault)


@functools.lru_cache(maxsize=_KEPT)
def _fault(grammar: Grammar) -> str:
    """What is wrong with a grammar, or "".

    It is compiled in a process of its own, as nothing bounds the time and memory of some.
    """
    if not all(map(is_unicode, grammar.source)):
        return f"{grammar.name}: must be valid Unicode (got a lone surrogate)"
    request = json.dumps([grammar.kind, grammar.source, grammar.flexible]).encode()
    try:
        reply = _process().ask(request, CPU_SECONDS)
    except LimitExceededError as error:
        if error.kind == "stopped":
            raise RequestError(f"{grammar.name}: {error.what}") from None
        limits = f"{CPU_SECONDS:g} s of CPU time and {format_bytes(MAX_MEMORY_BYTES)} of memory"
        return (
            f"{grammar.name}: is too complex: compiling must take at most {limits}; make numbers such as "
            "multipleOf, lengths and counts smaller"
        )
    return str(reply.get("error", ""))


@functools.cache
def _process() -> LimitedProcess:
    return LimitedProcess(
        "ropechat.engine.grammar_child",
        (),
        "compiles grammars",
        wall_seconds=WALL_SECONDS,
        max_reply=1 << 20,
    )


def read_grammar(path: Path, kind: Literal["json_schema", "lark"], *, flexible: bool = False) -> Grammar:
    """Read a JSON schema or a Lark grammar from a file and check it. Raises RequestError, FileAccessError."""
    try:
        if not path.is_file():
            raise RequestError(f"{path}: must be a file" if path.exists() else f"{path}: file not found")
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise FileAccessError(f"{path}: {error.strerror or error}") from None
    if len(data) > MAX_BYTES:
        raise RequestError(f"{path}: must be at most {MAX_BYTES:,} bytes")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise RequestError(f"{path}: must be UTF-8 (byte {error.start} is not)") from None
    return check_grammar(Grammar(kind, (text,), flexible), str(path))


def schema_of(given: str, *, flexible: bool = False) -> Grammar:
    """The grammar of a JSON schema: a JSON object, or else the name of a file. Raises as `read_grammar`."""
    if given.lstrip().startswith("{"):
        return check_grammar(Grammar("json_schema", (given,), flexible), "schema")
    return read_grammar(expand_home(given), "json_schema", flexible=flexible)


class GrammarCompiler:
    """Compiles grammars for a tokenizer; thread-safe. Its vocabulary is built on first use."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, stop_ids: Iterable[int]) -> None:
        self._tokenizer, self._vocab_size = tokenizer, vocab_size
        self._stop_ids = sorted(stop_ids)
        self._vocabulary: _core.Vocabulary | None = None
        self._compiled: OrderedDict[Grammar, _core.Grammar] = OrderedDict()
        self._lock = threading.Lock()

    def compile(self, grammar: Grammar) -> "_core.Grammar":
        """The compiled grammar. Raises RequestError if it cannot be used, or without a tokenizer."""
        with self._lock:
            if self._vocabulary is None:
                self._vocabulary = self._make()
            found = self._compiled.get(grammar)
            if found is None:
                try:
                    _check(grammar)
                    found = self._vocabulary.compile(grammar.kind, grammar.source, flexible=grammar.flexible)
                except RequestError as error:
                    raise RequestError(f"grammar: {error}") from None
                self._compiled[grammar] = found
            self._compiled.move_to_end(grammar)
            while len(self._compiled) > _KEPT:
                self._compiled.popitem(last=False)
            return found

    def _make(self) -> "_core.Vocabulary":
        """The tokens with text; ids beyond the tokenizer have none, so they are never drawn."""
        tokenizer = self._tokenizer
        if not tokenizer.present:
            raise RequestError("grammar: requires a tokenizer, which this model does not have")
        size = min(self._vocab_size, max(tokenizer.vocab_size, *(id + 1 for id in self._stop_ids), 1))
        silent = {*tokenizer.special_ids, *self._stop_ids}
        tokens = [b"" if id in silent else tokenizer.token_bytes(id) for id in range(size)]
        named = ((id, tokenizer.token(id)) for id in sorted(silent) if id < size)
        special = [(id, name) for id, name in named if name is not None]
        made: _core.Vocabulary = load_core().Vocabulary(tokens, special, self._stop_ids)
        return made
