"""The branch that is shown: its turns as blocks of the transcript, and the notices between them."""

from __future__ import annotations

import time
from types import MappingProxyType
from typing import TYPE_CHECKING

from ropechat import builtin
from ropechat.chat import events as ev
from ropechat.chat.draft import describe_file, split_attachments
from ropechat.chat.errors import explain
from ropechat.conversation import Role, is_empty_continuation
from ropechat.models.catalog import offered_model
from ropechat.tui.commands import registry as keys
from ropechat.tui.format import status
from ropechat.tui.format.models import describe_offer
from ropechat.tui.render.blocks import AnswerBlock, Block, index_by_first_step
from ropechat.tui.ui import ChatUi, Feature, command, event, setting
from ropechat.util.text import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ropechat.chat.answer import Turn
    from ropechat.conversation import Node

TRY = ("What is a token?", "Tell me a short story.", "Name five fruits.")  # of the built-in model
TRY_REAL = ("What is the largest planet?", "Tell me a short story.", "Write a short poem about the sea.")
FOLDED, UNFOLDED = "▸", "▾"  # before the line of an attached file
START = 60  # characters that are shown of a text


def shorten(text: str) -> str:
    """The beginning of a text, on one line."""
    line = one_line(" ".join(text.split()))
    return line if len(line) <= START else line[: START - 1] + "…"


class TurnsFeature(Feature):
    """Draws the session's turns. follows: whether the view scrolls along with an answer.

    on_show: called when another branch is shown; the draft then belongs to another prompt.
    """

    def __init__(self, ui: ChatUi) -> None:
        super().__init__(ui)
        self.follows = ui.options.follow
        self.on_show: Callable[[], None] = lambda: None
        self._unfolds = False  # whether thoughts are shown as they are added
        self._blocks: dict[int, AnswerBlock] = {}  # by the serial number of their request
        self._unfolded: set[str] = set()  # questions whose attached files are shown
        self._note = ui.options.note  # about the model that was opened first
        self._models = 0  # that were loaded
        self.offer: Block | None = None  # of a first real model
        self._begins = False  # no question was sent yet, and the screen shows examples

    @setting("follow")
    def _follow(self, follows: bool) -> None:
        self.follows = follows

    @command("view.files")
    def _files(self) -> None:
        turn = self.turn()
        if turn is not None and split_attachments(turn.question)[1]:
            self.toggle_files(turn.asked)
        elif turn is not None:
            self.ui.hint("no file is attached to this question")

    @event(ev.Notice)
    def _noticed(self, event: ev.Notice) -> None:
        self.notice("notice", event.text, len(self.transcript.blocks) - 2 * self.session.generating)

    @event(ev.ContextTruncated)
    def _truncated(self, event: ev.ContextTruncated) -> None:
        self.show()

    def notice(self, kind: str, text: str, at: int | None = None) -> Block:
        """Put a notice at the end, or at a place."""
        block = Block("error" if kind == "error" else "notice")
        block.say(text)
        self.transcript.add(block, at)
        return block

    def take_back(self, notice: Block | None) -> None:
        """Remove a notice that is no longer true; others stay."""
        if notice in self.transcript.blocks:
            with self.transcript.filling():
                _, *after = self.transcript.remove_from(self.transcript.blocks.index(notice))
                for block in after:
                    self.transcript.add(block)

    def turn(self) -> Turn | None:
        """The turn under the token cursor, or the newest; None, with a hint, in an empty chat."""
        cursor = self.transcript.cursor_token()
        for turn in self.session.turns:
            if cursor is not None and turn.node == cursor[0]:
                return turn
        if self.session.last is None:
            self.ui.hint("this chat is empty")
        return self.session.last

    def block_of(self, turn: Turn) -> AnswerBlock:
        """The block of an answer that is being written."""
        assert turn.request is not None
        return self._blocks[turn.request.serial]

    def way_to(self, id: str) -> str:
        """How to run a command from the focused place: its key, or what to type."""
        command = keys.BY_ID[id]
        by_name = command.slash and command.context == "transcript" and not self.transcript.has_focus
        return f"/{command.slash}" if by_name else self.keymap.named(id)

    # --- the turns ---

    def follow_answer(self) -> None:
        """Scroll to the end, and follow the answer if that is set."""
        self.transcript.to_end()
        if not self.follows:  # at once: a quick answer may outgrow the screen before the next frame
            self.transcript.leave_end()

    def show(self, turn: Turn | None = None) -> None:
        """Show all turns of the session; the answer of `turn`, which was asked for, follows."""
        self._blocks.clear()
        kept, blocks = self._unchanged() if turn is not None else (0, 0)
        with self.transcript.filling():
            known = index_by_first_step(self.transcript.remove_from(blocks))
            if not blocks:
                self.welcome()
            for each in self.session.turns[kept:]:
                self.add_turn(each, known)
        if turn is None:
            self.on_show()
        else:
            self.follow_answer()
        self.ui.refresh()

    def _unchanged(self) -> tuple[int, int]:
        """How many turns and blocks are on the screen as they are, at most up to the last question."""
        turns = kept = 0
        for number, block in enumerate(self.transcript.blocks, 1):
            turn = self.session.turns[turns]
            last = turn is self.session.last
            if block.kind == "user" and block.node == turn.asked:
                cut = last and self.session.tree[turn.asked].context_start  # the text above it may be new
                kept = kept if cut else number
            elif block.node:
                if last or block.node != turn.node:
                    break
                turns, kept = turns + 1, number
        return turns, kept

    def add_turn(self, turn: Turn, known: Mapping[int, AnswerBlock] = MappingProxyType({})) -> None:
        """Add a question and its answer so far at the end; known: see `index_by_first_step`.

        The first turn of a new branch replaces what is shown; a notice says where old turns are left out.
        """
        is_new = self._begins or any(block.node not in ("", turn.asked) for block in self.transcript.blocks)
        if len(self.session.turns) == 1 and is_new:
            self._blocks.clear()
            self.transcript.remove_from(0)
            self.welcome()
        if self.session.tree[turn.asked].context_start:
            self._tell_start(turn)
        self._add_blocks(turn, known)

    def _add_blocks(self, turn: Turn, known: Mapping[int, AnswerBlock]) -> None:
        live, node = turn.answer.live, turn.answer.node
        answer = AnswerBlock("answer", self._heading(turn), live=live, answer=node)
        if turn.request is not None:
            self._blocks[turn.request.serial] = answer
        if self.chat.completes:
            answer.begin(turn.question)
        elif not any(block.node == turn.asked for block in self.transcript.blocks[-1:]):
            asked = Block("user", "you" + self._place(turn.asked), node=turn.asked)
            asked.say(self._said(turn.asked, turn.question))
            self.transcript.add(asked)
        answer.unfolded = self._unfolds
        if node.steps:
            answer.begin_like(known.get(id(node.steps[0])))
            answer.grow()
        else:
            if node.final_reasoning:
                answer.think(node.final_reasoning, ends=bool(node.final_text))
            if node.final_text:
                answer.say(node.final_text)
        answer.note = "" if live else status.summarize(turn.answer)
        answer.set_line(self._thought_line(turn))
        answer.foot = self._foot(turn)
        self.transcript.add(answer)

    def _heading(self, turn: Turn) -> str:
        node = self.session.tree.nodes.get(turn.node or "")
        name = (
            self.chat.answer_title if node is None or turn.answer.live else status.model_heading(node.model)
        )
        return name + (self._place(node.id) if node else "")

    def _place(self, node: str) -> str:
        place, of = self.session.tree.sibling_position(node)
        return f"  ‹ {place}/{of} ›" if of > 1 else ""

    def _tell_start(self, turn: Turn) -> None:
        reads = self.session.reads(turn.asked)
        first = next(node for node in reads if node.role is Role.USER)
        count = self.session.left_out(turn.asked)
        words = "question is" if count == 1 else f"{count:,} questions are"
        begin = "this one" if first.id == turn.asked else f"“{shorten(first.text)}”"
        self.notice("notice", f"The oldest {words} no longer sent to the model, which reads from {begin} on.")

    # --- an answer as it comes ---

    @event(ev.Started)
    def _started(self, event: ev.Started) -> None:
        """The prompt of an answer is known."""
        self._blocks[event.serial].prompt = event.ids

    def feed(self, serial: int) -> None:
        """Draw the new tokens of an answer."""
        block = self._blocks[serial]
        thinking = block.thinking
        self.transcript.feed(block)
        if (thinking or block.thinking) and self.session.last is not None:
            self._tell(self.session.last, block)

    def refresh(self) -> None:
        """The lines that name a key follow the focus, and that of a thought follows the time."""
        for turn in self.session.turns[-2:]:  # the one before the newest is no longer the newest
            block = self._block(turn.node) if turn.node else None
            if block is not None and (block.thought or block.foot):
                self._tell(turn, block)

    def _block(self, node: str) -> AnswerBlock | None:
        """The block of an answer."""
        found = (one for one in reversed(self.transcript.blocks) if one.node == node)
        return next((one for one in found if isinstance(one, AnswerBlock)), None)

    def _tell(self, turn: Turn, block: AnswerBlock) -> None:
        self.transcript.tell(block, self._thought_line(turn), self._foot(turn))

    def _thought_line(self, turn: Turn) -> str:
        key = (self.keymap.first if self.transcript.has_focus else self.keymap.beside_text)("answer.thought")
        return status.thought_line(turn.answer, time.monotonic(), key)

    def _foot(self, turn: Turn) -> str:
        """The line below an answer that was cut; of the newest it says how to continue it."""
        newest = self.session.last is not None and turn.node == self.session.last.node
        way = f"/{keys.BY_ID['answer.resume'].slash}"
        if self.transcript.has_focus:
            way = self.keymap.first("answer.resume")
        return status.cut_line(turn.answer.node, way if newest else "") if not turn.answer.live else ""

    # --- thoughts ---

    def toggle_thought(self, block: AnswerBlock | None = None) -> None:
        """Show or fold the thought of a block, or of the answer under the cursor."""
        turn = self.turn() if block is None else None
        found = block or (self._block(turn.node) if turn is not None and turn.node else None)
        if found is None or not found.thought:
            self.ui.hint(
                "this answer has no thought" if self.session.last is not None else "this chat is empty"
            )
        else:
            self.transcript.refold(found, not found.unfolded)

    @command("answer.thoughts")
    def _toggle_thoughts(self) -> None:
        """Show or fold all thoughts, also those to come."""
        self._unfolds = not self._unfolds
        for block in self.transcript.blocks:
            if isinstance(block, AnswerBlock) and block.unfolded != self._unfolds:
                self.transcript.refold(block, self._unfolds)
        self.ui.hint("thoughts are shown" if self._unfolds else "thoughts are folded")

    @event(ev.Finished, ev.Failed)
    def _ended(self, event: ev.Finished | ev.Failed) -> None:
        """Finish the block of an answer, and say what is special about its end."""
        serial = event.serial
        block, turn = self._blocks[serial], self.session.last
        assert turn is not None
        answer = turn.answer
        if len(block.ends) > len(answer.node.steps):  # it never began
            self.show()
            block = self._blocks[serial]
        block.note = status.summarize(answer)
        self.transcript.finish(block)
        self._tell(turn, block)
        if answer.error is not None:
            self.notice("error", f"The answer failed: {explain(answer.error)}")
        elif answer.node.finish_reason == "context":
            self.notice(
                "notice",
                f"Context full ({self.session.context:,} tokens), so the answer ends here. "
                f"/context sets what happens to the next question (now: {self.session.when_full}).",
            )
        elif turn.node is not None and is_empty_continuation(self.session.tree[turn.node]):
            self._drop_empty(self.session.tree[turn.node])
            return
        if not answer.node.in_context:
            self.notice("notice", "No answer: this question is not sent to the model again.")

    def _drop_empty(self, node: Node) -> None:
        """Drop a continuation that added nothing, since it is not another version."""
        assert node.origin is not None
        self.session.withdraw()
        if node.origin.node in self.session.tree.nodes:
            self.session.go(node.origin.node)
        self.show()
        self.notice("notice", "The model had finished its answer; nothing was added.")

    # --- clicks ---

    def line_clicked(self, block: Block, text: str) -> str:
        """The example that a clicked line offers; "" for another line. Files of a question are unfolded."""
        if block.kind == "user" and text.startswith((FOLDED, UNFOLDED)):
            self.toggle_files(block.node)
        return text.strip() if block.kind == "notice" and text.strip() in TRY else ""

    def toggle_files(self, node: str) -> None:
        """Show or fold the files of a question."""
        if self.session.generating:
            self.ui.hint("files can be unfolded when the answer is complete")
            return
        self._unfolded ^= {node}
        self.show()

    def _said(self, node: str, question: str) -> str:
        """A question as it is shown: attached files as one line each, unless unfolded."""
        text, files = split_attachments(question)
        if node not in self._unfolded:
            lines = (f"{FOLDED} {name} · {describe_file(block)}" for name, block in files.items())
            return "\n".join([text.rstrip("\n"), *lines])
        blocks = (f"{UNFOLDED} {block.lstrip()}" for block in files.values())
        return "\n".join([text.rstrip("\n"), *blocks])

    # --- above the first turn ---

    @event(ev.ModelLoaded)
    def _model_loaded(self, event: ev.ModelLoaded) -> None:
        """Show the name of the loaded model."""
        self._models += 1
        if self._models > 1:
            self._note = ""
        self.ui.vocabularies.learn(event.info)
        self.composer.placeholder = "Text to continue" if self.chat.completes else "Message"
        for block in self._blocks.values():
            if block.live:
                block.title = self.chat.answer_title
        self.transcript.redraw()
        self.welcome()

    def welcome(self) -> None:
        """Show the model and the system text of the branch above the first turn."""
        for note in reversed([*([self._note] if self._note else []), *self.session.notes]):
            self.notice("notice", note, at=0)
        if text := self.session.system_of_path():
            self.notice("notice", f"system  {self.describe_system(text)}", at=0)
        info = self.session.info
        if info is not None and info.name == builtin.NAME:
            first = self.keymap.first("model.first")
            real = f"{first} gets a real one: {describe_offer(offered_model())}."
            self.offer = self.notice("notice", f"{builtin.NOTE} {real}", at=0)
        elif info is not None and self.chat.completes:
            self.notice(
                "notice",
                f"{info.name} has no chat template: it continues your text.",
                at=0,
            )
        self._begins = info is not None and not self.session.tree.nodes
        if info is not None and self._begins:
            for words in self._first_steps():
                self.notice("notice", words)

    def _first_steps(self) -> list[str]:
        """Suggestions for an empty chat."""
        key, arrows = self.keymap.first, self.keymap.beside_text("read.left", "read.right")
        steps = [
            "Coloured words surprised the model. "
            f"Click one, or press {key('chat.stop')} and then {arrows}, to see what else it could have said; "
            f"{key('read.take')} or {key('alternative.1')}-{key('alternative.9')} forks there.",
            " · ".join(
                f"{key(id)} {what}"
                for id, what in (
                    ("app.help", "keys"),
                    ("model.pick", "models"),
                    ("chat.list", "earlier chats"),
                )
            ),
        ]
        tab = key("composer.complete")
        examples = "\n".join(f"  {text}" for text in self.examples)
        return [f"Try one: click it, or press {tab} and ⏎\n{examples}", *steps] if examples else steps

    @property
    def examples(self) -> tuple[str, ...]:
        """The examples on the screen: for the models that newcomers meet."""
        info = self.session.info
        if info is None or not self._begins or self.chat.completes:
            return ()
        if info.name == builtin.NAME:
            return TRY
        return TRY_REAL if info.name == str(offered_model().hub_name) else ()

    def describe_system(self, text: str | None) -> str:
        """The persona's name, if any, and the beginning of a system text."""
        if not text:
            return "no system text"
        name = self.session.personas.get(text, "")
        return f"{name}: “{shorten(text)}”" if name else f"“{shorten(text)}”"
