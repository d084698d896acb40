"""Reading a record with logprobs that any known program wrote: the format is found by its content.

A file is a JSON document (an object, or a list of them), JSON lines, or server-sent events ("data: {...}"),
and may have chunks of streamed answers. A trace of ours is one, too. Every field is checked; a bad one is an
error that names the file, the line and the field.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any

from ropechat.errors import RequestError
from ropechat.inspector.draws import RecordedDraws
from ropechat.inspector.made_up_ids import MadeUpIds
from ropechat.inspector.open_trace import MAX_LINE_BYTES, parse, read_trace, too_large
from ropechat.inspector.others.answer import Answer
from ropechat.inspector.others.formats import FORMATS, Found
from ropechat.util.fields import Field
from ropechat.util.text import count_of, limit_words

_KNOWN = (
    "a trace of `inspect` or `run`, or a record with logprobs of OpenAI's API, vLLM, llama.cpp's server, "
    "Ollama, lm-evaluation-harness or `batch --logprobs`"
)
_EVENTS = (b"data:", b"event:", b"id:", b"retry:", b":")


def read_records(
    lines: Iterable[bytes], where: str, note: Callable[[str], None] = lambda text: None
) -> Iterator[tuple[str, RecordedDraws]]:
    """Yield the answers of a file in its order, each with its place in the file.

    lines: as of a file opened for bytes. where: its name, for messages. note: gets what a reader must know.
    Raises RequestError, OSError.
    """
    numbered = ((number, line) for number, line in enumerate(lines, 1) if line.strip())
    first = next(numbered, None)
    if first is None:
        raise RequestError(f"{where}: line 1: must be {_KNOWN} (got an empty file)")
    if b'"schema"' in first[1][:100]:
        yield "", read_trace(chain([first[1]], (line for _, line in numbered)), where)
        return
    yield from _Answers(where, note).read(_records(chain([first], numbered), where))


def _records(numbered: Iterable[tuple[int, bytes]], where: str) -> Iterator[tuple[str, Any]]:
    """Yield the objects of a file, each with its place for messages."""
    source = iter(numbered)
    number, line = next(source)
    line = line.removeprefix(b"\xef\xbb\xbf")
    if not line.startswith(_EVENTS) and not _is_json(line):
        text, size = [line], len(line)
        for _, more in source:
            size += len(more)
            if size > MAX_LINE_BYTES:
                raise RequestError(f"{where}: {limit_words(MAX_LINE_BYTES, size)}; give JSON lines")
            text.append(more)
        document = parse(b"".join(text), where, _KNOWN, number, is_strict=False)
        yield from _listed(document, where)
        return
    for at, one in chain([(number, line)], source):
        place = f"{where}: line {at}"
        if one.startswith(_EVENTS):
            one = one.removeprefix(b"data:").strip()
            if one.startswith(_EVENTS) or one == b"[DONE]":
                continue
        yield from _listed(parse(one, where, _KNOWN, at, is_strict=False), place)


def _is_json(line: bytes) -> bool:
    """Whether a line is complete. One that is too large is, so that its reader refuses it."""
    try:
        return too_large(line) is not None or json.loads(line) is not None
    except (ValueError, RecursionError):
        return False


def _listed(value: Any, place: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, list):
        for index, one in enumerate(value):
            yield f"{place}: [{index}]", one
    else:
        yield place, value


class _Answers:
    """Collects chunks to answers."""

    def __init__(self, where: str, note: Callable[[str], None]) -> None:
        self._where, self._note = where, note
        self._open: dict[str, Answer] = {}
        self._stream = ""
        self._counts, self._ids = Counter[str](), MadeUpIds()
        self._missing: RequestError | None = None

    def read(self, records: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, RecordedDraws]]:
        for place, value in records:
            found = self._found(Field(value, "", RequestError, place))
            is_new = found.stream != self._stream or not found.stream
            if is_new or any(self._open[part.key].finished for part in found.parts if part.key in self._open):
                yield from self._finish()
            self._stream = found.stream
            for part in found.parts:
                where = "" if found.labelled else place.removeprefix(self._where).removeprefix(": ")
                label = ", ".join(filter(None, [where, part.label]))
                answer = self._open.setdefault(part.key, Answer(label, part.facts))
                answer.add(part.tokens, place)
                answer.finished = part.finished
                if not answer.tokens and self._missing is None:
                    self._missing = RequestError(
                        f"{place}: logprobs: must be a list (got none); ask for them with {found.asked}"
                    )
        yield from self._finish()
        if not self._counts["read"]:
            raise self._missing or RequestError(f"{self._where}: must be {_KNOWN} (got no answer)")
        if self._counts["without"]:
            answers = count_of(self._counts["without"], "answer")
            self._note(f"note: {self._where}: {answers} without logprobs left out")
        if self._counts["unknown"]:
            tokens = count_of(self._counts["unknown"], "token")
            self._note(f"note: {self._where}: {tokens} without a logprob: not scored, and not in the sums")

    def _found(self, record: Field) -> Found:
        if not isinstance(record.value, dict):
            raise record.fail(_KNOWN)
        body = record.value.get("response")
        if isinstance(body, dict) and isinstance(body.get("body"), dict):  # a line of OpenAI's batches
            record = record.of("response").of("body")
        for one in FORMATS:
            if one.has(record.value):
                return one.read(record)
        raise RequestError(
            f"{record.where}: must be {_KNOWN} (got an object with {', '.join(list(record.value)[:5])!s:.80})"
        )

    def _finish(self) -> Iterator[tuple[str, RecordedDraws]]:
        """Yield the answers that are complete."""
        for answer in self._open.values():
            if not answer.tokens:
                self._counts["without"] += 1
                continue
            self._counts["read"] += 1
            self._counts["unknown"] += sum(one.logprob is None for one in answer.tokens[1:])
            if answer.facts.get("stage") == "sampled" and not self._counts["sampled"]:
                self._counts["sampled"] = 1
                self._note(
                    f"note: {self._where}: probabilities after the sampler, not the model's; for those, use "
                    "llama.cpp of 2025 or later without post_sampling_probs"
                )
            yield answer.label, answer.scored(self._ids)
        self._open = {}
