"""The texts of tokens, each in the vocabulary of the model that wrote it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ropechat.chat.export import Spelling
from ropechat.tui.workers import begin
from ropechat.util.text import token_name

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from textual.app import App

    from ropechat.chat import events as ev
    from ropechat.chat.session import Session


class Vocabularies:
    """Spells ids of the loaded model, of those loaded before it, and of those whose tokenizer is here.

    Ids of other models have the texts that the chat records, or none. folders: that have models, too.
    changed: called when a tokenizer was read, which happens on a thread when its first id is asked for.
    """

    def __init__(
        self, app: App[None], session: Session, folders: Sequence[Path], changed: Callable[[], None]
    ) -> None:
        self._app, self._session, self._changed = app, session, changed
        self.spelling = Spelling(folders)
        self._reading: set[str] = set()
        self._said: tuple[object, dict[int, bytes]] = (None, {})

    def learn(self, info: ev.ModelInfo) -> None:
        """Take the vocabulary of a model that was loaded."""
        self.spelling.learn(info.name, info.token_bytes)

    def of_loaded(self, id: int) -> str:
        """The text of a token of the loaded model for the screen."""
        info = self._session.info
        return token_name(id, info.token_bytes(id) if info is not None else b"")

    def text(self, model: str, id: int) -> str:
        """The text of a token of a model for the screen; #id if it is not known."""
        if self.spelling.knows(model):
            return token_name(id, self.spelling(model, id) or self._recorded(model).get(id, b""))
        if model and model not in self._reading:
            self._reading.add(model)
            begin(self._app, f"vocabulary of {model}", lambda: self._read(model))
        return token_name(id, self._recorded(model).get(id, b""))

    async def _read(self, model: str) -> None:
        await asyncio.to_thread(self.spelling, model, 0)
        self._changed()

    def _recorded(self, model: str) -> dict[int, bytes]:
        """The texts of a model's tokens in this chat."""
        tree = self._session.tree
        key = (model, id(tree), len(tree))
        if self._said[0] != key:
            nodes = [node for node in tree.nodes.values() if node.model == model]
            self._said = key, {step.id: step.bytes for node in nodes for step in node.steps}
        return self._said[1]
