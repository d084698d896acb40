"""The engine in Python: from text, ids or messages to steps, traces and completions.

The compiled engine `ropechat.engine._core` does the computation, without the GIL; this module adds tokenizer,
chat template, stop strings, cancellation and the inspector's records.
"""

from __future__ import annotations

import sys
import threading
import time
import weakref
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Self, Unpack

from ropechat.conversation import Message, Role
from ropechat.engine import inside, loading
from ropechat.engine.breakers import BreakerFinder
from ropechat.engine.convert import (
    softmax_rows,
    to_step,
    token_bytes,
)
from ropechat.engine.grammars import GrammarCompiler
from ropechat.engine.loading import (
    check_draft,
    display_name,
    find_revision,
    find_stop_ids,
    load_chat_template,
    load_tokenizer,
)
from ropechat.engine.native import (
    LoadOptions,
    ModelLoad,
    ProgressMeter,
    Request,
    attention_growth,
    gguf_metadata,
    load_core,
)
from ropechat.engine.prefill import Prefill, SharedPrefix, common_prefix
from ropechat.engine.prompt import Bos, PromptBuilder, Special
from ropechat.engine.reasoning import ReplyText, Thoughts, channels_of
from ropechat.engine.validation import (
    CLOSED,
    choose_seed,
    split_prompt,
    validate_array_size,
    validate_ids,
    validate_many,
    validate_messages,
    validate_stops,
    validate_stride,
    validate_top_k,
    validate_window,
)
from ropechat.errors import CancelledError, ContextFullError, InternalError, RequestError, RopechatError
from ropechat.models.recommended import own_sampling
from ropechat.models.resolve import resolve
from ropechat.models.speed import Speed, count_products, keep_speed, load_speed
from ropechat.sampling import AUTO, Sampling, Thinking
from ropechat.trace import Channel, LensRow, Pair, Score, Step, TokenDistribution, TokenScore, Trace

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    import numpy.typing as npt

    from ropechat.engine import _core
    from ropechat.engine.certainty import Answer, Certainty, CertaintyReader
    from ropechat.engine.scheduler import Completion, Job, Prompt, RunState
    from ropechat.engine.score_input import ScoreInput, ScoreItem, TokenBuffer
    from ropechat.engine.scoring import Encode, ScorePool, ScoreStream, Window
    from ropechat.sampling.grammar import Grammar
    from ropechat.tokenizer import Tokenizer

OnPrefill = Callable[[int, int], None]


class SpelledToken(NamedTuple):
    """What a token of a reply says, as in its Step."""

    bytes: bytes
    text: str
    reasoning: str
    channel: Channel


class Engine:
    """A loaded model. Thread-safe; requests run concurrently.

    facts: values by config.json's names (model_type, vocab_size, ...) and dtype, threads, isa, context,
    num_parameters, weight_bytes. context: maximum tokens of a sequence. name: the model's display name.
    revision: its commit, None outside the Hub's cache. stop_ids: ids that end a text. tokenizer: see
    `Tokenizer`; without tokenizer.json only ids work. prompts: converts messages to prompts, see
    `PromptBuilder`. progress: how far a prompt is read, see `ProgressMeter`.
    """

    def __init__(
        self,
        core: _core.Engine,
        folder: Path,
        tokenizer: Tokenizer,
        grammars: GrammarCompiler | None = None,
        progress: ProgressMeter | None = None,
        *,
        use_cache: bool = False,
    ) -> None:
        """Use `Engine.load`."""
        self._folder, self._use_cache = folder, use_cache
        self._speed: Speed | None = None
        self.progress = progress or ProgressMeter()
        self._core: _core.Engine | None = core
        self._module = load_core()
        self.facts: Mapping[str, Any] = MappingProxyType(dict(core.facts))
        self.progress.growth = attention_growth(self.facts)
        self.context: int = self.facts["context"]
        self.name, self.revision = display_name(folder), find_revision(folder)
        self.tokenizer = tokenizer
        template = load_chat_template(folder, tokenizer) if tokenizer.present else None
        self.stop_ids = find_stop_ids(folder, self.facts, tokenizer, template)
        self.prompts = PromptBuilder(tokenizer, template, tokenizer.control_ids | self.stop_ids)
        self._grammars = grammars or GrammarCompiler(tokenizer, self.facts["vocab_size"], self.stop_ids)
        self._breakers = BreakerFinder(tokenizer)
        self._shared_prefix: SharedPrefix | None = None
        self._requests: weakref.WeakSet[Request] = weakref.WeakSet()
        self._lock = threading.Lock()

    @classmethod
    def load(cls, model: str | Path, **options: Unpack[LoadOptions]) -> Engine:
        """Load a model by any name that `models.resolve.resolve` accepts; never downloads.

        dtype: f32 (computes in f32 throughout), bf16, f16, q8_0, q6_k, q5_1, q5_k, q4_1, q4_k, q4_0, q3_k,
        q2_k, or auto: as stored if that fits in memory, else the largest type that does (with an entry in
        facts["warnings"]). kv_dtype: type of the KV cache: f32, f16, bf16, q8_0 (about half of f16), or auto:
        f32 for f32 weights, else bf16 where its products are fast (AMD processors with AVX-512 BF16), else
        f16. threads: default the physical cores. context: maximum tokens of a
        sequence; default the model's, at most 8192. prefix_bytes: bytes of KV cache that are kept of ended
        sequences, for prompts that begin like them; default what the context takes, at least 64 MB.
        speculative: whether tokens are drafted and computed together: auto (where that is faster), off,
        always; results are the same. Drafts come from what the text repeats (prompt look-up), and from
        draft: a smaller model with the same tokenizer, by its name, loaded with the same dtype; without one
        from the model's layer for multi-token prediction, if it has one. cache: auto, off or all; default
        ROPECHAT_CACHE: whether packed weights, a validated vocabulary, and KV caches of chats are cached on
        disk for the next start, see `ropechat.models.pack_cache`. progress: a `ProgressMeter`, to be read
        from another thread while the model loads.
        Raises ModelNotFoundError, ModelFileError, UnsupportedModelError, MemoryLimitError, RequestError.
        """
        return cls.from_load(ModelLoad(resolve(model), **options))

    @classmethod
    def from_load(cls, loading: ModelLoad, first_prompt: str = "", grammar: Grammar | None = None) -> Engine:
        """Finish a load started earlier; meanwhile, tokenize a first prompt and compile a grammar.

        Raises as `load`, and RequestError for a grammar that cannot be used.
        """
        tokenizer = loading.run_before_packing(lambda: _checked_tokenizer(loading))
        tokenizer.prepare(first_prompt)
        grammars = None
        if grammar is not None:
            grammars = _grammars(loading.folder, loading.facts, tokenizer)
            grammars.compile(grammar)
        return cls(
            loading.result(),
            loading.folder,
            tokenizer,
            grammars,
            loading.progress,
            use_cache=loading.use_cache,
        )

    def finish_pack(self, seconds: float) -> bool:
        """Write the pack cache for at most `seconds`; return whether it is written.

        What is not written then is written after later loads.
        """
        return self._core is None or self._core.finish_pack(seconds)

    check = staticmethod(loading.check)

    @property
    def own_sampling(self) -> Mapping[str, float]:
        """The settings of the sampler that the maker of this model recommends; {} without any."""
        return self.recommended()

    def recommended(self, think: str = "auto") -> Mapping[str, float]:
        """`own_sampling` of answers with this `Sampling.think`."""
        thinks = think != "off" and self.prompts.variables.get("enable_thinking") is not False
        return own_sampling(self._folder, self.name, self.facts.get("generation", {}), thinks=thinks)

    def sampling(self, **changes: Any) -> Sampling:
        """The recommended settings with these changes. Raises ValueError as `Sampling`."""
        return Sampling(**{**self.recommended(changes.get("think", "auto")), **changes})

    @property
    def speed(self) -> Speed:
        """How fast this model reads and writes here, as far as this engine or an earlier one measured it."""
        if self._speed is None:
            known = load_speed(self._folder) if self._use_cache else None
            facts, packing = self.facts, self.facts["packing_seconds"]
            same = known if known is not None and known.dtype == facts["dtype"] else Speed()
            self._speed = replace(
                same,
                packing=packing or same.packing,
                weights=facts["weight_bytes"],
                products=count_products(facts),
                growth=self.progress.growth,
                dtype=facts["dtype"],
            )
        return self._speed

    def _measured(self, speed: Speed) -> None:
        """Keep what was measured."""
        if speed != self._speed:
            self._speed = speed
            if self._use_cache:
                keep_speed(self._folder, speed)

    def prefill_estimate(self, ids: Sequence[int]) -> tuple[int, float | None]:
        """How many tokens of a prompt would be read, and in how many seconds (None: not measured yet).

        The others are in the KV cache. Nothing is computed.
        """
        ids, request = self._ids(ids), self._request()
        if len(ids) > self.context or len(ids) < 2:
            return len(ids), None
        sequence = request.core.score(ids, readout_top_k=0, start=len(ids) - 1)
        cached = request.core.reused(sequence)
        request.core.free(sequence)
        return len(ids) - cached, self.speed.seconds_to_read(cached, len(ids))

    @property
    def kv_bytes(self) -> int:
        """Bytes of KV cache currently allocated."""
        return 0 if self._core is None else self._core.kv_bytes

    def _request(self) -> Request:
        if self._core is None:
            raise RequestError(CLOSED)
        request = Request(self._core)
        with self._lock:
            self._requests.add(request)
        return request

    def cancel(self) -> None:
        """Cancel all running requests, within one layer of computation; from any thread."""
        with self._lock:
            requests = list(self._requests)
        for request in requests:
            request.token.cancel()

    def close(self) -> None:
        """Cancel all requests and release the weights. Later requests raise RequestError."""
        self.cancel()
        self._core = None

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._core is None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def rope_spec(self, length: int = 0) -> Mapping[str, Any]:
        """What the model does with positions, for texts of `length` tokens: see `_core.rope_spec`."""
        return dict(self._request().core.rope_spec(length))

    @property
    def has_chat_template(self) -> bool:
        """Whether the model has a chat template; without one, `reply` continues text."""
        return self.prompts.template is not None

    def compile(self, grammar: Grammar) -> None:
        """Compile a grammar ahead of its use. Raises RequestError if it cannot be used."""
        self._grammars.compile(grammar)

    def prompt_ids(
        self,
        messages: Sequence[Message | Mapping[str, str]],
        template_vars: Mapping[str, Any] | None = None,
        thinking: Thinking = AUTO,
    ) -> list[int]:
        """The prompt of `reply` as ids: the rendered conversation, with one BOS if the model has one.

        Without a chat template the texts are concatenated. thinking: of the `Sampling`. Raises as
        `PromptBuilder.ids`.
        """
        return self.prompts.ids(validate_messages(messages), template_vars, "", thinking)

    def certain_ids(self, messages: Sequence[Message], thinking: Thinking = AUTO) -> list[int]:
        """The ids that all prompts have in common which add one question to these messages.

        Raises as `prompt_ids`.
        """
        first, second = (
            self.prompt_ids([*messages, Message(Role.USER, text)], None, thinking) for text in ("a", "1")
        )
        return common_prefix(first, second)

    @property
    def thinks(self) -> bool:
        """Whether the model may think before it answers."""
        return self.prompts.thoughts is not None

    @property
    def closing_ids(self) -> list[int]:
        """The ids that close a thought: a `prefix` that ends with them goes on with the answer."""
        thoughts = self.prompts.thoughts
        return [] if thoughts is None else list(thoughts.closing_ids)

    @property
    def cache_key(self) -> str | None:
        """What keys and values on disk depend on beside the tokens; None if none may be written."""
        return None if self._core is None else self._core.cache_key()

    def begin_prefill(self, ids: Sequence[int]) -> Prefill:
        """Read ids into the KV cache, pass by pass, for a later request that begins with them."""
        return Prefill(self._request(), validate_ids(ids))

    def share_prefix(self, path: Path) -> SharedPrefix:
        """Take what later prompts begin with in common from a file, when the first of them comes.

        What `generate_many`, `score`, `score_stream` and `score_many` read counts. path: from `prefix_path`.
        """
        self._shared_prefix = SharedPrefix(self.begin_prefill, path)
        return self._shared_prefix

    def _sharing(self, planned: Iterator[Window]) -> Iterator[Window]:
        """Yield the windows of a text; the context of the first is added to the shared prefix."""
        for window in planned:
            if self._shared_prefix is not None and window.begin == 0:
                self._shared_prefix.add(window.ids[: window.start])
            yield window

    def token_bytes(self, id: int) -> bytes:
        """The bytes of a token; b"" for an id without text."""
        return token_bytes(self.tokenizer, id)

    def _ids(self, prompt: str | Sequence[int]) -> list[int]:
        """Encode text, with special tokens as the tokenizer says; ids stay as they are."""
        ids = self.tokenizer.encode(prompt) if isinstance(prompt, str) else validate_ids(prompt)
        if not ids:
            raise RequestError("prompt: must have at least one token (got none)")
        return ids

    def _any_ids(
        self,
        prompt: Prompt,
        template_vars: Mapping[str, Any] | None,
        prefix: str = "",
        thinking: Thinking = AUTO,
    ) -> list[int]:
        """Convert text, ids or messages to ids. prefix: the start of the reply to messages."""
        if isinstance(prompt, str | RopechatError):
            return self._ids(str(prompt))
        messages, ids = split_prompt(prompt)
        return self._ids(self.prompts.ids(messages, template_vars, prefix, thinking) if messages else ids)

    def job_ids(self, job: Job, sampling: Sampling | None = None) -> list[int]:
        """The prompt of a job as ids. sampling: of a job without its own. Raises as `generate_many`."""
        if job.ids is not None:
            return list(job.ids)
        thinking = AUTO if (own := job.sampling or sampling) is None else own.thinking
        return self._any_ids(job.prompt, job.template_vars, job.prefix, thinking)

    def logits(self, ids: Sequence[int], *, start_position: int = 0) -> npt.NDArray[np.float32]:
        """Raw logits at every position.  # float32 [len(ids), vocab_size]

        Row t predicts the token after ids[t]. start_position: position of ids[0], to test how far a model
        depends on absolute positions. Raises MemoryLimitError above 1 GiB (`score` takes any
        length), ContextFullError, RequestError, CancelledError.
        """
        import numpy  # noqa: F401  the core would import it in its call, and abort where Python ends meanwhile

        ids = self._ids(ids)
        validate_array_size(len(ids), self.facts["vocab_size"])
        request = self._request()
        if start_position < 0:
            raise RequestError(f"start_position: must be at least 0 (got {start_position})")
        return request.core.logits(ids, request.token, start_position=start_position)

    def lens(
        self,
        prompt: str | Sequence[int],
        layers: Iterable[int] | None = None,
        top_k: int = 5,
        *,
        look_up: Sequence[int] = (),
    ) -> Iterator[LensRow]:
        """Yield what each layer would predict, were it the last one (logit lens), by token and layer.

        For each token but the first, and for the token after the last: final norm and lm_head of the residual
        stream after each of `layers` (numbered from 0; None: all), read out as `score` does. The last layer
        has the numbers of `score`. look_up: ids whose logprob and rank each row has, too. Raises as
        `generate`, RequestError, CancelledError.
        """
        ids = self._ids(prompt)
        validate_top_k(top_k)
        request, of_layers = self._request(), inside.layer_indices(layers, self.facts)
        return inside.lens(request, request.core.read(ids), of_layers, top_k, list(look_up))

    def capture(
        self,
        prompt: str | Sequence[int],
        layers: Iterable[int] | None = None,
        heads: Iterable[int] | None = None,
        *,
        rows: Iterable[int] | None = None,
        what: Collection[str] = ("q_pre", "k_pre", "attn_row"),
        start_position: int = 0,
    ) -> dict[str, Any]:
        """Queries and keys before rotation, attention scores and weights of some heads.

        layers, heads (query heads), rows (tokens of attn_logit and attn_row): numbers from 0; None: all.
        what: q_pre, k_pre float32 [layers, heads, tokens, head_dim], after the norm of q and k; k_pre is the
        key that the query head reads (MLA: the rotated part, then the latent). attn_logit float32 [layers,
        heads, rows, tokens]: the scores with all factors, before a softcap, -inf where masked. attn_row, same
        shape: the weights.
        start_position: position of the first token.

        Returns these arrays by name, and: layers, heads, rows, positions (int arrays); scale and
        attention_factor per layer, query_scale per token: attn_logit = scale * query_scale * (rotated q . k),
        where attention_factor multiplies cos and sin; softcap; window and rope per layer (None: none), rope
        being an index of the spec's ropes; notes: what differs in this model (MLA, sinks, windows, ...).
        Raises MemoryLimitError above 1 GiB, RequestError, ContextFullError, CancelledError.
        """
        ids, request = self._ids(prompt), self._request()
        return inside.capture(request, ids, self.facts, layers, heads, rows, what, start_position)

    def attention_by_distance(
        self,
        prompt: str | Sequence[int],
        layers: Iterable[int] | None = None,
        *,
        max_distance: int | None = None,
    ) -> dict[str, Any]:
        """Mean attention weights by distance, per layer and query head, in bounded memory.

        Returns layers (int array) and float64 arrays [layers, heads]: sink (weight of the first token) and
        previous (of the token before), both over all tokens but the first and NaN for one token; distance
        (mean distance in tokens); learned_sink (weight of a sink that the model learned, 0 without one); and
        mean [layers, heads, distances]: at index d the weight of the token d places before, over the tokens
        that have one. max_distance: last d; None: the text's. Raises as `capture`.
        """
        ids, request = self._ids(prompt), self._request()
        return inside.attention_by_distance(request, ids, self.facts, layers, max_distance)

    def logit_rows(
        self, ids: Sequence[int], *, first: int = 0
    ) -> Generator[npt.NDArray[np.float32], None, None]:
        """Raw logits from row `first` on, in blocks.  # float32 [32, vocab_size], the last one shorter

        Row t predicts the token after ids[t]. One block exists at a time, so a text may have any length, and
        two engines can be read side by side. Raises RequestError, and while reading as `logits`.
        """
        import numpy  # noqa: F401  the core would import it in its call, and abort where Python ends meanwhile

        request, ids = self._request(), self._ids(ids)
        return self._blocks(request, request.core.open_rows(ids, first))

    @staticmethod
    def _blocks(request: Request, sequence: int) -> Generator[npt.NDArray[np.float32], None, None]:
        try:
            while len(block := request.core.next_rows(sequence, request.token)):
                yield block
        finally:
            request.core.free(sequence)

    def compare_rows(
        self,
        a: npt.NDArray[np.float32],
        b: npt.NDArray[np.float32],
        next_ids: Sequence[int],
        *,
        top_k: int = 0,
        position: int = 0,
    ) -> list[_core.RowPair]:
        """Compare two blocks of logit rows over the same ids, on this engine's threads.  # [rows, vocab_size]

        next_ids: the token after each row. position: of the first row, for errors. Returns for each row the
        KL divergence both ways, the Jensen-Shannon divergence, and each side's distribution (`top_k`
        candidates), logprob and rank of the next token. Raises RequestError, and NonFiniteError that names
        the side.
        """
        validate_top_k(top_k)
        request = self._request()
        return request.core.compare_rows(a, b, next_ids, readout_top_k=top_k, position=position)

    def probabilities(self, ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """The next-token distributions of a text.  # float32 [len(ids), vocab_size], rows sum to 1

        Line by line, P <- DTransformerRoPE(x | theta) of X. Zhan, "Pseudo code for Roformer" (2024):

            Input: x in V*. Output: P in (0,1)^{N_V x length(x)}, P[:, t] = P(x[t+1] | x[1..t])
            for t in [length(x)]: e_t <- R_e(t) W_e[:, x[t]];  X <- [e_1, e_2, ...]
            for each layer:
                X <- X + W_o attention(layer_norm(X)), all heads, Mask[t', t] = [t' <= t]
                X <- X + MLP(layer_norm(X)), MLP(Z) = W_mlp2 GELU(W_mlp1 Z + b_mlp1) + b_mlp2
            X <- layer_norm(X)
            return P = softmax(W_u X)

        Returns P transposed: row t predicts the token after ids[t]; softmax in f64, rounded to f32.
        `dtransformer_rope` is computed as written. Every other family with RoPE rotates q and k in each layer
        instead of e_t; gpt2 and gpt_neo add learned positions to e_t. Raises as `logits`.
        """
        return softmax_rows(self.logits(ids))

    def generate(
        self,
        prompt: str | Sequence[int],
        sampling: Sampling | None = None,
        *,
        top_k: int = 0,
        stop: Sequence[str] | None = None,
        on_prefill: OnPrefill | None = None,
    ) -> Generator[Step, None, None]:
        """Continue a text (special tokens added as the tokenizer says) or ids (taken as they are).

        sampling: None takes the settings that the model's maker recommends. top_k: candidates to record per
        step; above 0 also the sampler's stages. stop: strings that end the text. on_prefill(done, total):
        called during prefill, in tokens; first with the number found in the cache.

        Yields one Step per token. Closing the iterator, or `cancel` from another thread, stops within one
        layer: the iterator then ends without an exception and an incomplete character is dropped.
        Raises TokenizerError, RequestError, ContextFullError, NonFiniteError, MemoryLimitError.
        """
        return self._start(self._ids(prompt), sampling or self.sampling(), top_k, stop, on_prefill)

    def reply(
        self,
        messages: Sequence[Message | Mapping[str, str]],
        sampling: Sampling | None = None,
        *,
        prefix: Sequence[int] = (),
        top_k: int = 0,
        stop: Sequence[str] | None = None,
        template_vars: Mapping[str, Any] | None = None,
        on_prefill: OnPrefill | None = None,
    ) -> Generator[Step, None, None]:
        """Generate the assistant's next turn, as `generate`. Without a chat template the texts are joined.

        messages: each a Message, or a mapping with role and content.
        prefix: ids that the turn starts with (to continue it, or to fork it at a token). They yield no Step;
        sampling continues as if the model had generated the prefix itself.
        template_vars: variables for the chat template. Raises ChatTemplateError and as `generate`.

        A model that thinks first yields the tokens of its thought, then those of its answer: see
        `Step.channel`. `stop`, the grammar and max_tokens of `sampling` are those of the answer.
        """
        sampling = sampling or self.sampling()
        ids = self._ids(self.prompt_ids(messages, template_vars, sampling.thinking))
        return self._start(ids, sampling, top_k, stop, on_prefill, prefix, self.prompts.thoughts)

    def spell(
        self,
        messages: Sequence[Message],
        ids: Sequence[int],
        after: Sequence[int] = (),
        thinking: Thinking = AUTO,
    ) -> list[SpelledToken]:
        """What each id that follows `after` in a reply to `messages` says, as in its Steps."""
        prompt, thoughts = self.prompt_ids(messages, None, thinking), self.prompts.thoughts
        whole = [*after, *validate_ids(ids)]
        channels = channels_of(thoughts, prompt, whole)
        reply = ReplyText(self.tokenizer.stream(prompt), (), thoughts)
        reply.skip(after, channels[: len(after)])
        return [
            SpelledToken(self.token_bytes(id), *reply.push(id, channel), channel)
            for id, channel in zip(whole[len(after) :], channels[len(after) :], strict=True)
        ]

    def reply_ids(
        self,
        messages: Sequence[Message],
        text: str,
        thinking: Thinking = AUTO,
    ) -> list[int]:
        """The ids of a reply to `messages` written by the user: a `prefix` for `reply`."""
        return self.prompts.reply_ids(messages, text, thinking)

    def _start(
        self,
        ids: list[int],
        sampling: Sampling,
        top_k: int,
        stop: Sequence[str] | None,
        on_prefill: OnPrefill | None,
        prefix: Sequence[int] = (),
        thoughts: Thoughts | None = None,
    ) -> Generator[Step, None, None]:
        """Validate the arguments and register the request at once, not at the first step."""
        thoughts = _divided(thoughts, ids)
        reply = ReplyText(self.tokenizer.stream(ids), validate_stops(stop), thoughts)
        given = validate_ids(prefix)
        reply.skip(given, channels_of(thoughts, ids, given))
        validate_top_k(top_k)
        return self._steps(self._request(), ids, prefix, sampling, top_k, reply, on_prefill, thoughts)

    def _steps(
        self,
        request: Request,
        ids: list[int],
        prefix: Sequence[int],
        sampling: Sampling,
        top_k: int,
        reply: ReplyText,
        on_prefill: OnPrefill | None,
        thoughts: Thoughts | None,
    ) -> Generator[Step, None, None]:
        core, given = request.core, [*ids, *prefix]
        sequence = self._add(core, given, len(ids), sampling, choose_seed(sampling), 0, top_k, thoughts)
        reused, drawn, spent = core.reused(sequence), 0, [0.0, 0.0]  # seconds of reading, of writing
        try:
            if on_prefill is not None:
                on_prefill(reused, len(given))
            while True:
                begun = time.perf_counter()
                try:
                    events = core.step([sequence], request.token)
                except CancelledError:
                    return
                spent[drawn > 0] += time.perf_counter() - begun
                if not events:
                    return
                for event in events:
                    if event.kind == "prefill" and on_prefill is not None:
                        on_prefill(event.done, event.total)
                    if event.kind == "token":
                        drawn += 1
                        step = to_step(event, reply, self.tokenizer)
                        if step.finish_reason is None and request.token.cancelled:
                            step = step._replace(finish_reason="cancelled")
                        yield step
                        if step.finish_reason is not None:
                            return
        finally:
            core.free(sequence)
            if drawn:
                read = self.speed.with_read(reused, len(given), spent[0])
                self._measured(read.with_written(drawn - 1, spent[1]))

    def _add(
        self,
        core: _core.Engine,
        ids: list[int],
        reply_start: int,
        sampling: Sampling,
        seed: int,
        stream: int,
        top_k: int,
        thoughts: Thoughts | None,
    ) -> int:
        """Add a prompt to the compiled engine; return its sequence number.

        reply_start: how many ids come before the reply, which may begin with ids that are given.
        """
        grammar = None if sampling.grammar is None else self._grammars.compile(sampling.grammar)
        return core.generate(
            ids,
            sampling,
            seed=seed,
            stream=stream,
            stop_ids=sorted(self.stop_ids),
            readout_top_k=top_k,
            grammar=grammar,
            channels=None if thoughts is None else thoughts.markers,
            is_open=thoughts is not None and thoughts.opening(ids[:reply_start]) == "open",
            reply_start=reply_start,
            breakers=self._breakers.of(sampling),
        )

    def prepared(self, job: Job) -> Job:
        """A job for `generate_many` whose prompt is encoded and whose grammar is compiled.

        Any thread may do this work, so that no forward pass waits for it. Raises what would be the error of
        its Completion.
        """
        sampling = job.sampling or self.sampling()
        if sampling.grammar is not None:
            self.compile(sampling.grammar)
        ids = self._any_ids(job.prompt, job.template_vars, job.prefix, sampling.thinking)
        return replace(job, ids=ids)

    def generate_many(
        self,
        prompts: Iterable[Prompt | Job | None],
        sampling: Sampling | None = None,
        *,
        top_k: int = 0,
        stop: Sequence[str] | None = None,
        window: int = 16,
        ordered: bool = True,
        grouped: bool = False,
        timeout: float | None = None,
        on_tokens: Callable[[int], None] | None = None,
        on_pass: Callable[[RunState], None] | None = None,
    ) -> Iterator[tuple[int, Completion]]:
        """Continue many prompts (text, ids, messages or a Job), up to `window` in each forward pass.

        Yields (index, Completion) in the prompts' order, or as they finish if not `ordered`; reads a prompt
        only when there is room for it. A common prefix of prompts is computed once. grouped: prompts
        are read up to four windows ahead, and those with a common prefix start together; this helps if
        memory cannot keep all prefixes. None in place of a prompt says that there is none now while
        others are in progress: it is asked for again after the next pass. top_k: candidates to record per
        token, in `Completion.top`. A failed prompt has its error in its Completion, and the others continue;
        an error given as a prompt is returned the same way. Sampling of prompt i depends on (seed, i) or its
        Job's seed, not on others. timeout: seconds from the start of a prompt after which it fails with a
        RowTimeoutError, looked at after each forward pass. on_tokens(n): called with the number of tokens of
        each forward pass. on_pass: called with how far all prompts are, before each pass.
        On `cancel`, started prompts finish with the reason "cancelled", then the iterator ends.
        """
        from ropechat.engine.scheduler import Scheduler

        validate_many("prompts", prompts)
        if window < 1:
            raise RequestError(f"window: must be at least 1 (got {window})")
        if timeout is not None and not timeout > 0:
            raise RequestError(f"timeout: must be above 0 (got {timeout})")
        validate_top_k(top_k)
        many = _Many(self, self._request(), sampling or self.sampling(), validate_stops(stop), top_k)
        scheduler = Scheduler(many, window, on_tokens, grouped=grouped, timeout=timeout, on_pass=on_pass)
        return scheduler.run(iter(prompts), ordered=ordered)

    def score(
        self,
        prompt: ScoreItem,
        *,
        top_k: int = 20,
        special: Special = "tokens",
        bos: Bos = "auto",
        sampling: Sampling | None = None,
        look_up: Sequence[int] = (),
        window: int | None = None,
        stride: int | None = None,
        one_sequence: bool = False,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> Trace:
        """Score each token of a given text, ids or messages; the arguments are those of `score_stream`.

        Token i is scored under row i-1; the first has no context and no score. `next` is the row after the
        last token. on_progress(done, total): in tokens. Raises CancelledError, ChatTemplateError and as
        `generate`.
        """
        stream = self.score_stream(
            prompt,
            top_k=top_k,
            special=special,
            bos=bos,
            sampling=sampling,
            look_up=look_up,
            window=window,
            stride=stride,
            one_sequence=one_sequence,
            whole=True,
        )
        scores = list[TokenScore]()
        for chunk in stream.chunks():
            scores += chunk
            if on_progress is not None:
                on_progress(len(scores), stream.meta["tokens"])
        if stream.next is None:
            raise InternalError("engine: scores without a row after the last token")
        return Trace(tuple(scores), stream.next, stream.meta)

    def score_stream(
        self,
        prompt: ScoreItem,
        *,
        top_k: int = 20,
        special: Special = "tokens",
        bos: Bos = "auto",
        by_author: bool = False,
        sampling: Sampling | None = None,
        look_up: Sequence[int] = (),
        window: int | None = None,
        stride: int | None = None,
        one_sequence: bool = False,
        whole: bool = False,
    ) -> ScoreStream:
        """Score a text, ids, messages, a Pair or (messages, answer), yielding scores as they are computed.

        top_k: candidates to record per row. special: whether `<|im_end|>` in a text is text or the token; in
        messages it is text. bos: whether a text begins with the BOS token. In messages only their content has
        the role "text"; by_author: instead of "text", it has the role of its author, and sums cover the
        assistant's. sampling: settings whose stages are recorded with each token: whether they could have
        drawn it, and what cuts it; nothing is drawn. look_up: ids whose logprob and rank are recorded in the
        place of each token.

        A text above the trained length, or above the `context` that the model was loaded with, is scored in
        windows. window: their tokens. stride: by how much each window moves on, by default half a window; a
        token has at least window - stride + 1 tokens of context. one_sequence: use no windows. Memory does
        not grow with the text, which is encoded piece by piece; whole: encode all of it first. `cancel` makes
        the iterator raise CancelledError. Raises as `generate`.
        """
        from ropechat.engine import scoring
        from ropechat.engine.score_input import encode_by_author, encode_item

        validate_top_k(top_k)
        if sampling is not None and sampling.grammar is not None:
            raise RequestError("sampling: grammar: not possible for a text that is given; use None")
        size = self._window(window)
        move = validate_stride(stride, size)
        given = (
            encode_by_author(self.prompts, prompt)
            if by_author
            else encode_item(self.prompts, prompt, special, bos)
        )
        tokens = given.buffer(whole=whole or one_sequence)
        meta = self._meta(given, tokens, top_k, sys.maxsize if one_sequence else size, move)
        meta["sampling"] = sampling
        before = [token.id for token in tokens[0 : given.first]]
        explained = None if sampling is None else (sampling, self._breakers.of(sampling))
        pool = scoring.ScorePool(
            self._request(), top_k, scoring.SIZE, scoring.ROWS_AHEAD, explained, validate_ids(look_up)
        )
        planned = scoring.windows(tokens, given.first, sys.maxsize if one_sequence else size, move)
        scores = scoring.stream_scores(pool, self._sharing(planned), self.tokenizer)
        return scoring.ScoreStream(meta, scores, before)

    def score_many(
        self,
        items: Iterable[ScoreItem | RopechatError | None],
        *,
        top_k: int = 0,
        window: int = 16,
        special: Special = "tokens",
        bos: Bos = "auto",
    ) -> Iterator[tuple[int, Score]]:
        """Score many items, up to `window` in each forward pass. Yields (index, Score) in their order.

        An item is a text, ids, messages, a Pair or (messages, answer). special, bos: of texts, as for
        `score_stream`. What the beginnings of several items have in common is computed once, and results do
        not depend on other items. A failed item has its error in its Score, and the others continue; an error
        given as an item is returned the same way. An item is read only when there is room for it. None in
        place of an item: there is none now, ask again after the next pass; allowed only while others are in
        progress. `cancel` makes the iterator raise CancelledError.
        """
        from ropechat.engine import scoring

        validate_many("items", items)
        encode, pool = self._many_scores(top_k, window, special, bos)
        return scoring.score_items(items, encode, pool, self.tokenizer)

    def score_rows(
        self, rows: Iterable[Sequence[ScoreItem | RopechatError] | None], *, window: int = 16
    ) -> Iterator[tuple[int, list[Score]]]:
        """As `score_many` for rows of items, such as the choices of a question: yields (index, their scores).

        Items of a row that differ in one last token only, which alone is scored, share one row of a forward
        pass; the traces of such scores do not say what follows.
        """
        from ropechat.engine import scoring

        encode, pool = self._many_scores(0, window, "tokens", "auto")
        return scoring.score_rows(rows, encode, pool, self.tokenizer)

    def _many_scores(self, top_k: int, window: int, special: Special, bos: Bos) -> tuple[Encode, ScorePool]:
        """What encodes items for `score_many`, and where they are scored."""
        from ropechat.engine import scoring
        from ropechat.engine.score_input import encode_item

        validate_top_k(top_k)
        if window < 1:
            raise RequestError(f"window: must be at least 1 (got {window})")
        size = self._window(None)
        move = validate_stride(None, size)

        def encode(item: ScoreItem) -> tuple[ScoreInput, dict[str, Any], Iterator[Window]]:
            given = encode_item(self.prompts, item, special, bos)
            tokens = given.buffer(whole=True)
            meta = self._meta(given, tokens, top_k, size, move)
            return given, meta, self._sharing(scoring.windows(tokens, given.first, size, move))

        return encode, scoring.ScorePool(self._request(), top_k, window)

    def next_distributions(
        self, prompts: Iterable[Sequence[int]], *, top_k: int = 20, window: int = 16
    ) -> Iterator[TokenDistribution]:
        """Yield the distribution of the token after each of many prompts (ids), in their order.

        Up to `window` of them are in each forward pass; what their beginnings have in common is computed
        once. top_k: candidates to record. `cancel` makes the iterator raise CancelledError. Raises the error
        of the first prompt that cannot be read, and as `generate`.
        """
        from ropechat.engine import scoring

        validate_many("prompts", prompts)
        validate_top_k(top_k)
        pool = scoring.ScorePool(self._request(), top_k, window)
        return scoring.next_distributions(pool, map(self._ids, prompts))

    @cached_property
    def _certainty(self) -> CertaintyReader:
        from ropechat.engine.certainty import CertaintyReader

        return CertaintyReader(self.prompts, self.token_bytes, self.stop_ids, self.facts["vocab_size"])

    def certainty(self, before: Sequence[int], answer: Answer, grammar: Grammar) -> dict[str, Any]:
        """How sure an answer is that had to match a grammar: see `ropechat.engine.certainty`; {} if unknown.

        before: the ids of the prompt, and of a thought. Of JSON the steps of the answer need recorded stages
        (top_k above 0). A `Job` with `certainty` has the same in its Completion. Raises as `generate`.
        """
        from ropechat.engine import scoring

        found = self._certainty.of(validate_ids(before), answer, grammar)
        if found is None:
            return {}
        pool = scoring.ScorePool(self._request(), 0, scoring.SIZE)
        source = (window for weighing in found.weighings for window in weighing.windows)
        for window, events, state in pool.run(source):
            if isinstance(state.error, ContextFullError):
                return {}
            if state.error is not None:
                raise state.error
            for event in events:
                window.owner.take(window, event)
        return found.record()

    def rank(self, context: str | Sequence[int], choices: Iterable[str | Sequence[int]]) -> list[Score]:
        """The score of each choice as the continuation of a context, in the order of the choices.

        Compare logprob, or bits_per_byte where choices differ in length. Raises the error of the first choice
        that cannot be scored, such as an empty one.
        """
        validate_many("choices", choices)
        scores = [score for _, score in self.score_many(Pair(context, choice) for choice in choices)]
        for score in scores:
            if score.error is not None:
                raise score.error
        return scores

    @property
    def lm_head_share(self) -> float:
        """The part of reading a token that its logits over the whole vocabulary take."""
        return float(self.facts["hidden_size"] * self.facts["vocab_size"] / max(1, self.speed.products))

    @property
    def window(self) -> int:
        """Tokens of a window of a long text by default: the trained length, or the stated context."""
        return int(self.facts["context" if self.facts["context_is_stated"] else "usable_length"])

    def _window(self, window: int | None) -> int:
        return self.window if window is None else validate_window(window)

    def trace_facts(self, top_k: int) -> dict[str, Any]:
        """What the meta of every trace says about model and engine."""
        return {
            "model": self.name,
            "revision": self.revision,
            **{name: self.facts[name] for name in ("dtype", "kv_dtype", "isa", "vocab_size")},
            "trained_length": self.facts["max_position_embeddings"],
            "engine": self._module.__version__,
            "top_k": top_k,
        }

    def _meta(
        self, given: ScoreInput, tokens: TokenBuffer, top_k: int, size: int, stride: int
    ) -> dict[str, Any]:
        """What a trace says about its text and model."""
        fits, trained = not tokens.reaches(size + 1), self.facts["max_position_embeddings"]
        beyond = max(0, tokens.known - trained) if fits else None if size > trained else 0
        begins_with_bos = tokens[0:1][0].id == self.tokenizer.bos_id
        return {
            **self.trace_facts(top_k),
            "beyond_trained_length": beyond,
            "bos": begins_with_bos,
            "window": None if fits else size,
            "stride": None if fits else min(stride, size - (tokens[0:1][0].role == "bos")),
            "tokens": tokens.known if tokens.complete else None,
            "text": given.text,
            **given.meta,
        }


def _checked_tokenizer(loading: ModelLoad) -> Tokenizer:
    """The tokenizer of a model that is being loaded. Raises RequestError if its draft model has another."""
    tokenizer = load_tokenizer(loading.folder, loading.vocab_size, gguf_metadata, keep=loading.use_cache)
    if loading.draft is not None:
        check_draft(loading.folder, tokenizer, loading.draft, keep=loading.use_cache)
    return tokenizer


def _grammars(folder: Path, facts: Mapping[str, Any], tokenizer: Tokenizer) -> GrammarCompiler:
    """The compiler of an engine that is not loaded yet."""
    template = load_chat_template(folder, tokenizer) if tokenizer.present else None
    stop_ids = find_stop_ids(folder, facts, tokenizer, template)
    return GrammarCompiler(tokenizer, facts["vocab_size"], stop_ids)


def _divided(thoughts: Thoughts | None, prompt: Sequence[int]) -> Thoughts | None:
    """How the reply to a prompt is divided; None if the prompt is beyond the thought."""
    return None if thoughts is None or thoughts.opening(prompt) == "answer" else thoughts


def _has_messages(prompt: Prompt) -> bool:
    return not isinstance(prompt, str | RopechatError) and bool(split_prompt(prompt)[0])


class _Many:
    """A request of many prompts, as the `Backend` of a Scheduler."""

    def __init__(
        self, engine: Engine, request: Request, sampling: Sampling, stops: tuple[str, ...], top_k: int
    ) -> None:
        self.seed = choose_seed(sampling)
        self._engine, self._request = engine, request
        self._sampling, self._stops, self._top_k = sampling, stops, top_k

    def encode(self, job: Job) -> list[int]:
        return self._engine.job_ids(job, self._sampling)

    def add(self, job: Job, ids: list[int], seed: int, stream: int) -> tuple[int, ReplyText]:
        engine = self._engine
        stops = self._stops if job.stop is None else validate_stops(job.stop)
        top_k = self._top_k if job.top_k is None else job.top_k
        sampling = job.sampling or self._sampling
        if job.certainty and sampling.grammar is not None and sampling.grammar.is_json:
            top_k = max(1, top_k)  # which records the stages
        if engine._shared_prefix is not None:
            engine._shared_prefix.add(ids)
        if job.scores_prompt:
            alone = len(ids) == 1  # the compiled engine reads out at least one row
            sequence = self._request.core.score(ids, readout_top_k=top_k, read_next=alone)
            return sequence, ReplyText(engine.tokenizer.stream(ids))
        thinks = _has_messages(job.prompt) and not job.prefix  # which is the beginning of an answer
        thoughts = _divided(engine.prompts.thoughts, ids) if thinks else None
        sequence = engine._add(self._request.core, ids, len(ids), sampling, seed, stream, top_k, thoughts)
        return sequence, ReplyText(engine.tokenizer.stream(ids), stops, thoughts)

    def step(self, sequences: Sequence[int]) -> Sequence[_core.Event]:
        return self._request.core.step(sequences, self._request.token)

    def record(self, event: _core.Event, reply: ReplyText) -> Step:
        return to_step(event, reply, self._engine.tokenizer)

    def certainty(self, job: Job, ids: list[int], completion: Completion) -> Certainty | None:
        grammar = (job.sampling or self._sampling).grammar
        if grammar is None:
            return None
        before = [*ids, *completion.ids[: completion.reasoning_tokens]]
        return self._engine._certainty.of(before, completion.answer, grammar)

    def look(self, window: Window) -> int:
        core = self._request.core
        sequence = core.score(window.ids, readout_top_k=0, start=window.start, read_next=False)
        core.look_up(sequence, window.look_up)
        return sequence

    def reused(self, sequence: int) -> int:
        return self._request.core.reused(sequence)

    def free(self, sequence: int) -> None:
        self._request.core.free(sequence)
