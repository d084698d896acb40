"""Export of a conversation: to Markdown and JSON (see `store.import_export`) and to an HTML page."""

from __future__ import annotations

import time
import unicodedata
from itertools import count
from typing import TYPE_CHECKING

from ropechat.conversation import Role
from ropechat.inspector.chat_page import Spell, to_html
from ropechat.inspector.stages import describe_settings
from ropechat.store.files import write_private
from ropechat.store.import_export import to_json, to_markdown
from ropechat.util.text import local_time

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from ropechat.store.queries import Chat
    from ropechat.tokenizer import Tokenizer

FORMATS: dict[str, Callable[[Chat, Spell], str]] = {
    "md": lambda chat, spell: to_markdown(chat),
    "json": lambda chat, spell: to_json(chat),
    "html": lambda chat, spell: "".join(to_html(chat, spell)),
}
"""Format: makes the text of a file. The spell gives the texts of alternatives."""
NAME_BYTES = 96
"""Characters of the title in a file's name."""


def unknown_words(model: str, id: int) -> bytes:
    """A Spell that knows no model: alternatives that were never drawn are shown by their ids."""
    return b""


def _no_words(id: int) -> bytes:
    return b""


class Spelling:
    """The texts of tokens, from the tokenizers of models on this machine. folders: that have models, too.
    missing: called with the name of each model that is not here.
    """

    def __init__(
        self, folders: Sequence[Path] = (), missing: Callable[[str], None] = lambda model: None
    ) -> None:
        self._known: dict[str, Callable[[int], bytes]] = {}
        self._folders, self._missing = folders, missing

    def learn(self, model: str, token_bytes: Callable[[int], bytes]) -> None:
        """Take the vocabulary of a model that is loaded."""
        self._known[model] = token_bytes

    def knows(self, model: str) -> bool:
        """Whether no tokenizer must be read for the tokens of a model."""
        return model in self._known

    def __call__(self, model: str, id: int) -> bytes:
        if model not in self._known:
            tokenizer = self._load(model)
            here = tokenizer is not None and tokenizer.present
            self._known[model] = tokenizer.token_bytes if tokenizer is not None and here else _no_words
        return self._known[model](id)

    def _load(self, model: str) -> Tokenizer | None:
        from ropechat.engine.loading import find_tokenizer  # imported here: not every export has tokens
        from ropechat.errors import RopechatError

        try:
            return find_tokenizer(model, self._folders)
        except (RopechatError, OSError, UnicodeError):  # a name of an imported chat may be anything
            self._missing(model)
            return None


def export(chat: Chat, form: str, path: Path, spell: Spell = unknown_words) -> None:
    """Export a chat to a file that only its owner may read. form: one of FORMATS. Raises FileAccessError."""
    write_private(path, format_chat(chat, form, spell))


def format_chat(chat: Chat, form: str, spell: Spell = unknown_words) -> str:
    """A chat in one of FORMATS. spell: the texts of alternatives in the page."""
    return FORMATS[form](chat, spell)


def new_file(chat: Chat, form: str, folder: Path) -> Path:
    """The path of a new file in a folder, named by title, date and sampling of the newest answer shown."""
    path = chat.tree.path()
    sampling = next((node.sampling for node in reversed(path) if node.role is Role.ASSISTANT), None)
    date = f"{local_time(path[-1].created if path else time.time()):%Y-%m-%d}"
    parts = [_plain(chat.title) or f"chat-{chat.id}", date]
    parts += [_plain(describe_settings(sampling))] if sampling is not None else []
    name = "-".join(part for part in parts if part)
    names = (f"{name}-{number}.{form}" if number > 1 else f"{name}.{form}" for number in count(1))
    return next(folder / one for one in names if not (folder / one).exists())


def _plain(text: str) -> str:
    """The letters and digits of any script, with hyphens for other characters: safe in a file name."""
    kept = [
        one if one in "._" or unicodedata.category(one)[0] in "LMN" else " "
        for one in unicodedata.normalize("NFC", text)
    ]
    short = "-".join("".join(kept).split()).encode()[:NAME_BYTES].decode(errors="ignore")
    return short.strip("-._")
