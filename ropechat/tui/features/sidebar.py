"""The overview at the left of the transcript: the chats, the branches of this one, personas, sampling."""

from __future__ import annotations

import asyncio
from datetime import date
from itertools import groupby
from typing import TYPE_CHECKING

from ropechat.chat import presets
from ropechat.errors import RopechatError
from ropechat.tui.features.answers import AnswersFeature
from ropechat.tui.features.history import HistoryFeature
from ropechat.tui.features.settings import SettingsFeature
from ropechat.tui.features.system_prompt import SystemPromptFeature
from ropechat.tui.format import lists
from ropechat.tui.ui import ChatUi, Feature, command, setting
from ropechat.tui.widgets.sidebar import EDGE, Line, Section, Target
from ropechat.tui.workers import begin
from ropechat.util.width import cell_width

if TYPE_CHECKING:
    from collections.abc import Hashable

    from ropechat.conversation import Node
    from ropechat.store.queries import Summary

MIN_SCREEN_WIDTH = 150  # columns of a screen with an overview
WIDTH, PANEL_WIDTH = 30, 48  # columns of the overview and of the side panel at the right, as in app.tcss
MIN_TRANSCRIPT_WIDTH = 76  # columns that the transcript keeps
MAX_LISTED = 60  # chats that are looked up
DAYS = ("today", "yesterday", "older")
NARROWEST = 8  # cells of a branch's text


class SidebarFeature(Feature):
    """The overview: what it shows, when it is looked up again, and what a click opens."""

    def __init__(self, ui: ChatUi) -> None:
        super().__init__(ui)
        self.overview, self.side_panel, self.sampling_panel = ui.overview, ui.side_panel, ui.sampling_panel
        self._history, self._answers = ui[HistoryFeature], ui[AnswersFeature]
        self._system_prompt, self._settings = ui[SystemPromptFeature], ui[SettingsFeature]
        self._wanted_overview = ui.options.overview  # where there is room
        self._chats: list[Summary] = []
        self._listed: Hashable = None  # the state in which the chats were looked up
        self._surveyed: Hashable = None  # the state in which the overview was drawn

    @setting("overview")
    def _want(self, shown: bool) -> None:
        """Show it where there is room, or not."""
        self._wanted_overview = shown
        self.ui.refresh()

    @command("view.overview")
    def toggle(self) -> None:
        """Show or hide it; where there is no room, say what it needs."""
        self._wanted_overview = not (self._wanted_overview and self._has_room)
        self._settings.remember("overview", self._wanted_overview)
        self.ui.refresh()
        if self._wanted_overview and not self._has_room:
            beside = "" if self.ui.app.size.width < MIN_SCREEN_WIDTH else " beside the panel at the right"
            needed = WIDTH + PANEL_WIDTH + MIN_TRANSCRIPT_WIDTH if beside else MIN_SCREEN_WIDTH
            has = f"this screen has {self.ui.app.size.width}"
            self.ui.hint(f"the overview{beside} needs {needed} columns; {has}")

    @property
    def _has_room(self) -> bool:
        beside = WIDTH + (PANEL_WIDTH if self.side_panel.display else 0)
        return (
            self.ui.app.size.width >= MIN_SCREEN_WIDTH
            and self.ui.app.size.width - beside >= MIN_TRANSCRIPT_WIDTH
        )

    def refresh(self) -> None:
        """Bring it up to date; while nothing of it changes, it costs a comparison."""
        self.overview.display = self._wanted_overview and self._has_room
        if not self.overview.display:
            return
        self._look_up()
        now = self._standing()
        if now != self._surveyed and self.overview.content_size:
            self._surveyed = now
            sections = (self._of_chats(), self._of_branches(), self._of_personas(), self._of_sampling())
            self.overview.show([section for section in sections if section is not None])

    def dialog_closed(self) -> None:
        """Read the list of chats again."""
        self._listed = None

    # --- when something changed ---

    def _asked(self) -> Hashable:
        recorder, session = self.session.recorder, self.session
        return recorder.id, recorder.title, len(session.tree), session.generating

    def _standing(self) -> Hashable:
        session = self.session
        return (
            self._asked(),
            self._listed,
            len(self._chats),
            session.tree.current,
            session.system,
            tuple(session.personas.items()),
            session.sampling,
            self.sampling_panel.display,
            self.overview.content_size,
            date.today(),
        )

    def _look_up(self) -> None:
        """List the chats again after one was started, renamed or deleted."""
        now = self._asked()
        if self.session.recorder.store is not None and now != self._listed:
            self._listed = now
            begin(self.ui.app, "overview", self._list_chats, replaces=True)

    async def _list_chats(self) -> None:
        store = self.session.recorder.store
        assert store is not None
        try:
            self._chats = await asyncio.wrap_future(store.conversations(MAX_LISTED))
        except RopechatError:
            self._chats = []  # the footer says what is wrong with the disk
        self._surveyed = None
        self.ui.refresh()

    # --- the parts ---

    @property
    def _width(self) -> int:
        return self.overview.content_size.width - EDGE

    def _of_chats(self) -> Section | None:
        items: list[Summary | str] = []
        for day, chats in groupby(self._chats, lambda one: max(0, min(2, lists.days_ago(one.changed)))):
            items += [DAYS[day], *chats]
        if not items:
            return None
        key, current = self.keymap.first("chat.list"), self.session.recorder.id
        chosen = next((n for n, one in enumerate(items) if not isinstance(one, str) and one.id == current), 0)
        return Section("chats", "", key, ("command", "chat.list"), items, self._chat_line, chosen)

    def _chat_line(self, summary: Summary) -> Line:
        hour = f" {lists.format_time(summary.changed)}" if lists.days_ago(summary.changed) == 0 else ""
        room = self._width - 2 - len(hour)
        parts = lists.chat_line(summary, self.session.recorder.id, hour, room)
        return Line(tuple(parts), ("chat", summary.id))

    def _of_branches(self) -> Section | None:
        tree = self.session.tree
        leaves = len(tree.leaves())
        if leaves < 2:
            return None
        rows = lists.branch_rows(tree)
        kept = {node.id for _, node in rows}
        path = {node.id for node in tree.path()}
        end = lists.find_branch_row(tree, tree[tree.current], kept).id if tree.current else ""
        chosen = next((place for place, (_, node) in enumerate(rows) if node.id == end), 0)

        def draw(row: tuple[str, Node]) -> Line:
            stem, node = row
            head = lists.describe_origin(tree, node)
            room = max(NARROWEST, self._width - 2 - cell_width(stem))
            mark = "●" if node.id == end else " "
            parts = lists.branch_line(node, stem, head, mark, room, node.id in path)
            return Line(tuple(parts), ("node", node.id))

        key = self.keymap.first("chat.branches")
        return Section("branches", str(leaves), key, ("command", "chat.branches"), rows, draw, chosen)

    def _of_personas(self) -> Section | None:
        session = self.session
        kept = {name: text for text, name in session.personas.items()}
        if not kept and not session.system:
            return None
        rows = lists.persona_rows(session.system, kept)
        used = next(place for place, (_, text) in enumerate(rows) if text == (session.system or ""))

        def draw(row: tuple[str, str]) -> Line:
            name, text = row
            parts = lists.persona_line(name, text == (session.system or ""), self._width - 2)
            return Line(tuple(parts), ("persona", text))

        return Section("personas", "", "/persona", ("command", "prompt.persona"), rows, draw, used)

    def _of_sampling(self) -> Section | None:
        """Left out while the settings panel is open on the right."""
        sampling, target = self.session.sampling, ("command", "sampling.open")
        if self.sampling_panel.display:
            return None

        def draw(name: str) -> Line:
            return Line(tuple(lists.setting_line(sampling, name, "  ", width=self._width - 2)), target)

        # tuples, since a string in `items` is a text between them
        info = self.session.info
        rows = [(name,) for name in presets.shown_names(sampling, thinks=info is not None and info.thinks)]
        preset = presets.preset_of(sampling)
        key = self.keymap.first("sampling.open")
        return Section("sampling", preset, key, target, rows, lambda row: draw(row[0]))

    # --- what it reports ---

    def choose(self, target: Target) -> None:
        """A chat, a branch, a persona, or the dialog with all of a part."""
        self.ui.write()
        match target:
            case ("chat", id) if id != self.session.recorder.id:
                self.chat.when_idle(lambda: self._history.open_chat(id))
            case ("node", id):
                self._to_node(id)
            case ("persona", text) if text != (self.session.system or ""):
                self._system_prompt.use(text)
            case ("command", id):
                self.ui.run(id)

    def _to_node(self, id: str) -> None:
        """Show the branch through a node; of the branch that is shown, scroll there."""
        shown = next((block for block in self.transcript.blocks if block.node == id), None)
        if shown is not None:
            self.transcript.go_to(shown)
        elif id in self.session.tree.nodes:
            self.chat.when_idle(lambda: self._answers.show_branch(id))
