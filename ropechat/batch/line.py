"""One line of a batch file, checked: which id it has and what it asks for.

Nothing is guessed: a known field with an unusable value, a field that asks for what ropechat does not do, and
a slip of the pen in a sampling field are faults of the line. Other fields are ignored, and named in `unused`.
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
"""Where the prompt stands: in one of the first two or, where both are absent, in one of the others."""
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
"""Fields that would change the answer if ropechat knew them, and the value that asks for nothing."""

_ID_FIELDS = ("id", "custom_id")
_ROLES = [role.value for role in Role]
_OPENAI_URL = "/v1/chat/completions"
_SLIP = 0.9

Content = str | list[Message]
LineId = str | int | float


@dataclass(frozen=True)
class LineRequest:
    """What a line asks for."""

    content: Content
    sampling: Mapping[str, Any]
    """The fields of Sampling that the line sets."""
    stop: tuple[str, ...] | None
    unused: tuple[str, ...]
    """Names of the fields that are ignored."""
    template_vars: Mapping[str, Any] | None = None
    """More names for the chat template, from chat_template_kwargs (vLLM's name)."""


class LineError(ValueError):
    """A fault in a line: `<field>: <what it is>; <what is allowed>`."""


def reject(text: str) -> NoReturn:
    """Raise LineError."""
    raise LineError(text)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            reject(f"{key:.60}: the key stands twice in the JSON object; once is allowed")
        found[key] = value
    return found


def parse_line(line: bytes) -> dict[str, Any]:
    """The JSON object of a line. Raises LineError; NaN and keys that stand twice are no JSON here."""
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        reject(f"line: byte {error.start} is not UTF-8")
    try:
        value = json.loads(
            text,
            object_pairs_hook=_unique,
            parse_constant=lambda name: reject(f"JSON: {name} is no JSON number; a finite number is allowed"),
        )
    except LineError:
        raise
    except RecursionError:
        reject("JSON: nested too deep")
    except json.JSONDecodeError as error:
        reject(f"JSON: {error.msg} at character {error.pos}")
    except ValueError as error:
        reject(f"JSON: {str(error).split(';')[0]}")
    if not isinstance(value, dict):
        reject(f"JSON: a {type(value).__name__}; an object is required")
    return value


def _text(field: str, value: object) -> str:
    if not isinstance(value, str):
        reject(f"{field}: {value!r:.40}; a text is required")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        reject(f"{field}: a lone surrogate at character {error.start}; valid Unicode is required")
    return value


def read_id(record: Mapping[str, Any], line: int) -> LineId:
    """The line's id as it is given, a text or a number; "line-<n>" where none is. Raises LineError."""
    given = [field for field in _ID_FIELDS if field in record]
    if len(given) == 2:
        reject("custom_id: stands beside id; one of them is allowed")
    if not given:
        return f"line-{line}"
    field = given[0]
    value = record[field]
    if field == "id" and isinstance(value, int | float) and not isinstance(value, bool):
        if not abs(value) < 2**63:
            reject("id: a number beyond 64 bits; a text is allowed")
        return value
    if not isinstance(value, str) or not 1 <= len(value) <= MAX_ID_LENGTH:
        reject(f"{field}: {value!r:.40}; a text of 1 to {MAX_ID_LENGTH} characters is required")
    return _text(field, value)


def parse_request(record: Mapping[str, Any], prompt_field: str | None = None) -> LineRequest:
    """What the line asks for. Raises LineError that names the field."""
    fields, unused = _fields(record)
    if fields.get("model") is not None:
        reject(f"model: {fields['model']!r:.60}; the model of -m answers all lines; leave it out")
    name = _prompt_name(fields, prompt_field)
    prompt = fields.pop(name)
    content: Content
    if name == "messages":
        content, extra = _messages(prompt)
        unused += extra
    else:
        content = _text(name, prompt)
        if not content:
            reject(f"{name}: empty; at least one character is required")
    stop = _stop(fields.pop("stop", None))
    template_vars = _template_vars(fields.pop("chat_template_kwargs", None))
    sampling = _sampling(fields)
    for field, value in fields.items():
        if field not in NOT_OFFERED:
            _refuse_slip(field)
            unused.append(field)
        elif value is not None and value != NOT_OFFERED[field]:
            reject(f"{field}: {value!r:.40} is not offered; {NOT_OFFERED[field]!r} is")
    return LineRequest(content, sampling, stop, tuple(unused), template_vars)


def _fields(record: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The fields that ask, and names of others.

    In a line of OpenAI's batch format ({"custom_id", "method", "url", "body"}) those of `body` ask, but for
    `model`, which the format requires and which is not to be had here.
    """
    fields = {name: value for name, value in record.items() if name not in _ID_FIELDS}
    body = fields.get("body")
    if "url" not in fields or not isinstance(body, dict):
        return fields, []
    for name, allowed in (("url", _OPENAI_URL), ("method", "POST")):
        value = fields.get(name, "POST")
        if value != allowed:
            reject(f"{name}: {value!r:.60}; {allowed!r} is allowed")
    unused = [name for name in fields if name not in ("method", "url", "body")]
    asked = dict(body)
    return asked, unused if asked.pop("model", None) is None else [*unused, "model"]


def _prompt_name(fields: Mapping[str, Any], prompt_field: str | None) -> str:
    """Which field holds the prompt."""
    if prompt_field is not None:
        if prompt_field not in fields:
            reject(f"{prompt_field}: missing; --prompt-field names it")
        return prompt_field
    for names in PROMPT_FIELDS:
        given = [name for name in names if name in fields]
        if len(given) == 2:
            reject(
                f"{given[1]}: stands beside {given[0]}; one of them is allowed; --prompt-field can name it"
            )
        if given:
            return given[0]
    found = ", ".join(sorted(fields)) or "none"
    reject(f"prompt: missing; the fields are {found:.200}; --prompt-field can name another one")


def _messages(value: object) -> tuple[list[Message], list[str]]:
    """The messages, and names of what else they hold."""
    if not isinstance(value, list) or not value:
        reject(f"messages: {value!r:.40}; a list with at least one message is required")
    if len(value) > MAX_MESSAGES:
        reject(f"messages: {len(value)} of them; at most {MAX_MESSAGES} are allowed")
    messages: list[Message] = []
    unused: dict[str, None] = {}
    for number, message in enumerate(value):
        field = f"messages[{number}]"
        if not isinstance(message, dict):
            reject(f"{field}: {message!r:.40}; an object with role and content is required")
        role = message.get("role")
        if not isinstance(role, str) or role not in _ROLES:
            reject(f"{field}.role: {role!r:.40}; one of {', '.join(_ROLES)} is required")
        if "content" not in message:
            reject(f"{field}.content: missing; a text is required")
        unused |= {f"messages[].{name}": None for name in message if name not in ("role", "content")}
        messages.append(Message(Role(role), _text(f"{field}.content", message["content"])))
    return messages, list(unused)


def _stop(value: object) -> tuple[str, ...] | None:
    if value is None:
        return None
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list):
        reject(f"stop: {value!r:.40}; a text or a list of texts is required")
    try:
        checked = validate_stops(texts)
    except RequestError as error:
        reject(str(error))
    return tuple(_text("stop", text) for text in checked)


def _template_vars(value: object) -> dict[str, Any] | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        reject(f"chat_template_kwargs: {value!r:.40}; an object of names and values is required")
    try:
        return validate_variables(value)
    except RequestError as error:
        reject(f"chat_template_kwargs: {error}")


def _sampling(fields: dict[str, Any]) -> dict[str, Any]:
    """Takes the sampling fields out; null is as good as absent."""
    names: dict[str, str] = {}
    sampling: dict[str, Any] = {}
    for name, field in SAMPLING_FIELDS.items():
        value = fields.pop(name, None)
        if value is None:
            continue
        if field in names:
            reject(f"{name}: stands beside {names[field]}; one of them is allowed")
        try:
            Sampling(**{field: value})
        except ValueError as error:
            reject(f"{name}: {str(error).removeprefix(f'{field}: ')}")
        names[field], sampling[field] = name, value
    return sampling


def _refuse_slip(name: str) -> None:
    """A slip of the pen must not quietly give the answers of other settings."""
    for field in ("max_tokens", "temperature", "repetition_penalty"):
        near = abs(len(name) - len(field)) <= 2
        if near and difflib.SequenceMatcher(None, name.lower(), field).ratio() >= _SLIP:
            reject(f"{name}: not known; write {field} or rename the field")
