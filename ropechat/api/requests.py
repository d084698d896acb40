"""The body of a request: what is asked, and every field that is not understood refused by its name."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ropechat.api.errors import ApiError, refuse
from ropechat.batch.line import (
    CHAT,
    COMPLETIONS,
    MAX_LOGPROBS,
    NOT_OFFERED,
    SAMPLING_FIELDS,
    TRUNCATE,
    LineRequest,
    completion_prompt,
    parse_request,
)
from ropechat.batch.structured import FIELDS as STRUCTURED
from ropechat.util.text import closest_name

HARMLESS = ("user", "metadata", "safety_identifier", "prompt_cache_key", "parallel_tool_calls")
"""Fields without influence on an answer, which are accepted with any value."""
NEUTRAL: dict[str, tuple[object, ...]] = {
    "store": (False,),
    "service_tier": ("auto", "default"),
    "tool_choice": ("none", "auto"),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "verbosity": ("medium",),
}
"""Fields of what is not offered, with the values that do not ask for it."""
_OWN = ("model", "stream", "stream_options", "prompt_logprobs", "agree", "fail_below", TRUNCATE)
_COMMON = ("n", "stop", "logprobs", *STRUCTURED, *SAMPLING_FIELDS, *_OWN, *HARMLESS, *NEUTRAL)
_ALLOWED = {
    CHAT: (
        *("messages", "top_logprobs", "chat_template_kwargs"),
        *("add_generation_prompt", "continue_final_message", *_COMMON),
    ),
    COMPLETIONS: ("prompt", "echo", *_COMMON),
}


@dataclass(frozen=True)
class Ask:
    """What a request asks for.

    requests: one for each prompt. samples: answers to each. candidates: of each token of the prompt, if
    these are scored: 0 records their logprobs only; None scores none. answers: whether tokens are made.
    prompt_logprobs: whether the response has vLLM's field of this name. agree: whether it says how far the
    samples agree.
    """

    endpoint: str
    requests: tuple[LineRequest, ...]
    samples: int = 1
    stream: bool = False
    include_usage: bool = False
    candidates: int | None = None
    answers: bool = True
    prompt_logprobs: bool = False
    agree: bool = False

    @property
    def first(self) -> LineRequest:
        """The request of the first prompt, whose settings are those of all."""
        return self.requests[0]


def read_ask(endpoint: str, body: Mapping[str, Any], names: tuple[str, ...], most: int) -> Ask:
    """The request of a body. names: of the model. most: prompts times n.

    A field that is null is absent. Raises ApiError, LineError.
    """
    fields = {name: value for name, value in body.items() if value is not None}
    _check_names(endpoint, fields)
    check_model(fields.pop("model", None), names)
    for name in HARMLESS:
        fields.pop(name, None)
    for name, neutral in NEUTRAL.items():
        if name in fields and (value := fields.pop(name)) not in neutral:
            allowed = " or ".join(map(repr, neutral))
            raise refuse(f"{name}: not supported: must be {allowed} or absent (got {value!r:.40})")
    stream, include_usage = _streaming(fields)
    prompts = _prompts(fields, most) if endpoint == COMPLETIONS else []
    echo = endpoint == COMPLETIONS and switch(fields, "echo")
    agree = switch(fields, "agree")
    candidates = _candidates(fields)
    if candidates is not None and stream:
        raise refuse("prompt_logprobs: must not be given together with stream")
    asks_for_prompt = candidates is not None
    answers = not (fields.get("max_tokens") == 0 and (echo or asks_for_prompt))
    if not answers:
        fields["max_tokens"] = 1
    if endpoint == CHAT:
        fields["messages"] = _messages(fields)
    request = parse_request({"custom_id": "", "url": endpoint, "body": fields})
    if request.unused:
        raise refuse(f"{request.unused[0]}: not supported; omit it")
    if echo and request.truncate is not None:
        raise refuse(f"{TRUNCATE}: must not be given together with echo")
    if echo and request.logprobs is not None:
        candidates = max(request.logprobs, candidates or 0)
    request = replace(request, echo=echo)
    samples = request.samples or 1
    requests = tuple(replace(request, content=one) for one in prompts) or (request,)
    if len(requests) * samples > most:
        raise refuse(f"n: prompts times n must be at most {most} (got {len(requests)} times {samples})")
    if agree and (samples < 2 or len(requests) > 1):
        raise refuse("agree: requires n of at least 2, and one prompt")
    return Ask(
        endpoint, requests, samples, stream, include_usage, candidates, answers, asks_for_prompt, agree
    )


def switch(fields: dict[str, Any], name: str, *, default: bool = False) -> bool:
    """Remove a field that is true or false. Raises ApiError."""
    value = fields.pop(name, default)
    if not isinstance(value, bool):
        raise refuse(f"{name}: must be true or false (got {value!r:.40})")
    return value


def check_model(name: object, names: tuple[str, ...]) -> None:
    """Refuse a model that is not served here, as OpenAI does."""
    if name is None or name in names:
        return
    raise ApiError(
        404,
        f"model: must be {' or '.join(map(repr, names))}, which is served here (got {name!r:.80})",
        param="model",
        code="model_not_found",
    )


def _check_names(endpoint: str, fields: Mapping[str, Any]) -> None:
    allowed = _ALLOWED[endpoint]
    for name in fields:
        if name in allowed:
            continue
        other = next((one for one in _ALLOWED if one != endpoint and name in _ALLOWED[one]), None)
        if other is not None:
            raise refuse(f"{name}: not a field of {endpoint}, but of {other}")
        if name in NOT_OFFERED:
            continue
        meant = closest_name(name, allowed)
        raise refuse(f"{name:.60}: unknown field; " + (f"did you mean {meant}?" if meant else "omit it"))


def _streaming(fields: dict[str, Any]) -> tuple[bool, bool]:
    stream, options = switch(fields, "stream"), fields.pop("stream_options", None)
    if options is None:
        return stream, False
    if not stream:
        raise refuse("stream_options: requires stream: true")
    if not isinstance(options, dict):
        raise refuse(f"stream_options: must be an object (got {options!r:.40})")
    for name in options:
        if name != "include_usage" and not (name == "include_obfuscation" and options[name] is False):
            raise refuse(f"stream_options.{name:.40}: unknown field; it may have include_usage")
    wanted = options.get("include_usage", False)
    if not isinstance(wanted, bool):
        raise refuse(f"stream_options.include_usage: must be true or false (got {wanted!r:.40})")
    return stream, wanted


def _prompts(fields: dict[str, Any], most: int) -> list[str | list[int]]:
    """The prompts of /v1/completions: a text, ids, or a list of them. The first one stays in the fields."""
    if "prompt" not in fields:
        raise refuse("prompt: missing")
    given = fields["prompt"]
    several = isinstance(given, list) and given and not isinstance(given[0], int)
    if several and len(given) > most:
        raise refuse(f"prompt: must be at most {most} prompts (got {len(given)})")
    made = [completion_prompt(one) for one in (given if several else [given])]
    fields["prompt"] = made[0]
    return made


def _candidates(fields: dict[str, Any]) -> int | None:
    value = fields.pop("prompt_logprobs", None)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_LOGPROBS:
        raise refuse(f"prompt_logprobs: must be an integer from 0 to {MAX_LOGPROBS} (got {value!r:.40})")
    return value


def _messages(fields: Mapping[str, Any]) -> object:
    """Messages without the fields that are empty, as in an answer that is sent back."""
    if "messages" not in fields:
        raise refuse("messages: missing")
    value = fields["messages"]
    if not isinstance(value, list):
        return value
    return [
        {name: one for name, one in message.items() if name == "content" or one not in (None, [], {})}
        if isinstance(message, dict)
        else message
        for message in value
    ]
