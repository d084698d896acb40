"""Parsing and validation of one line of a batch file: its id and its request.

Nothing is guessed: a known field with an invalid value, a field for an unsupported feature, and a misspelled
sampling field are errors. Other fields are ignored and listed in `unused`.
"""

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from ropechat.conversation import Message, Role
from ropechat.engine.templates.template import validate_variables
from ropechat.engine.validation import validate_stops
from ropechat.errors import RequestError
from ropechat.sampling import Sampling

MAX_ID_LENGTH = 512
MAX_MESSAGES = 2000
PROMPT_FIELDS = (("prompt", "messages"), ("text", "prefix"))
"""The fields of the prompt: one of the first two or, if both are absent, one of the others."""
SAMPLING_FIELDS = {
    **{name: name for name in Sampling.__dataclass_fields__},
    "max_completion_tokens": "max_tokens",
    "max_new_tokens": "max_tokens",
}
"""Field of a line -> field of Sampling."""
NOT_OFFERED: dict[str, object] = {
    "n": 1,
    "best_of": 1,
    "logprobs": False,
    "top_logprobs": 0,
    "frequency_penalty": 0,
    "presence_penalty": 0,
    "logit_bias": {},
    "tools": [],
    "response_format": {"type": "text"},
}
"""Fields of unsupported features, with the value that does not request the feature."""

_ID_FIELDS = ("id", "custom_id")
_ROLES = [role.value for role in Role]
_OPENAI_URL = "/v1/chat/completions"
_OFTEN_MISSPELLED = ("max_tokens", "temperature", "repetition_penalty")
_SIMILAR = 0.9

Content = str | list[Message]
LineId = str | int | float


@dataclass(frozen=True)
class LineRequest:
    """The request of a line."""

    content: Content
    sampling: Mapping[str, Any]
    """The fields of Sampling that the line sets."""
    stop: tuple[str, ...] | None
    unused: tuple[str, ...]
    """Names of ignored fields."""
    template_vars: Mapping[str, Any] | None = None
    """Variables for the chat template, from chat_template_kwargs (vLLM's name)."""


class LineError(ValueError):
    """An error in a line: `<field>: must be <what is allowed> (got <value>)`."""


def reject(text: str) -> NoReturn:
    """Raise LineError."""
    raise LineError(text)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            reject(f"{key:.60}: keys must be unique (this one occurs twice in the JSON object)")
        found[key] = value
    return found


def parse_line(line: bytes) -> dict[str, Any]:
    """Parse the JSON object of a line. Raises LineError, also for NaN and duplicate keys."""
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        reject(f"line: must be UTF-8 (byte {error.start} is not)")
    try:
        value = json.loads(
            text,
            object_pairs_hook=_unique,
            parse_constant=lambda name: reject(f"JSON: numbers must be finite (got {name})"),
        )
    except LineError:
        raise
    except RecursionError:
        reject("JSON: nested too deeply")
    except json.JSONDecodeError as error:
        reject(f"JSON: {error.msg} at character {error.pos}")
    except ValueError as error:
        reject(f"JSON: {str(error).split(';')[0]}")
    if not isinstance(value, dict):
        reject(f"JSON: must be an object (got {type(value).__name__})")
    return value


def _text(field: str, value: object) -> str:
    if not isinstance(value, str):
        reject(f"{field}: must be a string (got {value!r:.40})")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        reject(f"{field}: must be valid Unicode (got a lone surrogate at character {error.start})")
    return value


def read_id(record: Mapping[str, Any], line: int) -> LineId:
    """The id of a line, a string or a number; "line-<n>" if it has none. Raises LineError."""
    given = [field for field in _ID_FIELDS if field in record]
    if len(given) == 2:
        reject("custom_id: must not be given together with id")
    if not given:
        return f"line-{line}"
    field = given[0]
    value = record[field]
    if field == "id" and isinstance(value, int | float) and not isinstance(value, bool):
        if not abs(value) < 2**63:
            reject("id: must be a string or a 64-bit number (got a larger number)")
        return value
    if not isinstance(value, str) or not 1 <= len(value) <= MAX_ID_LENGTH:
        reject(f"{field}: must be a string of 1 to {MAX_ID_LENGTH} characters (got {value!r:.40})")
    return _text(field, value)


def parse_request(record: Mapping[str, Any], prompt_field: str | None = None) -> LineRequest:
    """The request of a line. Raises LineError naming the field."""
    fields, unused = _fields(record)
    if fields.get("model") is not None:
        reject(f"model: must not be given (got {fields['model']!r:.60}); the model of -m answers all lines")
    name = _prompt_name(fields, prompt_field)
    prompt = fields.pop(name)
    content: Content
    if name == "messages":
        content, extra = _messages(prompt)
        unused += extra
    else:
        content = _text(name, prompt)
        if not content:
            reject(f"{name}: must have at least one character (got none)")
    stop = _stop(fields.pop("stop", None))
    template_vars = _template_vars(fields.pop("chat_template_kwargs", None))
    sampling = _sampling(fields)
    for field, value in fields.items():
        if field not in NOT_OFFERED:
            _reject_misspelled(field)
            unused.append(field)
        elif value is not None and value != NOT_OFFERED[field]:
            reject(f"{field}: not supported: must be {NOT_OFFERED[field]!r} or absent (got {value!r:.40})")
    return LineRequest(content, sampling, stop, tuple(unused), template_vars)


def _fields(record: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The fields of the request, and names of ignored fields.

    In OpenAI's batch format ({"custom_id", "method", "url", "body"}) the request is `body`, without `model`,
    which the format requires and which is ignored here.
    """
    fields = {name: value for name, value in record.items() if name not in _ID_FIELDS}
    body = fields.get("body")
    if "url" not in fields or not isinstance(body, dict):
        return fields, []
    for name, allowed in (("url", _OPENAI_URL), ("method", "POST")):
        value = fields.get(name, "POST")
        if value != allowed:
            reject(f"{name}: must be {allowed!r} (got {value!r:.60})")
    unused = [name for name in fields if name not in ("method", "url", "body")]
    asked = dict(body)
    return asked, unused if asked.pop("model", None) is None else [*unused, "model"]


def _prompt_name(fields: Mapping[str, Any], prompt_field: str | None) -> str:
    """The name of the field with the prompt."""
    if prompt_field is not None:
        if prompt_field not in fields:
            reject(f"{prompt_field}: missing, but given by --prompt-field")
        return prompt_field
    for names in PROMPT_FIELDS:
        given = [name for name in names if name in fields]
        if len(given) == 2:
            reject(f"{given[1]}: must not be given together with {given[0]}; choose one with --prompt-field")
        if given:
            return given[0]
    found = ", ".join(sorted(fields)) or "none"
    reject(f"prompt: missing (got {found:.200}); choose another field with --prompt-field")


def _messages(value: object) -> tuple[list[Message], list[str]]:
    """The messages, and the names of their ignored fields."""
    if not isinstance(value, list) or not value:
        reject(f"messages: must be a non-empty list (got {value!r:.40})")
    if len(value) > MAX_MESSAGES:
        reject(f"messages: must be at most {MAX_MESSAGES} (got {len(value)})")
    messages: list[Message] = []
    unused: dict[str, None] = {}
    for number, message in enumerate(value):
        field = f"messages[{number}]"
        if not isinstance(message, dict):
            reject(f"{field}: must be an object with role and content (got {message!r:.40})")
        role = message.get("role")
        if not isinstance(role, str) or role not in _ROLES:
            reject(f"{field}.role: must be one of {', '.join(_ROLES)} (got {role!r:.40})")
        if "content" not in message:
            reject(f"{field}.content: must be a string (missing)")
        unused |= {f"messages[].{name}": None for name in message if name not in ("role", "content")}
        messages.append(Message(Role(role), _text(f"{field}.content", message["content"])))
    return messages, list(unused)


def _stop(value: object) -> tuple[str, ...] | None:
    if value is None:
        return None
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list):
        reject(f"stop: must be a string or a list of strings (got {value!r:.40})")
    try:
        checked = validate_stops(texts)
    except RequestError as error:
        reject(str(error))
    return tuple(_text("stop", text) for text in checked)


def _template_vars(value: object) -> dict[str, Any] | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        reject(f"chat_template_kwargs: must be an object of names and values (got {value!r:.40})")
    try:
        return validate_variables(value)
    except RequestError as error:
        reject(f"chat_template_kwargs: {error}")


def _sampling(fields: dict[str, Any]) -> dict[str, Any]:
    """Remove and return the sampling fields; null means absent."""
    names: dict[str, str] = {}
    sampling: dict[str, Any] = {}
    for name, field in SAMPLING_FIELDS.items():
        value = fields.pop(name, None)
        if value is None:
            continue
        if field in names:
            reject(f"{name}: must not be given together with {names[field]}")
        try:
            Sampling(**{field: value})
        except ValueError as error:
            reject(f"{name}: {str(error).removeprefix(f'{field}: ')}")
        names[field], sampling[field] = name, value
    return sampling


def _reject_misspelled(name: str) -> None:
    """Reject a misspelled sampling field, which would otherwise silently be ignored."""
    for field in difflib.get_close_matches(name.lower(), _OFTEN_MISSPELLED, 1, _SIMILAR):
        reject(f"{name}: unknown field; did you mean {field}? If not, rename it")
