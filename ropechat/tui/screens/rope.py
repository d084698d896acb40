"""What the loaded model does with positions, view by view: see `ropechat.inspector.rope`."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rich.text import Text
from textual.containers import Vertical, VerticalScroll
from textual.widgets import Static

from ropechat.errors import CancelledError, RopechatError
from ropechat.tui.screens.dialog import Dialog, bindings
from ropechat.tui.workers import begin
from ropechat.util.text import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from textual.app import ComposeResult

    from ropechat.engine.engine import Engine
    from ropechat.inspector.rope.blocks import View
    from ropechat.inspector.rope.job import Measurement
    from ropechat.inspector.text_reader import Done, Job
    from ropechat.tui.commands.keymap import Keymap

    Submit = Callable[[Job, Done], None]
    Key = tuple[str, int | None, int | None]

SCROLL_BAR = 1  # columns
TICK_S = 0.25  # between two polls of a computation
OF_HEADS = ("split", "distance")  # views of one layer and head, which keys choose


class RopeScreen(Dialog[None]):
    """The views of the config, and with an engine those of the loaded model on a text."""

    BINDINGS = bindings("rope")
    context = "rope"
    heading = "positions"
    items = ("rope.left", "rope.right", "rope.layer", "rope.head", ("↓ ↑", "scroll"), "sheet.leave")

    def __init__(
        self,
        rope_spec: Callable[[int], Mapping[str, Any]],
        length: int,
        keymap: Keymap,
        submit: Submit | None = None,
        ids: Callable[[Engine], Sequence[int]] = lambda engine: (),
        about: str = "",
    ) -> None:
        """rope_spec: `Engine.rope_spec` of the loaded model. length: the chat's, in tokens.

        submit: runs a job in the engine's thread; None: there are only views of the config. ids: the tokens
        of the text that is measured; about: its description.
        """
        super().__init__(keymap)
        self._rope_spec, self._length = rope_spec, length
        self._spec: Mapping[str, Any] | None = None  # once it was read
        self._submit, self._ids, self._about = submit, ids, about
        self._at = 0
        self._layer: int | None = None  # chosen by keys
        self._head: int | None = None
        self._text = Static("", markup=False)
        self._measured: dict[Key, list[View]] = {}
        self._job: Measurement | None = None
        self._begun = 0.0

    def compose(self) -> ComposeResult:
        """One view and the keys."""
        with Vertical(classes="sheet whole broad"):
            with VerticalScroll(can_focus=False):
                yield self._text
            yield self.key_hints

    def on_mount(self) -> None:
        """Poll the computation."""
        super().on_mount()
        self.set_interval(TICK_S, self._tick)

    def on_resize(self) -> None:
        """Draw at this width."""
        self._show()

    def on_unmount(self) -> None:
        """Stop the computation, whose result is no longer shown."""
        self._stop()

    # --- keys ---

    def action_leave(self) -> None:
        """Stop the computation, or close."""
        if self._job is None:
            self.dismiss(None)
        else:
            self._stop()
            self.say("stopped; leave this view and return to compute it again")

    def action_turn(self, by: int) -> None:
        """The next or previous view; it wraps at the ends."""
        self._stop()
        self._at = (self._at + by) % len(self._names)
        self.query_one(VerticalScroll).scroll_home(animate=False)
        self._show()

    def action_layer(self, by: int) -> None:
        """The next layer, or the one before, of a view that shows one."""
        if self._spec is not None:
            self._choose(_moved(self._layer, by, self._spec["num_hidden_layers"]), self._head)

    def action_head(self, by: int) -> None:
        """The next head, or the one before."""
        if self._spec is not None:
            self._choose(self._layer, _moved(self._head, by, self._spec["num_attention_heads"]))

    def _choose(self, layer: int | None, head: int | None) -> None:
        if self._view_name not in OF_HEADS:
            self.say(f"layer and head: of the views {' and '.join(OF_HEADS)}")
            return
        self._stop()
        self._layer, self._head = layer, head
        self._show()

    # --- views ---

    @property
    def _names(self) -> tuple[str, ...]:
        from ropechat.inspector.rope import report  # imports numpy, so late

        return report.CONFIG_VIEWS + (report.WEIGHT_VIEWS if self._submit is not None else ())

    @property
    def _view_name(self) -> str:
        return self._names[self._at]

    @property
    def _key(self) -> Key:
        name = self._view_name
        return (name, self._layer, self._head) if name in OF_HEADS else (name, None, None)

    def _show(self) -> None:
        begin(self, "draw", self._draw, replaces=True)

    async def _draw(self) -> None:
        width = self.query_one(".sheet").size.width - SCROLL_BAR
        color = not self.app.no_color
        try:
            lines = await asyncio.to_thread(self._lines, width, color)
        except RopechatError as error:  # another model is being loaded
            self.say(one_line(str(error)), "$error")
            return
        name, layer, head = self._key
        where = [f"{what} {place}" for what, place in (("layer", layer), ("head", head)) if place is not None]
        self.title_with(" · ".join([name, f"{self._at + 1} of {len(self._names)}", *where]))
        if lines is None:
            self._measure()
        else:
            self.say("")
            self._text.update(Text.from_ansi("\n".join(lines), no_wrap=True))

    def _lines(self, width: int, color: bool) -> list[str] | None:
        """The lines of the view; None if it is not measured yet. Imports numpy, so late.

        Reads the model's spec once, on a thread: the model may be closed at any time.
        """
        from ropechat.inspector.rope import report, term
        from ropechat.inspector.rope.spec import spec_of

        if self._spec is None:
            self._spec = self._rope_spec(self._length)
        views = self._measured.get(self._key)
        if self._view_name in report.CONFIG_VIEWS:
            spec = spec_of(self._spec, self._length)
            views = list(report.spec_views(spec, (self._view_name,), report.ViewOptions(length=self._length)))
        return None if views is None else list(term.render(views, max(width, 20), color=color))

    # --- measuring ---

    def _measure(self) -> None:
        """Compute the view in the engine's thread."""
        from ropechat.inspector.rope import report
        from ropechat.inspector.rope.job import Measurement

        if self._submit is None or self._job is not None:
            return
        key, wishes = self._key, report.ViewOptions()
        if self._view_name in OF_HEADS:
            wishes = replace(wishes, layer=self._layer, head=self._head)
        self._job = job = Measurement(self._view_name, self._ids, wishes)
        self._begun = time.monotonic()
        self._text.update("")
        self._tick()
        app = self.app

        self._submit(job, lambda result: app.call_from_thread(self._finish, job, key, result))

    def _finish(self, job: Measurement, key: Key, result: Any) -> None:
        if not isinstance(result, BaseException):
            self._measured[key] = result
        if job is not self._job:  # stopped
            return
        self._job = None
        if not isinstance(result, BaseException):
            self._show()
        elif not isinstance(result, CancelledError):
            self.say(one_line(str(result)), "$error")

    def _stop(self) -> None:
        if self._job is not None:
            self._job.stop()
            self._job = None

    def _tick(self) -> None:
        if self._job is not None:
            elapsed = time.monotonic() - self._begun
            self.say(f"measuring {self._about} … {elapsed:.0f} s · esc stops")


def _moved(place: int | None, by: int, count: int) -> int:
    """The next place of `count`, or the one before; round at the ends. None: before the first one."""
    return (by - 1 if place is None and by > 0 else by if place is None else place + by) % count
