"""The models of this machine in inspect_ai: `inspect eval task.py --model ropechat/builtin`.

Samples that run at the same time are computed in the same forward passes. `-M` takes window (how many, 32 by
default) and the options of `Engine.load`. A model at a path: `--model ropechat/./folder`. With a
`response_schema` the metadata of each message says how sure its fields are: see `ropechat.engine.certainty`.
"""

import asyncio
from typing import TYPE_CHECKING, Any

from inspect_ai.model import (
    ChatCompletionChoice,
    ChatMessage,
    ChatMessageAssistant,
    GenerateConfig,
    Logprob,
    Logprobs,
    ModelAPI,
    ModelOutput,
    ModelUsage,
    TopLogprob,
    modelapi,
)
from inspect_ai.tool import ToolChoice, ToolInfo

if TYPE_CHECKING:
    from ropechat.conversation import Message
    from ropechat.engine.scheduler import Completion, Job

_WINDOW = 32
_SETTINGS = {"max_tokens": "max_tokens", "temperature": "temperature", "top_p": "top_p", "top_k": "top_k"}
_REASONS = {"stop": "stop", "length": "max_tokens", "context": "model_length"}
_REFUSED = ("frequency_penalty", "presence_penalty", "best_of", "prompt_logprobs")


@modelapi(name="ropechat")
class RopeChatAPI(ModelAPI):
    """A model of this machine. window: samples in one forward pass. options: of `Engine.load`."""

    def __init__(
        self,
        model_name: str,
        base_url: str | None = None,
        api_key: str | None = None,
        config: GenerateConfig = GenerateConfig(),  # noqa: B008  (as in the base class)
        window: int = _WINDOW,
        **options: Any,
    ) -> None:
        super().__init__(model_name, base_url, api_key, [], config)
        from ropechat.engine.collector import Collector
        from ropechat.engine.engine import Engine

        self._engine: Engine = Engine.load(model_name, **options)
        self._window = window
        self._collector = Collector(self._engine, window)

    def max_connections(self) -> int:
        """How many samples inspect_ai may send at the same time: two windows keep one full."""
        return 2 * self._window

    def connection_key(self) -> str:
        """The scope of max_connections: this model."""
        return f"ropechat/{self.model_name}"

    def close(self) -> None:
        """Stop, and release the weights."""
        self._collector.close()
        self._engine.close()

    async def generate(
        self, input: list[ChatMessage], tools: list[ToolInfo], tool_choice: ToolChoice, config: GenerateConfig
    ) -> ModelOutput:
        """Answer messages. Raises ValueError for what ropechat does not offer, RopechatError."""
        if tools:
            raise ValueError("ropechat: tools are not supported")
        refused = [name for name in _REFUSED if getattr(config, name, None) is not None]
        if refused:
            raise ValueError(f"ropechat: {', '.join(refused)}: not supported")
        messages = [_message(message) for message in input]
        jobs = [_job(messages, config, number) for number in range(config.num_choices or 1)]
        futures = [asyncio.wrap_future(self._collector.submit(job)) for job in jobs]
        completions = await asyncio.gather(*futures)
        prompt, cached = completions[0].prompt_tokens, completions[0].cached_tokens
        made = sum(completion.completion_tokens for completion in completions)
        return ModelOutput(
            model=self._engine.name,
            choices=[self._choice(completion, config) for completion in completions],
            usage=ModelUsage(
                input_tokens=prompt,
                output_tokens=made,
                total_tokens=prompt + made,
                input_tokens_cache_read=cached,
            ),
        )

    def _choice(self, completion: "Completion", config: GenerateConfig) -> ChatCompletionChoice:
        message = ChatMessageAssistant(
            content=completion.text,
            model=self._engine.name,
            source="generate",
            metadata=dict(completion.certainty) or None,
        )
        reason: Any = _REASONS.get(str(completion.finish_reason), "unknown")
        logprobs = Logprobs(content=self._tokens(completion)) if config.logprobs else None
        return ChatCompletionChoice(message=message, stop_reason=reason, logprobs=logprobs)

    def _tokens(self, completion: "Completion") -> list[Logprob]:
        tops = completion.top or ((),) * len(completion.ids)
        return [
            Logprob(
                **self._token(id, logprob),
                top_logprobs=[TopLogprob(**self._token(other, value)) for other, value in top] or None,
            )
            for id, logprob, top in zip(completion.ids, completion.logprobs, tops, strict=True)
        ]

    def _token(self, id: int, logprob: float) -> dict[str, Any]:
        data = self._engine.token_bytes(id)
        return {"token": data.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(data)}


def _message(message: ChatMessage) -> "Message":
    from ropechat.conversation import Message, Role

    if isinstance(message.content, list) and any(part.type != "text" for part in message.content):
        raise ValueError(f"ropechat: {message.role}: must be text; images and files are not supported")
    return Message(Role(message.role), message.text)


def _job(messages: "list[Message]", config: GenerateConfig, number: int) -> "Job":
    """The job of a choice. A seed of the task is that of the first choice; the others follow from it."""
    from ropechat.batch.seeds import row_seed
    from ropechat.engine.scheduler import Job
    from ropechat.engine.validation import choose_seed
    from ropechat.sampling import Sampling
    from ropechat.sampling.grammar import Grammar

    given = {ours: getattr(config, theirs) for ours, theirs in _SETTINGS.items()}
    given = {name: value for name, value in given.items() if value is not None}
    if config.logit_bias:
        given["logit_bias"] = tuple((int(id), bias) for id, bias in config.logit_bias.items())
    if config.response_schema is not None:
        schema = config.response_schema.json_schema.model_dump(exclude_none=True, by_alias=True)
        given["grammar"] = Grammar.json_schema(schema)
    seed = choose_seed(Sampling(seed=config.seed))
    given["seed"] = seed if number == 0 else row_seed(seed, "choice", number)
    top_k = (config.top_logprobs or 0) if config.logprobs else 0
    certainty = "grammar" in given
    return Job(messages, Sampling(**given), config.stop_seqs or None, top_k=top_k, certainty=certainty)
