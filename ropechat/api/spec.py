"""What a server offers, to whom, and its limits."""

import os
from dataclasses import dataclass, field
from pathlib import Path

from ropechat.batch.spec import BatchSpec, PromptOptions
from ropechat.errors import RequestError
from ropechat.sampling import Sampling

MIN_KEY, MAX_KEY = 16, 512


@dataclass(frozen=True)
class Limits:
    """The bounds of a server.

    window: sequences in a forward pass. waiting: requests beyond so many, which are read or wait for their
    turn; more are refused. choices: prompts times `n` of a request. body_bytes, body_seconds: the size of a
    request's body, and the time in which it must arrive. seconds: the longest time of one choice.
    send_seconds: how long a client may take no bytes of its response.
    """

    window: int = 16
    waiting: int = 256
    choices: int = 128
    body_bytes: int = 8 << 20
    body_seconds: float = 30.0
    seconds: float = 600.0
    send_seconds: float = 60.0

    @property
    def requests(self) -> int:
        """Most requests at the same time."""
        return self.window + self.waiting


@dataclass(frozen=True)
class ApiSpec:
    """What a server answers.

    sampling: of requests that set nothing of it; of the settings in `unset` the model's own value goes
    before. system: a system message for chats without one. aliases: further names of the model. key: what
    clients must send; None: nothing. hosts: the values of Host that are answered; None: all. origins: of
    pages of other sites that may send requests.
    """

    sampling: Sampling = field(default_factory=Sampling)
    unset: frozenset[str] = frozenset()
    system: str | None = None
    aliases: tuple[str, ...] = ()
    key: str | None = None
    hosts: frozenset[str] | None = None
    origins: frozenset[str] = frozenset()
    limits: Limits = field(default_factory=Limits)

    def rows(self) -> BatchSpec:
        """How a batch would answer the requests: they are its rows. Its file is never read."""
        return BatchSpec(
            Path(os.devnull),
            prompts=PromptOptions(system=self.system),
            sampling=self.sampling,
            unset=self.unset,
        )


def check_key(key: str, where: str) -> str:
    """A key without the space around it. Raises RequestError that does not show it."""
    key = key.strip()
    if not MIN_KEY <= len(key) <= MAX_KEY or not key.isascii() or not key.isprintable() or " " in key:
        raise RequestError(
            f"{where}: must be {MIN_KEY} to {MAX_KEY} printable ASCII characters without spaces "
            f"(got {len(key)} characters)"
        )
    return key
