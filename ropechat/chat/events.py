"""The requests of the UI to the inference thread, and the events that it sends back."""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Event
from typing import TYPE_CHECKING, Any

from ropechat.sampling import AUTO, Thinking

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from concurrent.futures import Future

    from ropechat.conversation import Message
    from ropechat.engine.engine import Engine
    from ropechat.sampling import Sampling
    from ropechat.store.store import AnswerWriter
    from ropechat.trace import FinishReason, Step
    from ropechat.util.kv_files import ChatFile


@dataclass(frozen=True)
class Load:
    """Load a model and close the one that is loaded.

    check: finds what would make loading fail before the old model is closed. Raises as `load`.
    """

    load: Callable[[], Engine]
    check: Callable[[], object] = bool


@dataclass(frozen=True)
class Count:
    """Count the tokens of a prompt; only the newest request is served."""

    messages: tuple[Message, ...]
    serial: int
    thinking: Thinking = AUTO


@dataclass(frozen=True)
class Reply:
    """Answer these messages; `cancelled` may be set at any time, from any thread.

    prefix: what the answer begins with. saved: done when the question is on disk. recorder: writes the
    answer down. asked: when (seconds, monotonic). kv_location: where its KV cache is on disk. cuts:
    where a prompt that does not fit may be cut: the messages from `cuts[0]` to one of the others are then
    left out, as few as leave room for an answer.
    """

    messages: tuple[Message, ...]
    sampling: Sampling
    serial: int
    top_k: int = 20
    prefix: AssistantPrefix | None = None
    saved: Future[None] | None = None
    recorder: AnswerWriter | None = None
    asked: float = 0.0
    kv_location: KvLocation | None = None
    cuts: tuple[int, ...] = ()
    cancelled: Event = field(default_factory=Event)

    @property
    def thinking(self) -> Thinking:
        """What the prompt depends on beside the messages."""
        return self.sampling.thinking


@dataclass(frozen=True)
class AssistantPrefix:
    """Tokens that an answer begins with; the model goes on from them.

    steps: their records; bytes and texts are filled in. written: words of the user's instead, which are the
    whole answer; the records serve as far as the tokens are the same. closes: the thought ends behind these
    tokens, and the answer begins. new: how many of the last steps have no text yet.
    """

    steps: tuple[Step, ...]
    written: str | None = None
    closes: bool = False
    new: int = 1

    @property
    def drawn(self) -> tuple[Step, ...]:
        """The steps that are complete, so that they can be drawn before the model is asked."""
        return self.steps if self.closes else self.steps[: len(self.steps) - self.new]


@dataclass(frozen=True)
class Preview:
    """Continue greedily after `prefix` for `count` tokens, without changing any answer."""

    messages: tuple[Message, ...]
    prefix: AssistantPrefix
    serial: int
    count: int = 24
    thinking: Thinking = AUTO


@dataclass(frozen=True)
class Encode:
    """Tokenize texts as the beginning of an answer."""

    texts: tuple[str, ...]
    serial: int


@dataclass(frozen=True)
class Call:
    """Run a job with the engine. done: called from the inference thread with its result or exception."""

    job: Callable[[Any], Any]
    done: Callable[[Any], None]


@dataclass(frozen=True)
class KvLocation:
    """Where the KV cache of a chat is on disk. total: bytes of all such files at most."""

    file: ChatFile
    total: int


@dataclass(frozen=True)
class ReadAhead:
    """Read what will be sent while there are no other requests; only the newest request is served.

    messages: what comes before the next question; whole: with that question, as it is. reads: False to
    take only what is on disk. kv_location: where the KV cache is read from and saved to; None: nowhere.
    """

    messages: tuple[Message, ...]
    whole: bool = False
    reads: bool = True
    kv_location: KvLocation | None = None
    thinking: Thinking = AUTO


@dataclass(frozen=True)
class SaveKv:
    """Save the KV cache of a chat that is being closed. messages: of its current branch."""

    messages: tuple[Message, ...]
    kv_location: KvLocation
    thinking: Thinking = AUTO


Request = Load | Count | Reply | Preview | Encode | Call


@dataclass(frozen=True)
class ModelInfo:
    """The properties of a loaded model that the UI shows.

    thinks: whether it may think before it answers. has_effort: whether its chat template can be told how
    much. repeats_thoughts: whether the thoughts of earlier answers are part of a prompt.
    """

    name: str
    dtype: str
    context: int
    has_chat_template: bool
    facts: Mapping[str, Any] = field(default_factory=dict)
    token_bytes: Callable[[int], bytes] = bytes
    rope_spec: Callable[[int], Mapping[str, Any]] = lambda length: {}  # see `Engine.rope_spec`
    thinks: bool = False
    has_effort: bool = False
    repeats_thoughts: bool = False
    own_sampling: Mapping[str, float] = field(default_factory=dict)  # see `Engine.own_sampling`
    own_without_thinking: Mapping[str, float] = field(default_factory=dict)  # of answers without a thought

    def recommended(self, sampling: Sampling) -> Mapping[str, float]:
        """The settings that the model's maker recommends for answers with this `Sampling.think`."""
        return self.own_without_thinking if sampling.think == "off" else self.own_sampling


@dataclass(frozen=True)
class ModelLoaded:
    """The model is ready."""

    info: ModelInfo


@dataclass(frozen=True)
class LoadFailed:
    """Loading failed. kept: the model that was loaded before is still loaded."""

    error: BaseException
    kept: bool = False


@dataclass(frozen=True)
class Notice:
    """A remark about the prompts of the loaded model."""

    text: str


@dataclass(frozen=True)
class PromptCounted:
    """The size of a prompt. alone: its last message alone is too long, and `tokens` counts only that.

    unread: tokens of it that are not in the KV cache. seconds: that reading them will take; None: not known.
    """

    serial: int
    tokens: int
    alone: bool = False
    unread: int = 0
    seconds: float | None = None


@dataclass(frozen=True)
class TextsEncoded:
    """The token ids of each text; empty without a model."""

    serial: int
    ids: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Started:
    """The prompt fits: `prompt_tokens` tokens, with these ids."""

    serial: int
    prompt_tokens: int
    ids: tuple[int, ...] | None = None


@dataclass(frozen=True)
class TooLong:
    """The prompt leaves no room for an answer; nothing was computed.

    slides: it would fit without what was said before the question; else `tokens` counts the question alone,
    with the system text and what the answer begins with.
    """

    serial: int
    tokens: int
    context: int
    slides: bool = False


@dataclass(frozen=True)
class ContextTruncated:
    """The prompt did not fit: it was cut at the message `cut`."""

    serial: int
    cut: int


@dataclass(frozen=True)
class Prefilled:
    """`done` of `total` prompt tokens are computed; the first event says how many were cached."""

    serial: int
    done: int
    total: int
    at: float = 0.0


@dataclass(frozen=True)
class ReadSoFar:
    """`done` of `total` tokens are read ahead; both are equal once nothing is read any more."""

    done: int
    total: int


@dataclass(frozen=True)
class PrefixAccepted:
    """The tokens that the answer begins with; they were not drawn."""

    serial: int
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class TokenGenerated:
    """One token, and when it came (seconds, monotonic)."""

    serial: int
    step: Step
    at: float


@dataclass(frozen=True)
class Finished:
    """The answer ended. kv_bytes: of KV cache that are allocated now."""

    serial: int
    reason: FinishReason
    kv_bytes: int = 0


@dataclass(frozen=True)
class Failed:
    """The answer failed; the tokens before that stay."""

    serial: int
    error: BaseException


@dataclass(frozen=True)
class PreviewReady:
    """The tokens of a preview, the forced one first; or why there are none."""

    serial: int
    steps: tuple[Step, ...]
    error: str = ""


EngineEvent = (
    ModelLoaded | LoadFailed | Notice | PromptCounted | ContextTruncated | Started | TooLong | Prefilled
) | (PrefixAccepted | TokenGenerated | Finished | Failed | PreviewReady | TextsEncoded | ReadSoFar)
