"""The branches of a chat as a tree; two of its answers can be compared."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from ropechat.conversation import Role
from ropechat.text import fit, one_line
from ropechat.tui.screens.chats import when

if TYPE_CHECKING:
    from textual.app import ComposeResult

    from ropechat.tree import Node, Tree
    from ropechat.tui.session import Session

KEYS = "⏎ open   space mark   = compare   d delete   esc back"
DEEPEST = 12  # levels that are indented


def rows(tree: Tree) -> list[tuple[str, Node]]:
    """(lines that lead to it, node) of every node; a chain without branches is not indented further."""
    found: list[tuple[str, Node]] = []

    def lead(node: Node, stem: str) -> None:
        waiting = [(node, stem)]
        while waiting:
            at, stem = waiting.pop()
            found.append((stem, at))
            below = tree.children(at.id)
            deeper = stem if len(below) == 1 else (stem + "  ")[: 2 * DEEPEST]
            waiting += [(child, deeper) for child in reversed(below)]

    for root in tree.children(None):
        lead(root, "")
    return found


def describe(tree: Tree, node: Node) -> str:
    """Who, which of how many, and how it came about."""
    place, of = tree.place(node.id)
    who = {Role.SYSTEM: "system", Role.USER: "you", Role.ASSISTANT: "answer"}[node.role]
    numbers = f" {place}/{of}" if of > 1 else ""
    origin = node.origin
    if origin is None:
        return who + numbers
    if origin.change != "fork" or origin.index >= len(node.steps):
        return f"{who}{numbers} ({origin.change})"
    token = node.steps[origin.index].bytes.decode("utf-8", "replace")
    return f"{who}{numbers} @{origin.index + 1} → “{one_line(token)}”"


def own_text(node: Node) -> str:
    """What a node says; of a fork what comes after the token that was put there."""
    if node.origin is not None and node.origin.change == "fork":
        return "".join(step.text for step in node.steps[node.origin.index + 1 :])
    return node.text


class BranchesScreen(ModalScreen["str | None"]):
    """Every node of the chat; the result is the node whose branch is to be shown."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,f5,t,q", "leave", show=False, priority=True),
        Binding("space", "mark", show=False, priority=True),
        Binding("equals_sign", "compare", show=False),
        Binding("d", "delete", show=False),
        Binding("j", "app.simulate_key('down')", show=False),
        Binding("k", "app.simulate_key('up')", show=False),
    ]

    def __init__(self, session: Session) -> None:
        super().__init__()
        self._session = session
        self._marked: list[str] = []
        self._sure: str | None = None
        self._changed = False

    def compose(self) -> ComposeResult:
        """Tree and keys."""
        with Vertical(id="branches", classes="sheet"):
            yield Static(Content(""), id="count")
            yield OptionList(id="nodes", markup=False)
            yield Static(Content.styled(KEYS, "$quiet"), id="keys")

    def on_mount(self) -> None:
        """Begin at the answer that is shown."""
        self._fill(self._session.tree.current)
        self.query_one(OptionList).focus()

    def _fill(self, chosen: str | None) -> None:
        tree = self._session.tree
        shown = {node.id for node in tree.path()}
        options = self.query_one(OptionList)
        options.clear_options()
        options.add_options(
            [Option(self._line(node, stem, node.id in shown), id=node.id) for stem, node in rows(tree)]
        )
        if chosen is not None:
            options.highlighted = options.get_option_index(chosen)
        answers = sum(node.role is Role.ASSISTANT for node in tree.nodes.values())
        self.query_one("#count", Static).update(
            Content.styled(f"{len(tree.leaves())} branches, {answers} answers", "$quiet")
        )

    def _line(self, node: Node, stem: str, shown: bool) -> Content:
        facts = ""
        if node.steps:
            ppl = "" if math.isnan(node.ppl) else f"  ppl {node.ppl:5.1f}"
            facts = f"{len(node.steps):5} tok{ppl}  {when(node.created)}"
        mark = "◆" if node.id in self._marked else "●" if shown else " "
        head = f"{mark} {stem}{describe(self._session.tree, node)}  "
        room = max(8, min(100, self.size.width) - len(facts) - 6)
        line = fit(head + one_line(" ".join(own_text(node)[:200].split())), room)
        return Content.assemble((line, "bold" if shown else ""), (facts, "$quiet"))

    def _chosen(self) -> Node | None:
        index = self.query_one(OptionList).highlighted
        if index is None:
            return None
        return self._session.tree.nodes.get(self.query_one(OptionList).get_option_at_index(index).id or "")

    def _say(self, text: str) -> None:
        self.query_one("#keys", Static).update(Content.styled(one_line(text), "$warning"))

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Show this branch."""
        self.dismiss(event.option_id)

    def action_leave(self) -> None:
        """Back to where we were, or to what is left."""
        self.dismiss((self._session.tree.current or "") if self._changed else None)

    def action_mark(self) -> None:
        """Mark an answer; the older of three marks goes."""
        node = self._chosen()
        if node is None or not node.steps:
            self._say("only answers with tokens can be compared")
            return
        if node.id in self._marked:
            self._marked.remove(node.id)
        else:
            self._marked = [*self._marked, node.id][-2:]
        self._fill(node.id)

    def action_compare(self) -> None:
        """Two answers side by side: the marked ones, or the chosen one and the one that it was made from."""
        from ropechat.tui.screens.compare import CompareScreen

        tree, node = self._session.tree, self._chosen()
        pair = list(self._marked)
        if len(pair) < 2 and node is not None and node.steps:
            others = [other.id for other in tree.siblings(node.id) if other.steps and other is not node]
            source = [node.origin.node] if node.origin and node.origin.node in tree.nodes else []
            pair = [*(pair or source or others)[:1], node.id]
        if len(set(pair)) == 2:
            self.app.push_screen(CompareScreen(tree, pair[0], pair[1]))
        else:
            self._say("mark two answers with space")

    def action_delete(self) -> None:
        """Delete a branch at the second press."""
        node = self._chosen()
        if node is None:
            return
        if self._sure != node.id:
            self._sure = node.id
            self._say("d again deletes this and all that follows it, for good")
            return
        self._sure = None
        parent = node.parent
        gone = self._session.tree.remove(node.id)
        self._marked = [id for id in self._marked if id not in gone]
        self._session.keeper.erase(gone)
        self._session.keeper.point(self._session.tree.current)
        self._changed = True
        if self._session.tree.nodes:
            self._fill(parent or self._session.tree.current)
        else:
            self.dismiss("")
