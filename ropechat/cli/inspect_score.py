"""What `ropechat inspect` scores: long texts in windows, conversations, answers; and its progress."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ropechat.cli.common import STREAM, FileName, text_argument
from ropechat.cli.exit_codes import say
from ropechat.cli.inspect_output import read_file
from ropechat.cli.option_groups import option_set
from ropechat.cli.status import ProgressLine
from ropechat.conversation import Message, Role
from ropechat.errors import RequestError
from ropechat.trace import Pair, TokenDistribution, TokenScore
from ropechat.util.progress import Progress

if TYPE_CHECKING:
    from ropechat.cli.interrupt import Stop
    from ropechat.engine.engine import Engine
    from ropechat.engine.prompt import Bos, Special
    from ropechat.engine.score_input import ScoreItem
    from ropechat.engine.scoring import ScoreStream
    from ropechat.sampling import Sampling

ROLES = ("text", "system", "user", "assistant", "template", "special", "bos")


@dataclass(frozen=True)
class ScoreOptions:
    """The values of `score_options`."""

    window: int | None
    stride: int | None
    one_sequence: bool
    messages: str | None
    answer: str | None
    given_file: Path | str | None
    roles: tuple[str, ...] | None

    @property
    def needs_template(self) -> bool:
        """Whether messages are rendered."""
        return self.messages is not None


def _roles(ctx: click.Context, parameter: click.Parameter, value: str | None) -> tuple[str, ...] | None:
    """Parse "user,assistant"."""
    if value is None:
        return None
    names = tuple(name.strip() for name in value.split(","))
    for name in names:
        if name not in ROLES:
            raise click.UsageError(f"--roles: must be some of {', '.join(ROLES)} (got {name!r:.40})", ctx)
    return names


score_options = option_set(
    click.option(
        "--roles",
        metavar="NAMES",
        callback=_roles,
        help=f"Roles that sums cover, with commas: {', '.join(ROLES)} [default: text; with --messages: "
        "assistant].",
    ),
    click.option(
        "--given-file",
        type=FileName(),
        metavar="FILE",
        help="Score TEXT as the continuation of the text in this file; - is stdin.",
    ),
    click.option("--answer", metavar="TEXT", help="With --messages: an answer to them; - is stdin."),
    click.option(
        "--messages", metavar="FILE", help='Score a conversation: [{"role", "content"}, ...]; - is stdin.'
    ),
    click.option("--one-sequence", is_flag=True, help="Score a long text without windows."),
    click.option(
        "--stride",
        type=click.IntRange(min=1),
        help="Tokens by which each window moves on [default: half a window].",
    ),
    click.option(
        "--window",
        type=click.IntRange(min=2),
        help="Tokens of a window of a long text [default: the trained length, or --context].",
    ),
)


def take_score_options(given: dict[str, Any]) -> ScoreOptions:
    """Remove the values of `score_options` from `given` and return them. Raises UsageError."""
    asked = ScoreOptions(**{name: given.pop(name) for name in ScoreOptions.__dataclass_fields__})
    if asked.one_sequence and (asked.window or asked.stride):
        raise click.UsageError("--one-sequence: not possible with --window or --stride")
    if asked.answer is not None and asked.messages is None:
        raise click.UsageError("--answer requires --messages; add it, or give the prompt with --given-file")
    if asked.messages is not None and asked.given_file is not None:
        raise click.UsageError("--given-file: not possible with --messages; use --answer")
    if asked.messages == STREAM and asked.answer == STREAM:
        raise click.UsageError("--answer: stdin is read by --messages already")
    return asked


def refuse_with_view(asked: ScoreOptions, view: str, sources: int) -> None:
    """Raise UsageError for options of scoring together with another view of one text."""
    given = [name for name, value in vars(asked).items() if value]
    if given:
        raise click.UsageError(
            f"--{given[0].replace('_', '-')}: not possible with --{view}; omit one of them"
        )
    if sources > 1:
        raise click.UsageError(f"--{view}: must be of one text (got {sources})")


def read_prompt(text: str | None, asked: ScoreOptions, *, chat: bool) -> "ScoreItem":
    """What is scored. chat: TEXT is a user message. Raises UsageError, RequestError, FileAccessError."""
    if asked.messages is not None:
        from ropechat.cli.template import read_messages

        if text is not None or chat:
            raise click.UsageError("--messages: not possible with TEXT or --chat; use --answer")
        messages = read_messages(asked.messages)
        return messages if asked.answer is None else (messages, text_argument(asked.answer, "--answer"))
    if asked.given_file == STREAM and text in (None, STREAM):
        raise click.UsageError("text: stdin is read by --given-file already; give TEXT or -f")
    value = text_argument(text, "text")
    if value == text and len(value) < 256 and "\0" not in value and os.path.isfile(value):
        say(f"note: text: the name of a file was given, and the name is scored; its text: -f {value}")
    if not value and not chat and asked.given_file is None:
        raise RequestError("text: must have at least one character (got none)")
    return prompt_of(value, asked, chat=chat)


def prompt_of(value: str, asked: ScoreOptions, *, chat: bool) -> "ScoreItem":
    """A text as it is scored: alone, as a user message or as a continuation. Raises as `read_prompt`."""
    if asked.given_file is not None and chat:
        raise click.UsageError("--given-file: not possible with --chat; use --messages and --answer")
    if asked.given_file is not None:
        return Pair(read_file(asked.given_file), value)
    return [Message(Role.USER, value)] if chat else value


def open_stream(
    engine: "Engine",
    prompt: "ScoreItem",
    asked: ScoreOptions,
    *,
    top_k: int,
    special: "Special",
    bos: "Bos",
    sampling: "Sampling | None" = None,
    look_up: Sequence[int] = (),
    name: str = "",
) -> "ScoreStream":
    """Start scoring, and say on stderr how a long text is scored. name: of its file.

    sampling: settings whose stages are recorded. look_up: ids whose logprob and rank are recorded.
    """
    stream = engine.score_stream(
        prompt,
        top_k=top_k,
        special=special,
        bos=bos,
        sampling=sampling,
        look_up=look_up,
        by_author=asked.needs_template,
        window=asked.window,
        stride=asked.stride,
        one_sequence=asked.one_sequence,
    )
    if asked.roles is not None:
        stream.meta["roles"] = asked.roles
    stream.meta["only_counted"] = asked.answer is not None
    for line in notes(stream.meta):
        say(line if not name else line.replace(": ", f": {name}: ", 1))
    return stream


def notes(meta: dict[str, Any]) -> Iterator[str]:
    """Lines about the windows of a long text, or about a text that exceeds the trained length."""
    trained, window, count = meta["trained_length"], meta["window"], meta["tokens"]
    if window is not None:
        tokens = f"{count:,} tokens" if count is not None else "a long text"
        yield (
            f"note: {tokens} in windows of {window:,}, stride {meta['stride']:,}; "
            f"the model was trained for {trained:,}"
        )
    elif meta["beyond_trained_length"]:
        yield (
            f"warning: {count:,} tokens exceed the trained length of {trained:,}: scores beyond it, and "
            "their part in the sums, are unreliable; omit --one-sequence"
        )


class WatchedScores:
    """A stream whose progress is shown, unless the scores themselves appear on the terminal."""

    def __init__(
        self,
        stream: "ScoreStream",
        line: ProgressLine,
        read: Callable[[], Progress | None],
        *,
        appears: bool,
        stop: "Stop | None" = None,
    ) -> None:
        """read: how far the engine is. appears: whether the scores are written to stdout as they come.

        stop: the tokens end when it has arrived; it counts them.
        """
        self._stop = stop
        self._stream, self._line, self._appears = stream, line, appears
        self._engine, self._known = read, Progress("scoring", 0, stream.meta["tokens"])
        self.meta = stream.meta
        self._last: TokenScore | None = None
        self._count = 0
        self._bytes = len((stream.text or "").encode("utf-8", "replace"))

    @property
    def next(self) -> TokenDistribution | None:
        """As `ScoreStream.next`."""
        return self._stream.next

    def __iter__(self) -> Iterator[TokenScore]:
        on_terminal = sys.stdout is not None and sys.stdout.isatty()
        if self._appears and on_terminal and self._line.mode == "line":
            yield from self._line.until_first(self._read, self._stream)
            return
        stop = self._stop
        with self._line.watch(self._read):
            for token in self._stream:
                self._count, self._last = self._count + 1, token
                if stop is not None:
                    stop.tokens += 1
                yield token
                if stop is not None and stop.arrived:
                    break

    def _read(self) -> Progress:
        """How much is scored: in tokens, or in bytes of a text whose tokens are not counted yet.

        The engine counts the tokens of one sequence layer by layer, but no more than a few windows of a text.
        """
        if self.meta["window"] is None:
            if (found := self._engine()) is not None:
                self._known = found._replace(stage="scoring")
            return self._known
        tokens = self.meta["tokens"]
        if tokens is None and self._bytes and self._last is not None:
            return Progress("scoring", self._last.span[1], self._bytes, "bytes")
        return Progress("scoring", self._count, tokens)
