"""Drafts: unsent text is stored with its chat, and comes back with it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ropechat.chat.draft import Unsent
from ropechat.errors import RopechatError

if TYPE_CHECKING:
    from textual.timer import Timer

    from ropechat.chat.recorder import ConversationRecorder
    from ropechat.tui.controllers.view import View
    from ropechat.tui.widgets.composer import Composer

INTERVAL_S, LONG_INTERVAL_S = 0.3, 3.0  # seconds from a change until it is stored
LONG = 100_000  # characters of a draft that is stored less often


class DraftsController:
    """Stores the composer's text a moment after a change, and restores that of another chat."""

    def __init__(self, recorder: ConversationRecorder, view: View, composer: Composer) -> None:
        self.view, self.composer, self._recorder = view, composer, recorder
        self._timer: Timer | None = None
        self._kept: tuple[str, str] | None = None  # chat and data as stored

    def changed(self) -> None:
        """Store the text soon; typing does not delay it."""
        if self._timer is None and self._recorder.store is not None:
            long = len(self.composer.text) > LONG
            self._timer = self.view.app.set_timer(LONG_INTERVAL_S if long else INTERVAL_S, self.keep)

    def keep(self) -> None:
        """Store the text now."""
        if self._timer is not None:
            self._timer.stop()
            self._timer = None
        store, place = self._recorder.store, self._place
        data = self.composer.unsent.to_json()
        if store is not None and self._kept != (place, data):
            store.keep_draft(place, data)
            self._kept = (place, data)

    @property
    def _place(self) -> str:
        return self._recorder.id if self._recorder.stored else ""

    def leave(self) -> None:
        """Before another chat is shown: the text stays with this one."""
        if self._recorder.store is not None:
            self.keep()
            self.composer.put_away()

    def carry(self) -> None:
        """Before a new chat: the text moves to it."""
        store, place = self._recorder.store, self._place
        if store is not None and place and self.composer.text:
            store.keep_draft(place, "")
            self._kept = None

    async def bring(self) -> None:
        """Restore the unsent text of the current chat."""
        store, place = self._recorder.store, self._place
        if store is None:
            return
        try:
            data = await asyncio.wrap_future(store.draft(place))
        except RopechatError:
            return  # the store reports the reason itself
        if place == self._place and self.composer.restore(Unsent.of_json(data)):
            self.view.hint("your unsent text is back")
