"""The sampler's settings, and what they would do with a token that was drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, cast

from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from ropechat.text import fit, one_line
from ropechat.tui import presets
from ropechat.tui.render.trial import tried
from ropechat.tui.render.visible import visible
from ropechat.tui.widgets.bars import meter
from ropechat.tui.widgets.inspector import CUTS, barred, probability

if TYPE_CHECKING:
    from textual.app import ComposeResult

    from ropechat.sampling import Sampling
    from ropechat.tui.app import ChatApp
    from ropechat.tui.render.candidates import Candidate, Explanation
    from ropechat.tui.render.cursor import TokenPlace

KEYS = "↑ ↓ setting   ← → value   ⏎ type it   1-4 preset   r as it was   esc back"
NAME, VALUE, METER = 20, 8, 16  # cells
TOKEN = 16


class SamplingScreen(ModalScreen[None]):
    """Every change is used from the next answer on, and tried at once on a recorded token."""

    AUTO_FOCUS = ""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", show=False),
        Binding("q", "dismiss", show=False),
        Binding("up,k", "move(-1)", show=False),
        Binding("down,j", "move(1)", show=False),
        Binding("left,h", "step(-1)", show=False),
        Binding("right,l", "step(1)", show=False),
        Binding("enter", "type", show=False),
        Binding("r", "restore", show=False),
        *(Binding(str(n), f"preset('{name}')", show=False) for n, name in enumerate(presets.PRESETS, 1)),
    ]

    def __init__(self, sampling: Sampling, token: TokenPlace | None) -> None:
        super().__init__()
        self.sampling, self._before = sampling, sampling
        self._token = token
        self._row = 0

    @property
    def _app(self) -> ChatApp:
        return cast("ChatApp", self.app)

    def compose(self) -> ComposeResult:
        """Settings, presets, what they do, keys."""
        with Vertical(id="sampling", classes="sheet"):
            yield Static(Content.styled("sampling", "bold $primary"))
            yield Static(id="settings", markup=False)
            yield Input(id="value", placeholder="value")
            yield Static(id="presets", markup=False)
            yield Static(id="effect", markup=False)
            yield Static(Content.styled(KEYS, "$quiet"), id="keys")

    def on_mount(self) -> None:
        """Nothing is typed yet."""
        self.query_one("#value").display = False
        self._show()

    def on_resize(self) -> None:
        """As many candidates as fit."""
        self._show()

    # --- changing ---

    @property
    def _setting_name(self) -> str:
        return presets.NAMES[self._row]

    def _set(self, sampling: Sampling) -> None:
        self.sampling = sampling
        self._app.use_sampling(sampling)
        self._show()

    def action_move(self, by: int) -> None:
        """Another setting."""
        self._row = (self._row + by) % len(presets.NAMES)
        self._show()

    def action_step(self, by: int) -> None:
        """A step up or down."""
        self._set(presets.stepped(self.sampling, self._setting_name, by))

    def action_preset(self, name: str) -> None:
        """All of a preset's values."""
        self._set(presets.with_preset(self.sampling, name))

    def action_restore(self) -> None:
        """As it was when the sheet opened."""
        self._set(self._before)

    def action_type(self) -> None:
        """Let a value be typed."""
        field = self.query_one("#value", Input)
        field.display = True
        field.value = presets.shown(self.sampling, self._setting_name).replace(",", "")
        field.focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Take the value, or say what is allowed."""
        event.stop()
        try:
            self._set(presets.with_value(self.sampling, self._setting_name, event.value.strip()))
        except ValueError as error:
            self._say(str(error), "$warning")
            return
        self._end_typing()

    def action_leave(self) -> None:
        """Out of typing first."""
        if self.query_one("#value").display:
            self._end_typing()
        else:
            self.dismiss()

    def _end_typing(self) -> None:
        self.query_one("#value").display = False
        self.set_focus(None)
        self._say(KEYS, "$quiet")

    def _say(self, text: str, style: str) -> None:
        self.query_one("#keys", Static).update(Content.styled(one_line(text), style))

    # --- showing ---

    def _show(self) -> None:
        rows = [self._setting(row, name) for row, name in enumerate(presets.NAMES)]
        self.query_one("#settings", Static).update(Content("\n").join(rows))
        self.query_one("#presets", Static).update(self._presets())
        self.query_one("#effect", Static).update(Content("\n").join(self._effect()))

    def _setting(self, row: int, name: str) -> Content:
        here = row == self._row
        share = presets.filled(self.sampling, name)
        full, rest = ("", " " * METER) if share is None else meter(share, METER)
        value = presets.shown(self.sampling, name).rjust(VALUE)
        note = presets.MEANING[name] if self.app.size.width >= 76 else ""
        return Content.assemble(
            (" ▸ " if here else "   ", "$primary"),
            (name.ljust(NAME), "bold" if here else ""),
            (value + "  ", "bold $primary" if here else "$foreground"),
            (full, "$primary"),
            (rest, "$rule"),
            (" " + note, "$quiet"),
        )

    def _presets(self) -> Content:
        now = presets.preset_of(self.sampling)
        parts: list[tuple[str, str]] = [("\n   ", "")]
        for number, name in enumerate(presets.PRESETS, 1):
            style = "bold $primary" if name == now else "$foreground"
            parts += [(f"{number} ", "$quiet"), (name, style), ("   ", "")]
        parts.append((f"\n   {now}: {presets.said(now)}" if now else "\n   settings of your own", "$quiet"))
        return Content.assemble(*parts)

    def _effect(self) -> list[Content]:
        """The candidates of a recorded token under these settings."""
        token = self._token
        if token is None or not token.block.steps[token.index].top:
            return [
                Content(""),
                Content.styled("  Ask something: then the effect on a token shows here.", "$quiet"),
            ]
        block, step = token.block, token.block.steps[token.index]
        seen = None
        if block.prompt is not None:
            seen = block.prompt | {earlier.id for earlier in block.steps[: token.index]}
        info = self._app.session.info
        found = tried(step, self.sampling, int(info.facts.get("vocab_size", 0)) if info else 0, seen)
        kept = "?" if found.kept is None else f"{found.kept:,}"
        head = f"\n   token {token.index + 1} “{one_line(visible(step.bytes))}”: {kept} could be drawn"
        rows = [
            Content.assemble(
                (head, "$foreground"), ("  sampled" if found.exact else "  sampled, about", "$quiet")
            )
        ]
        room = max(2, self.app.size.height - len(presets.NAMES) - 9)
        rows += [self._candidate(one, found, one.id == step.id) for one in found.candidates[:room]]
        return rows

    def _candidate(self, one: Candidate, found: Explanation, drawn: bool) -> Content:
        cells = max(8, min(40, self.app.size.width - TOKEN - 30))
        look = "" if one.cut is None else "$quiet"
        name = fit(one_line(self._app.inspector.spelled(one.id)), TOKEN)
        if one.cut is not None:
            right = fit(CUTS.get(one.cut, f"cut by {one.cut}"), cells + 8)
        else:
            right = f"{probability(one.sampled, found.exact):>7} {barred(one.sampled or 0.0, cells)}"
        return Content.assemble(
            ("  ● " if drawn else "    ", "$primary"),
            (name, look),
            (right, look or "$primary"),
            (f"  raw {probability(one.raw)}", "$quiet"),
        )
