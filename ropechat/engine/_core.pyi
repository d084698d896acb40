"""The compiled engine (rust/python/src/). Private: only `ropechat.engine.native` imports it.

Errors are raised as the classes of `ropechat.errors`.
"""

from collections.abc import Callable, Sequence
from os import PathLike
from typing import Any, Literal, final

import numpy as np
import numpy.typing as npt

from ropechat.sampling import Sampling
from ropechat.trace import Channel

__all__ = [
    "Breakers",
    "CancelToken",
    "Engine",
    "Event",
    "Grammar",
    "KeptPrefix",
    "LensRow",
    "Markers",
    "Progress",
    "Reading",
    "Row",
    "RowPair",
    "Stage",
    "Vocabulary",
    "__version__",
    "check",
    "check_grammar",
    "exit_when_cut",
    "free_memory",
    "gguf_architectures",
    "gguf_metadata",
    "model_types",
    "packed_types",
    "read_config",
    "rope_spec",
    "uniforms",
]

__version__: str

def gguf_metadata(path: str) -> dict[str, Any]:
    """All metadata of a .gguf file by key: int, float, bool, str, and lists of these. Weights are not read.

    A text that is not UTF-8 is bytes, and so is an array of u8. Raises ModelPathError, FileAccessError,
    UnsafePathError, ModelFileError, UnsupportedModelError (another version or byte order).
    """

def model_types() -> list[str]:
    """The values of `model_type` that are computed, in the order of the registry of families."""

def gguf_architectures() -> list[tuple[str, list[str]]]:
    """The values of `general.architecture` that are computed, each with the model types of its GGUF files."""

def check(directory: str) -> dict[str, Any]:
    """Validate metadata and every tensor's name, shape, type and extent without loading weights.

    directory: a model folder, or a .gguf file (the first of a split one).

    Returns the facts of `Engine.facts` that need no weights, and quantization (how quantized matrices are
    stored, in words; empty if there are none). Raises the same errors as `Engine.load`.
    """

def packed_types(directory: str) -> dict[str, int]:
    """Bytes in memory of each type that the weights are computed in with dtype "auto".

    Of quantized matrices the scales are read, nothing else. Raises as `Engine.load`.
    """

@final
class Grammar:
    """A compiled grammar, made by `Vocabulary.compile`."""

@final
class Vocabulary:
    """The tokens of a tokenizer, for grammars."""

    def __new__(
        cls, tokens: Sequence[bytes], special: Sequence[tuple[int, str]], stop_ids: Sequence[int]
    ) -> Vocabulary:
        """tokens: the bytes of each id, b"" without text. special: (id, name) of tokens that are no text.

        stop_ids: all of them end an answer. Raises RequestError.
        """
    def compile(self, kind: str, text: Sequence[str], *, flexible: bool = False) -> Grammar:
        """Compile a grammar, see `ropechat.grammar`. Raises RequestError."""

@final
class Markers:
    """What separates the thought of a reply from its answer."""

    def __new__(
        cls,
        start: Sequence[int],
        end: Sequence[int],
        *,
        answer: Sequence[int] = ...,
        close: Sequence[int] = ...,
        texts: tuple[bytes, bytes] | None = None,
        token_bytes: Sequence[bytes] = ...,
    ) -> Markers:
        """start, end: ids, with a control token among them. texts: both as bytes where they have no ids of
        their own; then token_bytes are the bytes of each id. answer: ids that open an answer without a
        thought. close: ids that are written to close a thought whose budget is spent. Raises RequestError.
        """
    def label(self, ids: Sequence[int], *, is_open: bool = False) -> list[Channel]:
        """The channel of each id of a whole reply. is_open: whether the prompt ends inside a thought."""

def check_grammar(kind: str, text: Sequence[str], *, flexible: bool = False) -> None:
    """Refuse a grammar that cannot be honoured, without a tokenizer. Raises RequestError."""

def read_config(directory: str) -> dict[str, Any]:
    """The facts of `Engine.facts` that the model's config says. Raises as `check`, but looks at no tensor."""

def rope_spec(path: str, *, length: int = 0) -> dict[str, Any]:
    """What a config says about positions, for sequences of `length` tokens: no weights are read.

    path: a model folder, a config.json, or a .gguf file. The facts of `read_config`, and position ("none",
    "learned", "rotated": the embedding is), first_position, query_scaling (None or (beta, length)),
    attention ("heads" or "mla"), sinks (bool), attention_multiplier, attn_logit_softcapping, layers (dicts:
    rope (index or None), window, attention_scale) and ropes (dicts: theta, rotary_dim, interleaved, inv_freq
    (f64 per pair), attention_factor, rope_type and its keys).
    Raises as `read_config`.
    """

def free_memory() -> int | None:
    """Bytes that can be had without swapping, within the control groups' limits and `ulimit -v`.

    None where the system does not say.
    """

def exit_when_cut(*, screen: bool = False) -> None:
    """From now on the process ends with one line on stderr and exit code 74 when a mapped file is cut.

    screen: a full-screen app has the terminal, which gets its usual state back first.
    """

def uniforms(seed: int, stream: int, position: int) -> tuple[float, float]:
    """The uniform numbers in [0, 1) of an absolute `position`: the one that draws the token, and XTC's."""

@final
class Breakers:
    """Sequences of ids that end a repetition (DRY)."""

    def __new__(cls, sequences: Sequence[Sequence[int]]) -> Breakers: ...

@final
class CancelToken:
    """A flag shared between threads. Set once; a new request takes a new token."""

    def __new__(cls) -> CancelToken: ...
    def cancel(self) -> None: ...
    @property
    def cancelled(self) -> bool: ...

@final
class Progress:
    """How far the work of an engine is. Any thread may read it, also while a step runs."""

    def __new__(cls) -> Progress: ...
    def read(self) -> tuple[Literal["loading", "packing", "reading"], int, int] | None:
        """(stage, done, total); None while nothing is waited for.

        loading: bytes of a pack that are read and checked. packing: bytes of weights that are packed.
        reading: tokens of the prompts of a step, counted layer by layer.
        """

@final
class Row:
    """What one logit row says: the raw (temperature 1, unfiltered) distribution of the next token."""

    @property
    def logsumexp(self) -> float:
        """log sum exp of the logits, accumulated in f64; a logit is its logprob plus this."""
    @property
    def entropy(self) -> float:
        """Entropy over the full vocabulary, in nats."""
    @property
    def varentropy(self) -> float | None:
        """Variance of the log probability over the full vocabulary, in nats^2; None if top_k is 0."""
    @property
    def top_ids(self) -> list[int]:
        """The k most probable ids, best first; ties by lower id."""
    @property
    def top_logprobs(self) -> list[float]:
        """Their log probabilities, in nats."""
    @property
    def top_mass(self) -> float:
        """Sum of their probabilities."""

@final
class RowPair:
    """Two models' rows at the same place of a text, a and b."""

    @property
    def kl(self) -> float:
        """KL(a || b) over the full vocabulary, in nats; infinite where b masks an id that a does not."""
    @property
    def kl_back(self) -> float:
        """KL(b || a), in nats."""
    @property
    def js(self) -> float:
        """Jensen-Shannon divergence, in nats: 0 to ln 2."""
    @property
    def a(self) -> Row: ...
    @property
    def b(self) -> Row: ...
    @property
    def logprobs(self) -> tuple[float, float]:
        """Raw log probability of the token that follows, under a and under b."""
    @property
    def ranks(self) -> tuple[int, int]:
        """Its rank under a and under b."""

@final
class Stage:
    """The candidates that survive one stage of the sampler."""

    @property
    def name(self) -> str: ...
    @property
    def kept(self) -> int: ...
    @property
    def mass(self) -> float:
        """Raw probability of the kept candidates."""
    @property
    def entropy(self) -> float:
        """Entropy of the renormalized kept candidates, in nats."""
    @property
    def value(self) -> float | None:
        """Of top_n_sigma the standard deviation of the logits; of a drawn xtc its random number in [0, 1)."""

@final
class Event:
    """What happened to one sequence in a step.

    kind "prefill": `done` of `total` prompt tokens are in the cache.
    kind "score":   a given token: `id` stands at `position`, scored under `row` (None at position 0).
    kind "next":    the row after the last given token, which `position` names; `id` is None.
    kind "token":   a generated token: `id` stands at `position`, drawn from `row`.
    """

    @property
    def sequence(self) -> int: ...
    @property
    def kind(self) -> Literal["prefill", "score", "next", "token"]: ...
    @property
    def position(self) -> int: ...
    @property
    def id(self) -> int | None: ...
    @property
    def logprob(self) -> float | None:
        """Raw log probability of `id`, in nats."""
    @property
    def rank(self) -> int | None:
        """1 + how many ids have a larger logit."""
    @property
    def row(self) -> Row | None: ...
    @property
    def stages(self) -> list[Stage]:
        """The sampler's stages in order. Empty unless `generate` records candidates or after `explain`."""
    @property
    def candidates(self) -> list[tuple[int, int, str | None, bool, float, list[float]]]:
        """(id, rank, cut, penalized, probability, by_stage) of the row's top ids, then of `id` if not in it.

        rank: from 1, after bias and penalty. cut: name of the stage that removed it. probability: at the
        draw. by_stage: renormalized probability after each stage. Empty as `stages`.
        """
    @property
    def interval(self) -> tuple[float, float] | None:
        """`id` is drawn for every u in [start, end); None if a stage cut it."""
    @property
    def u(self) -> float | None:
        """Kind "token": the uniform draw in [0, 1); None for greedy."""
    @property
    def channel(self) -> Channel:
        """Kind "token": where it belongs: to the answer, to the thought before it, or between the two."""
    @property
    def drafted(self) -> bool:
        """Kind "token": whether it was drafted; its row and the next one were computed in the same step."""
    @property
    def looked_up(self) -> list[tuple[float, int]]:
        """Kind "score": logprob and rank in the place of `id` of each id of `look_up`; [] at position 0."""
    @property
    def finish_reason(self) -> Literal["stop", "length", "context", "grammar"] | None:
        """Kind "token": why it is the last. stop: an id of stop_ids; length: max_tokens; context: full."""
    @property
    def done(self) -> int: ...
    @property
    def total(self) -> int: ...

@final
class LensRow:
    """What one layer would predict, were it the last one."""

    @property
    def position(self) -> int:
        """The token that is predicted; the text's length for the token after it."""
    @property
    def layer(self) -> int: ...
    @property
    def logprob(self) -> float | None:
        """Of the text's token; None after the last one."""
    @property
    def rank(self) -> int | None: ...
    @property
    def row(self) -> Row: ...
    @property
    def looked_up(self) -> list[tuple[float, int]]:
        """Logprob and rank of each id that was asked for."""

@final
class Reading:
    """A text that is read chunk by chunk, with its cache."""

@final
class KeptPrefix:
    """Keys and values of the beginning of a text, shared with the cache until they are written."""

    @property
    def tokens(self) -> int: ...
    def write(
        self, path: str | PathLike[str], cancel: CancelToken, *, total: int, keep_free: int = 5_000_000_000
    ) -> bool:
        """Write a file whose name ends with .kv; whether it was written. The engine goes on meanwhile.

        It appears whole and synced, or not at all. total: bytes of all such files in its folder at most; the
        least recently used are removed first. keep_free: bytes that stay free on the disk. Raises
        FileAccessError.
        """

@final
class Engine:
    """A loaded model with its thread pool and KV cache. Thread-safe; computing releases the GIL."""

    @staticmethod
    def load(
        directory: str,
        *,
        dtype: str = "auto",
        kv_dtype: str = "auto",
        threads: int | None = None,
        context: int | None = None,
        prefix_bytes: int | None = None,
        speculative: str = "auto",
        draft: str | None = None,
        pack_cache: str | PathLike[str] | None = None,
        pack_smallest: int | None = None,
        before_packing: Callable[[], object] | None = None,
        progress: Progress | None = None,
    ) -> Engine:
        """directory: a model folder, or a .gguf file (the first of a split one).

        dtype: auto (as stored, types without kernels of their own as q8_0; smaller where that does not fit),
        f32, bf16, f16, q8_0, q6_k, q5_k, q4_k, q4_0. kv_dtype: auto (f32 beside f32 weights, else bf16 where
        the processor multiplies it faster, else f16), f32, f16, bf16, q8_0. context: most tokens (default:
        min(model, 8192)). prefix_bytes: KV cache that is kept of ended sequences at most (default: what the
        context takes, at least 64 MB). speculative: whether tokens are drafted: auto (where measured times
        say that it is faster), off, always. draft: the folder or file of a draft model with the same
        vocabulary; else drafts come from the model's layer for multi-token prediction, if it has one, and
        from prompt look-up.

        pack_cache: folder of packed weights: taken from there, and written there after the first token in a
        thread of low priority. pack_smallest: bytes from which that is worth it (default: 32 MiB).
        before_packing: called once, and waited for, before weights of that size are packed that no pack has.
        progress: told how far the load is, and later how far the prompts of a step are read.
        Raises MemoryLimitError before a weight is packed when weights, KV cache and scratch do not fit.
        """
    @property
    def facts(self) -> dict[str, Any]:
        """config.json's names (model_type, vocab_size, hidden_size, num_hidden_layers, num_attention_heads,
        num_key_value_heads, head_dim, intermediate_size, max_position_embeddings, bos_token_id, eos_token_id
        (a list)) and usable_length (max_position_embeddings, or the length that dynamic RoPE scaling extends
        it to), dtype, kv_dtype, mtp (whether it has a layer for multi-token prediction), threads, isa,
        context, context_is_stated, num_parameters, weight_bytes, tensor_types (how many numbers the file
        stores as each type), from_pack (whether all weights came from the pack cache), warnings and notes
        (one line each; notes say the dtype)."""
    def rope_spec(self, length: int = 0) -> dict[str, Any]:
        """As the function of this name, of the loaded model."""
    def finish_pack(self, seconds: float) -> bool:
        """Write the pack for at most so long, and return whether writing is over.

        What is written of it stays in a partial file. The next load goes on with that.
        """
    @property
    def kv_bytes(self) -> int:
        """Bytes of KV cache allocated now, that of a draft model included."""
    def generate(
        self,
        ids: Sequence[int],
        sampling: Sampling,
        *,
        seed: int,
        stream: int = 0,
        stop_ids: Sequence[int] = ...,
        readout_top_k: int = 0,
        grammar: Grammar | None = None,
        channels: Markers | None = None,
        is_open: bool = False,
        reply_start: int = 0,
        breakers: Breakers | None = None,
    ) -> int:
        """Add a sequence to be continued; returns its number. Nothing is computed yet.

        The longest prefix that another sequence of this engine has computed comes from its cache. Of several
        sequences whose next 32 tokens are the same, a step computes the first; the others wait for it.
        sampling: its numbers without the seed. The draw at absolute position p is a function of (seed,
        stream, p) only. grammar: what the answer matches, tokens that are given too; raises RequestError if
        these do not. channels: markers of a reply that begins with a thought; is_open: whether the prompt
        ends inside one. reply_start: the index of the reply's first id; presence and frequency penalties
        count from there on. breakers: of DRY.
        """
    def score(self, ids: Sequence[int], *, readout_top_k: int, start: int = 0, read_next: bool = True) -> int:
        """Add a sequence to be scored: "score" events for ids start.. and, with `read_next`, one "next".

        The ids before `start` are context: their rows are not read out, and a cached prefix is reused for all
        of them but the last. Without `read_next` the last id is compared with the row before it, and does not
        go through the forward pass itself.
        """
    def explain(self, sequence: int, sampling: Sampling, *, breakers: Breakers | None = None) -> None:
        """Let the "score" events of a sequence have the stages of these settings; nothing is drawn.

        All ids before a token count as the answer.
        """
    def look_up(self, sequence: int, ids: Sequence[int]) -> None:
        """Let the "score" events of a sequence have the logprob and rank of these ids."""
    def step(self, sequences: Sequence[int], cancel: CancelToken) -> list[Event]:
        """Advance these sequences by one forward pass (prefill chunks and single tokens together).

        A sequence may have several "token" events, if tokens of it were drafted. Sequences that are finished
        are skipped; an empty list means all are. Raises CancelledError, every
        sequence then being as it was before the call.
        """
    def time_phases(self, wanted: bool) -> None:
        """Time the phases of steps from now on, or no longer."""
    def phase_times(self) -> list[tuple[str, float]]:
        """(phase, seconds) of all steps since `time_phases`, in the order of a step."""
    def phase_jobs(self) -> list[tuple[str, int, int, float, int, int]]:
        """(phase, units, count, seconds, bytes, products) of all jobs of the threads since `time_phases`.

        units: the parts of a job that a thread can take. bytes, products: of weights, all jobs together.
        """
    def reused(self, sequence: int) -> int:
        """How many tokens of the sequence's prompt came from another sequence's cache, so far."""
    def cache_key(self) -> str | None:
        """Everything that keys and values depend on beside the tokens: model, types, instruction set.

        None for an engine that was loaded without a cache on disk.
        """
    def cached(self, ids: Sequence[int]) -> int:
        """How many ids of the beginning of a text are cached and free to be taken."""
    def kept_prefix(self, ids: Sequence[int]) -> KeptPrefix | None:
        """The cached keys and values of the beginning of a text; None for none, or without `cache_key`.

        Of a model with recurrent layers: up to the last whole block of 32 tokens whose state is known.
        """
    def take_prefix(self, ids: Sequence[int], path: str | PathLike[str], cancel: CancelToken) -> str | None:
        """Cache what a file of `KeptPrefix.write` has of the beginning of a text, as far as it is not cached.

        A file that is missing, damaged or of another model is not used. Returns why, except for a missing
        one. Raises CancelledError, MemoryLimitError.
        """
    def free(self, sequence: int) -> None:
        """Forget a sequence. Its cache is kept for later ones with the same prefix: see `prefix_bytes`."""
    def logits(
        self, ids: Sequence[int], cancel: CancelToken, *, start_position: int = 0
    ) -> npt.NDArray[np.float32]:
        """Raw logits at every position.  # float32 [len(ids), vocab_size]

        start_position: position of ids[0], where a text is moved away from 0.
        """
    def read(self, ids: Sequence[int]) -> Reading:
        """A text for `lens`; nothing is computed yet."""
    def lens(
        self,
        reading: Reading,
        layers: Sequence[int],
        cancel: CancelToken,
        *,
        top_k: int,
        look_up: Sequence[int] = ...,
    ) -> list[LensRow]:
        """What each layer predicts in the next rows of the text, by position and layer; [] at its end.

        The final norm and lm_head applied to the residual stream after a layer. After CancelledError the
        reading is as it was.
        """
    def capture(
        self,
        ids: Sequence[int],
        layers: Sequence[int],
        heads: Sequence[int],
        rows: Sequence[int],
        cancel: CancelToken,
        *,
        what: Sequence[str],
        start_position: int = 0,
    ) -> dict[str, Any]:
        """layers, heads, rows (lists, each once and in order) and the arrays of `what`, float32:

        q_pre, k_pre [layers, heads, tokens, head_dim]: after the norm, before rotation; the key is the one
        that the query head reads. attn_logit, attn_row [layers, heads, rows, tokens]: scores with all
        factors, before a softcap, -inf where masked; weights.
        """
    def attention_by_distance(
        self, ids: Sequence[int], layers: Sequence[int], distances: int, cancel: CancelToken
    ) -> dict[str, Any]:
        """layers (list) and float64 arrays: mean [layers, heads, distances]; sink, previous, distance,
        learned_sink [layers, heads]. No tokens x tokens array exists meanwhile."""
    def open_rows(self, ids: Sequence[int], first: int) -> int:
        """Begin to read the logit rows of a text from row `first` on, until `free`. Computes nothing."""
    def next_rows(self, sequence: int, cancel: CancelToken) -> npt.NDArray[np.float32]:
        """The next 32 rows, fewer at the end, none behind it.  # float32 [rows, vocab_size]"""
    def compare_rows(
        self,
        a: npt.NDArray[np.float32],
        b: npt.NDArray[np.float32],
        next: Sequence[int],
        *,
        readout_top_k: int,
        position: int = 0,
    ) -> list[RowPair]:
        """Compare blocks of rows of two models on this engine's threads; next[i] follows row i.

        position: of the first row, for errors. Raises NonFiniteError, which names the side (NaN, +inf, a row
        of nothing but -inf), RequestError for blocks of different sizes.
        """
