"""A text read in the chat: its scores are computed by the inference thread, between other requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ropechat.chat import events as ev

if TYPE_CHECKING:
    from ropechat.chat.inference import Inference
    from ropechat.inspector.text_reader import Done, Job, Steps


class ScoreWorker:
    """The `Worker` of a reader over the thread that also answers."""

    def __init__(self, inference: Inference) -> None:
        self.failed: Done = lambda error: None  # called with an error of scoring
        self._inference = inference
        self._reader: Steps | None = None
        self._is_stepping = False

    def submit(self, job: Job, done: Done) -> None:
        """Run a job after the waiting requests."""
        self._inference.submit(ev.Call(job, done))

    def read(self, reader: Steps) -> None:
        """Replace the current work."""
        self._reader = reader
        self.wake()

    def wake(self) -> None:
        """Look again for text to score; at most one step waits in the queue."""
        if self._reader is not None and not self._is_stepping:
            self._is_stepping = True
            self.submit(self._reader.step, self._stepped)

    def close(self) -> None:
        """Stop scoring."""
        self._reader = None

    def _stepped(self, result: Any) -> None:
        self._is_stepping = False
        if isinstance(result, BaseException):
            self.failed(result)
        elif result:
            self.wake()
