"""Several answers to one question: written one after the other, then side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ropechat.chat.answer import State
from ropechat.tui.controllers.answers import Branching
from ropechat.tui.format.lists import MAX_COMPARED

if TYPE_CHECKING:
    from ropechat.conversation_tree import Node
    from ropechat.tui.commands.dispatch import Typed


class Several(Branching):
    """The commands over several answers. A series ends when one of its answers is stopped or fails."""

    _series: tuple[str, ...] = ()  # the answers of the newest series
    _of = 0  # how many it is to have; 0: none is being written

    def action_several(self) -> None:
        """As many answers as can be compared."""
        self.answer_anew(MAX_COMPARED)

    def answer_anew(self, count: int) -> None:
        """Write `count` answers beside those that are there, and compare them."""
        self.when_idle(lambda: self._begin_series(count))

    def _begin_series(self, count: int) -> None:
        self._series, self._of = (), count
        self._one_more()

    def _one_more(self) -> None:
        self._regenerate()
        last = self.session.last
        if last is not None and last.node is not None and last.answer.state.live:
            self._series += (last.node,)
        else:
            self._of = 0

    def idle_again(self) -> None:
        """An answer ended: the next of a series, or all of them side by side."""
        called_off = self._then is not None
        super().idle_again()
        if not self._of or not self._series:
            return
        last = self.session.last
        done = last is not None and last.node == self._series[-1] and last.answer.state is State.DONE
        if called_off or not done:
            self._of = 0
        elif len(self._series) < self._of:
            self._one_more()
        else:
            self._of = 0
            self._show_series()

    def _show_series(self) -> None:
        """Not over what somebody writes or looks at."""
        nodes = self._in_series()
        if len(nodes) < 2:
            return
        if self.composer.text or len(self.screen_stack) > 1:
            self._say_hint(f"{len(nodes)} answers are there: /compare shows them side by side")
        else:
            self._compare(nodes)

    def _in_series(self) -> list[Node]:
        tree = self.session.tree
        return [tree[id] for id in self._series if id in tree.nodes and tree[id].steps]

    def action_compare(self) -> None:
        """The answers of a series beside each other; any other answer beside the one it was made from."""
        turn, nodes = self._turn(), self._in_series()
        if turn is not None and turn.node in self._series and len(nodes) > 1:
            self.when_idle(lambda: self._compare(nodes))
        else:
            super().action_compare()

    def compare_numbers(self, words: str) -> str:
        """/compare: those answers of the newest question; returns what is wrong with the numbers."""
        turn = self.session.last
        beside = self.session.tree.children(turn.asked) if turn is not None else []
        numbers = sorted({int(word) for word in words.split() if word.isdecimal()})
        fits = 2 <= len(numbers) <= MAX_COMPARED and len(numbers) == len(words.split())
        if not fits or not 1 <= numbers[0] <= numbers[-1] <= len(beside):
            return f"/compare 1 2: two to {MAX_COMPARED} of the {len(beside)} answers to this question"
        nodes = [beside[number - 1] for number in numbers]
        if all(node.steps for node in nodes):
            self.when_idle(lambda: self._compare(nodes))
            return ""
        return "only answers with tokens can be compared"

    def typed(self) -> dict[str, Typed]:
        """Also of several answers."""
        return {
            **super().typed(),
            "answer.regenerate": self._count_typed,
            "answer.compare": self.compare_numbers,
        }

    def _count_typed(self, count: str) -> str:
        if count not in [str(number + 1) for number in range(MAX_COMPARED)]:
            return f"/regen [1-{MAX_COMPARED}]: so many answers beside those that are there"
        self.answer_anew(int(count))
        return ""

    def standing_hint(self) -> str:
        """Also how far a series is."""
        stop = self.keymap.first("chat.stop")
        words = f"answer {len(self._series)} of {self._of}, then they are compared; {stop} stops"
        return super().standing_hint() or (words if self._of else "")
