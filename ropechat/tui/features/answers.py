"""Versions of answers: regenerate, edit, fork, continue, compare, move between branches."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from ropechat.chat import events as ev
from ropechat.conversation import NodeState, Origin, remaining_sampling, replace_token, steps_to_continue
from ropechat.store.queries import Chat
from ropechat.tui.features.terminal import TerminalFeature
from ropechat.tui.features.turns import TurnsFeature
from ropechat.tui.features.writing import WritingFeature
from ropechat.tui.format import status
from ropechat.tui.format.lists import MAX_COMPARED
from ropechat.tui.ui import ChatUi, Feature, command, event
from ropechat.util.markdown.blocks import fenced_code
from ropechat.util.text import count_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ropechat.chat.answer import Turn
    from ropechat.conversation import Node
    from ropechat.trace import Step


class AnswersFeature(Feature):
    """The commands for answers. A series (`/regen 4`) ends early if an answer is stopped or fails."""

    def __init__(self, ui: ChatUi) -> None:
        super().__init__(ui)
        self.turns, self.writing = ui[TurnsFeature], ui[WritingFeature]
        self._series: tuple[str, ...] = ()  # the answers of the newest series
        self._of = 0  # its intended length; 0: no series is running
        self._on_preview: Callable[[ev.PreviewReady], None] | None = None

    # --- one more ---

    @command("answer.regenerate")
    def _regenerate_some(self, count: str) -> str:
        if not count:
            self.chat.when_idle(self._regenerate)
        elif count in [str(number + 1) for number in range(MAX_COMPARED)]:
            self.regenerate(int(count))
        else:
            return f"/regen [1-{MAX_COMPARED}]: how many new answers"
        return ""

    def _regenerate(self) -> None:
        turn = self.turns.turn()
        if turn is not None and self._loaded_model():
            self._ask(self.session.answer(turn.asked))

    def _ask(self, turn: Turn) -> None:
        self.chat.request(turn)  # before it is drawn: the model does not wait for that
        self.turns.show(turn)

    @command("answer.resume")
    def resume(self) -> None:
        """Continue a stopped answer in a new version of it."""
        self.chat.when_idle(self._resume)

    def resume_node(self, id: str) -> None:
        """Continue an answer of the branch that is shown."""
        if (node := self.session.tree.nodes.get(id)) is not None:
            self.chat.when_idle(lambda: self._continue(self.same_model(node)))

    def _resume(self) -> None:
        self._continue(self._answer_node())

    def _continue(self, node: Node | None) -> None:
        if node is None:
            return
        steps = steps_to_continue(node)
        prefix = ev.AssistantPrefix(tuple(steps))
        origin = Origin(node.id, len(steps), "continue")
        self._ask(self.session.answer(node.parent or "", prefix, origin))

    def _answer_node(self) -> Node | None:
        """The answer of the turn under the cursor, if the model can continue it."""
        turn = self.turns.turn()
        node = self.session.tree.nodes.get(turn.node or "") if turn is not None else None
        if node is None or not node.steps:
            again = self.turns.way_to("answer.regenerate")
            self.ui.hint(f"this answer has no tokens to continue from; {again} regenerates it")
            return None
        return self.same_model(node)

    def _loaded_model(self) -> bool:
        if self.session.load_error is not None:
            self.ui.hint(f"no model is loaded; {self.keymap.named('model.pick')} chooses one")
        return self.session.load_error is None

    def same_model(self, node: Node) -> Node | None:
        """The node if the loaded model wrote it, else None: token ids differ between models."""
        if not self._loaded_model():
            return None
        info = self.session.info
        if self.session.coming:
            self.ui.hint("another model is being loaded")
            return None
        if info is not None and node.model != info.name:
            self.ui.hint(f"written by {status.model_heading(node.model)}: only that model can continue it")
            return None
        return node

    # --- the thought before an answer ---

    @command("answer.thought")
    def _thought(self) -> None:
        """While the model thinks: have it answer. Else show or fold the thought."""
        if self.thinks_now:
            self.answer_now()
        else:
            self.turns.toggle_thought()

    @property
    def thinks_now(self) -> bool:
        """Whether a thought is being written."""
        last = self.session.last
        return last is not None and last.answer.thinking and not last.answer.stopping

    @command("answer.now")
    def answer_now(self) -> str:
        """End the thought, and answer: a fork with all its tokens and the end marker."""
        last = self.session.last
        if last is None or not self.thinks_now:
            return "the model is not thinking"
        id = last.node or ""
        self.chat.when_idle(lambda: self._end_thought(id))
        return ""

    def _end_thought(self, id: str) -> None:
        known = self.session.tree.nodes.get(id)
        node = self.same_model(known) if known is not None else None
        if node is None or node.text or node.state is NodeState.DONE:  # it answered meanwhile
            return
        steps = tuple(node.steps)
        prefix, origin = ev.AssistantPrefix(steps, closes=True), Origin(id, len(steps), "fork")
        self._ask(self.session.answer(node.parent or "", prefix, origin, node.sampling))

    # --- several ---

    @command("answer.several")
    def _regenerate_several(self) -> None:
        self.regenerate(MAX_COMPARED)

    def regenerate(self, count: int) -> None:
        """Generate `count` more answers, then compare them."""
        self.chat.when_idle(lambda: self._begin_series(count))

    def _begin_series(self, count: int) -> None:
        self._series, self._of = (), count
        self._one_more()

    def _one_more(self) -> None:
        self._regenerate()
        last = self.session.last
        if last is not None and last.node is not None and last.answer.live:
            self._series += (last.node,)
        else:
            self._of = 0

    @event(ev.Finished, ev.Failed)
    def _ended(self, event: ev.Finished | ev.Failed) -> None:
        """After an answer: begin the next of a series, or compare all of them."""
        called_off = self.chat.run_waiting()
        if not self._of or not self._series:
            return
        last = self.session.last
        done = last is not None and last.node == self._series[-1] and last.answer.node.state is NodeState.DONE
        if called_off or not done:
            self._of = 0
        elif len(self._series) < self._of:
            self._one_more()
        else:
            self._of = 0
            self._show_series()

    def _show_series(self) -> None:
        """Open the comparison, unless the user is writing or has a dialog open."""
        nodes = self._in_series()
        if len(nodes) < 2:
            return
        if self.composer.text or self.ui.covered:
            self.ui.hint(f"{len(nodes)} answers are complete: /compare shows them side by side")
        else:
            self._compare(nodes)

    def _in_series(self) -> list[Node]:
        tree = self.session.tree
        return [tree[id] for id in self._series if id in tree.nodes and tree[id].steps]

    def standing_hint(self) -> str:
        """The footer's text while several answers are generated."""
        stop = self.keymap.first("chat.stop")
        words = f"answer {len(self._series)} of {self._of}, then all are compared; {stop} stops"
        return words if self._of else ""

    # --- another token ---

    def fork(self, node: str, index: int, id: int) -> None:
        """Replace a token of an answer and continue from there, in a new answer."""
        self.chat.when_idle(lambda: self._fork(node, index, id))

    def fork_newest(self, words: str) -> str:
        """/fork NUMBER: fork the newest answer at that token; returns an error text."""
        turn = self.session.last
        if turn is None or turn.node is None or not words.isdecimal():
            return "/fork NUMBER: a token of the last answer, counted from 1"
        count = len(self.session.tree[turn.node].steps)
        if not 1 <= int(words) <= count:
            return f"the last answer has {count_of(count, 'token')}"
        self.choose_fork(turn.node, int(words) - 1)
        return ""

    def take(self, node: str, index: int, steps: Sequence[Step]) -> None:
        """Continue an answer from a token on with others, and from there, in a new answer."""
        self.chat.when_idle(lambda: self._branch(node, index, steps))

    def _fork(self, id: str, index: int, token: int) -> None:
        known = self.session.tree.nodes.get(id)
        drawn = known.steps[index : index + 1] if known is not None else []
        self._branch(id, index, [replace_token(step, token) for step in drawn])

    def _branch(self, id: str, index: int, steps: Sequence[Step]) -> None:
        known = self.session.tree.nodes.get(id)
        if known is None:  # another chat was opened while the list of alternatives was shown
            self.ui.hint("that answer is in another chat; nothing was changed")
            return
        node = self.same_model(known)
        if node is None or not steps:
            return
        used = remaining_sampling(node, index)
        if [step.id for step in steps] != [step.id for step in node.steps[index : index + len(steps)]]:
            used = dataclasses.replace(used, max_tokens=self.session.sampling.max_tokens)  # again
        prefix = ev.AssistantPrefix((*node.steps[:index], *steps), new=len(steps))
        turn = self.session.answer(node.parent or "", prefix, Origin(id, index, "fork"), used)
        self._ask(turn)
        self.transcript.await_token(self.turns.block_of(turn), index)

    @staticmethod
    def _forked(node: Node, index: int, token: int) -> ev.AssistantPrefix:
        return ev.AssistantPrefix((*node.steps[:index], replace_token(node.steps[index], token)))

    def place(self) -> tuple[Node, int] | None:
        """(answer, index of a token) under the cursor; without one where the newest answer ends.

        Only of an answer that the loaded model wrote; None after a hint.
        """
        cursor, last = self.transcript.cursor_token(), self.session.last
        id = cursor[0] if cursor is not None else (last.node or "" if last is not None else "")
        node = self.session.tree.nodes.get(id)
        if node is None or not node.steps:
            self.ui.hint("put the cursor on a token of an answer first")
        elif self.session.info is None:
            self.ui.hint("no model is loaded yet")
        elif self.same_model(node) is not None:
            return node, cursor[1] if cursor is not None else len(steps_to_continue(node))
        return None

    def tried(self, node: str, index: int) -> set[int]:
        """The tokens at `index` of all versions of the answer with the same beginning."""
        tree = self.session.tree
        before = [step.id for step in tree[node].steps[:index]]
        beside = [other.steps for other in tree.siblings(node) if len(other.steps) > index]
        return {steps[index].id for steps in beside if [step.id for step in steps[:index]] == before}

    def preview(self, node: str, index: int, token: int, show: Callable[[ev.PreviewReady], None]) -> bool:
        """Preview how the model would continue after another token; False while it is busy.

        A hint says why another model's answer has no preview.
        """
        known = self.session.tree.nodes.get(node)
        if known is not None and self.same_model(known) is None:
            return True
        if self.session.generating or known is None or not 0 <= index < len(known.steps):
            return False
        self._on_preview = show
        self.chat.submit(self.session.preview(node, self._forked(known, index, token)))
        return True

    @event(ev.PreviewReady)
    def _previewed(self, event: ev.PreviewReady) -> None:
        """Show a preview that was computed."""
        if self._on_preview is not None:
            self._on_preview(event)

    def choose_fork(self, node: str, index: int) -> None:
        """Open the dialog of the alternatives to a token."""
        from ropechat.tui.screens.fork import ForkScreen

        known = self.session.tree[node]
        if self.same_model(known) is None or not 0 <= index < len(known.steps):
            return
        if not known.steps[index].top:
            self.ui.hint("this token was typed, so it has no recorded alternatives")
            return
        self.chat.when_idle(
            lambda: self.ui.push(
                ForkScreen(known, index, self.keymap, self.ui.vocabularies.of_loaded, self.preview),
                lambda id: self.fork(node, index, id),
            )
        )

    # --- editing and copying ---

    @command("question.edit")
    def edit_question(self) -> None:
        """Edit a question; the result is a new branch."""
        turn = self.turns.turn()
        if turn is not None:
            self.writing.edit(self.session.tree[turn.asked])

    @command("answer.edit")
    def edit_answer(self) -> None:
        """Edit an answer; the result is a new branch."""
        turn = self.turns.turn()
        if turn is not None and turn.node is not None:
            self.writing.edit(self.session.tree[turn.node])

    @command("answer.copy")
    def _copy_some(self, what: str) -> str:
        from ropechat.store.import_export import to_markdown

        if not what:
            self.copy_answer()
        elif (
            what.split()[:1] == ["code"] and (number := what.removeprefix("code").strip() or "0").isdecimal()
        ):
            self.copy_code(int(number))
        elif what == "thought":
            self.copy_thought()
        elif what == "all":
            session = self.session
            self.ui[TerminalFeature].copy(to_markdown(Chat(session.recorder.id, session.title, session.tree)))
        else:
            return "/copy [code [N]|thought|all]: the last code, or the Nth; the thought; the branch"
        return ""

    def copy_answer(self) -> None:
        """Copy the answer under the cursor, or the newest."""
        turn = self.turns.turn()
        if turn is not None:
            self.ui[TerminalFeature].copy(turn.answer.node.text)

    def copy_thought(self) -> None:
        """Copy the thought before that answer."""
        turn = self.turns.turn()
        if turn is None:
            return
        if thought := turn.answer.node.reasoning.strip():
            self.ui[TerminalFeature].copy(thought)
        else:
            self.ui.hint("no thought before this answer")

    @command("answer.copy_code")
    def _copy_last_code(self) -> None:
        self.copy_code(0)

    def copy_code(self, number: int) -> None:
        """Copy a code block of the answer under the cursor, or of the newest. number: from 1; 0: the last."""
        turn = self.turns.turn()
        if turn is not None and turn.node is not None:
            self.copy_code_of(turn.node, number)

    def copy_code_of(self, node: str, number: int) -> None:
        """Copy a code block of an answer. number: from 1; 0: the last."""
        known = self.session.tree.nodes.get(node)
        blocks = fenced_code(known.text) if known is not None else []
        if 0 <= number - 1 < len(blocks) or (blocks and not number):
            self.ui[TerminalFeature].copy(blocks[number - 1])
        else:
            found = count_of(len(blocks), "code block") if blocks else "no code block"
            self.ui.hint(f"{found} in this answer")

    # --- between branches ---

    @command("sibling.previous")
    def _show_previous(self) -> None:
        self.show_sibling(-1)

    @command("sibling.next")
    def _show_next(self) -> None:
        self.show_sibling(1)

    def show_sibling(self, by: int) -> None:
        """Show the previous or next version of the answer, or of the question."""
        turn = self.turns.turn()
        if turn is None or self.session.generating:
            return
        tree = self.session.tree
        for id in (turn.node, turn.asked):
            if id is not None and len(tree.siblings(id)) > 1:
                if (found := tree.step(id, by)) is not None:
                    self.session.go(found.id)
                    self.turns.show()
                return
        self.ui.hint(f"no other answer to this question; {self.turns.way_to('answer.regenerate')} writes one")

    def show_version(self, id: str, by: int) -> None:
        """Show the version before or after this question or answer."""
        if self.session.generating:
            self.ui.hint("versions change when the answer is complete")
        elif id in self.session.tree.nodes and (found := self.session.tree.step(id, by)) is not None:
            self.session.go(found.id)
            self.turns.show()

    @command("chat.branches")
    def open_branches(self) -> None:
        """Open the dialog of all branches."""
        from ropechat.tui.screens.branches import BranchesScreen

        if len(self.session.tree):
            self.chat.when_idle(
                lambda: self.ui.push(BranchesScreen(self.session, self.keymap), self.show_branch)
            )
        else:
            self.ui.hint("this chat is empty")

    def show_branch(self, node: str) -> None:
        if node in self.session.tree.nodes:
            self.session.go(node)
        elif self.session.empty:  # all branches were deleted
            self.session.clear()
        self.turns.show()

    @command("answer.compare")
    def _compare_some(self, words: str) -> str:
        if words:
            return self.compare_numbers(words)
        self.compare()
        return ""

    def compare_numbers(self, words: str) -> str:
        """/compare: compare answers to the newest question by number; returns an error text."""
        turn = self.session.last
        beside = self.session.tree.children(turn.asked) if turn is not None else []
        numbers = sorted({int(word) for word in words.split() if word.isdecimal()})
        fits = 2 <= len(numbers) <= MAX_COMPARED and len(numbers) == len(words.split())
        if not fits or not 1 <= numbers[0] <= numbers[-1] <= len(beside):
            return f"/compare 1 2: two to {MAX_COMPARED} of the {len(beside)} answers to this question"
        nodes = [beside[number - 1] for number in numbers]
        if all(node.steps for node in nodes):
            self.chat.when_idle(lambda: self._compare(nodes))
            return ""
        return "only answers with tokens can be compared"

    def compare(self) -> None:
        """Compare the answers of the newest series, or an answer with the one it was made from."""
        turn, nodes = self.turns.turn(), self._in_series()
        if turn is not None and turn.node in self._series and len(nodes) > 1:
            self.chat.when_idle(lambda: self._compare(nodes))
        else:
            self._compare_two(turn)

    def _compare_two(self, turn: Turn | None) -> None:
        """Compare the answer under the cursor with its origin or another version."""
        from ropechat.tui.screens.branches import find_counterpart

        node = self.session.tree.nodes.get(turn.node or "") if turn is not None else None
        other = find_counterpart(self.session.tree, node) if node is not None else None
        if node is None or other is None or not node.steps:
            again = self.turns.way_to("answer.regenerate")
            self.ui.hint(f"no other answer to compare this one with; {again} writes one")
        else:
            self.chat.when_idle(lambda: self._compare([other, node]))

    def _compare(self, nodes: Sequence[Node]) -> None:
        from ropechat.tui.screens.compare import CompareScreen

        self.ui.push(CompareScreen(self.session.tree, nodes, self.keymap), self.show_branch)
