"""A chat that runs, without a screen: the session and the thread that answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ropechat.chat import events as ev
from ropechat.chat.download import Downloads
from ropechat.chat.inference import Inference
from ropechat.chat.recorder import ConversationRecorder
from ropechat.chat.session import Session
from ropechat.models.catalog import shown_name
from ropechat.util.progress import Watch
from ropechat.util.text import one_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from ropechat.chat.answer import Turn
    from ropechat.engine.engine import Engine
    from ropechat.sampling import Sampling
    from ropechat.sampling.sources import SourcedSampling
    from ropechat.store.store import Store
    from ropechat.util.progress import Progress


class ModelLoader(Protocol):
    """Loads models by name; both methods are called from the inference thread."""

    def check(self, model: str) -> object:
        """Raises the errors of `load` that can be found without loading the model."""

    def load(self, model: str, context: int | None = None) -> Engine:
        """Load a model; context: tokens, instead of those of the start. Raises RopechatError."""


LONG_DRAFT = 1000  # characters from which a draft is read before it is sent


class LiveChat:
    """One session on one inference thread. load: loads the model named `model`, before any question.

    system: the system text. store: saves the chat, if given. models: loads other models later. progress: of
    loading or reading; called from the UI's thread. reads_ahead: whether what will be sent is read
    before it is sent. kv_bytes: bytes on disk for KV caches of chats; 0: none is saved.
    wake: see `Inference`. submitted, stopped: called after each request, and after an answer was asked to
    stop.
    """

    def __init__(
        self,
        load: Callable[[], Engine],
        model: str,
        sampling: Sampling | SourcedSampling,
        system: str | None = None,
        store: Store | None = None,
        models: ModelLoader | None = None,
        progress: Callable[[], Progress | None] = lambda: None,
        *,
        reads_ahead: bool = True,
        kv_bytes: int = 0,
    ) -> None:
        self.model = model
        self.session = Session(one_line(model), sampling, system, recorder=ConversationRecorder(store))
        self.inference = Inference(wake=lambda: self.wake())
        self.inference.submit(ev.Load(load))  # before any question, even one typed during the start
        self.watch = Watch(progress)
        self.downloads = Downloads()
        self.models = models
        self.reads_ahead = reads_ahead
        self.session.recorder.kv_bytes = kv_bytes
        self.wake: Callable[[], None] = lambda: None
        self.submitted: Callable[[ev.Request], None] = lambda request: None
        self.stopped: Callable[[], None] = lambda: None
        self._waiting: Callable[[], None] | None = None  # called when the answer has ended
        self._held: tuple[Turn, Sampling] | None = None  # asked during a load, with the settings of then

    @property
    def completes(self) -> bool:
        """Whether the model continues text instead of answering."""
        return self.session.info is not None and not self.session.info.has_chat_template

    @property
    def answer_title(self) -> str:
        """The heading of an answer by the loaded model."""
        info = self.session.info
        return one_line(shown_name(info.name)) if info else self.session.model

    def submit(self, request: ev.Request) -> None:
        """Queue a request of the session; returns at once."""
        self.inference.submit(request)
        self.submitted(request)

    def request(self, turn: Turn) -> None:
        """Have the model answer a turn; one that is being loaded, as soon as its own settings are known."""
        session = self.session
        if session.coming or (session.info is None and session.load_error is None):
            self._held = turn, session.sampling
        elif turn.request is not None:
            self.submit(turn.request)

    def release(self) -> None:
        """Submit what waited for the end of a load, with the model's settings where nobody gave others."""
        held, self._held = self._held, None
        if held is None:
            return
        turn, before = held
        if turn is self.session.last:
            self.session.renew(turn, before)
        if turn.request is not None:
            self.submit(turn.request)

    def read_ahead(self, draft: str = "") -> None:
        """Read what comes before the next question; with a long draft, that question as it is."""
        whole = len(draft) >= LONG_DRAFT
        messages = self.session.messages(draft if whole else "")
        location = self.session.recorder.kv_location
        if self.session.info is not None and (self.reads_ahead or location is not None):
            self.inference.read_ahead(
                ev.ReadAhead(messages, whole, self.reads_ahead, location, self.session.thinking)
            )

    def save_kv(self) -> None:
        """Store the KV cache of this chat before another one is shown or the program ends."""
        location = self.session.recorder.kv_location
        if self.session.info is not None and location is not None:
            self.inference.save_kv(ev.SaveKv(self.session.messages(), location, self.session.thinking))

    def stop(self) -> bool:
        """Stop the current answer; False if there is none, or if it is already stopping."""
        turn = self.session.stop()
        if turn is None or turn.request is None:
            return False
        self.inference.cancel(turn.request)
        self.stopped()
        return True

    def when_idle(self, action: Callable[[], None]) -> None:
        """Call it now, or as soon as the current answer has stopped."""
        if self.session.generating:
            self._waiting = action
            self.stop()
        else:
            action()

    @property
    def waits(self) -> bool:
        """Whether something waits for the end of the current answer."""
        return self._waiting is not None

    def run_waiting(self) -> bool:
        """Call what waited for the end of the answer; False if nothing did."""
        action, self._waiting = self._waiting, None
        if action is not None:
            action()
        return action is not None

    def leave(self) -> None:
        """Cancel everything, before the chat is closed."""
        self.downloads.pause()
        self.session.end_stepping()
        self.save_kv()
        if self.session.last is not None and self.session.last.request is not None:
            self.inference.cancel(self.session.last.request)
