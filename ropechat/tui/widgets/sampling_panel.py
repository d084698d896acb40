"""The sampler's settings and their effect on a recorded token."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from textual.containers import Vertical
from textual.content import Content
from textual.message import Message
from textual.widgets import Input, Static

from ropechat.chat import presets
from ropechat.inspector.what_if import Before, resample
from ropechat.tui.commands import registry as keys
from ropechat.tui.format.lists import NAME, VALUE, setting_line
from ropechat.tui.terminal.textual_compat import bound_keys
from ropechat.tui.widgets.bars import KeyHints, draw_meter
from ropechat.tui.widgets.input import SanitizedInput
from ropechat.tui.widgets.inspector import describe_cut, draw_bar, probability
from ropechat.util.text import count_of, one_line, visible
from ropechat.util.width import fit

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from textual import events
    from textual.app import ComposeResult
    from textual.binding import BindingType

    from ropechat.chat.session import Session
    from ropechat.inspector.explain import Candidate, Explanation
    from ropechat.sampling import Sampling
    from ropechat.sampling.sources import SourcedSampling
    from ropechat.tui.commands.keymap import Item, Keymap
    from ropechat.tui.render.cursor import TokenPlace
    from ropechat.tui.vocabularies import Vocabularies

METER, SOURCE = 16, 11  # cells of a bar, and of the source of a value
TOKEN = 14
MARGIN = 5  # rows around settings and candidates; two more with a line of keys
FEWEST = 5  # rows of settings where they scroll
EFFECT = 3  # rows of candidates that settings leave
ITEMS = (
    ("↓ ↑", "setting"),
    ("← →", "value"),
    "dials.type",
    ("1-5", "preset"),
    "dials.all",
    "dials.restore",
    "sheet.leave",
)


class SamplingPanel(Vertical, can_focus=True):
    """Changes apply from the next answer on; their effect on a recorded token shows at once.

    session: whose sampling is shown and set; words: the texts of tokens; items: the keys in the last line.
    """

    BINDINGS: ClassVar[list[BindingType]] = [*keys.bindings((*keys.COMMON, *keys.DIALS))]

    class Closed(Message):
        """The panel asks to be closed."""

    class Changed(Message):
        """The session's sampling changed."""

    def __init__(
        self,
        session: Session,
        keymap: Keymap,
        words: Vocabularies,
        items: Sequence[Item] = (),
        *,
        id: str | None = None,
    ) -> None:
        super().__init__(id=id, classes="sampling")
        self._session, self._keymap, self._words = session, keymap, words
        self.border_title = Content(" sampling ")
        self._before: SourcedSampling | None = None
        self._token: TokenPlace | None = None
        self._chosen = presets.NAMES[0]
        self._whole = False  # whether settings that are off are shown
        self._top = 0  # the first of the settings that fit
        self._settings, self._choices, self._effect = (Static(markup=False) for _ in range(3))
        self._field = SanitizedInput(placeholder="value", classes="value")
        self._key_hints = KeyHints(items, keymap)

    @property
    def sampling(self) -> Sampling:
        """The session's sampling."""
        return self._session.sampling

    def compose(self) -> ComposeResult:
        self._field.display = False
        yield self._settings
        yield self._field
        yield self._choices
        yield self._effect
        yield self._key_hints

    def on_resize(self) -> None:
        self.redraw()

    def begin(self, token: TokenPlace | None) -> None:
        """Remember the settings, and show their effect on a token."""
        self._before = self._session.sourced
        self.try_on(token)

    def try_on(self, token: TokenPlace | None) -> None:
        """Show the effect of the settings on a token."""
        self._token = token
        self.redraw()

    # --- keys ---

    @property
    def own_keys(self) -> Iterable[str]:
        """The keys that the panel binds."""
        return bound_keys(self)

    # --- changing ---

    @property
    def _names(self) -> tuple[str, ...]:
        """The settings that are shown."""
        return self._shown(whole=self._whole)

    def _shown(self, *, whole: bool) -> tuple[str, ...]:
        info = self._session.info
        return presets.shown_names(self.sampling, thinks=info is not None and info.thinks, whole=whole)

    @property
    def _visible(self) -> tuple[str, ...]:
        """Those of the settings that fit."""
        return self._names[self._top : self._top + self._room]

    @property
    def _height(self) -> int:
        return self.app.size.height - 4 if self.screen.is_modal else self.size.height

    @property
    def _room(self) -> int:
        """How many settings fit, with their effect."""
        return max(FEWEST, self._height - MARGIN - 1 - EFFECT - bool(self.sampling.logit_bias))

    def _set(self, sampling: Sampling) -> None:
        self._session.sampling = sampling
        self._show_change()

    def _show_change(self) -> None:
        self.post_message(self.Changed())
        self.redraw()

    def action_move(self, by: int) -> None:
        """Choose the next or previous setting."""
        names = self._names
        self._chosen = names[(names.index(self._chosen) + by) % len(names)]
        self.redraw()

    def action_whole(self) -> None:
        """Show the settings that are off, or hide them."""
        self._whole = not self._whole
        self.redraw()

    def action_step(self, by: int) -> None:
        """Change the chosen setting by a step."""
        self._set(presets.step_value(self.sampling, self._chosen, by))

    def on_click(self, event: events.Click) -> None:
        """Choose the setting or the preset under the mouse; in the bar also its value."""
        x, y = event.screen_x, event.screen_y
        row = y - self._settings.content_region.y
        if self._settings.region.contains(x, y) and 0 <= row < len(self._visible):
            self._chosen = self._visible[row]
            at = x - self._settings.content_region.x - (3 + NAME + VALUE + 1 + 2)
            cells = self._meter_cells()
            if 0 <= at < cells and presets.fill_fraction(self.sampling, self._chosen) is not None:
                self._set(presets.with_fraction(self.sampling, self._chosen, (at + 1) / cells))
            self.redraw()
        elif self._settings.region.contains(x, y) and row == len(self._visible):
            self.action_whole()
        elif y == self._choices.content_region.y + 2 and x < self._choices.content_region.x + 3 + len(
            "5 model"
        ):
            self.action_own()
        elif y == self._choices.content_region.y + 1:
            at = x - self._choices.content_region.x - 3
            for number, name in enumerate(presets.PRESETS, 1):
                if 0 <= at < len(f"{number} {name}"):
                    self.action_preset(name)
                at -= len(f"{number} {name}  ")

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """A step down of the setting under the mouse."""
        self._turn(event, -1)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """A step up of the setting under the mouse."""
        self._turn(event, 1)

    def _turn(self, event: events.MouseEvent, by: int) -> None:
        row = event.screen_y - self._settings.content_region.y
        if 0 <= row < len(self._visible):
            event.stop()
            self._chosen = self._visible[row]
            self.action_step(by)

    def _meter_cells(self) -> int:
        return max(4, min(METER, self.content_size.width - 3 - NAME - VALUE - 3 - SOURCE))

    def action_preset(self, name: str) -> None:
        """Use a preset."""
        self._session.set_preset(name)
        self._show_change()

    def action_own(self) -> None:
        """Use what the model's maker recommends."""
        if (own := self._session.own_sampling()) is not None:
            self._session.restore_sampling(own)
            self._show_change()

    def action_restore(self) -> None:
        """Restore the settings of when the panel was opened."""
        if self._before is not None:
            self._session.restore_sampling(self._before)
            self._show_change()

    def action_type(self) -> None:
        """Ask for a value."""
        self._field.display = True
        self._field.value = presets.format_value(self.sampling, self._chosen).replace(",", "")
        self._field.focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Take the value, or say what it must be."""
        event.stop()
        try:
            self._set(presets.with_value(self.sampling, self._chosen, event.value.strip()))
        except ValueError as error:
            self._key_hints.say(str(error))
            return
        self._end_typing()

    def action_leave(self) -> None:
        """Close the panel, or end typing."""
        if self._field.display:
            self._end_typing()
        else:
            self.post_message(self.Closed())

    def _end_typing(self) -> None:
        self._field.display = False
        self.focus()
        self._key_hints.say("")

    # --- showing ---

    def redraw(self) -> None:
        """Draw the panel."""
        if not self.is_attached or not self.size.width:
            return
        names = self._names
        if self._chosen not in names:
            self._chosen = names[0]
        at, room = names.index(self._chosen), self._room
        self._top = min(max(self._top, at - room + 1, 0), at, max(0, len(names) - room))
        rows = [*map(self._setting, self._visible), self._about()]
        self._settings.update(Content("\n").join(rows))
        self._choices.update(self._presets())
        self._effect.update(Content("\n").join(self._effects()))

    def _about(self) -> Content:
        """What the chosen setting does, and how many settings are not shown."""
        off = len(self._shown(whole=True)) - len(self._shown(whole=False))
        key = self._keymap.first("dials.all")
        more = f"  {key}: hide those that are off" if self._whole else f"  {key}: {off} more that are off"
        more = more if off else ""
        width = self.content_size.width - 3
        help = presets.describe_setting(self._chosen)
        if len(help) + len(more) > width:
            more = ""
        return Content.assemble(("   " + fit(help, max(4, width - len(more))), "$quiet"), (more, "$quiet"))

    def _setting(self, name: str) -> Content:
        here = name == self._chosen
        width = self.content_size.width
        room = width - 3 - NAME - VALUE - 3
        cells = self._meter_cells()
        share = presets.fill_fraction(self.sampling, name)
        full, rest = ("", " " * cells) if share is None else draw_meter(share, cells)
        return Content.assemble(
            *setting_line(self.sampling, name, " ▸ " if here else "   ", here),
            "  ",
            (full, "$primary"),
            (rest, "$rule"),
            (f"  {self._session.sourced.source(name)}" if room >= cells + SOURCE else "", "$quiet"),
        )

    def _presets(self) -> Content:
        now = presets.preset_of(self.sampling)
        parts: list[tuple[str, str]] = [("\n   ", "")]
        for number, name in enumerate(presets.PRESETS, 1):
            style = "bold $primary" if name == now else "$foreground"
            parts += [(f"{number} ", "$primary"), (name, style), ("  ", "")]
        own = self._session.own_sampling()
        is_own = own is not None and own.sampling == self.sampling
        words = f"{now}: {presets.describe_preset(now)}" if now else "" if is_own else "your own settings"
        if own is not None:
            parts += [("\n   5 ", "$primary"), ("model", "bold $primary" if is_own else "$foreground")]
            about = own.line().removeprefix("sampling: ") if is_own else words
            parts.append(("  " + fit(about, max(4, self.content_size.width - 12)), "$quiet"))
        lines = [
            *([words] if own is None else []),
            *([f"bias: {biases}"] if (biases := self._biases()) else []),
        ]
        parts += [("\n   " + fit(line, max(4, self.content_size.width - 3)), "$quiet") for line in lines]
        return Content.assemble(*parts)

    def _biases(self) -> str:
        return " · ".join(
            f"{one_line(self._words.of_loaded(id))} {presets.describe_bias(bias)}"
            for id, bias in self.sampling.logit_bias
        )

    def _effects(self) -> list[Content]:
        """The candidates of a recorded token under these settings."""
        token = self._token
        if token is None or not token.block.steps[token.index].top:
            return [Content.styled("\n   Ask something: then the effect on a token shows here.", "$quiet")]
        block, step = token.block, token.block.steps[token.index]
        before = Before(block.prompt, block.steps[: token.index])
        info, sampling, vocab_size = self._session.info, self.sampling, 0
        if info is not None and info.name == block.answer.model:
            vocab_size = int(info.facts.get("vocab_size", 0))
        else:
            sampling = replace(sampling, logit_bias=())  # ids of another vocabulary
        found = resample(step, sampling, vocab_size, before)
        kept = "? tokens" if found.kept is None else count_of(found.kept, "token")
        name, about = one_line(visible(step.bytes)), "" if found.exact else "about "
        rows = [
            Content.assemble(
                (f"\n   token {token.index + 1} ", "$quiet"),
                (name, "bold"),
                f": {about}{kept} possible",
                (f" · {found.why}" if found.why else "", "$quiet"),
            )
        ]
        room = self._height - len(self._visible) - 1 - MARGIN - bool(self.sampling.logit_bias)
        if room < 1:
            return []
        best = max((one.sampled or 0.0 for one in found.candidates if one.cut is None), default=0.0)
        return rows + [self._candidate(one, found, token, best) for one in found.candidates[:room]]

    def _candidate(self, one: Candidate, found: Explanation, token: TokenPlace, best: float) -> Content:
        drawn = one.id == token.block.steps[token.index].id
        cells = max(6, min(40, self.content_size.width - TOKEN - 23))
        look = "" if one.cut is None else "$quiet"
        name = fit(one_line(self._words.text(token.block.answer.model, one.id)), TOKEN)
        if one.cut is not None:
            right = fit(describe_cut(one.cut), cells + 7)
        else:
            share = (one.sampled or 0.0) / best if best else 0.0
            right = f"{probability(one.sampled, found.exact):>6} {draw_bar(share, cells)}"
        return Content.assemble(
            (" ● " if drawn else "   ", "$primary"),
            (name, look),
            (right, look or "$primary"),
            (f"  raw {probability(one.raw):>6}", "$quiet"),
        )
