"""The thread that computes for a reader: jobs first, then the scores of its text."""

from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Thread

from ropechat.engine.engine import Engine
from ropechat.errors import CancelledError
from ropechat.inspector.text_reader import Done, Job, Steps


class ReaderThread:
    """Owns an engine; scores a reader's text whenever no job waits.

    failed: called from the thread with an error of scoring, which then stops until there is another text.
    """

    def __init__(self, engine: Engine, reader: Steps, failed: Done = lambda error: None) -> None:
        self._engine, self._reader, self._failed = engine, reader, failed
        self._jobs: SimpleQueue[tuple[Job, Done] | None] = SimpleQueue()
        self._thread = Thread(target=self._run, name="ropechat-reader", daemon=True)

    def start(self) -> None:
        """Begin to score."""
        self._thread.start()

    def submit(self, job: Job, done: Done) -> None:
        """Run a job as soon as the thread is free; a chunk of scoring takes milliseconds."""
        self._jobs.put((job, done))

    def read(self, reader: Steps) -> None:
        """Do this work from now on."""
        self._reader = reader
        self.wake()

    def wake(self) -> None:
        """Look again for text to score."""
        self._jobs.put((lambda engine: None, lambda result: None))

    def close(self, seconds: float = 0.5) -> bool:
        """Stop; False if the thread still computes after so many seconds."""
        self._jobs.put(None)
        self._engine.cancel()
        if self._thread.is_alive():
            self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        has_work = True
        while True:
            try:
                task = self._jobs.get(block=not has_work)
            except Empty:
                has_work = self._step()
                continue
            if task is None:
                return
            job, done = task
            try:
                result = job(self._engine)
            except BaseException as error:  # a Rust panic is not an Exception
                result = error
            done(result)
            has_work = True

    def _step(self) -> bool:
        with suppress(CancelledError):
            try:
                return self._reader.step(self._engine)
            except CancelledError:
                raise
            except BaseException as error:
                self._failed(error)
                return False
        return True
