"""The branches of a chat as a tree; up to four of its answers can be compared."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.containers import Vertical
from textual.content import Content
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from ropechat.conversation import Role
from ropechat.tui.format.lists import (
    MAX_COMPARED,
    branch_line,
    describe_node,
    folded_rows,
    format_time,
    hidden_before,
    snippet,
)
from ropechat.tui.format.status import why_ended
from ropechat.tui.screens.dialog import ChoiceList, Dialog, bindings
from ropechat.util.text import one_line
from ropechat.util.width import cell_width

if TYPE_CHECKING:
    from textual.app import ComposeResult

    from ropechat.chat.session import Session
    from ropechat.conversation import ConversationTree, Node
    from ropechat.tui.commands.keymap import Keymap


PREVIEW = 300  # characters of the chosen message
WIDE = 120  # columns of a screen on which the dialog is broad
NARROW, BROAD = 100, 156  # columns of the dialog, as in app.tcss


def find_counterpart(tree: ConversationTree, node: Node) -> Node | None:
    """The answer to compare another with: the one that it was made from, or a sibling."""
    source = tree.nodes.get(node.origin.node) if node.origin is not None else None
    beside = [other for other in tree.siblings(node.id) if other is not node]
    return next((other for other in (source, *beside) if other is not None and other.steps), None)


class BranchesScreen(Dialog["str | None"]):
    """Every node of the chat; the result is the node whose branch to show."""

    BINDINGS = bindings("branches", "chat.branches")
    context = "branches"
    heading = "branches"
    items = (("⏎", "open"), "branches.mark", "branches.compare", "branches.delete", "sheet.leave")

    def __init__(self, session: Session, keymap: Keymap) -> None:
        super().__init__(keymap)
        self._session = session
        self._marked: list[str] = []
        self._changed = False
        self._shown: set[str] = set()  # the nodes that have a row
        self._width = 0  # of the screen, when the lines were made

    def compose(self) -> ComposeResult:
        with Vertical(id="branches", classes="sheet broad"):
            yield ChoiceList(id="nodes", markup=False)
            yield Static(id="begins", markup=False)
            yield self.key_hints

    def on_mount(self) -> None:
        self._fill(self._session.tree.current)
        self.query_one(OptionList).focus()

    def _fill(self, chosen: str | None) -> None:
        tree, self._width = self._session.tree, self.app.size.width
        shown = {node.id for node in tree.path()}
        options = self.query_one(OptionList)
        options.clear_options()
        rows = folded_rows(tree)
        self._shown = {node.id for _, node in rows}
        options.add_options(
            [Option(self._line(node, stem, node.id in shown), id=node.id) for stem, node in rows]
        )
        if chosen is not None:
            options.highlighted = options.get_option_index(self._visible(chosen))
        answers = sum(node.role is Role.ASSISTANT for node in tree.nodes.values())
        leaves = len(tree.leaves())
        marked = f", {len(self._marked)} marked" if self._marked else ""
        self.title_with(
            f"{leaves} branch{'es' * (leaves > 1)}, {answers} answer{'s' * (answers != 1)}{marked}"
        )

    def _visible(self, id: str) -> str:
        """The node of the row that shows a node: itself, its continuation, or the next one below."""
        tree = self._session.tree
        while id not in self._shown:
            below = tree.children(id)
            id = tree.continued(id) or below[-1].id
        return id

    def on_resize(self) -> None:
        """Fit the lines, if they were made for another width."""
        chosen = self._chosen()
        if chosen is not None and self._width != self.app.size.width:
            self._fill(chosen.id)

    def _line(self, node: Node, stem: str, shown: bool) -> Content:
        facts = ""
        if node.steps:
            each = f"  {node.bits / node.scored:4.2f} bits/token" if node.scored and self._width >= 70 else ""
            facts = f"  {len(node.steps):5,} tok{each}  {format_time(node.created)}"
        hidden = hidden_before(self._session.tree, node, self._shown)
        stem += f"⋮ {hidden} more  " if hidden else ""
        mark = "◆" if node.id in self._marked else "●" if shown else " "
        if node.steps and self._width >= 70 and (reason := why_ended(node)):
            facts = f"  {reason}{facts}"
        head = describe_node(self._session.tree, node)
        width = self._width
        room = max(16, min(BROAD if width >= WIDE else NARROW, width) - 6 - len(facts) - cell_width(stem) - 2)
        return Content.assemble(*branch_line(node, stem, head, mark, room, shown), (facts, "$quiet"))

    def _chosen(self) -> Node | None:
        index = self.query_one(OptionList).highlighted
        if index is None:
            return None
        return self._session.tree.nodes.get(self.query_one(OptionList).get_option_at_index(index).id or "")

    def on_option_list_option_highlighted(self) -> None:
        """Show the beginning of the chosen message."""
        node = self._chosen()
        said = one_line(" ".join(snippet(node).split()))[:PREVIEW] if node is not None else ""
        self.query_one("#begins", Static).update(Content.styled(said, "$quiet"))

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(event.option_id)

    def action_leave(self) -> None:
        """Close; after a deletion with the branch that is left."""
        self.dismiss((self._session.tree.current or "") if self._changed else None)

    def action_mark(self) -> None:
        """Mark an answer; the oldest mark is removed where there are too many."""
        node = self._chosen()
        if node is None or not node.steps:
            self.say("only answers with tokens can be compared")
            return
        if node.id in self._marked:
            self._marked.remove(node.id)
        else:
            self._marked = [*self._marked, node.id][-MAX_COMPARED:]
        self._fill(node.id)

    def action_compare(self) -> None:
        """The marked answers side by side; without marks the chosen one and the one that it was made from."""
        from ropechat.tui.screens.compare import CompareScreen

        tree, node = self._session.tree, self._chosen()
        nodes = [one for _, one in folded_rows(tree) if one.id in self._marked]
        if len(nodes) < 2 and node is not None and node.steps:
            other = nodes[0] if nodes else find_counterpart(tree, node)
            nodes = [other, node] if other is not None and other is not node else []
        if len(nodes) >= 2:
            self.app.push_screen(CompareScreen(tree, nodes, self.keymap), self._keep)
        else:
            self.say(f"mark two to {MAX_COMPARED} answers first")

    def _keep(self, chosen: str | None) -> None:
        if chosen is not None:
            self.dismiss(chosen)

    def action_delete(self) -> None:
        """Delete a branch at the second press."""
        node = self._chosen()
        if node is None:
            return
        if not self.is_sure(node.id, "the same key again deletes this and all that follows it, for good"):
            return
        parent = node.parent
        gone = self._session.tree.remove(node.id)
        self._marked = [id for id in self._marked if id not in gone]
        self._session.recorder.erase(gone)
        self._session.recorder.point(self._session.tree.current)
        self._changed = True
        if self._session.tree.nodes:
            self._fill(parent or self._session.tree.current)
        else:
            self.dismiss("")
