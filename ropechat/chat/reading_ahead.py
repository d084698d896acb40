"""Reads what will be sent while there are no requests, and keeps its KV cache on disk."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from ropechat.chat import events as ev
from ropechat.chat.kv_writer import KvWriter
from ropechat.errors import RopechatError
from ropechat.util.kv_files import LEAST_KEPT

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ropechat.engine.engine import Engine
    from ropechat.engine.prefill import Prefill

SAVE_DELAY_S = 5.0  # seconds without a request before the KV cache is saved
REPORT_INTERVAL_S = 0.25  # seconds between two reports of progress


class ReadingAhead:
    """The work of the inference thread between requests; only `interrupt` is called from another thread.

    emit: takes events; wake: called after an event.
    """

    def __init__(
        self,
        emit: Callable[[ev.EngineEvent], object],
        wake: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        self._emit, self._wake, self._clock = emit, wake, clock
        self.writer = KvWriter()
        self._request: ev.ReadAhead | None = None  # what to read
        self._ids: Sequence[int] | None = None
        self._prefill: Prefill | None = None
        self._unsaved: tuple[ev.KvLocation, Sequence[int]] | None = None  # what to write
        self._save_at = self._reported = 0.0
        self._interrupted = self._shown = False
        self._noted: set[str] = set()

    def begin(self, request: ev.ReadAhead) -> None:
        """Replace the text to read ahead."""
        self.stop()
        self._request = request

    def interrupt(self) -> None:
        """Let a request go first; reading continues after it."""
        prefill = self._prefill
        if prefill is not None:
            self._interrupted = True
            prefill.cancel()

    def stop(self) -> None:
        """Stop reading; the KV cache stays."""
        self._pause()
        self._request = self._ids = None
        if self._shown:
            self._report(0, 0)

    @property
    def wait(self) -> float | None:
        """Seconds until there is something to do; None if there is nothing."""
        if self._request is not None:
            return 0.0
        return max(0.0, self._save_at - self._clock()) if self._unsaved is not None else None

    def advance(self, engine: Engine | None) -> None:
        """Do the next piece of work: one forward pass at most."""
        if engine is None:
            self.stop()
        elif self._request is None:
            self.save(engine)
        else:
            try:
                ended = not self._read(engine, self._request)
            except BaseException:  # the question will report the error; a Rust panic is not an Exception
                ended = True
            if ended:
                self._save_at = self._clock() + SAVE_DELAY_S
                self.stop()

    def _read(self, engine: Engine, request: ev.ReadAhead) -> bool:
        """Returns False when all is read."""
        if self._ids is None:
            ids = engine.prompt_ids if request.whole else engine.certain_ids
            self._ids = ids(request.messages, thinking=request.thinking)
            if len(self._ids) >= engine.context:
                return False
            if not request.whole:
                self._remember(engine, request.kv_location, self._ids)
        if self._prefill is None:
            self._interrupted = False
            self._prefill = engine.begin_prefill(self._ids)
            self._take(engine, self._prefill, request.kv_location)
            return request.reads
        goes_on = self._prefill.step()
        if goes_on and self._clock() - self._reported >= REPORT_INTERVAL_S:
            self._report(self._prefill.done, self._prefill.total)
        if not goes_on and self._interrupted:
            self._pause()
            return True
        return goes_on

    def _remember(self, engine: Engine, location: ev.KvLocation | None, ids: Sequence[int]) -> None:
        """Request that the text read now is written; text of another chat is written first."""
        if self._unsaved is not None and (
            location is None or self._unsaved[0].file.chat != location.file.chat
        ):
            self.save(engine)
        if location is not None and len(ids) >= LEAST_KEPT:
            self._unsaved, self._save_at = (location, ids), self._clock() + SAVE_DELAY_S

    def take(self, engine: Engine, ids: Sequence[int], location: ev.KvLocation | None) -> None:
        """Take the cached part of a prompt from disk before it is answered."""
        if location is not None and engine.cache_key is not None:
            prefill = engine.begin_prefill(ids)
            self._take(engine, prefill, location)
            prefill.close()

    def _take(self, engine: Engine, prefill: Prefill, location: ev.KvLocation | None) -> None:
        key = engine.cache_key
        if location is None or key is None:
            return
        with suppress(RopechatError):  # without memory for it, the text is read again
            note = prefill.take(location.file.path(key))
            if note is not None and note not in self._noted:
                self._noted.add(note)
                self._emit(ev.Notice(note))
                self._wake()

    def save(self, engine: Engine) -> None:
        """Pass the KV cache of a chat to the writer, without waiting."""
        if self._unsaved is None:
            return
        (location, ids), self._unsaved = self._unsaved, None
        key = engine.cache_key
        if key is None:
            return
        with suppress(RopechatError):  # the text is then read again
            prefill = engine.begin_prefill(ids)
            prefix = prefill.keep()
            if prefix is not None and prefix.tokens >= LEAST_KEPT and location.file.is_current:
                self.writer.put(location.file, location.file.path(key), prefix, location.total)

    def leave(self, engine: Engine, left: ev.SaveKv | None) -> None:
        """Store the KV cache so far; left: a chat whose whole KV cache is stored."""
        self.stop()
        with suppress(BaseException):  # nothing depends on it; a Rust panic is not an Exception
            if left is not None:
                self._remember(engine, left.kv_location, engine.certain_ids(left.messages, left.thinking))
            self.save(engine)

    def _report(self, done: int, total: int) -> None:
        self._shown, self._reported = done < total, self._clock()
        self._emit(ev.ReadSoFar(done, total))
        self._wake()

    def _pause(self) -> None:
        if self._prefill is not None:
            self._prefill.close()
            self._prefill = None
