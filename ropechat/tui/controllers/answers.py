"""What the chat does with its tree: regenerate, edit, fork, go on, move between branches.

A part of the app: it reads and shows through the app's own methods.
"""

from __future__ import annotations

import dataclasses
from types import MappingProxyType
from typing import TYPE_CHECKING

from ropechat.chat import events as ev
from ropechat.chat.draft import to_draft
from ropechat.conversation import Role
from ropechat.conversation_tree import Origin, forced, resumed, unended
from ropechat.tui.controllers.inspector import ReadingApp
from ropechat.tui.format import status as panel
from ropechat.tui.render.blocks import AnswerBlock, Block, index_by_first_step

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ropechat.chat.answer import Turn
    from ropechat.chat.inference import Inference
    from ropechat.chat.session import Session
    from ropechat.conversation_tree import Node
    from ropechat.trace import Step
    from ropechat.tui.commands.dispatch import Typed
    from ropechat.tui.widgets.composer import Composer


class Branching(ReadingApp):
    """The commands over the tree of the chat."""

    if TYPE_CHECKING:
        session: Session
        inference: Inference
        composer: Composer
        _blocks: dict[int, AnswerBlock]

        @property
        def _completes(self) -> bool: ...
        def _submit(self, request: ev.Request) -> None: ...
        def _notice(self, kind: str, text: str, at: int | None = None) -> Block: ...
        def _count(self) -> None: ...
        def _welcome(self) -> None: ...
        def _stop(self) -> bool: ...
        def _answer_title(self) -> str: ...

    follows = True  # does the view go along with an answer?
    _then: Callable[[], None] | None = None  # what waits for the answer to end
    _editing: Node | None = None  # what the composer's text will stand beside
    _on_preview: Callable[[ev.PreviewReady], None] | None = None

    # --- the path on the screen ---

    def write(self, turn: Turn) -> None:
        """Have the answer of a turn written."""
        if turn.request is not None:
            self.follow_answer()
            self._submit(turn.request)

    def follow_answer(self) -> None:
        """Go to the end, and along with the answer if that is wanted."""
        self.transcript.to_end()
        if not self.follows:  # at once: a quick answer may outgrow the screen before the next frame
            self.transcript.leave_end()

    def show_path(self, turn: Turn | None = None) -> None:
        """Show the session's turns anew; the answer of `turn` is to be written."""
        if turn is not None and turn.request is not None:
            self._submit(turn.request)  # the model need not wait until all is drawn
        self._blocks.clear()
        kept, blocks = self._unchanged() if turn is not None else (0, 0)
        with self.transcript.filling():
            known = index_by_first_step(self.transcript.remove_from(blocks))
            if not blocks:
                self._welcome()
            for each in self.session.turns[kept:]:
                self.add_turn(each, known)
        if turn is None:
            self._count()
        else:
            self.follow_answer()
        self._redraw()

    def _unchanged(self) -> tuple[int, int]:
        """How many turns and blocks are on the screen as they are, at most up to the last question."""
        turns = kept = 0
        for number, block in enumerate(self.transcript.blocks, 1):
            turn = self.session.turns[turns]
            last = turn is self.session.last
            if block.kind == "user" and block.node == turn.asked:
                cut = last and self.session.tree[turn.asked].start  # what stands above it may be new
                kept = kept if cut else number
            elif block.node:
                if last or block.node != turn.node:
                    break
                turns, kept = turns + 1, number
        return turns, kept

    def add_turn(self, turn: Turn, known: Mapping[int, AnswerBlock] = MappingProxyType({})) -> None:
        """Put a question and what there is of its answer at the end; known: see `by_beginning`."""
        live = turn.answer.state.live
        answer = AnswerBlock("answer", self._heading(turn), live=live, node=turn.node or "")
        node = self.session.tree.nodes.get(answer.node)
        answer.sampling = node.sampling if node is not None else None
        if turn.request is not None:
            self._blocks[turn.request.serial] = answer
        if self._completes:
            answer.begin(turn.question)
        elif not any(block.node == turn.asked for block in self.transcript.blocks[-1:]):
            asked = Block("user", "you" + self._place(turn.asked), node=turn.asked)
            asked.say(turn.question)
            self.transcript.add(asked)
        if steps := turn.answer.steps or self._beginning(turn):
            answer.add(steps[answer.begin_as(known.get(id(steps[0])), steps) :])
        elif turn.answer.written:
            answer.say(turn.answer.written)
        answer.note = "" if live else panel.summarize(turn.answer)
        self.transcript.add(answer)

    @staticmethod
    def _beginning(turn: Turn) -> Sequence[Step]:
        """What an answer will begin with, as far as its text is known before the model is asked."""
        prefix = turn.request.prefix if turn.request is not None and turn.answer.state.live else None
        return prefix.steps[:-1] if prefix is not None and prefix.written is None else ()

    def began(self, event: ev.PrefixAccepted) -> Sequence[Step]:
        """An answer began so; the steps of it that are not on the screen yet."""
        shown = self._blocks[event.serial].steps
        if shown == list(event.steps[: len(shown)]):
            return event.steps[len(shown) :]
        self.show_path()
        self.follow_answer()
        return ()

    def _heading(self, turn: Turn) -> str:
        node = self.session.tree.nodes.get(turn.node or "")
        name = (
            self._answer_title()
            if node is None or turn.answer.state.live
            else panel.model_heading(node.model)
        )
        return name + (self._place(node.id) if node else "")

    def _place(self, node: str) -> str:
        place, of = self.session.tree.place(node)
        return f"  ‹ {place}/{of} ›" if of > 1 else ""

    # --- when the model is busy ---

    def when_idle(self, action: Callable[[], None]) -> None:
        """Do it now, or as soon as the answer that is being written has stopped."""
        if self.session.generating:
            self._then = action
            self._stop()
        else:
            action()

    def idle_again(self) -> None:
        """The answer ended."""
        action, self._then = self._then, None
        if action is not None:
            action()

    def _turn(self) -> Turn | None:
        """The turn under the token cursor; without one the newest. None, and a hint, where there is none."""
        cursor = self.transcript.cursor_token()
        for turn in self.session.turns:
            if cursor is not None and turn.node == cursor[0]:
                return turn
        if self.session.last is None:
            self._say_hint("nothing was asked yet")
        return self.session.last

    # --- answers beside answers ---

    def action_regenerate(self) -> None:
        """Answer the question anew, beside the answers it has."""
        self.when_idle(self._regenerate)

    def _regenerate(self) -> None:
        turn = self._turn()
        if turn is not None and self._loaded_model():
            self.show_path(self.session.answer(turn.asked))

    def action_resume(self) -> None:
        """Go on with an answer that stopped; the stopped one stays beside it."""
        self.when_idle(self._resume)

    def _resume(self) -> None:
        node = self._answer_node()
        if node is None:
            return
        steps = unended(node)
        prefix = ev.AssistantPrefix(tuple(steps))
        origin = Origin(node.id, len(steps), "continue")
        self.show_path(self.session.answer(node.parent or "", prefix, origin))

    def fork(self, node: str, index: int, id: int) -> None:
        """Put another token at a place of an answer and go on from there, in a new answer."""
        self.when_idle(lambda: self._fork(node, index, id))

    def _fork(self, id: str, index: int, token: int) -> None:
        node = self._same_model(self.session.tree[id])
        if node is None or not 0 <= index < len(node.steps):
            return
        used = resumed(node, index)
        if token != node.steps[index].id:  # another answer: as long as any other may be
            used = dataclasses.replace(used, max_tokens=self.session.sampling.max_tokens)
        prefix, origin = self._forked(node, index, token), Origin(id, index, "fork")
        turn = self.session.answer(node.parent or "", prefix, origin, used)
        self.show_path(turn)
        assert turn.request is not None
        self.transcript.await_token(self._blocks[turn.request.serial], index)

    @staticmethod
    def _forked(node: Node, index: int, token: int) -> ev.AssistantPrefix:
        return ev.AssistantPrefix((*node.steps[:index], forced(node.steps[index], token)))

    def tried(self, node: str, index: int) -> set[int]:
        """Of all answers beside this one that begin as it does."""
        tree = self.session.tree
        before = [step.id for step in tree[node].steps[:index]]
        beside = [other.steps for other in tree.siblings(node) if len(other.steps) > index]
        return {steps[index].id for steps in beside if [step.id for step in steps[:index]] == before}

    def preview(self, node: str, index: int, token: int, show: Callable[[ev.PreviewReady], None]) -> bool:
        """Show how the model would go on after another token; False while it is busy."""
        known = self.session.tree.nodes.get(node)
        if self.session.generating or known is None or not 0 <= index < len(known.steps):
            return False
        self._on_preview = show
        self._submit(self.session.preview(node, self._forked(known, index, token)))
        return True

    def on_previewed(self, event: ev.PreviewReady) -> None:
        """A preview came."""
        if self._on_preview is not None:
            self._on_preview(event)

    def action_fork(self) -> None:
        """Put the alternative that the inspector shows at the cursor, or choose one."""
        if (found := self._alternative()) is not None:
            self.fork(*found)
            return
        cursor = self.transcript.cursor_token()
        if cursor is None:
            self._say_hint("put the cursor on a token first, or /fork NUMBER of the token")
        else:
            self.choose_fork(*cursor)

    def choose_fork(self, node: str, index: int) -> None:
        """Show what else could have stood at a place of an answer."""
        from ropechat.tui.screens.fork import ForkScreen

        known = self.session.tree[node]
        if self._same_model(known) is None or not 0 <= index < len(known.steps):
            return
        if not known.steps[index].top:
            self._say_hint("this token was typed: nothing else was recorded for its place")
            return
        self.when_idle(
            lambda: self._push(
                ForkScreen(known, index, self.keymap, self.inspector.spelled, self.preview),
                lambda id: self.fork(node, index, id),
            )
        )

    def _answer_node(self) -> Node | None:
        """The answer of the turn under the cursor, if the model can go on from its tokens."""
        turn = self._turn()
        node = self.session.tree.nodes.get(turn.node or "") if turn is not None else None
        if node is None or not node.steps:
            again = self.way_to("answer.regenerate")
            self._say_hint(f"this answer has no tokens to continue from; {again} writes another one")
            return None
        return self._same_model(node)

    def _loaded_model(self) -> bool:
        if self.session.load_error is not None:
            self._say_hint(f"no model is loaded; {self.keymap.named('model.pick')} chooses one")
        return self.session.load_error is None

    def _same_model(self, node: Node) -> Node | None:
        """The node, if the loaded model wrote it: the tokens of others mean nothing to it."""
        if not self._loaded_model():
            return None
        info = self.session.info
        if self.session.coming:
            self._say_hint("another model is being loaded")
            return None
        if info is not None and node.model != info.name:
            self._say_hint(
                f"written by {panel.model_heading(node.model)}: only that model can go on from its tokens"
            )
            return None
        return node

    # --- editing ---

    def action_edit(self) -> None:
        """Write a question anew, beside the old one."""
        turn = self._turn()
        if turn is not None:
            self._edit(self.session.tree[turn.asked])

    def action_edit_answer(self) -> None:
        """Write an answer anew, beside the old one; then go on with it, or ask on."""
        turn = self._turn()
        if turn is not None and turn.node is not None:
            self._edit(self.session.tree[turn.node])

    def _edit(self, node: Node) -> None:
        self._editing = node
        self.composer.borrow(to_draft(node.text) if node.role is Role.USER else node.text)
        self.action_write()
        self._say_hint("")  # the footer says that this is an edit

    def edited(self, text: str) -> Turn | None:
        """The turn that an edit makes; None when nothing was being edited."""
        node, self._editing = self._editing, None
        if node is None or node.id not in self.session.tree.nodes:
            return None
        if node.role is Role.USER:
            return self.session.rewrite(node.id, text)
        prefix = ev.AssistantPrefix(tuple(node.steps), written=text)
        return self.session.answer(node.parent or "", prefix, Origin(node.id, 0, "edit"))

    def stop_editing(self) -> bool:
        """The composer has the draft again; False where it had it. A changed text can be recalled."""
        self._editing = None
        if self.composer.lent:
            self.composer.keep()
        return self.composer.give_back()

    def step_back(self) -> bool:
        """Esc in the composer leaves an edit first."""
        if not self.has_keys(self.composer) or not self.stop_editing():
            return super().step_back()
        self._redraw()
        return True

    def standing_hint(self) -> str:
        """What the footer says as long as it is so; "" for nothing."""
        if self._editing is None:
            return ""
        what = "question" if self._editing.role is Role.USER else "answer"
        return f"editing: ⏎ puts this {what} beside the old one, esc leaves"

    # --- between branches ---

    def action_sibling(self, by: int) -> None:
        """Show the answer (or the question) beside this one."""
        turn = self._turn()
        if turn is None or self.session.generating:
            return
        tree = self.session.tree
        for id in (turn.node, turn.asked):
            if id is not None and len(tree.siblings(id)) > 1:
                if (found := tree.step(id, by)) is not None:
                    self.session.go(found.id)
                    self.show_path()
                return
        self._say_hint(f"no other answer to this question; {self.way_to('answer.regenerate')} writes one")

    def action_branches(self) -> None:
        """All branches of this chat."""
        from ropechat.tui.screens.branches import BranchesScreen

        if len(self.session.tree):
            self.when_idle(lambda: self._push(BranchesScreen(self.session, self.keymap), self._show_branch))
        else:
            self._say_hint("nothing was asked yet")

    def action_compare(self) -> None:
        """The answer under the cursor beside the one that it was made from, or one beside it."""
        from ropechat.tui.screens.branches import counterpart

        turn = self._turn()
        node = self.session.tree.nodes.get(turn.node or "") if turn is not None else None
        other = counterpart(self.session.tree, node) if node is not None else None
        if node is None or other is None or not node.steps:
            again = self.way_to("answer.regenerate")
            self._say_hint(f"no other answer to compare this one with; {again} writes one")
        else:
            self.when_idle(lambda: self._compare([other, node]))

    def _compare(self, nodes: Sequence[Node]) -> None:
        from ropechat.tui.screens.compare import CompareScreen

        self._push(CompareScreen(self.session.tree, nodes, self.keymap), self._show_branch)

    def _show_branch(self, node: str) -> None:
        if node in self.session.tree.nodes:
            self.session.go(node)
        elif self.session.empty:  # all branches were deleted
            self.session.clear()
        self.show_path()

    def _push(self, screen: object, chosen: Callable[..., None]) -> None:
        def closed(result: object) -> None:
            self.sheet_closed()
            if result is not None:
                chosen(result)
            self._redraw()

        self.push_screen(screen, closed)  # type: ignore[call-overload]

    def sheet_closed(self) -> None:
        """What stands beside the text may be out of date."""

    # --- typed ---

    def typed(self) -> dict[str, Typed]:
        """What is done with the words behind a typed command, by the id of that."""
        return {**super().typed(), "answer.fork": self._fork_typed}

    def _fork_typed(self, words: str) -> str:
        turn = self.session.last
        if turn is None or turn.node is None or not words.isdecimal():
            return "/fork NUMBER: a token of the last answer, counted from 1"
        count = len(self.session.tree[turn.node].steps)
        if not 1 <= int(words) <= count:
            return f"the last answer has {count} tokens"
        self.choose_fork(turn.node, int(words) - 1)
        return ""
