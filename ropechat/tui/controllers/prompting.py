"""What the model is told and how it draws: system text, personas, sampling, a full context, facts."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from textual.screen import ModalScreen

from ropechat import builtin
from ropechat.chat import personas, presets
from ropechat.chat.context import DESCRIPTIONS, OverflowPolicy
from ropechat.chat.errors import explain
from ropechat.conversation import Role
from ropechat.errors import RopechatError
from ropechat.tui.controllers.composer import Composing
from ropechat.tui.format.stats import gauge_figures
from ropechat.tui.render.blocks import AnswerBlock, Block
from ropechat.tui.render.cursor import TokenPlace
from ropechat.tui.widgets.sampling_panel import ITEMS, Dials
from ropechat.util.text import near, one_line

if TYPE_CHECKING:
    from collections.abc import Mapping

    from textual.widget import Widget

    from ropechat.chat import events as ev
    from ropechat.chat.answer import Turn
    from ropechat.sampling import Sampling
    from ropechat.tui.commands.dispatch import Typed
    from ropechat.tui.screens.context import Choice
    from ropechat.tui.widgets.bars import Part
    from ropechat.tui.widgets.stats import EngineFacts

RAIL = 120  # columns from which there is room beside the transcript
LOOKED_AT = 200  # tokens of an answer among which the least likely one is looked for
TRY = ("What is a token?", "Tell me a short story.", "Name five fruits.")
START = 60  # characters that are shown of a text


def begins(text: str) -> str:
    """The beginning of a text, on one line."""
    line = one_line(" ".join(text.split()))
    return line if len(line) <= START else line[: START - 1] + "…"


def _no_persona(words: str, kept: list[str]) -> str:
    meant = near(words, kept)
    hint = f"did you mean {meant}?" if meant else f"kept: {', '.join(kept)}"
    hint = hint if kept else "none is kept yet; /persona save NAME keeps the system text as one"
    return f"{one_line(words):.40}: no such persona; {hint}"


class Prompting(Composing):
    """The commands over what goes before and around a question."""

    _begins = False  # nothing was asked yet, and the screen says what may be
    _turning: Block | None = None  # says that the next question begins a branch
    dials: Dials
    engine_facts: EngineFacts

    # --- sampling ---

    def closes(self, sheet: type[ModalScreen[Any]]) -> bool:
        """The key that opens a sheet closes it; False where there is none over the chat."""
        over = isinstance(self.screen, ModalScreen)
        if isinstance(self.screen, sheet):
            self.screen.dismiss(None)
        return over

    def action_sampling(self) -> None:
        """The sampler's settings, tried on the token under the cursor, or an unlikely one of the newest."""
        from ropechat.tui.screens.sampling import SamplingScreen

        if self.closes(SamplingScreen):
            return
        if not self.has_rail:
            self.push_screen(
                SamplingScreen(self._recorded(), self.session, self.keymap, self.inspector.spelled)
            )
        elif self.dials.display and self.at_dials:
            self.on_dials_closed()
        else:
            self.rail.show(self.dials, True)
            self.dials.begin(self._recorded())
            self.give_keys(self.dials)
            self._redraw()

    def on_dials_closed(self) -> None:
        """The rail's settings are left."""
        self.rail.show(self.dials, False)
        self.action_write()

    def on_dials_changed(self) -> None:
        """Another sampling, from the next answer on."""
        self._redraw()

    @property
    def at_dials(self) -> Widget | None:
        """What of the rail's settings has the keys: the settings, or the field for a value."""
        focused = self.screen_stack[0].focused if self.screen_stack else None
        return focused if focused is not None and self.dials in focused.ancestors_with_self else None

    @property
    def has_rail(self) -> bool:
        """Is the screen wide enough for more than the transcript?"""
        return self.size.width >= RAIL

    def show_rail(self) -> None:
        """Bring what stands beside the transcript up to date; without room for it, it is closed."""
        for widget in (self.dials, self.engine_facts):
            if widget.display and not self.has_rail:
                self.rail.show(widget, False)
        if self.engine_facts.display:
            self.engine_facts.redraw()
        if self.dials.display:
            self.dials.try_on(self._recorded())

    def _recorded(self) -> TokenPlace | None:
        if self.transcript.cursor is not None:
            return self.transcript.cursor
        for block in reversed(self.transcript.blocks):
            if isinstance(block, AnswerBlock) and block.steps:
                steps = block.steps[-LOOKED_AT:]
                least = min(range(len(steps)), key=lambda at: steps[at].logprob)
                return TokenPlace(block, len(block.steps) - len(steps) + least)
        return None

    def use_sampling(self, sampling: Sampling) -> None:
        """From the next answer on."""
        self.session.sampling = sampling
        self._redraw()

    def footer_keys(self) -> list[tuple[str, str]]:
        """Also those of the rail."""
        return self.keymap.pairs(ITEMS) if self.at_dials else super().footer_keys()

    # --- system text ---

    def learn_personas(self) -> None:
        """Know the names of the system texts that are kept."""
        try:
            self.session.personas = {text: name for name, text in personas.load().items()}
        except RopechatError as error:
            self._say_hint(explain(error))

    def action_personas(self) -> None:
        """The system texts with a name."""
        from ropechat.tui.screens.personas import PersonasScreen

        self._push(PersonasScreen(self.session.system, self.keymap), self.use_system)

    def use_system(self, text: str) -> None:
        """Put the next question under another system text, or ("") none."""
        self.learn_personas()
        self.session.under(text)
        self._take_back(self._turning)
        if not self.session.tree.nodes:
            self.show_path()
        elif self.session.turned:
            self._turning = self._notice(
                "notice", f"The next question begins a branch of its own, under {self._told(text)}."
            )
        self._count()
        self._redraw()

    def _take_back(self, notice: Block | None) -> None:
        """Take a notice away that is true no more; others stay."""
        if notice in self.transcript.blocks:
            with self.transcript.filling():
                _, *after = self.transcript.remove_from(self.transcript.blocks.index(notice))
                for block in after:
                    self.transcript.add(block)

    def _told(self, text: str | None) -> str:
        if not text:
            return "no system text"
        name = self.session.personas.get(text, "")
        return f"{name}: “{begins(text)}”" if name else f"“{begins(text)}”"

    def _welcome(self) -> None:
        """What the model is, and under which system text the branch stands, above all."""
        for note in reversed(self.session.notes):
            self._notice("notice", note, at=0)
        if text := self.session.system_of_path():
            self._notice("notice", f"system  {self._told(text)}", at=0)
        info = self.session.info
        if info is not None and info.name == builtin.NAME:
            self._notice("notice", builtin.NOTE, at=0)
        elif info is not None and self._completes:
            self._notice(
                "notice",
                f"{info.name} has no chat template: it continues your text.",
                at=0,
            )
        self._begins = info is not None and not self.session.tree.nodes
        if info is not None and self._begins:
            for words in self._first_steps(info.name == builtin.NAME):
                self._notice("notice", words)

    def _first_steps(self, asks: bool) -> list[str]:
        """What somebody who sees this for the first time may try."""
        key, arrows = self.keymap.first, self.keymap.beside_text("read.left", "read.right")
        steps = [
            "Tinted tokens surprised the model. "
            f"{key('chat.stop')}, then {arrows} go from token to token; "
            f"{key('read.take')} tells why this one came and what else could have; "
            f"{key('alternative.1')}-{key('alternative.9')} go on from another.",
            " · ".join(
                f"{key(id)} {what}"
                for id, what in (
                    ("app.help", "keys"),
                    ("model.pick", "models"),
                    ("chat.list", "earlier chats"),
                )
            ),
        ]
        return ["Try: " + " · ".join(TRY), *steps] if asks and not self._completes else steps

    # --- a full context ---

    def add_turn(self, turn: Turn, known: Mapping[int, AnswerBlock] = MappingProxyType({})) -> None:
        """A branch that begins anew has the screen to itself; a line says where oldest turns are left out."""
        anew = self._begins or any(block.node not in ("", turn.asked) for block in self.transcript.blocks)
        if len(self.session.turns) == 1 and anew:
            self._blocks.clear()
            self.transcript.remove_from(0)
            self._welcome()
        if self.session.tree[turn.asked].start:
            self._tell_start(turn)
        super().add_turn(turn, known)

    def _tell_start(self, turn: Turn) -> None:
        reads = self.session.reads(turn.asked)
        first = next(node for node in reads if node.role is Role.USER)
        count = self.session.left_out(turn.asked)
        words = "1 question is" if count == 1 else f"{count:,} questions are"
        begin = "with this one" if first.id == turn.asked else f"at “{begins(first.text)}”"
        self._notice(
            "notice", f"From here on the oldest {words} left out: what the model reads begins {begin}."
        )

    def too_long(self, event: ev.TooLong) -> None:
        """A question does not fit: ask, unless it is known what to do or leaving out turns cannot help."""
        from ropechat.tui.screens.context import ContextScreen

        if self.session.when_full is not OverflowPolicy.ASK or not event.slides:
            self.refuse(event)
            return

        def chosen(choice: Choice | None) -> None:
            if choice is None:
                self.refuse(event)
                return
            if choice == "always":
                self.session.when_full = OverflowPolicy.SLIDE
            self.show_path(self.session.again(alone=choice == "fresh"))

        self.push_screen(ContextScreen(event.tokens, event.context, self.keymap), chosen)

    def when_full(self, words: str) -> str:
        """/context: say or set what happens to a question that does not fit."""
        if words and words not in list(OverflowPolicy):
            return "/context ask|slide|stop"
        self.session.when_full = OverflowPolicy(words) if words else self.session.when_full
        self._redraw()
        return f"{self.session.when_full}: {DESCRIPTIONS[self.session.when_full]}"

    # --- typed ---

    def typed(self) -> dict[str, Typed]:
        """Also over sampling, system text and context."""
        return {
            **super().typed(),
            "sampling.open": self._preset_typed,
            "sampling.set": self._set_typed,
            "sampling.seed": self._seed_typed,
            "prompt.system": self._system_typed,
            "prompt.persona": self._persona_typed,
            "prompt.full": self.when_full,
        }

    def _preset_typed(self, words: str) -> str:
        if words not in presets.PRESETS:
            return f"/sampling {'|'.join(presets.PRESETS)}"
        self.use_sampling(presets.with_preset(self.session.sampling, words))
        return f"{words}: {presets.describe_preset(words)}"

    def _set_typed(self, words: str) -> str:
        given, _, value = words.partition(" ")
        try:
            name = presets.full_name(given)
            if value.strip():
                self.use_sampling(presets.with_value(self.session.sampling, name, value.strip()))
        except ValueError as error:
            return str(error)
        return f"{name} {presets.format_value(self.session.sampling, name)} · {presets.DESCRIPTIONS[name]}"

    def _seed_typed(self, words: str) -> str:
        """/seed: that of what comes next, and of the newest answer."""
        last = self.session.last
        node = self.session.tree.nodes.get(last.node or "") if last is not None else None
        newest = node.sampling.seed if node is not None and node.sampling is not None else None
        if words == "lock" and newest is None:
            return "no answer has a seed that could be locked; /seed N sets one"
        value = {"lock": str(newest), "free": "none"}.get(words, words)
        try:
            if value:
                self.use_sampling(presets.with_value(self.session.sampling, "seed", value))
        except ValueError as error:
            return str(error)
        now = self.session.sampling.seed
        before = "" if newest is None else f"; the newest answer's is {newest}"
        return ("each answer draws with a seed of its own" if now is None else f"seed {now}") + before

    def _system_typed(self, words: str) -> str:
        self.use_system("" if words == "-" else words)
        return "no system text from the next question on" if words == "-" else ""

    def _persona_typed(self, words: str) -> str:
        verb, _, name = words.partition(" ")
        try:
            if verb == "save" and name.strip():
                if not self.session.system:
                    return "there is no system text to keep; /system TEXT writes one"
                path = personas.save(name.strip(), self.session.system)
                self.learn_personas()
                return f"kept: {path}"
            kept = personas.load()
        except RopechatError as error:
            return explain(error)
        if words not in kept:
            return _no_persona(words, list(kept))
        self.use_system(kept[words])
        return ""

    # --- facts ---

    def figures(self, width: int) -> list[Part]:
        """The facts of the newest answer, as the gauge shows them."""
        last = self.session.last
        context, used = self.session.context, self.session.used
        full = context is not None and used is not None and used >= context
        if last is None or not last.answer.steps or (full and not self.session.generating):
            return []  # that a question does not fit needs the line
        return [(one + "  ", "$quiet") for one in gauge_figures(last.answer, width)]

    def action_facts(self) -> None:
        """What the engine did and what it takes up."""
        from ropechat.tui.screens.facts import FactsScreen

        if self.has_rail:
            self.rail.show(self.engine_facts, not self.engine_facts.display)
            self.show_rail()
        else:
            self.push_screen(FactsScreen(self.session, self.keymap))
