"""The sampler's settings and their effect on a recorded token."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from textual.containers import Vertical
from textual.content import Content
from textual.message import Message
from textual.widgets import Input, Static

from ropechat.chat import presets
from ropechat.inspector.what_if import resample
from ropechat.tui.commands import registry as keys
from ropechat.tui.format.lists import NAME, VALUE, setting_line
from ropechat.tui.terminal.textual_compat import bound_keys
from ropechat.tui.widgets.bars import KeyHints, draw_meter
from ropechat.tui.widgets.input import SanitizedInput
from ropechat.tui.widgets.inspector import describe_cut, draw_bar, probability
from ropechat.util.text import one_line, visible
from ropechat.util.width import fit

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from textual import events
    from textual.app import ComposeResult
    from textual.binding import BindingType

    from ropechat.chat.session import Session
    from ropechat.inspector.explain import Candidate, Explanation
    from ropechat.sampling import Sampling
    from ropechat.tui.commands.keymap import Item, Keymap
    from ropechat.tui.render.cursor import TokenPlace
    from ropechat.tui.vocabularies import Vocabularies

METER, NOTE = 16, 28  # cells
TOKEN = 14
MARGIN = 5  # rows around settings and candidates; two more with a line of keys
ITEMS = (
    ("↓ ↑", "setting"),
    ("← →", "value"),
    "dials.type",
    ("1-4", "preset"),
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
        self._session, self._words = session, words
        self.border_title = Content(" sampling ")
        self._before: Sampling | None = None
        self._token: TokenPlace | None = None
        self._row = 0
        self._settings, self._choices, self._effect = (Static(markup=False) for _ in range(3))
        self._field = SanitizedInput(placeholder="value", classes="value")
        self._key_hints = KeyHints(items, keymap)

    @property
    def _names(self) -> tuple[str, ...]:
        """The settings that the model knows."""
        info = self._session.info
        return presets.names_for(thinks=info is not None and info.thinks)

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
        self._before = self.sampling
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
    def _chosen(self) -> str:
        return self._names[self._row % len(self._names)]

    def _set(self, sampling: Sampling) -> None:
        self._session.sampling = sampling
        self.post_message(self.Changed())
        self.redraw()

    def action_move(self, by: int) -> None:
        """Choose the next or previous setting."""
        self._row = (self._row + by) % len(self._names)
        self.redraw()

    def action_step(self, by: int) -> None:
        """Change the chosen setting by a step."""
        self._set(presets.step_value(self.sampling, self._chosen, by))

    def on_click(self, event: events.Click) -> None:
        """Choose the setting or the preset under the mouse; in the bar also its value."""
        x, y = event.screen_x, event.screen_y
        row = y - self._settings.content_region.y
        if self._settings.region.contains(x, y) and 0 <= row < len(self._names):
            self._row = row
            at = x - self._settings.content_region.x - (3 + NAME + VALUE + 1 + 2)
            cells = self._meter_cells()
            if 0 <= at < cells and presets.fill_fraction(self.sampling, self._chosen) is not None:
                self._set(presets.with_fraction(self.sampling, self._chosen, (at + 1) / cells))
            self.redraw()
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
        if 0 <= row < len(self._names):
            event.stop()
            self._row = row
            self.action_step(by)

    def _meter_cells(self) -> int:
        return max(4, min(METER, self.content_size.width - 3 - NAME - VALUE - 3))

    def action_preset(self, name: str) -> None:
        """Use a preset."""
        self._set(presets.with_preset(self.sampling, name))

    def action_restore(self) -> None:
        """Restore the settings of when the panel was opened."""
        if self._before is not None:
            self._set(self._before)

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
        rows = [self._setting(row, name) for row, name in enumerate(self._names)]
        self._settings.update(Content("\n").join(rows))
        self._choices.update(self._presets())
        self._effect.update(Content("\n").join(self._effects()))

    def _setting(self, row: int, name: str) -> Content:
        here = row == self._row
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
            ("  " + presets.describe_setting(name) if room >= METER + NOTE else "", "$quiet"),
        )

    def _presets(self) -> Content:
        now = presets.preset_of(self.sampling)
        parts: list[tuple[str, str]] = [("\n   ", "")]
        for number, name in enumerate(presets.PRESETS, 1):
            style = "bold $primary" if name == now else "$foreground"
            parts += [(f"{number} ", "$primary"), (name, style), ("  ", "")]
        words = f"{now}: {presets.describe_preset(now)}" if now else "your own settings"
        lines = [words, *([f"bias: {biases}"] if (biases := self._biases()) else [])]
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
        seen = None
        if block.prompt is not None:
            seen = block.prompt | {earlier.id for earlier in block.steps[: token.index]}
        info, sampling, vocab_size = self._session.info, self.sampling, 0
        if info is not None and info.name == block.answer.model:
            vocab_size = int(info.facts.get("vocab_size", 0))
        else:
            sampling = replace(sampling, logit_bias=())  # ids of another vocabulary
        found = resample(step, sampling, vocab_size, seen)
        kept = "?" if found.kept is None else f"{found.kept:,}"
        name, about = one_line(visible(step.bytes)), "" if found.exact else "about "
        rows = [
            Content.assemble(
                (f"\n   token {token.index + 1} ", "$quiet"),
                (name, "bold"),
                f": {about}{kept} tokens possible",
            )
        ]
        height = self.app.size.height - 4 if self.screen.is_modal else self.size.height
        room = height - len(self._names) - MARGIN - bool(self.sampling.logit_bias)
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
