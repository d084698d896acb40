"""A model of this machine in lm-evaluation-harness: `ropechat eval -m MODEL --tasks TASK`.

Importing this module registers the model `ropechat`, so that `lm_eval.simple_evaluate(model="ropechat", ...)`
knows it.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from tqdm import tqdm

from ropechat.sampling import SETTINGS

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance

    from ropechat.engine.scheduler import Job

_MAX_GEN_TOKS = 256
_SETTINGS = [name for name in SETTINGS if name != "max_tokens"]
_SEED = 1234  # as the harness's own seeds

Tokens = tuple[tuple[str, str] | None, Sequence[int], Sequence[int]]
"""(context, continuation) as texts if the score is to be cached; the ids of both."""


@register_model("ropechat")
class RopeChatLM(TemplateLM):
    """A model for the harness.

    model: as for `ropechat -m`. window: requests in one forward pass. max_length: tokens of a context with
    its continuation, by default the trained length. add_bos_token: None does what the tokenizer says.
    options: of `Engine.load`. batch_size and device are the harness's own; they change nothing.
    """

    def __init__(
        self,
        model: str = "builtin",
        window: int = 16,
        max_length: int | None = None,
        max_gen_toks: int = _MAX_GEN_TOKS,
        add_bos_token: bool | None = None,
        batch_size: object = None,
        max_batch_size: object = None,
        device: object = None,
        **options: Any,
    ) -> None:
        super().__init__()
        from ropechat.engine.engine import Engine

        self._engine = Engine.load(model, **options)
        self._window, self._bos = int(window), add_bos_token
        self._max_gen_toks = int(max_gen_toks)
        self._max_length = int(max_length or self._engine.window)

    # ---- questions of the harness about the model

    @property
    def eot_token_id(self) -> int:
        """The id that ends a text; the context of a text without one."""
        return min(self._engine.stop_ids, default=0)

    @property
    def prefix_token_id(self) -> int:
        """The id before a text: BOS, else the id that ends a text."""
        bos = self._engine.tokenizer.bos_id
        return self.eot_token_id if bos is None else bos

    @property
    def max_length(self) -> int:
        """Tokens of a context with its continuation."""
        return self._max_length

    @property
    def max_gen_toks(self) -> int:
        """New tokens of a generation that does not say how many."""
        return self._max_gen_toks

    @property
    def tokenizer_name(self) -> str:
        """Distinguishes cached requests of different models."""
        return self._engine.name.replace("/", "__")

    def get_model_info(self) -> dict[str, Any]:
        """What the results say about the model."""
        return {
            f"model_{name}": value for name, value in self._engine.trace_facts(0).items() if name != "top_k"
        }

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Encode a text; BOS is added as the tokenizer says, but never before one that the text has."""
        bos = self._engine.tokenizer.bos_id
        if add_special_tokens is None:
            starts = "" if bos is None else self._engine.token_bytes(bos).decode("utf-8", "replace")
            special = self._engine.tokenizer.token(bos) if bos is not None else None
            has_bos = any(name and string.startswith(name) for name in (starts, special))
            add_special_tokens = False if has_bos else self._bos is not False
        ids = self._engine.tokenizer.encode(string, add_special_tokens=add_special_tokens)
        if self._bos and add_special_tokens and bos is not None and ids[:1] != [bos]:
            ids.insert(0, bos)
        return ids

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """The source of the chat template; a name chooses one of several."""
        if isinstance(chat_template, str):
            self._engine.prompts.use(chat_template)
        template = self._engine.prompts.template
        return None if template is None or chat_template is False else template.source

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """Render a conversation. Without a generation prompt, the last message is the answer's beginning."""
        from ropechat.conversation import Message, Role
        from ropechat.errors import RequestError

        template = self._engine.prompts.template
        if template is None:
            raise RequestError("chat_template: this model has none; omit --apply_chat_template")
        messages = [Message(Role(turn["role"]), turn["content"]) for turn in chat_history]
        if add_generation_prompt or messages[-1].role is not Role.ASSISTANT:
            return template.render(messages)
        return template.render(messages[:-1]) + messages[-1].content

    # ---- requests

    def _loglikelihood_tokens(
        self, requests: list[Tokens], disable_tqdm: bool = False, **other: Any
    ) -> list[tuple[float, bool]]:
        results: list[tuple[float, bool]] = []
        progress = tqdm(total=len(requests), desc="Scoring", disable=disable_tqdm)
        scores = self._engine.score_many(self._pairs(requests), window=self._window)
        for (_, score), (texts, *_) in zip(scores, requests, strict=True):
            if score.error is not None:
                raise score.error
            answer = (score.logprob, score.is_greedy)
            results.append(answer)
            if texts is not None:
                self.cache_hook.add_partial("loglikelihood", texts, answer)
            progress.update()
        progress.close()
        return results

    def _pairs(self, requests: list[Tokens]) -> Iterator[Any]:
        """Yield what is scored: the end of the context that fits, and the continuation."""
        from ropechat.trace import Pair

        for _, context, continuation in requests:
            ids = [*context, *continuation][-self._max_length :]
            if len(ids) == 1:
                ids.insert(0, self.prefix_token_id)
            # A token across the boundary leaves no continuation: then that token is scored.
            count = min(max(1, len(continuation)), len(ids) - 1)
            yield Pair(ids[:-count], ids[-count:])

    def loglikelihood_rolling(self, requests: "list[Instance]", disable_tqdm: bool = False) -> list[float]:
        """The logprob of whole texts, in windows of `max_length` tokens without overlap."""
        windows: list[Tokens] = []
        counts: list[int] = []
        for request in requests:
            pairs = [
                make_disjoint_window(pair)
                for pair in get_rolling_token_windows(
                    self.tok_encode(request.args[0], add_special_tokens=False),
                    self.prefix_token_id,
                    self._max_length - 1,
                    1,
                )
            ]
            windows += [(None, *pair) for pair in pairs]
            counts.append(len(pairs))
        scores = iter(self._loglikelihood_tokens(windows, disable_tqdm))
        results = []
        for request, count in zip(requests, counts, strict=True):
            results.append(sum(next(scores)[0] for _ in range(count)))
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, results[-1])
        return results

    def generate_until(self, requests: "list[Instance]", disable_tqdm: bool = False) -> list[str]:
        """Continue contexts until one of the texts in `until`; greedy unless the task samples."""
        results: list[str] = []
        progress = tqdm(total=len(requests), desc="Generating", disable=disable_tqdm)
        jobs = (self._job(*request.args) for request in requests)
        for number, completion in self._engine.generate_many(jobs, window=self._window):
            if completion.error is not None:
                raise completion.error
            results.append(completion.text)
            self.cache_hook.add_partial("generate_until", requests[number].args, completion.text)
            progress.update()
        progress.close()
        return results

    def _job(self, context: str, asked: dict[str, Any]) -> "Job":
        from ropechat.engine.scheduler import Job
        from ropechat.sampling import Sampling

        until = asked.get("until") or []
        stops = [until] if isinstance(until, str) else list(until)
        count = int(asked.get("max_gen_toks") or asked.get("max_new_tokens") or self._max_gen_toks)
        count = min(count, self._max_length - 1)
        given = {name: asked[name] for name in _SETTINGS if asked.get(name) is not None}
        if not asked.get("do_sample", bool(given.get("temperature"))):
            given["temperature"] = 0.0
        ids = self.tok_encode(context)[-(self._max_length - count) :]
        sampling = Sampling(**{"top_k": 0, "top_p": 1.0, "seed": _SEED, **given}, max_tokens=count)
        return Job(ids, sampling, [stop for stop in stops if stop])
