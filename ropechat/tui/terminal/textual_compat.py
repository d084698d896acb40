"""Every private name of Textual that the chat reads, overrides or patches.

No other module uses one. A new version of Textual may rename any of them: `PRIVATE_NAMES` lists them for the
test, and the version in pyproject.toml is pinned to the minor version that was tested.
"""

from __future__ import annotations

import functools
import os
from enum import StrEnum
from typing import TYPE_CHECKING, Any, cast

from textual._ansi_sequences import ANSI_SEQUENCES_KEYS
from textual._styles_cache import StylesCache
from textual._xterm_parser import XTermParser
from textual.app import App
from textual.content import Content
from textual.css.query import NoMatches
from textual.dom import NoScreen
from textual.drivers.linux_driver import LinuxDriver
from textual.geometry import Region
from textual.keys import _character_to_key
from textual.screen import Screen
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import OptionList
from textual.worker import WorkerFailed, active_worker

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from collections.abc import Iterable

    from textual.events import Resize
    from textual.geometry import Size

PRIVATE_NAMES: tuple[tuple[object, str], ...] = (
    (App, "_check_bindings"),
    (App, "_close_messages_no_wait"),
    (App, "_fatal_error"),
    (App, "_handle_exception"),
    (Content, "_wrap_and_format"),
    (LinuxDriver, "_run_input_thread"),
    (LinuxDriver, "run_input_thread"),
    (OptionList, "_move_page"),
    (Screen, "_on_resize"),
    (ScrollView, "_scroll_update"),
    (Strip, "render_ansi"),
    (StylesCache, "get_inner_outer"),
    (XTermParser, "feed"),
    (XTermParser, "tick"),
)
PRIVATE_ATTRIBUTES: tuple[tuple[str, str], ...] = (  # set by the constructors of App, Driver and Widget
    ("app", "_clipboard"),
    ("app", "_driver"),
    ("app", "_exception"),
    ("app", "_exit"),
    ("driver", "_app"),
    ("driver", "_debug"),
    ("driver", "_loop"),
    ("driver", "attrs_before"),
    ("driver", "exit_event"),
    ("driver", "fileno"),
    ("widget", "_bindings"),
)


class _ExtraKey(StrEnum):
    """Keys that Textual has no name for."""

    ALT_ENTER = "alt+enter"


def forget_what_was_drawn() -> None:
    """Empty the tables of Textual that hold what is no longer on the screen.

    One holds the lines of up to 1,024 widgets, of which most are closed: its key is the widget's cache of
    lines. One holds 16,384 styles: each place of a text on the screen has one, and none is asked for twice,
    because a style remembers its codes. Two hold 5,120 regions, and each length of a text makes new ones.
    """
    StylesCache.get_inner_outer.cache_clear()
    Strip.render_ansi.cache_clear()
    Region.__contains__.cache_clear()
    Region.contains_region.cache_clear()


def teach_alt_enter() -> None:
    """Name the key of terminals that send ESC CR for alt+enter; Textual reads that as enter."""
    table = cast("dict[str, Any]", ANSI_SEQUENCES_KEYS)
    table["\x1b\r"] = table["\x1b\n"] = (_ExtraKey.ALT_ENTER,)


@functools.cache  # once
def bear_any_size() -> None:
    """Mend what fails in Textual where the terminal changes its size, or leaves no room.

    Where no cell is left beside the padding, options of lists and the placeholder of a text area wrap to
    lines of 0 cells (ValueError), and a list without lines moves by a page (KeyError). A screen sends itself
    each new size that it handles: of two sizes within a batch of updates, each brings the other one back,
    and the event loop does nothing else any more.
    """
    wrapped, moved, resized = Content._wrap_and_format, OptionList._move_page, Screen._on_resize

    @functools.wraps(wrapped)
    def wrap(self: Content, width: int, *args: Any, **options: Any) -> Any:
        return wrapped(self, max(width, 1 + 2 * options.get("line_pad", 0)), *args, **options)

    @functools.wraps(moved)
    def move(self: OptionList, direction: Any) -> None:
        if self.scrollable_content_region:
            moved(self, direction)

    @functools.wraps(resized)
    async def resize(self: Screen[Any], event: Resize) -> None:
        if event.size == self.app.size:  # another size is an old one
            await resized(self, event)

    cast("Any", Content)._wrap_and_format = wrap
    cast("Any", OptionList)._move_page = move
    cast("Any", Screen)._on_resize = resize


def key_of_character(character: str) -> str:
    """The name of the key that types a character."""
    return _character_to_key(character)


def bound_keys(widget: Widget) -> Iterable[str]:
    """The keys that a widget itself binds."""
    return widget._bindings.key_to_bindings


class CompatApp(App[None]):
    """The app's access to its driver, clipboard and bindings; and no traceback that shows the chat."""

    def __init__(self, **options: Any) -> None:
        bear_any_size()
        super().__init__(**options)

    def _handle_exception(self, error: Exception) -> None:
        """End with an error. A dialog that is closed and misses its widgets is not one."""
        cause = error.error if isinstance(error, WorkerFailed) else error
        if not isinstance(cause, NoMatches) or not (self._exit or self._works_for_a_closed_dialog()):
            super()._handle_exception(error)
        elif self._exit:
            self._close_messages_no_wait()  # what raised it handles no messages any more

    def _works_for_a_closed_dialog(self) -> bool:
        """Whether the current task is a worker whose screen is closed."""
        worker = active_worker.get(None)
        try:
            return worker is not None and worker.node.screen not in self.screen_stack
        except NoScreen:
            return True

    def _fatal_error(self) -> None:
        """Close without Textual's traceback, which prints all local values; ROPECHAT_DEBUG=1 prints it."""
        if os.environ.get("ROPECHAT_DEBUG"):
            super()._fatal_error()
        else:
            self._close_messages_no_wait()

    @property
    def crash(self) -> BaseException | None:
        """The exception that ended the app."""
        return self._exception

    @property
    def can_suspend(self) -> bool:
        """Whether another program can have the terminal for a while."""
        return self._driver is not None and self._driver.can_suspend

    def write_terminal(self, sequence: str) -> None:
        """Send a control sequence to the terminal."""
        if self._driver is not None:
            self._driver.write(sequence)
            self._driver.flush()

    def set_clipboard(self, text: str) -> None:
        """Set the clipboard that pasting within the app uses."""
        self._clipboard = text

    async def run_key_bindings(self, key: str) -> bool:
        """Run the binding of a key, looked up from the focused widget upwards; False without one."""
        return await self._check_bindings(key, priority=True) or await self._check_bindings(key)


class CompatDriver(LinuxDriver):
    """A terminal driver whose subclass reads the input itself."""

    @property
    def app(self) -> App[Any]:
        """The app that gets the keys."""
        return self._app

    @property
    def loop(self) -> AbstractEventLoop:
        """The event loop of the app."""
        return self._loop

    @property
    def debug(self) -> bool:
        """Whether Textual logs what it parses."""
        return self._debug


class CompatScrollView(ScrollView):
    """A scroll view that may change its size without a layout of the screen."""

    def set_virtual_size(self, size: Size) -> None:
        """Set the size of the content; only the scrollbars are laid out."""
        self.set_reactive(Widget.virtual_size, size)
        self._scroll_update(size)


__all__ = [
    "CompatApp",
    "CompatDriver",
    "CompatScrollView",
    "XTermParser",
    "bound_keys",
    "key_of_character",
    "teach_alt_enter",
]
