"""The branches of a chat as a tree; two of its answers can be compared."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from textual.containers import Vertical
from textual.content import Content
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from ropechat.conversation import Role
from ropechat.text import cells, fit, one_line
from ropechat.tui.render.visible import visible
from ropechat.tui.screens.chats import when
from ropechat.tui.screens.sheet import Choices, Sheet, bindings

if TYPE_CHECKING:
    from textual.app import ComposeResult

    from ropechat.tree import Node, Tree
    from ropechat.tui.session import Session

DEEPEST = 12  # levels that are indented
SNIPPET = 200  # characters of an answer that are looked at


def rows(tree: Tree) -> list[tuple[str, Node]]:
    """(lines that lead to it, node) of every node; a chain without branches is not indented further."""
    found: list[tuple[str, Node]] = []
    waiting = [("", "", root) for root in reversed(tree.children(None))]  # lines to it, lines below it
    while waiting:
        stem, under, node = waiting.pop()
        found.append((stem, node))
        below = tree.children(node.id)
        if len(below) == 1 or len(under) >= 3 * DEEPEST:
            waiting += [(under, under, child) for child in reversed(below)]
            continue
        for child in reversed(below):
            last = child is below[-1]
            waiting.append((under + ("└─ " if last else "├─ "), under + ("   " if last else "│  "), child))
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
    return f"{who}{numbers} @{origin.index + 1} → {one_line(visible(node.steps[origin.index].bytes))}"


def own_text(node: Node) -> str:
    """What a node says; of a fork what comes after the token that was put there."""
    if node.origin is not None and node.origin.change == "fork":
        return "".join(step.text for step in node.steps[node.origin.index + 1 :])
    return node.text


def counterpart(tree: Tree, node: Node) -> Node | None:
    """The answer to compare another with: the one that it was made from, or one beside it."""
    source = tree.nodes.get(node.origin.node) if node.origin is not None else None
    beside = [other for other in tree.siblings(node.id) if other is not node]
    return next((other for other in (source, *beside) if other is not None and other.steps), None)


class BranchesScreen(Sheet["str | None"]):
    """Every node of the chat; the result is the node whose branch is to be shown."""

    BINDINGS = bindings("branches", "chat.branches")
    context = "branches"
    heading = "branches"
    items = (("⏎", "open"), "branches.mark", "branches.compare", "branches.delete", "sheet.leave")

    def __init__(self, session: Session) -> None:
        super().__init__()
        self._session = session
        self._marked: list[str] = []
        self._sure: str | None = None
        self._changed = False

    def compose(self) -> ComposeResult:
        """Tree and keys."""
        with Vertical(id="branches", classes="sheet"):
            yield Choices(id="nodes", markup=False)
            yield self.key_line

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
        leaves = len(tree.leaves())
        self.title_with(f"{leaves} branch{'es' * (leaves > 1)}, {answers} answer{'s' * (answers != 1)}")

    def on_resize(self) -> None:
        """Fit the lines."""
        chosen = self._chosen()
        if chosen is not None:
            self._fill(chosen.id)

    def _line(self, node: Node, stem: str, shown: bool) -> Content:
        facts = ""
        if node.steps:
            ppl = "" if math.isnan(node.ppl) or self.app.size.width < 70 else f"  ppl {node.ppl:5.1f}"
            facts = f"  {len(node.steps):5,} tok{ppl}  {when(node.created)}"
        mark = "◆" if node.id in self._marked else "●" if shown else " "
        head = describe(self._session.tree, node)
        room = max(16, min(100, self.app.size.width) - 6 - len(facts) - cells(stem) - 2)
        said = one_line(" ".join(own_text(node)[:SNIPPET].split()))
        text = fit(f"{head}  {said}", room)
        name, rest = text[: len(head)], text[len(head) :]
        return Content.assemble(
            (f"{mark} ", "$primary"),
            (stem, "$quiet"),
            (name, "bold $primary" if node.role is Role.USER else "bold" if shown else ""),
            (rest, "" if shown else "$quiet"),
            (facts, "$quiet"),
        )

    def _chosen(self) -> Node | None:
        index = self.query_one(OptionList).highlighted
        if index is None:
            return None
        return self._session.tree.nodes.get(self.query_one(OptionList).get_option_at_index(index).id or "")

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
            self.say("only answers with tokens can be compared")
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
        pair = [tree[id] for id in self._marked]
        if len(pair) < 2 and node is not None and node.steps:
            other = pair[0] if pair else counterpart(tree, node)
            pair = [other, node] if other is not None and other is not node else []
        if len(pair) == 2:
            self.app.push_screen(CompareScreen(tree, *pair), self._keep)
        else:
            self.say("mark two answers first")

    def _keep(self, chosen: str | None) -> None:
        if chosen is not None:
            self.dismiss(chosen)

    def action_delete(self) -> None:
        """Delete a branch at the second press."""
        node = self._chosen()
        if node is None:
            return
        if self._sure != node.id:
            self._sure = node.id
            self.say("the same key again deletes this and all that follows it, for good")
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
