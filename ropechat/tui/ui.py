"""The chat's screen as its features see it, and what a feature is.

A feature does one part of what the chat can do: its methods run commands, handle events of the inference
thread and apply settings, as the decorators beside them say. A feature uses those that were made before it,
by `ui[ThatFeature]`; those that come after it hear of changes by the hooks of `Feature`.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, TypeVar

from textual import events as textual_events

from ropechat.tui.terminal import gc_pause

if TYPE_CHECKING:
    from collections.abc import Callable

    from textual.screen import ModalScreen
    from textual.timer import Timer
    from textual.widget import Widget
    from textual.widgets import Label, Static

    from ropechat.chat import events as ev
    from ropechat.chat.live import LiveChat
    from ropechat.tui.commands.keymap import Keymap
    from ropechat.tui.options import ChatOptions
    from ropechat.tui.terminal.textual_compat import CompatApp
    from ropechat.tui.vocabularies import Vocabularies
    from ropechat.tui.widgets.bars import Bar
    from ropechat.tui.widgets.chart_panel import ChartPanel
    from ropechat.tui.widgets.composer import Composer
    from ropechat.tui.widgets.input import FindBar
    from ropechat.tui.widgets.inspector import Inspector
    from ropechat.tui.widgets.sampling_panel import SamplingPanel
    from ropechat.tui.widgets.side_panel import SidePanel
    from ropechat.tui.widgets.sidebar import Overview
    from ropechat.tui.widgets.stats import EngineFacts
    from ropechat.tui.widgets.token_transcript import TokenTranscript

    Handler = Callable[[str], str | None]
    """Runs a command: takes the words after it, returns a hint or None."""

SIDE_PANEL = 120  # fewest columns for a panel next to the transcript
CONFIRM_WINDOW_S = 3.0  # seconds in which the second press counts
READING_CHARS_PER_S = 20.0  # reading speed in characters per second
F = TypeVar("F", bound="Callable[..., Any]")
Kind = TypeVar("Kind", bound="Feature")


def command(*ids: str) -> Callable[[F], F]:
    """A method that runs commands of the registry. It may take the words after it, and return a hint."""
    return _marker("_commands", ids)


def event(*kinds: type) -> Callable[[F], F]:
    """A method that handles events of the inference thread of these classes."""
    return _marker("_events", kinds)


def setting(name: str) -> Callable[[F], F]:
    """A method that applies a changed value of a setting to the running chat."""
    return _marker("_settings", (name,))


def _marker(attribute: str, values: tuple[object, ...]) -> Callable[[F], F]:
    def mark(function: F) -> F:
        setattr(function, attribute, values)
        return function

    return mark


class ChatUi:
    """The widgets, hints, dialogs, focus, and features of the chat.

    options: the settings of the start. resume: the stored chat to open; "": the newest; None: none.
    """

    title_bar: Bar
    gauge: Bar
    footer: Bar
    reading_bar: Bar
    transcript: TokenTranscript
    composer: Composer
    inspector: Inspector
    chart: ChartPanel
    sampling_panel: SamplingPanel
    engine_facts: EngineFacts
    side_panel: SidePanel
    overview: Overview
    find_bar: FindBar
    found: Label
    completions: Static
    tip: Static
    compose_line: Widget
    vocabularies: Vocabularies

    def __init__(
        self, app: CompatApp, chat: LiveChat, keymap: Keymap, options: ChatOptions, resume: str | None
    ) -> None:
        self.app, self.chat, self.keymap, self.options, self.resume = app, chat, keymap, options, resume
        self.opened = threading.Event()  # set once the chat to resume is shown
        self.handlers: dict[str, Handler] = {}
        self.settings: dict[str, Callable[[Any], object]] = {}
        self.ran: Callable[[str], None] = lambda id: None  # called with each command that is run
        self._events: dict[type, list[Callable[[Any], object]]] = {}
        self._features: dict[type[Feature], Feature] = {}
        self._hint = ""
        self._armed = ""  # the command that waits for a second press
        self._disarmer: Timer | None = None

    # --- features ---

    def add(self, kind: type[Kind]) -> Kind:
        """Make a feature, and register its commands, events and settings."""
        made = self._features[kind] = kind(self)
        for name, function in vars(kind).items():
            for id in getattr(function, "_commands", ()):
                self.handlers[id] = _handler(getattr(made, name))
            for event in getattr(function, "_events", ()):
                self._events.setdefault(event, []).append(getattr(made, name))
            for setting in getattr(function, "_settings", ()):
                self.settings[setting] = getattr(made, name)
        return made

    def __getitem__(self, kind: type[Kind]) -> Kind:
        """A feature that was made before."""
        found = self._features[kind]
        assert isinstance(found, kind)
        return found

    @property
    def features(self) -> list[Feature]:
        """All features, in the order in which they were made."""
        return list(self._features.values())

    def react(self, event: ev.EngineEvent) -> None:
        """Pass an event of the inference thread to the features that handle it."""
        for handle in self._events.get(type(event), ()):
            handle(event)

    def refresh(self) -> None:
        """Bring the lines and panels around the transcript up to date."""
        for feature in self._features.values():
            feature.refresh()

    def leave_chat(self) -> None:
        """Let the features and the garbage collector forget the chat that was shown before."""
        for feature in self._features.values():
            feature.chat_left()
        gc_pause.thaw()

    def run(self, id: str, words: str = "") -> None:
        """Run a command."""
        self.ran(id)
        if hint := self.handlers[id](words):
            self.hint(hint)

    # --- hints: texts that replace the keys in the footer ---

    @property
    def footer_text(self) -> str:
        """The hint of now, or of a condition that is true; "" to show the keys."""
        return self._hint or next(filter(None, (one.standing_hint() for one in self.features)), "")

    def hint(self, text: str) -> None:
        """Show a text for as long as it takes to read it."""
        self._hint = text
        if self._disarmer is not None:
            self._disarmer.stop()
        seconds = max(CONFIRM_WINDOW_S, len(text) / READING_CHARS_PER_S)
        self._disarmer = self.app.set_timer(seconds, self.disarm)
        self.refresh()

    def disarm(self) -> None:
        """Clear the hint; the next press of a key counts as the first."""
        self._hint = self._armed = ""
        self.refresh()

    def disarm_by(self, event: textual_events.Event) -> None:
        """Clear the hint if another key than the armed one is pressed."""
        if not self._armed:
            return
        if not isinstance(event, textual_events.Key) or event.key not in self.keymap.keys(self._armed):
            self.disarm()

    def again(self, command: str, hint: str) -> bool:
        """Whether a command's key is pressed twice within a few seconds; the first press shows `hint`."""
        if self._armed == command:
            self.disarm()
            return True
        self.hint(hint)
        self._armed = command
        return False

    # --- dialogs and the focus ---

    def push(self, screen: ModalScreen[Any], chosen: Callable[..., None] = lambda result: None) -> None:
        """Open a dialog; `chosen` gets its result, unless that is None."""

        def closed(result: object) -> None:
            for feature in self.features:
                feature.dialog_closed()
            if result is not None:
                chosen(result)
            self.refresh()

        self.app.push_screen(screen, closed)

    @property
    def covered(self) -> bool:
        """Whether a dialog is open."""
        return len(self.app.screen_stack) > 1

    def closes(self, dialog: type[ModalScreen[Any]]) -> bool:
        """Close this kind of dialog if it is on top; returns whether any dialog was open."""
        covered = self.covered
        if isinstance(self.app.screen, dialog):
            self.app.screen.dismiss(None)
        return covered

    @property
    def chat_focus(self) -> Widget | None:
        """The widget of the chat that has the focus, or will have it once the open dialog is closed."""
        return self.app.screen_stack[0].focused if self.app.screen_stack else None

    def give_keys(self, widget: Widget) -> None:
        """Focus a widget of the chat, from the next key on."""
        widget.screen.set_focus(widget)

    def write(self) -> None:
        """Focus the composer."""
        self.give_keys(self.composer)
        self.refresh()


class Feature:
    """A part of what the chat can do. Subclasses override the hooks that they need."""

    def __init__(self, ui: ChatUi) -> None:
        self.ui, self.chat, self.session, self.keymap = ui, ui.chat, ui.chat.session, ui.keymap
        self.transcript, self.composer = ui.transcript, ui.composer

    def refresh(self) -> None:
        """Draw what changed."""

    def chat_left(self) -> None:
        """Forget what belongs to the chat that was shown before."""

    def dialog_closed(self) -> None:
        """Called whenever a dialog is closed."""

    def standing_hint(self) -> str:
        """A text for the footer while a condition is true, else ""."""
        return ""

    def footer_keys(self) -> list[tuple[str, str]]:
        """(key, label) pairs for the footer while keys go to this feature, else []."""
        return []


def _handler(method: Callable[..., str | None]) -> Handler:
    """A method as a handler, also one that takes no words."""
    takes_words = method.__code__.co_argcount > 1
    return method if takes_words else lambda words: method()
