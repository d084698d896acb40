"""Responses of OpenAI's form: choices, usage and chunks of a stream, from completions and steps."""

import json
import math
import uuid
from collections.abc import Callable, Mapping, Sequence
from json.encoder import encode_basestring_ascii
from typing import TYPE_CHECKING, Any

from ropechat.api.requests import Ask
from ropechat.batch.agree import agreement_of_records
from ropechat.batch.forms import (
    chat_choice,
    chat_token,
    openai_reason,
    own_fields,
    text_choice,
    text_logprobs,
)
from ropechat.batch.line import CHAT, LineRequest
from ropechat.batch.records import answer_of, prompt_text, scored_records, token_record
from ropechat.engine.scheduler import Completion, ScoredId

if TYPE_CHECKING:
    from ropechat.trace import Step

LOWEST = -9999.0
"""A logprob of minus infinity, in OpenAI's form."""
BytesOf = Callable[[int], bytes]


_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)
_HERE = "\0here"
"""Stands for a text in the bytes of a chunk."""


def to_json(value: object) -> bytes:
    """A value as JSON in ASCII: a line of a stream has no separators of lines that clients might split at."""
    return _ENCODER.encode(value).encode()


def _finite(value: float | None) -> float | None:
    return value if value is None or math.isfinite(value) else LOWEST


def _with_finite(token: dict[str, Any]) -> dict[str, Any]:
    """A token record whose logprobs are numbers of JSON."""
    token["logprob"] = _finite(token["logprob"])
    if "top" in token:
        token["top"] = [[id, _finite(value), text] for id, value, text in token["top"]]
    return token


class Responses:
    """The responses to one request.

    created: the time in seconds. bytes_of: of a token. more_of: what choice `number` has beside what its
    completion says.
    """

    def __init__(
        self,
        ask: Ask,
        model: str,
        fingerprint: str,
        created: int,
        bytes_of: BytesOf,
        more_of: Callable[[int, Completion], dict[str, Any]],
    ) -> None:
        self.ask, self._bytes_of, self._more_of = ask, bytes_of, more_of
        self.is_chat = ask.endpoint == CHAT
        self._logprobs = ask.first.logprobs
        self._id = f"{'chatcmpl' if self.is_chat else 'cmpl'}-{uuid.uuid4().hex}"
        self._facts = {"created": created, "model": model, "system_fingerprint": fingerprint}
        self._frames: dict[int, tuple[bytes, bytes]] = {}

    def whole(
        self, completions: Sequence[Completion], scores: Sequence[Sequence[ScoredId]]
    ) -> dict[str, Any]:
        """The response that is not streamed. scores: of each prompt, () if they were not asked for."""
        samples = self.ask.samples
        choices = [
            self._choice(number, completion, self.ask.requests[number // samples], scores[number // samples])
            for number, completion in enumerate(completions)
        ]
        made = {
            "id": self._id,
            "object": "chat.completion" if self.is_chat else "text_completion",
            **self._facts,
            "choices": choices,
            "usage": usage_of(completions, samples),
        }
        if self.ask.agree:
            made["agreement"] = self._agreement(completions)
        if self.ask.prompt_logprobs and self.is_chat:
            made["prompt_logprobs"] = self._prompt_logprobs(scores[0])
        return made

    def _agreement(self, completions: Sequence[Completion]) -> dict[str, Any] | None:
        grammar = self.ask.first.sampling.get("grammar")
        records = [answer_of(one, None, self._bytes_of, grammar) for one in completions]
        return agreement_of_records(records)

    def _choice(
        self, number: int, completion: Completion, request: LineRequest, scores: Sequence[ScoredId]
    ) -> dict[str, Any]:
        record = answer_of(completion, self._logprobs, self._bytes_of, None)
        record |= self._more_of(number, completion)
        if "logprobs" in record:
            record["logprobs"] = list(map(_with_finite, record["logprobs"]))
        if self.is_chat:
            return chat_choice(number, record)
        if request.echo:
            record["text"] = prompt_text(request, self._bytes_of) + record["text"]
            if "logprobs" in record:
                record["logprobs"] = [*self._prompt_tokens(scores), *record["logprobs"]]
        choice = text_choice(number, record)
        if self.ask.prompt_logprobs:
            choice["prompt_logprobs"] = self._prompt_logprobs(scores)
        return choice

    def _prompt_tokens(self, scores: Sequence[ScoredId]) -> list[dict[str, Any]]:
        return list(map(_with_finite, scored_records(scores, self._logprobs or 0, self._bytes_of)))

    def _prompt_logprobs(self, scores: Sequence[ScoredId]) -> list[dict[str, Any] | None]:
        """vLLM's form: for each token its logprob and those of the candidates, by id; the first has none."""
        found: list[dict[str, Any] | None] = []
        for id, logprob, rank, top in scores:
            if logprob is None:
                found.append(None)
                continue
            ranked = {other: (value, place) for place, (other, value) in enumerate(top, 1)}
            found.append(
                {
                    str(other): {
                        "logprob": _finite(value),
                        "rank": place,
                        "decoded_token": self._bytes_of(other).decode("utf-8", "replace"),
                    }
                    for other, (value, place) in {id: (logprob, rank), **ranked}.items()
                }
            )
        return found

    # ---- streams

    def chunk(self, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        """A chunk of a stream."""
        kind = "chat.completion.chunk" if self.is_chat else "text_completion"
        usage = {"usage": None} if self.ask.include_usage else {}
        return {"id": self._id, "object": kind, **self._facts, "choices": choices, **usage, **more}

    def opening(self, number: int, scores: Sequence[ScoredId]) -> dict[str, Any] | None:
        """The first chunk of a choice: the role, or the prompt that is echoed; None without one."""
        if self.is_chat:
            return self.chunk([self._part(number, {"role": "assistant", "content": ""}, None, None)])
        request = self.ask.requests[number // self.ask.samples]
        if not request.echo:
            return None
        logprobs = None if self._logprobs is None else text_logprobs(self._prompt_tokens(scores))
        return self.chunk([self._part(number, prompt_text(request, self._bytes_of), logprobs, None)])

    def step(self, number: int, step: "Step", offset: int) -> bytes | None:
        """The chunk of a token as JSON; None if it has nothing to say.

        offset: of its text in a text_completion.
        """
        if self._logprobs is None and not step.reasoning:
            return self._framed(number, step.text) if step.text else None
        chunk = self._step(number, step, offset)
        return None if chunk is None else to_json(chunk)

    def _framed(self, number: int, text: str) -> bytes:
        """The chunk of a text, of which only the text is made anew."""
        frame = self._frames.get(number)
        if frame is None:
            said = {"content": _HERE} if self.is_chat else _HERE
            before, _, after = to_json(self.chunk([self._part(number, said, None, None)])).partition(
                to_json(_HERE)
            )
            frame = self._frames[number] = before, after
        return frame[0] + encode_basestring_ascii(text).encode() + frame[1]

    def _step(self, number: int, step: "Step", offset: int) -> dict[str, Any] | None:
        logprobs: dict[str, Any] | None = None
        if self._logprobs is not None and step.channel == "answer":
            token = _with_finite(
                token_record(step.id, step.logprob, step.top, self._logprobs, self._bytes_of)
            )
            logprobs = (
                {"content": [chat_token(token)], "refusal": None}
                if self.is_chat
                else text_logprobs([token], offset)
            )
        elif not step.text and not step.reasoning:
            return None
        if not self.is_chat:
            return self.chunk([self._part(number, step.text, logprobs, None)])
        delta = {"reasoning_content": step.reasoning} if step.reasoning else {}
        if step.text or not delta:
            delta["content"] = step.text
        return self.chunk([self._part(number, delta, logprobs, None)])

    @property
    def has_offsets(self) -> bool:
        """Whether chunks say where their text is."""
        return not self.is_chat and self._logprobs is not None

    def prompt_length(self, number: int, scores: Sequence[ScoredId]) -> int:
        """The length of the prompt that a choice echoes, as `text_logprobs` counts it."""
        if not self.ask.requests[number // self.ask.samples].echo:
            return 0
        return sum(self._length(one.id) for one in scores)

    def token_length(self, step: "Step") -> int:
        """The length of a token, likewise."""
        return self._length(step.id)

    def _length(self, id: int) -> int:
        return len(self._bytes_of(id).decode("utf-8", "replace"))

    def closing(self, number: int, completion: Completion) -> dict[str, Any]:
        """The last chunk of a choice."""
        reason = openai_reason({"finish_reason": completion.finish_reason})
        part = self._part(number, {} if self.is_chat else "", None, reason)
        said = answer_of(completion, None, self._bytes_of, None) | self._more_of(number, completion)
        return self.chunk([{**part, **own_fields(said)}])

    def last(self, completions: Sequence[Completion]) -> dict[str, Any] | None:
        """The chunk with what is said of the whole request; None without it."""
        if not self.ask.agree and not self.ask.include_usage:
            return None
        agreement = {"agreement": self._agreement(completions)} if self.ask.agree else {}
        usage = {"usage": usage_of(completions, self.ask.samples)} if self.ask.include_usage else {}
        return self.chunk([], **agreement, **usage)

    def _part(
        self, number: int, said: Any, logprobs: Mapping[str, Any] | None, reason: str | None
    ) -> dict[str, Any]:
        name = "delta" if self.is_chat else "text"
        return {"index": number, name: said, "logprobs": logprobs, "finish_reason": reason}


def usage_of(completions: Sequence[Completion], samples: int) -> dict[str, Any]:
    """The tokens of a request: each prompt counts once."""
    prompt = sum(one.prompt_tokens for one in completions[::samples])
    cached = sum(one.cached_tokens for one in completions[::samples])
    made = sum(one.completion_tokens for one in completions)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": made,
        "total_tokens": prompt + made,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {"reasoning_tokens": sum(one.reasoning_tokens for one in completions)},
    }
