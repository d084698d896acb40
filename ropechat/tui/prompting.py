"""What the model is told and how it draws: system text, personas, sampling, a full context, facts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from textual.screen import ModalScreen

from ropechat import builtin
from ropechat.conversation import Role
from ropechat.errors import RopechatError
from ropechat.text import one_line
from ropechat.tui import personas
from ropechat.tui.composing import Composing
from ropechat.tui.context import MEANING, WhenFull
from ropechat.tui.errors import explain
from ropechat.tui.facts import line
from ropechat.tui.render.blocks import AnswerBlock
from ropechat.tui.render.cursor import TokenPlace

if TYPE_CHECKING:
    from ropechat.sampling import Sampling
    from ropechat.tui.answer import Turn
    from ropechat.tui.screens.context import Choice
    from ropechat.tui.widgets.bars import Part

START = 60  # characters that are shown of a text


def begins(text: str) -> str:
    """The beginning of a text, on one line."""
    line = one_line(" ".join(text.split()))
    return line if len(line) <= START else line[: START - 1] + "…"


class Prompting(Composing):
    """The commands over what goes before and around a question."""

    # --- sampling ---

    def closes(self, sheet: type[ModalScreen[Any]]) -> bool:
        """The key that opens a sheet closes it; False where there is none over the chat."""
        over = isinstance(self.screen, ModalScreen)
        if isinstance(self.screen, sheet):
            self.screen.dismiss(None)
        return over

    def action_sampling(self) -> None:
        """The sampler's settings, tried on the token under the cursor, or the newest."""
        from ropechat.tui.screens.sampling import SamplingScreen

        if not self.closes(SamplingScreen):
            self.push_screen(SamplingScreen(self.session.sampling, self._recorded()))

    def _recorded(self) -> TokenPlace | None:
        if self.transcript.cursor is not None:
            return self.transcript.cursor
        for block in reversed(self.transcript.blocks):
            if isinstance(block, AnswerBlock) and block.steps:
                return TokenPlace(block, len(block.steps) - 1)
        return None

    def use_sampling(self, sampling: Sampling) -> None:
        """From the next answer on."""
        self.session.sampling = sampling
        self._redraw()

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

        self._push(PersonasScreen(self.session.system), self.use_system)

    def use_system(self, text: str) -> None:
        """Put the next question under another system text, or ("") none."""
        self.learn_personas()
        self.session.under(text)
        if not self.session.tree.nodes:
            self.show_path()
        elif self.session.turned:
            self._notice("notice", f"The next question begins a branch of its own, under {self._told(text)}.")
        self._count()
        self._redraw()

    def _told(self, text: str | None) -> str:
        if not text:
            return "no system text"
        name = self.session.personas.get(text, "")
        return f"{name}: “{begins(text)}”" if name else f"“{begins(text)}”"

    def _welcome(self) -> None:
        """What the model is, and under which system text the branch stands, above all."""
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

    # --- a full context ---

    def add_turn(self, turn: Turn) -> None:
        """A branch that begins anew has the screen to itself; a line says where oldest turns are left out."""
        if len(self.session.turns) == 1 and any(block.node for block in self.transcript.blocks):
            self._blocks.clear()
            self.transcript.clear()
            self._welcome()
        if turn.asked in self.session.starts:
            self._tell_start(turn)
        super().add_turn(turn)

    def _tell_start(self, turn: Turn) -> None:
        reads = self.session.reads(turn.asked)
        first = next(node for node in reads if node.role is Role.USER)
        count = self.session.left_out(turn.asked)
        words = "1 question is" if count == 1 else f"{count:,} questions are"
        begin = "with this one" if first.id == turn.asked else f"at “{begins(first.text)}”"
        self._notice(
            "notice", f"From here on the oldest {words} left out: what the model reads begins {begin}."
        )

    def too_long(self, tokens: int, context: int) -> None:
        """A question does not fit: ask, unless it is known what to do or nothing helps."""
        from ropechat.tui.screens.context import ContextScreen

        last = self.session.last
        assert last is not None
        if self.session.when_full is not WhenFull.ASK or len(self.session.cuts(last.asked)) < 2:
            self.refuse(tokens, context)
            return

        def chosen(choice: Choice | None) -> None:
            if choice is None:
                self.refuse(tokens, context)
                return
            if choice == "always":
                self.session.when_full = WhenFull.SLIDE
            self.show_path(self.session.again(alone=choice == "fresh"))

        self.push_screen(ContextScreen(tokens, context), chosen)

    def when_full(self, words: str) -> str:
        """/context: say or set what happens to a question that does not fit."""
        if words and words not in list(WhenFull):
            return "/context ask|slide|stop"
        self.session.when_full = WhenFull(words) if words else self.session.when_full
        self._redraw()
        return f"{self.session.when_full}: {MEANING[self.session.when_full]}"

    # --- facts ---

    def figures(self, width: int) -> list[Part]:
        """The facts of the newest answer, as the gauge shows them."""
        last = self.session.last
        context, used = self.session.context, self.session.used
        full = context is not None and used is not None and used >= context
        if last is None or not last.answer.steps or (full and not self.session.generating):
            return []  # that a question does not fit needs the line
        return [("  ".join(line(last.answer, width)) + "  ", "$quiet")]

    def action_facts(self) -> None:
        """What the engine did and what it takes up."""
        from ropechat.tui.screens.facts import FactsScreen

        self.push_screen(FactsScreen(self.session))
