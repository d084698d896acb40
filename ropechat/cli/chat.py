"""`ropechat chat`: the terminal app, or without a terminal a plain chat with one line per message."""

import os
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ropechat.cli.common import (
    StdoutWriter,
    complete_chat,
    complete_model,
    has_screen,
    model_folders,
    model_options,
    sampling_options,
    setting_option,
    sourced_sampling,
    speculative_options,
    template_options,
)
from ropechat.cli.exit_codes import say
from ropechat.cli.loading import load, take_argument, take_model
from ropechat.cli.option_groups import GroupedCommand, option, option_set
from ropechat.conversation import Message, Role
from ropechat.errors import ContextFullError, RequestError, RopechatError
from ropechat.settings.spec import GIGABYTE, MAX_GIGABYTES, THEMES, TINTS, VIEWS, WHEN_FULL

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ropechat.engine.engine import Engine
    from ropechat.engine.native import ProgressMeter
    from ropechat.engine.spec import ModelSpec
    from ropechat.sampling import Sampling


LOOK = ("theme", "tint", "view", "overview", "inspector", "tips", "follow", "mouse", "when_full")


def _flags() -> dict[str, object]:
    """The options that were given on the command line."""
    context = click.get_current_context()
    flag = click.core.ParameterSource.COMMANDLINE
    given = context.params.items()
    return {name: value for name, value in given if context.get_parameter_source(name) is flag}


def _has_terminal() -> bool:
    return "TEXTUAL_DRIVER" in os.environ or has_screen()  # `ropechat serve`: a browser is the terminal


def _lines() -> "Iterator[str]":
    """Yield the non-empty lines of stdin. Raises RequestError for invalid UTF-8."""
    if sys.stdin is None:
        return
    for number, line in enumerate(sys.stdin.buffer, 1):
        try:
            text = line.decode("utf-8").strip()
        except UnicodeDecodeError:
            raise RequestError(f"stdin: line {number}: must be UTF-8; convert the text to UTF-8") from None
        if text:
            yield text


def _answer(engine: "Engine", chat: list[Message], sampling: "Sampling", out: StdoutWriter) -> None:
    """Stream a reply to stdout and add it to the conversation."""
    pieces = []
    try:
        for step in engine.reply(chat, sampling):
            pieces.append(step.text)
            out.write(step.text)
    finally:
        out.end_line()
    chat.append(Message(Role.ASSISTANT, "".join(pieces)))


def line_chat(engine: "Engine", sampling: "Sampling", system: str | None) -> None:
    """Answer each line of stdin; the reply goes to stdout and ends with a newline."""
    chat = [Message(Role.SYSTEM, system)] if system is not None else []
    first, out = len(chat), StdoutWriter()
    for line in _lines():
        chat.append(Message(Role.USER, line))
        try:
            _answer(engine, chat, sampling, out)
        except ContextFullError as error:
            if len(chat) == first + 1:
                raise
            say(f"note: {error}; starting a new conversation")
            chat[first:] = [Message(Role.USER, line)]
            _answer(engine, chat, sampling, out)


class _Models:
    """Loads models chosen in the chat, as the first one except for its template."""

    def __init__(self, first: "ModelSpec", progress: "ProgressMeter") -> None:
        self._first, self._progress = replace(first, template=None, template_vars={}), progress

    def check(self, model: str) -> object:
        """Validate a model by its headers. Raises as `Engine.load`."""
        from ropechat.engine.loading import check

        return check(self._path(model), self._first.cache)

    def load(self, model: str, context: int | None = None) -> "Engine":
        """Load a model by name. Raises as `ModelSpec.load`."""
        path, first = str(self._path(model)), self._first
        if context is not None:
            first = replace(first, context=context)
        draft = first.draft if path == first.name else None  # it drafts for the model that it was given with
        return load(replace(first, name=path, draft=draft), screen=True, progress=self._progress)

    def _path(self, model: str) -> Path:
        """Find it here: loading by name could write to the terminal."""
        from ropechat.models.resolve import resolve

        return resolve(model, model_folders())


class Memory:
    """Keeps the names of the models that a person chose. chosen: whether the first one is."""

    def __init__(self, *, chosen: bool) -> None:
        self._chosen, self._folders = chosen, model_folders()

    def keep(self, model: str, name: str) -> None:
        """Remember a model that was loaded; a list that cannot be written is no error of the chat."""
        from ropechat.models.last import remember

        if self._chosen:
            with suppress(RopechatError, OSError):
                remember(model, name, self._folders)
        self._chosen = True


_EXAMPLES = """
  ropechat
  ropechat chat qwen3:0.6b                  # asks before it downloads
  ropechat chat -m models/my-model.gguf --system "You are a poet."
  ropechat -c                               # the newest stored chat again
  ropechat chat --incognito --temperature 0
  printf 'What is a token?\\nAnd RoPE?\\n' | ropechat chat builtin
"""
_chat_options = option_set(
    option("--system", metavar="TEXT", help="A system message at the beginning."),
    option("--raw", is_flag=True, help="Use no chat template: continue the text of all messages."),
    option("-c", "--continue", "newest", is_flag=True, help="Open the newest stored chat."),
    option(
        "--resume",
        metavar="ID",
        shell_complete=complete_chat,
        help="Open a stored chat (see `ropechat chats list`).",
    ),
    setting_option("store", "--store/--incognito", default=True, help="Store this chat, or nothing of it."),
    option(
        "--first",
        metavar="MODEL",
        shell_complete=complete_model,
        expert=True,
        help="If no model was opened before: download this one and open it; without network the built-in "
        "one.",
    ),
    setting_option(
        "when_full",
        type=click.Choice(WHEN_FULL),
        default="ask",
        expert=True,
        help="What to do with a question that exceeds the context: ask, let the oldest questions slide out, "
        "or stop.",
    ),
    setting_option(
        "read_ahead",
        "--read-ahead/--no-read-ahead",
        default=True,
        expert=True,
        help="Prefill chats, files and long pastes before they are sent.",
    ),
    setting_option(
        "kv_disk_gb",
        type=click.IntRange(0, MAX_GIGABYTES),
        metavar="N",
        default=4,
        expert=True,
        help="Disk space for the KV caches of stored chats, in GB; 0: none.",
    ),
    title="Chat",
)
_look_options = option_set(
    setting_option(
        "theme",
        type=click.Choice(THEMES),
        metavar="NAME",
        default="auto",
        help="Colours of the chat: auto, dark, light, nord ...; F1 in the chat shows them all.",
    ),
    setting_option(
        "view",
        type=click.Choice(VIEWS),
        default="tokens",
        expert=True,
        help="How answers are shown at first: as tinted tokens, or as prose with its Markdown drawn.",
    ),
    setting_option(
        "tint",
        type=click.Choice(TINTS),
        default="surprisal",
        expert=True,
        help="Which number tints tokens.",
    ),
    setting_option(
        "inspector",
        "--inspector/--no-inspector",
        default=False,
        expert=True,
        help="Show the inspector on a wide screen.",
    ),
    setting_option(
        "overview",
        "--overview/--no-overview",
        default=True,
        expert=True,
        help="Show chats and branches at the left of a wide screen.",
    ),
    setting_option(
        "tips",
        "--tips/--no-tips",
        default=True,
        expert=True,
        help="Show a line of help below the composer.",
    ),
    setting_option(
        "follow",
        "--follow/--no-follow",
        default=True,
        expert=True,
        help="Scroll while the model writes.",
    ),
    setting_option(
        "mouse",
        "--mouse/--no-mouse",
        default=True,
        expert=True,
        help="Use the mouse (F8 toggles it in the chat).",
    ),
    title="Screen",
)


@click.command(cls=GroupedCommand, epilog=_EXAMPLES)
@click.argument("name", metavar="[MODEL]", required=False, shell_complete=complete_model)
@_chat_options
@_look_options
@template_options
@sampling_options
@model_options
@speculative_options
def chat(
    name: str | None,
    system: str | None,
    raw: bool,
    first: str | None,
    newest: bool,
    resume: str | None,
    store: bool,
    **given: Any,
) -> int:
    """Chat with MODEL (or -m MODEL). Without a terminal: a plain chat, not stored; each line is a message.

    In a terminal, without a MODEL, ROPECHAT_MODEL and the setting `model`, the model that was opened last is
    opened. A plain chat opens the built-in one.
    """
    flags = _flags()
    take_argument(given, name)
    if not store and (newest or resume):
        raise click.UsageError(
            "--incognito: not possible with --continue or --resume, which open a stored chat"
            if "store" in flags
            else "--continue, --resume: the setting store is false, so nothing is stored; add --store"
        )
    look = {name: given.pop(name) for name in LOOK}
    reads_ahead, kv_bytes = given.pop("read_ahead"), given.pop("kv_disk_gb") * GIGABYTE
    sourced = sourced_sampling(given)
    model = take_model(given, raw=raw, follows_last=_has_terminal())
    if not _has_terminal():
        if newest or resume:
            raise click.UsageError("--continue and --resume require a terminal; a plain chat is not stored")
        if os.environ.get("TERM") == "dumb" and sys.stdin is not None and sys.stdin.isatty():
            say("note: this terminal has no full screen (TERM is dumb); each line is a message, Ctrl-D ends")
        engine = load(model.find())
        own = engine.recommended(sourced.sampling.think)
        line_chat(engine, sourced.with_own(own).sampling, system)
        return 0
    if first is not None and not model.chosen:
        model = model.or_first(first)
    spec = model.find()  # it may ask, which must come before the app takes the screen
    from ropechat.chat.live import LiveChat
    from ropechat.cli.config import checked_keys
    from ropechat.engine.native import ProgressMeter
    from ropechat.settings.file import SettingsFile
    from ropechat.store.store import Store
    from ropechat.tui import run_chat
    from ropechat.tui.options import ChatOptions
    from ropechat.util.paths import conversations_folder

    settings = click.get_current_context().find_root().obj
    keys = checked_keys(settings) if settings is not None else {}
    progress = ProgressMeter()
    chat = LiveChat(
        lambda: load(spec, screen=True, progress=progress),
        *(model.spec.name, sourced, system, Store(conversations_folder()) if store else None),
        models=_Models(spec, progress),
        progress=progress.read,
        reads_ahead=reads_ahead,
        kv_bytes=kv_bytes,
    )
    fixed = frozenset(name for name in flags if hasattr(sourced.sampling, name))
    options = ChatOptions(
        **look,
        keys=keys,
        model_folders=model_folders(),
        settings=SettingsFile(flags),
        fixed=fixed,
        note=model.note,
        remember=Memory(chosen=model.chosen).keep if store else lambda model, name: None,
    )
    return run_chat(chat, "" if newest else resume, options)
