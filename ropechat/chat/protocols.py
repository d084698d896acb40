"""The interfaces of an engine and of a model loader that the chat uses; fakes in the tests implement them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet
    from pathlib import Path

    from ropechat.chat.kv_writer import KeptPrefix
    from ropechat.conversation import Message
    from ropechat.sampling import Sampling
    from ropechat.trace import Step


class ModelLoader(Protocol):
    """Loads models by name; both methods are called from the inference thread."""

    def check(self, model: str) -> object:
        """Raise the errors of `load` that can be found without loading the model."""

    def load(self, model: str) -> ChatEngine:
        """Load a model; raises RopechatError."""


class Prompts(Protocol):
    """Makes prompts of messages. on_note: called with remarks for the user."""

    on_note: Callable[[str], None]

    def unused(self) -> list[str]:
        """The given template variables that the chat template never uses."""


class Prefill(Protocol):
    """A text that is read into the KV cache; only `cancel` is called from another thread.

    done, total: tokens that are read, and all that must be read.
    """

    done: int
    total: int

    def take(self, path: Path) -> str | None:
        """Take what a file has of the text. Returns why not all of the file could be used."""

    def step(self) -> bool:
        """Run one forward pass. Returns False when all is read, or after `cancel`."""

    def keep(self) -> KeptPrefix | None:
        """What is read of the text, to be written to a file."""

    def cancel(self) -> None:
        """End a forward pass soon."""

    def close(self) -> None:
        """Give what was read to later requests."""


class ChatEngine(Protocol):
    """A loaded model that answers; only `cancel` and `rope_spec` are called from another thread."""

    @property
    def name(self) -> str:
        """Display name of the model."""

    @property
    def context(self) -> int:
        """Tokens that prompt and answer may take together."""

    @property
    def facts(self) -> Mapping[str, Any]:
        """Properties of the model: dtype, parameters, ..."""

    @property
    def kv_bytes(self) -> int:
        """Bytes of KV cache allocated now."""

    @property
    def has_chat_template(self) -> bool:
        """False: the model continues text instead of answering."""

    @property
    def chat(self) -> Prompts:
        """How messages become prompts."""

    @property
    def stop_ids(self) -> AbstractSet[int]:
        """The ids that end an answer."""

    def rope_spec(self, length: int = 0) -> Mapping[str, Any]:
        """What the model does with positions in texts of `length` tokens, see `Engine.rope_spec`."""

    def prompt_ids(self, messages: Sequence[Message]) -> list[int]:
        """The ids of the prompt that `reply` would use."""

    def reading(self, ids: Sequence[int]) -> tuple[int, float | None]:
        """How many tokens of a prompt would be read, and the expected seconds, see `Engine.reading`."""

    @property
    def cache_key(self) -> str | None:
        """What keys and values on disk depend on in addition to the tokens; None if none may be written."""

    def certain_ids(self, messages: Sequence[Message]) -> list[int]:
        """The ids with which every prompt begins that has one more question behind these messages."""

    def begin_prefill(self, ids: Sequence[int]) -> Prefill:
        """Read ids into the KV cache, pass by pass."""

    def reply(
        self,
        messages: Sequence[Message],
        sampling: Sampling,
        *,
        prefix: Sequence[int] = (),
        top_k: int = 0,
        on_prefill: Callable[[int, int], None] | None = None,
    ) -> Iterator[Step]:
        """One step for each token of the answer that follows `prefix`."""

    def spell(
        self, messages: Sequence[Message], ids: Sequence[int], after: Sequence[int] = ()
    ) -> list[tuple[bytes, str]]:
        """(bytes, text) of each id of an answer, given the ids `after` before them."""

    def reply_ids(self, messages: Sequence[Message], text: str) -> list[int]:
        """The ids of an answer that the user wrote."""

    def token_bytes(self, id: int) -> bytes:
        """The bytes of an id; asked from the UI's thread too."""

    def cancel(self) -> None:
        """Stop the generation that runs; returns at once."""

    def close(self) -> None:
        """Free the memory and end the threads."""
