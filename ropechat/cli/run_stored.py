"""The stored chat in which `run` asks: -c, --resume, --store."""

import sys
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from ropechat.cli.exit_codes import say
from ropechat.util.text import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ropechat.chat.question import Question
    from ropechat.cli.loading import GivenModel
    from ropechat.sampling import Sampling
    from ropechat.store.queries import Chat
    from ropechat.store.store import Store

_FLAG = click.core.ParameterSource.COMMANDLINE
CLOSE_S = 2.0  # seconds for what is not on disk yet, at the end


def wanted_chat(
    newest: bool, resume: str | None, store: bool, raw: bool, system: str | None
) -> "_Wanted | None":
    """Which chat the options ask for; None: nothing is stored. Wrong combinations are usage errors."""
    continues = newest or resume is not None
    given = click.get_current_context().get_parameter_source("store") is _FLAG
    if continues:
        name = "--resume" if resume is not None else "-c"
        incognito = given and not store  # the setting `store` is about new chats
        for flag, refused in (("--incognito", incognito), ("--raw", raw), ("--system", system is not None)):
            if refused:
                raise click.UsageError(f"{flag}: not possible with {name}, which continues a stored chat")
    elif raw and store and given:
        raise click.UsageError("--store: not possible with --raw, which continues a text")
    elif raw or not store or not (given or (sys.stdout is not None and sys.stdout.isatty())):
        return None
    return _Wanted(resume if resume is not None else "" if newest else None)


class _Wanted:
    """id: of the chat, or a prefix of it; "": the newest; None: a new one."""

    def __init__(self, id: str | None) -> None:
        self._id = id

    @contextmanager
    def opened(self) -> "Iterator[StoredChat]":
        """Open the store, and the chat; at the end, wait until all is on disk, see `StoredChat.lost`.

        Raises as `Store.load`.
        """
        from ropechat.errors import HistoryError
        from ropechat.store.store import Store
        from ropechat.util.paths import conversations_folder

        store = Store(conversations_folder())
        stored = None
        try:
            chat, id = None, self._id
            if id == "":
                found = store.conversations(1).result()
                if not found:
                    raise HistoryError("-c: there is no stored chat; ask without it")
                id = found[0].id
            if id is not None:
                chat = store.load(id).result()
                for fault in chat.damaged:
                    say(f"warning: {fault}")
            stored = StoredChat(store, chat)
            yield stored
        finally:
            if not store.close(CLOSE_S) and stored is not None:  # else nothing was to be stored
                stored.lost = store.trouble or "the disk is slow"
                say(f"error: {store.path}: not stored: {stored.lost.removeprefix(f'{store.path}: ')}")
            for notice in store.notices:
                say(f"warning: {notice}")


class StoredChat:
    """A stored chat, or a new one (chat: None). lost: once it is closed, why something is not on disk."""

    def __init__(self, store: "Store", chat: "Chat | None") -> None:
        self._store, self._chat = store, chat
        self.lost = ""

    def choose_model(self, given: "GivenModel", *, quiet: bool) -> "GivenModel":
        """The model given by -m; without -m that of the newest answer, if it is on this machine by name."""
        source = click.get_current_context().get_parameter_source("model")
        path = self._chat.tree.path() if self._chat is not None else []
        model = next((node.model for node in reversed(path) if node.model), "")
        if not model or source is _FLAG:
            return given
        if _is_here(model):
            return given._replace(spec=replace(given.spec, name=model), note="")
        if not quiet:
            say(f"note: {one_line(model)}, the model of this chat, was not found; choose one with -m")
        return given

    def ask(
        self, model: str, text: str, sampling: "Sampling", system: str | None, when_full: str
    ) -> "Question":
        """Add a question. Sampling options of the command line go before those of the chat."""
        from ropechat.chat.context import OverflowPolicy
        from ropechat.chat.question import Question
        from ropechat.chat.recorder import ConversationRecorder
        from ropechat.chat.session import Session

        grammar, sampling = sampling.grammar, replace(sampling, grammar=None)
        session = Session(model, sampling, system, recorder=ConversationRecorder(self._store))
        session.when_full = OverflowPolicy(when_full)
        if self._chat is not None:
            context = click.get_current_context()
            names = sampling.__dataclass_fields__
            session.open(self._chat, [name for name in names if context.get_parameter_source(name) is _FLAG])
        return Question(session, text, grammar)


def _is_here(model: str) -> bool:
    """Whether a stored name is a model on this machine; never a path, which an imported chat may name."""
    from ropechat.cli.common import model_folders
    from ropechat.errors import NotDownloadedError, RopechatError
    from ropechat.models.elsewhere import find_elsewhere
    from ropechat.models.hub.cache import find
    from ropechat.models.resolve import BUILTIN, hub_name

    if model == BUILTIN:
        return True
    try:
        if (name := hub_name(model)) is not None:
            try:
                find(name)
                return True
            except NotDownloadedError:
                pass
        return find_elsewhere(model, model_folders()) is not None
    except RopechatError:
        return False
