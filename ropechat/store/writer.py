"""The only thread that writes. Jobs run in order, each in a transaction.

A job that the disk refuses is retried: its data stays in memory until it is on disk. Tokens are written in
batches, after 200 ms or 48 tokens, which leaves time for writing within the guaranteed 250 ms or 64 tokens.
"""

import contextlib
import sqlite3
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from threading import Condition, Thread
from typing import Any

from ropechat.errors import FileAccessError, RopechatError
from ropechat.store import codec
from ropechat.store.files import unusable
from ropechat.store.schema import transaction
from ropechat.trace import Step

FLUSH_SECONDS = 0.2
FLUSH_TOKENS = 48
RETRY_SECONDS = 2.0
OPENINGS = 6  # attempts to open a database that another program has locked, after a deletion

Work = Callable[[sqlite3.Connection], Any]


@dataclass
class _Job:
    """A job. reads: changes nothing, and its errors go to the caller. durable: survives a power cut.

    chat: the conversation that it changes; "" for none, or several.
    """

    work: Work
    chat: str = ""
    done: "Future[Any]" = field(default_factory=Future)
    reads: bool = False
    durable: bool = False
    alone: bool = False  # runs without a transaction, as VACUUM requires


@dataclass
class _Answer:
    """A streaming answer of a chat."""

    chat: str
    texts: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    written: int = 0
    waiting: list[Step] = field(default_factory=list)

    def add(self, steps: Sequence[Step]) -> None:
        """Add the texts of tokens that are queued."""
        self.texts += [step.text for step in steps]
        self.thoughts += [step.reasoning for step in steps if step.reasoning]
        self.written += len(steps)


class Writer:
    """Owns the connection from `open`, on its own thread."""

    def __init__(self, open: Callable[[], sqlite3.Connection], where: str) -> None:
        self._refusal: str | None = None  # why something is not on disk yet
        self._losses: dict[str, str] = {}  # by chat, "" for all: why something will never be on disk
        self._where = where
        self._open = open
        self._jobs: deque[_Job] = deque()
        self._answers: dict[str, _Answer] = {}
        self._since: float | None = None  # time of the oldest waiting token
        self._waiting = 0  # number of waiting tokens
        self._retry: float | None = None  # time of the next attempt of a refused job
        self._closing = False
        self._emptied = False  # nothing is queued any more, after `close`
        self._wake = Condition()
        self._thread = Thread(target=self._run, name="ropechat-store", daemon=True)
        self._thread.start()

    # --- from any thread ---

    @property
    def trouble(self) -> str | None:
        """Why something is not on disk; None if everything is."""
        return self._refusal or next(iter(list(self._losses.values())), None)

    def trouble_of(self, chat: str) -> str | None:
        """Why something of a chat is not on disk; None if everything is."""
        return self._refusal or self._losses.get("") or self._losses.get(chat)

    def forget_loss(self, chat: str) -> None:
        """Nothing of a chat is lost any more: it was deleted, or stored again as a whole."""
        self._losses.pop(chat, None)

    def submit(
        self, work: Work, chat: str = "", *, durable: bool = False, alone: bool = False
    ) -> "Future[Any]":
        """Queue a change of a chat. The future has the first attempt's result; refused ones are retried."""
        return self._queue(_Job(work, chat, durable=durable, alone=alone))

    def ask(self, work: Work) -> "Future[Any]":
        """Queue a query; it sees every change queued before it."""
        return self._queue(_Job(work, reads=True))

    def _queue(self, job: _Job) -> "Future[Any]":
        with self._wake:
            self._flush()
            self._jobs.append(job)
            self._wake.notify()
        return job.done

    def begin(self, chat: str, answer: str, steps: Sequence[Step], source: str, same: int) -> None:
        """Write the first tokens of an answer; the first `same` are those of the answer `source`."""
        if steps:
            with self._wake:
                self._answers[answer] = _Answer(chat)
                self._answers[answer].add(steps)
                self._jobs.append(_Job(_beginning(answer, steps, source, same), chat))
                self._wake.notify()

    def add(self, chat: str, answer: str, step: Step) -> None:
        """Add a token of an answer, to be written with the next batch."""
        with self._wake:
            self._answers.setdefault(answer, _Answer(chat)).waiting.append(step)
            self._waiting += 1
            if self._since is None:
                self._since = time.monotonic()
                self._wake.notify()
            elif self._waiting >= FLUSH_TOKENS:
                self._flush()
                self._wake.notify()

    def replace(self, chat: str, answer: str, steps: Sequence[Step]) -> None:
        """Write these tokens instead of those that an answer has so far."""
        with self._wake:
            self._flush()
            self._answers[answer] = _Answer(chat)
            self._answers[answer].add(steps)
            self._jobs.append(_Job(_replacement(answer, steps), chat))
            self._wake.notify()

    def take_texts(self, answer: str) -> tuple[str, str]:
        """End a streaming answer and return its whole text, and its thought's."""
        with self._wake:
            self._flush()
            ended = self._answers.pop(answer, _Answer(""))
            return "".join(ended.texts), "".join(ended.thoughts)

    def close(self, limit: float) -> bool:
        """Write what is queued, for at most `limit` seconds; False if something is not on disk.

        In the same time SQLite's log goes into the database, which may be left to the next start. Another
        call waits on.
        """
        with self._wake:
            self._flush()
            self._closing, self._retry = True, None
            self._wake.notify()
        self._thread.join(limit)
        ended = self._emptied or not self._thread.is_alive()
        return ended and not (self._jobs or self._losses)

    # --- with the lock held ---

    def _flush(self) -> None:
        """Queue the waiting tokens as jobs."""
        for id, answer in self._answers.items():
            if answer.waiting:
                steps, answer.waiting = answer.waiting, []
                self._jobs.append(_Job(_chunk(id, answer.written, steps), answer.chat))
                answer.add(steps)
        self._since, self._waiting = None, 0

    def _rest(self) -> float | None:
        """Seconds until something is due; None if nothing is."""
        now, due = time.monotonic(), []
        if self._since is not None:
            due.append(self._since + FLUSH_SECONDS)
        if self._jobs:
            due.append(now if self._retry is None else self._retry)
        return max(0.0, min(due) - now) if due else None

    # --- on the thread ---

    def _run(self) -> None:
        try:
            connection = self._opened()
        except BaseException as error:
            self._refuse_all(error)
            return
        with contextlib.closing(connection):
            while self._next():
                self._work_off(connection)
            self._emptied = True
            with contextlib.suppress(sqlite3.Error):
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def _opened(self) -> sqlite3.Connection:
        for _ in range(OPENINGS - 1):
            try:
                return self._open()
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or self._closing:
                    raise
        return self._open()

    def _next(self) -> bool:
        """Wait until something is due; False when closing is complete."""
        with self._wake:
            while True:
                now = time.monotonic()
                if self._closing or (self._since is not None and now >= self._since + FLUSH_SECONDS):
                    self._flush()
                due = self._retry is None or any(job.reads for job in self._jobs)
                due = due or now >= (self._retry or 0.0)
                if self._closing or (self._jobs and due):
                    return bool(self._jobs) and due
                self._wake.wait(self._rest())

    def _work_off(self, connection: sqlite3.Connection) -> None:
        """Run the jobs in order; after a refused one, only queries."""
        refused: list[_Job] = []
        while self._jobs:
            with self._wake:
                job = self._jobs.popleft()
            if refused and not job.reads:
                self._tell_refusal(job)
                refused.append(job)
            elif not self._do(connection, job):
                refused.append(job)
        with self._wake:
            self._jobs.extendleft(reversed(refused))
            self._retry = time.monotonic() + RETRY_SECONDS if refused else None
            if not refused:
                self._refusal = None

    def _do(self, connection: sqlite3.Connection, job: _Job) -> bool:
        """Run a job; False if it must be retried."""
        try:
            if job.durable:
                connection.execute("PRAGMA synchronous = FULL")
            with contextlib.nullcontext() if job.reads or job.alone else transaction(connection):
                result = job.work(connection)
        except sqlite3.Error as error:
            return self._refused(job, error)
        except BaseException as error:
            _tell(job, error)
            if not job.reads:
                self._losses[job.chat] = f"a bug in ropechat: {type(error).__name__}: {error}"
        else:
            with contextlib.suppress(InvalidStateError):  # it was cancelled
                job.done.set_result(result)
        finally:
            if job.durable:
                with contextlib.suppress(sqlite3.Error):
                    connection.execute("PRAGMA synchronous = NORMAL")
        return True

    def _refused(self, job: _Job, error: sqlite3.Error) -> bool:
        """Report the error to the caller; False if the job must be retried."""
        if job.reads:
            _tell(job, FileAccessError(f"{self._where}: {error}"))
            return True
        if isinstance(error, sqlite3.IntegrityError):  # a retry would fail too
            self._losses[job.chat] = loss = _broken_rule(error)
            _tell(job, FileAccessError(f"{self._where}: {loss}"))
            return True
        self._refusal = str(error)
        self._tell_refusal(job)
        return False

    def _tell_refusal(self, job: _Job) -> None:
        _tell(job, FileAccessError(f"{self._where}: {self._refusal}; not on disk yet"))

    def _refuse_all(self, error: BaseException) -> None:
        """The database cannot be opened: fail all jobs until closed."""
        if not isinstance(error, RopechatError):
            named = error.filename if isinstance(error, OSError) else None
            error = unusable(named or self._where, error)
        self._losses[""] = str(error)
        with self._wake:
            while not self._closing:
                self._flush()
                while self._jobs:
                    _tell(self._jobs.popleft(), error)
                self._wake.wait()


def _broken_rule(error: sqlite3.IntegrityError) -> str:
    """The meaning of a constraint violation: a missing parent was deleted by another program."""
    if error.sqlite_errorcode == sqlite3.SQLITE_CONSTRAINT_FOREIGNKEY:
        return "the chat was deleted by another program; it is in memory only"
    return f"a bug in ropechat: {error}"


def _tell(job: _Job, error: BaseException) -> None:
    with contextlib.suppress(InvalidStateError):  # it has a result already, or was cancelled
        job.done.set_exception(error)


def _beginning(answer: str, steps: Sequence[Step], source: str, same: int) -> Work:
    """Copy whole chunks of the source, which is faster than encoding records; encode the rest."""

    def work(connection: sqlite3.Connection) -> None:
        query = "SELECT first FROM chunk WHERE node = ? AND first BETWEEN 1 AND ? ORDER BY first DESC LIMIT 1"
        row = connection.execute(query, (source, same)).fetchone()
        copied = row[0] if row is not None else 0
        connection.execute(
            "INSERT INTO chunk SELECT ?, first, data FROM chunk WHERE node = ? AND first < ?",
            (answer, source, copied),
        )
        if copied < len(steps):  # an empty chunk would conflict with the following tokens
            _chunk(answer, copied, steps[copied:])(connection)

    return work


def _replacement(answer: str, steps: Sequence[Step]) -> Work:
    def work(connection: sqlite3.Connection) -> None:
        connection.execute("DELETE FROM chunk WHERE node = ?", (answer,))
        if steps:
            _chunk(answer, 0, steps)(connection)

    return work


def _chunk(answer: str, first: int, steps: Sequence[Step]) -> Work:
    def work(connection: sqlite3.Connection) -> None:
        connection.execute(
            "INSERT INTO chunk(node, first, data) VALUES(?, ?, ?)", (answer, first, codec.encode(steps))
        )

    return work
