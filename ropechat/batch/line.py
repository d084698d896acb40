"""Parsing and validation of one row of a batch file: its id and its request.

Nothing is guessed: a known field with an invalid value, a field for an unsupported feature, and a misspelled
sampling field are errors. Other fields are ignored and listed in `unused`.
"""

import difflib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from ropechat.batch.structured import grammar_of
from ropechat.conversation import Message, Role
from ropechat.engine.templates.template import validate_variables
from ropechat.engine.templates.thoughts import THOUGHT_FIELDS
from ropechat.engine.validation import validate_ids, validate_stops
from ropechat.errors import RequestError
from ropechat.sampling import Sampling

MAX_ID_LENGTH = 512
MAX_MESSAGES = 2000
MAX_SAMPLES = 128
MAX_LOGPROBS = 20
MAX_TURNS = 64
TRUNCATE = "truncate_prompt_tokens"
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
"""The endpoints of OpenAI's batch format."""
PROMPT_FIELDS = (("prompt", "messages"), ("turns",), ("text", "prefix"))
"""The fields of the prompt: one of the first two or, if both are absent, one of the next ones, and so on."""
SAMPLING_FIELDS = {
    **{name: name for name in Sampling.__dataclass_fields__ if name != "grammar"},
    "max_completion_tokens": "max_tokens",
    "max_new_tokens": "max_tokens",
    "num_predict": "max_tokens",
    "repeat_penalty": "repetition_penalty",
    "reasoning_effort": "think",
    "thinking_token_budget": "thinking_budget",
}
"""Field of a line -> field of Sampling."""
NOT_OFFERED: dict[str, object] = {
    "best_of": 1,
    "echo": False,  # of chats; completions may ask for it
    "suffix": "",
    "tools": [],
    "functions": [],
    **dict.fromkeys(("guided_json", "guided_regex", "guided_choice", "guided_grammar"), None),
    **dict.fromkeys(("min_tokens", "no_repeat_ngram_size", "mirostat"), 0),
    **dict.fromkeys(("top_a", "dynatemp_range"), 0),
    **dict.fromkeys(("typical_p", "tfs_z", "length_penalty", "num_beams"), 1),
    **dict.fromkeys(("ignore_eos", "use_beam_search", "include_stop_str_in_output"), False),
    **dict.fromkeys(("do_sample", "skip_special_tokens", "spaces_between_special_tokens"), True),
    **{name: [] for name in ("stop_token_ids", "stop_sequences", "bad_words", "allowed_token_ids")},
    "prompt_logprobs": None,
    "agree": False,  # of `ropechat api`; a batch has --agree
}
"""Fields of unsupported features that change an answer, with the value that does not request the feature.

The names are those of OpenAI, vLLM, transformers and llama.cpp.
"""

_ID_FIELDS = ("id", "custom_id")
_THINK: dict[str | bool, str] = {True: "on", False: "off", "none": "off", "minimal": "off"}
"""Values of Ollama's `think` and of OpenAI's `reasoning_effort` -> of `Sampling.think`."""
_ROLES = {**{role.value: role for role in Role}, "developer": Role.SYSTEM}
_OFTEN_MISSPELLED = ("max_tokens", "temperature", "repetition_penalty")
_SIMILAR = 0.9

Content = str | list[int] | list[Message]
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
    samples: int | None = None
    """Number of answers, from n."""
    logprobs: int | None = None
    """Candidates to record per token: 0 records the logprob of the tokens only; None records nothing."""
    turns: tuple[str, ...] = ()
    """User messages that follow, one after each answer."""
    endpoint: str = CHAT
    """OpenAI's endpoint; text of /v1/completions is continued without a chat template."""
    continues: bool = True
    """Whether the answer continues a final assistant message."""
    echo: bool = False
    """Whether the text, and its logprobs, begin with the prompt, of /v1/completions."""
    answers: bool = True
    """Whether tokens are made: not with echo and 0 as max_tokens."""
    fail_below: float | None = None
    """As `BatchSpec.fail_below`."""
    truncate: int | None = None
    """Most tokens of the prompt, from truncate_prompt_tokens (vLLM's name): -1 as many as fit."""
    choices: tuple[str, ...] = ()
    """With --score: the completions to score."""
    is_pair: bool = False
    """With --score: whether the row has one completion rather than choices."""
    answer: int | None = None
    """With --score: the index of the right choice."""


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


_DECODER = json.JSONDecoder(
    object_pairs_hook=_unique,
    parse_constant=lambda name: reject(f"JSON: numbers must be finite (got {name})"),
)


def parse_value(data: bytes) -> Any:
    """Parse JSON. Raises LineError, also for NaN and duplicate keys."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        reject(f"line: must be UTF-8 (byte {error.start} is not)")
    try:
        return _DECODER.decode(text)
    except LineError:
        raise
    except RecursionError:
        reject("JSON: nested too deeply")
    except json.JSONDecodeError as error:
        reject(f"JSON: {error.msg} at character {error.pos}")
    except ValueError as error:
        reject(f"JSON: {str(error).split(';')[0]}")


def parse_line(line: bytes) -> dict[str, Any]:
    """Parse the JSON object of a line. Raises LineError."""
    value = parse_value(line)
    if not isinstance(value, dict):
        reject(f"JSON: must be an object (got {json.dumps(value, ensure_ascii=False):.40})")
    return value


def names_of(fields: Iterable[str]) -> str:
    """What fields a row has, for a message about one that it has not."""
    names = sorted(fields)
    if not names:
        return "no other fields"
    return f"the field{'s' if len(names) > 1 else ''} {', '.join(names):.200}"


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


def parse_request(
    record: Mapping[str, Any], prompt_field: str | None = None, *, flexible: bool = False
) -> LineRequest:
    """The request of a line. flexible: allow whitespace in JSON. Raises LineError naming the field."""
    fields, unused, endpoint = _fields(record)
    if fields.get("model") is not None:
        reject(f"model: must not be given (got {fields['model']!r:.60}); the model of -m answers all lines")
    name = _prompt_name(fields, prompt_field, endpoint)
    prompt = fields.pop(name)
    turns: list[str] = []
    content: Content
    if name == "messages":
        content, extra = _messages(prompt)
        unused += extra
    elif name == "turns":
        content, *turns = _turns(prompt)
    elif endpoint == COMPLETIONS:
        content = completion_prompt(prompt)
    else:
        content = _prompt_text(name, prompt)
    content = _with_system(content, fields.pop("system", None), endpoint)
    stop = _stop(fields.pop("stop", None))
    template_vars = _template_vars(fields.pop("chat_template_kwargs", None))
    samples, logprobs = _samples(fields), _logprobs(fields, endpoint)
    continues = _switch(fields, "continue_final_message", default=True)
    if _switch(fields, "add_generation_prompt", default=False):
        continues = False
    echo = endpoint == COMPLETIONS and _switch(fields, "echo", default=False)
    fail_below, truncate = _fail_below(fields), _truncate(fields)
    if echo and truncate is not None:
        reject(f"{TRUNCATE}: must not be given together with echo")
    answers = not (echo and fields.get("max_tokens") == 0)
    if not answers:
        fields["max_tokens"] = 1
    sampling = _sampling(fields) | _grammar(fields, flexible)
    for field, value in fields.items():
        if field not in NOT_OFFERED:
            _reject_misspelled(field)
            unused.append(field)
        elif value is not None and value != NOT_OFFERED[field]:
            reject(f"{field}: not supported: must be {NOT_OFFERED[field]!r} or absent (got {value!r:.40})")
    return LineRequest(
        content,
        sampling,
        stop,
        tuple(unused),
        template_vars,
        samples,
        logprobs,
        tuple(turns),
        endpoint,
        continues,
        echo,
        answers,
        fail_below,
        truncate,
    )


def parse_plain(fields: Mapping[str, Any], prompt_field: str | None = None) -> LineRequest:
    """The request of a row whose fields are texts (CSV, TSV, lines): only the prompt is taken from it."""
    others = {name: value for name, value in fields.items() if name not in _ID_FIELDS}
    name = _prompt_name(others, prompt_field, COMPLETIONS)
    unused = tuple(field for field in others if field != name)
    return LineRequest(_prompt_text(name, others[name]), {}, None, unused)


def request_of(content: Content) -> LineRequest:
    """The request of a row whose prompt a template made: all settings come from the command."""
    return LineRequest(content, {}, None, ())


def _fields(record: Mapping[str, Any]) -> tuple[dict[str, Any], list[str], str]:
    """The fields of the request, names of ignored fields, and the endpoint.

    In OpenAI's batch format ({"custom_id", "method", "url", "body"}) the request is `body`, without `model`,
    which the format requires and which is ignored here.
    """
    fields = {name: value for name, value in record.items() if name not in _ID_FIELDS}
    body = fields.get("body")
    if "url" not in fields or not isinstance(body, dict):
        return fields, [], CHAT
    for name, allowed in (("url", (CHAT, COMPLETIONS)), ("method", ("POST",))):
        value = fields.get(name, "POST")
        if value not in allowed:
            reject(f"{name}: must be {' or '.join(map(repr, allowed))} (got {value!r:.60})")
    unused = [name for name in fields if name not in ("method", "url", "body")]
    asked = dict(body)
    return asked, unused if asked.pop("model", None) is None else [*unused, "model"], fields["url"]


def require_openai(record: Mapping[str, Any]) -> None:
    """Raise LineError unless the line is of OpenAI's batch format."""
    for name in ("custom_id", "url", "body"):
        if name not in record:
            reject(f"{name}: missing; lines of OpenAI's batch format have custom_id, method, url and body")


def _prompt_name(fields: Mapping[str, Any], prompt_field: str | None, endpoint: str) -> str:
    """The name of the field with the prompt."""
    if prompt_field is not None:
        if prompt_field not in fields:
            reject(f"{prompt_field}: missing, but given by --prompt-field (got {names_of(fields)})")
        return prompt_field
    if endpoint == COMPLETIONS and "prompt" in fields:
        return "prompt"
    for names in PROMPT_FIELDS:
        given = [name for name in names if name in fields]
        if len(given) > 1:
            reject(f"{given[1]}: must not be given together with {given[0]}; choose one with --prompt-field")
        if given:
            return given[0]
    reject(
        f"prompt: missing (got {names_of(fields)}); choose another field with --prompt-field, or write the "
        "prompt with --prompt"
    )


def _prompt_text(name: str, value: object) -> str:
    text = _text(name, value)
    if not text:
        reject(f"{name}: must have at least one character (got none)")
    return text


def completion_prompt(value: object) -> str | list[int]:
    """The prompt of /v1/completions: a text, ids, or a list of one of these. Raises LineError."""
    if isinstance(value, list) and value and not isinstance(value[0], int):
        if len(value) > 1:
            reject(f"prompt: must be one prompt (got a list of {len(value)}); write one line for each")
        value = value[0]
    if isinstance(value, list) and value:
        try:
            return validate_ids(value)
        except RequestError as error:
            reject(str(error))
    return _prompt_text("prompt", value)


def _turns(value: object) -> list[str]:
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_TURNS:
        reject(f"turns: must be a list of 1 to {MAX_TURNS} texts (got {value!r:.40})")
    return [_prompt_text(f"turns[{number}]", text) for number, text in enumerate(value)]


def _samples(fields: dict[str, Any]) -> int | None:
    value = fields.pop("n", None)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_SAMPLES:
        reject(f"n: must be an integer from 1 to {MAX_SAMPLES} (got {value!r:.40})")
    return value


def _logprobs(fields: dict[str, Any], endpoint: str) -> int | None:
    """The candidates to record: from logprobs and top_logprobs, of which the chat's logprobs is a switch."""
    value, top = fields.pop("logprobs", None), fields.pop("top_logprobs", None)
    if value is None or value is False:
        if top:
            reject(f"top_logprobs: requires logprobs: true (got {top!r:.40})")
        return None
    count, name = (value, "logprobs") if value is not True else (top or 0, "top_logprobs")
    if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= MAX_LOGPROBS:
        reject(f"{name}: must be an integer from 0 to {MAX_LOGPROBS} (got {count!r:.40})")
    return count


def _fail_below(fields: dict[str, Any]) -> float | None:
    value = fields.pop("fail_below", None)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        reject(f"fail_below: must be a number from 0 to 1 (got {value!r:.40})")
    return float(value)


def _truncate(fields: dict[str, Any]) -> int | None:
    value = fields.pop(TRUNCATE, None)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or (value < 1 and value != -1):
        reject(f"{TRUNCATE}: must be a positive integer, or -1 for what fits (got {value!r:.40})")
    return value


def _switch(fields: dict[str, Any], name: str, *, default: bool) -> bool:
    value = fields.pop(name, None)
    if value is None:
        return default
    if not isinstance(value, bool):
        reject(f"{name}: must be true or false (got {value!r:.40})")
    return value


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
        if message.get("tool_calls"):
            reject(f"{field}.tool_calls: not supported; give the text of the call as content")
        if "content" not in message:
            reject(f"{field}.content: must be a string (missing)")
        known = ("role", "content", *THOUGHT_FIELDS)
        unused |= {f"messages[].{name}": None for name in message if name not in known}
        thought = next((name for name in THOUGHT_FIELDS if message.get(name) is not None), "")
        reasoning = _text(f"{field}.{thought}", message[thought]) if thought else ""
        content = _content(f"{field}.content", message["content"])
        messages.append(Message(_ROLES[role], content, reasoning))
    return messages, list(unused)


def _content(field: str, value: object) -> str:
    """The text of a message: a string, or a list of parts of type text, which are joined."""
    if not isinstance(value, list) or not value:
        return _text(field, value)
    texts = []
    for number, part in enumerate(value):
        if not isinstance(part, dict) or part.get("type") != "text":
            kind = part.get("type") if isinstance(part, dict) else part
            reject(f"{field}[{number}].type: must be 'text' (got {kind!r:.40})")
        texts.append(_text(f"{field}[{number}].text", part.get("text")))
    return "".join(texts)


def _with_system(content: Content, value: object, endpoint: str) -> Content:
    """The prompt with the system message of the field `system`; null and "" are none."""
    if value is None or value == "":
        return content
    message = Message(Role.SYSTEM, _text("system", value))
    if endpoint == COMPLETIONS:
        reject(f"system: not possible with {COMPLETIONS}, which uses no chat template (got {value!r:.40})")
    messages = [Message(Role.USER, content)] if isinstance(content, str) else content
    if any(isinstance(part, Message) and part.role is Role.SYSTEM for part in messages):
        reject(f"system: must not be given together with a system message (got {value!r:.40})")
    return [message, *(part for part in messages if isinstance(part, Message))]


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
    for name in [name for name in SAMPLING_FIELDS if name in fields]:
        field, value = SAMPLING_FIELDS[name], fields.pop(name)
        if value is None:
            continue
        if field in names:
            reject(f"{name}: must not be given together with {names[field]}")
        if field == "logit_bias" and isinstance(value, dict):
            value = _bias_pairs(value)
        if field == "think":
            value = _THINK.get(value, value) if isinstance(value, str | bool) else value
        try:
            Sampling(**{field: value})
        except ValueError as error:
            reject(f"{name}: {str(error).removeprefix(f'{field}: ')}")
        names[field], sampling[field] = name, value
    return sampling


def _grammar(fields: dict[str, Any], flexible: bool) -> dict[str, Any]:
    """What the answer must match, as the field `grammar` of Sampling; {} if the line does not say it."""
    try:
        is_said, grammar = grammar_of(fields, flexible=flexible)
    except ValueError as error:
        reject(str(error))
    return {"grammar": grammar} if is_said else {}


def _bias_pairs(value: dict[str, Any]) -> list[list[Any]]:
    """OpenAI's form of logit_bias, {"id": number}, as pairs."""
    for id in value:
        if not (id.isascii() and id.isdigit() and len(id) <= 10):
            reject(f"logit_bias: must have token ids as keys (got {id!r:.40})")
    return [[int(id), bias] for id, bias in value.items()]


def _reject_misspelled(name: str) -> None:
    """Reject a misspelled sampling field, which the run would ignore silently."""
    for field in difflib.get_close_matches(name.lower(), _OFTEN_MISSPELLED, 1, _SIMILAR):
        reject(f"{name}: unknown field; did you mean {field}? If not, rename it")
