"""The models of this machine in `llm` (https://llm.datasette.io): `llm -m ropechat 'What is RoPE?'`.

llm loads this module at each start, so it imports the engine when a model is first used.
"""

import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import llm
from llm.parts import TextPart
from pydantic import Field

if TYPE_CHECKING:
    from ropechat.conversation import Message
    from ropechat.engine.engine import Engine

_LOCK = threading.Lock()
_ENGINES: "dict[tuple[Any, ...], Engine]" = {}
"""The loaded model, by its options: one at a time."""


@llm.hookimpl
def register_models(register: Callable[..., None]) -> None:
    """Register `ropechat`, whose option `model` names any model, and `ropechat/NAME` for downloaded ones."""
    register(RopeChat("ropechat", None))
    for name in _downloaded():
        register(RopeChat(f"ropechat/{name}", name))


def _downloaded() -> list[str]:
    """The names of the complete models in the Hub's cache."""
    from ropechat.errors import RopechatError
    from ropechat.models.hub.cached_models import list_cached

    try:
        return [str(one.name) for one in list_cached() if not one.missing]
    except (RopechatError, OSError):
        return []


class RopeChat(llm.Model):
    """A model of this machine. name: as for `ropechat -m`; None takes the option `model`."""

    can_stream = True
    supports_schema = True

    class Options(llm.Options):
        """Options (`-o NAME VALUE`); those that are not given are as for `ropechat run`."""

        model: str | None = Field(None, description="Folder, .gguf file, Hub id, or builtin")
        temperature: float | None = Field(None, description="Randomness; 0 is greedy")
        top_k: int | None = Field(None, description="Keep the k most probable tokens; 0 keeps all")
        top_p: float | None = Field(None, description="Keep the smallest set that reaches this probability")
        min_p: float | None = Field(None, description="Keep tokens with this share of the best one's")
        repetition_penalty: float | None = Field(None, description="Penalty on repeated tokens; 1 is off")
        max_tokens: int | None = Field(None, description="Maximum number of new tokens")
        seed: int | None = Field(None, description="Makes sampling repeatable")
        stop: str | None = Field(None, description="A text that ends the answer")
        logprobs: int | None = Field(None, description="Candidates to record per token, 0 to 20")
        dtype: str | None = Field(None, description="Type of the weights: f32, bf16, q8_0, ...")
        context: int | None = Field(None, description="Maximum tokens of a conversation")
        threads: int | None = Field(None, description="Number of threads")

    def __init__(self, model_id: str, name: str | None) -> None:
        self.model_id = model_id
        self._name = name

    def execute(self, prompt: Any, stream: bool, response: Any, conversation: Any) -> Iterator[str]:
        """Yield the answer's text; response_json has its logprobs, and how sure JSON is."""
        from ropechat.engine.certainty import Answer
        from ropechat.errors import RopechatError
        from ropechat.sampling import Sampling
        from ropechat.sampling.grammar import Grammar

        given = prompt.options.model_dump(exclude_none=True)
        stop, count = given.pop("stop", None), given.pop("logprobs", None)
        try:
            with _LOCK:
                engine = _engine(given, self._name)
            grammar = None if prompt.schema is None else Grammar.json_schema(_as_schema(prompt.schema))
            sampling = Sampling(**{**engine.own_sampling, **given}, grammar=grammar)
            messages = list(_messages(prompt.messages))
            stops, top_k = None if stop is None else [stop], count or int(grammar is not None)
            ids = engine.prompt_ids(messages, None, sampling.thinking)
            made, texts, reason = [], [], "cancelled"
            for step in engine.reply(messages, sampling, stop=stops, top_k=top_k):
                made.append(step)
                reason = step.finish_reason or reason
                if stream:
                    yield step.text
                else:
                    texts.append(step.text)
            thought = [step.id for step in made if step.channel != "answer"]
            sure = grammar and engine.certainty([*ids, *thought], Answer.of_steps(made), grammar)
        except (RopechatError, ValueError) as error:
            raise llm.ModelError(str(error)) from None
        if not stream:
            yield "".join(texts)
        response.set_resolved_model(engine.name)
        response.set_usage(input=len(ids), output=len(made))
        response.response_json = {"finish_reason": reason, **(sure or {})}
        if count is not None:
            response.response_json["logprobs"] = [_token(engine, step, count) for step in made]


def _as_schema(schema: Any) -> dict[str, Any]:
    """A schema as llm gives it, a mapping or a pydantic model."""
    found: dict[str, Any] = schema if isinstance(schema, dict) else schema.model_json_schema()
    return found


def _engine(given: dict[str, Any], name: str | None) -> "Engine":
    """Remove the model's options from `given`; load that model unless it is loaded."""
    import os

    from ropechat.engine.engine import Engine

    model = given.pop("model", None) or name or os.environ.get("ROPECHAT_MODEL") or "builtin"
    options = {field: given.pop(field) for field in ("dtype", "context", "threads") if field in given}
    key = (model, *sorted(options.items()))
    if key not in _ENGINES:
        _ENGINES.clear()
        _ENGINES[key] = Engine.load(model, **options)
    return _ENGINES[key]


def _messages(messages: Any) -> "Iterator[Message]":
    """The conversation as messages of ropechat. Raises ModelError for what is not text."""
    from ropechat.conversation import Message, Role

    for message in messages:
        texts = [part.text for part in message.parts if isinstance(part, TextPart)]
        if len(texts) < len(message.parts) or message.role not in ("system", "user", "assistant"):
            raise llm.ModelError(f"{message.role}: must be text; images and tools are not supported")
        yield Message(Role(message.role), "".join(texts))


def _token(engine: "Engine", step: Any, count: int) -> dict[str, Any]:
    """A token as in batch's records."""
    top = [
        [id, logprob, engine.token_bytes(id).decode("utf-8", "replace")] for id, logprob in step.top[:count]
    ]
    return {"id": step.id, "token": step.text, "logprob": step.logprob, "top": top}
