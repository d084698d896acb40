"""What could follow: the tree of continuations of a place, whose paths are opened, dropped and taken."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from textual.containers import Vertical
from textual.content import Content
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from ropechat.errors import CancelledError
from ropechat.inspector.scored_text import LN2, percent
from ropechat.inspector.tree_view import name_of
from ropechat.tui.screens.dialog import ChoiceList, Dialog, bindings
from ropechat.tui.widgets.inspector import draw_bar
from ropechat.util.text import clean, count_of, one_line
from ropechat.util.width import cell_width, fit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from textual.app import ComposeResult
    from textual.await_complete import AwaitComplete

    from ropechat.inspector.growth import Growth
    from ropechat.inspector.text_reader import Done, Job
    from ropechat.inspector.tree import Tree
    from ropechat.tui.commands.keymap import Keymap

    Submit = Callable[[Job, Done], None]
    Path = tuple[int, ...]

TICK_S = 0.2  # seconds between two looks at a computation
BAR = 10  # cells of a bar
NARROW = 60  # cells of a list without bars
EDGES = 4  # cells of the dialog that are not list
LEAST_REST = 0.0005  # probability of a rest that has a line
TEXT_ROWS = 2  # of the chosen path


class Taken(NamedTuple):
    """The path that was chosen: the node of its last token."""

    tree: Tree
    node: int


class ContinuationsScreen(Dialog["Taken | None"]):
    """The tree of a place, as far as it is open; the result is a path.

    growth: computes it. submit: runs a job in the engine's thread. before: the text before the place.
    takes: what taking a path does, for the line of keys.
    """

    BINDINGS = bindings("continuations", "read.follow")
    context = "continuations"
    heading = "what could follow"

    def __init__(self, growth: Growth, submit: Submit, before: str, keymap: Keymap, takes: str) -> None:
        super().__init__(keymap)
        self._is_left = False
        self._growth, self._submit, self._before = growth, submit, one_line(before)
        self._tree: Tree | None = None
        self._open: set[Path] = set()
        self._dropped: list[Path] = []  # the newest last
        self._at: Path = ()  # the chosen path
        self._is_computing = False
        self._text = Static("", id="follows", markup=False)
        opens = keymap.beside_text("continuations.open", "continuations.close")
        own = (f"continuations.{name}" for name in ("drop", "undo", "more"))
        take = (keymap.first("continuations.take"), takes)
        self.key_hints.show_keys(((opens, "open, close"), *own, take, "sheet.leave"))

    def compose(self) -> ComposeResult:
        with Vertical(id="continuations", classes="sheet whole"):
            yield self._text
            yield ChoiceList(id="paths", markup=False)
            yield self.key_hints

    def on_mount(self) -> None:
        """Begin to compute."""
        super().on_mount()
        self.query_one(OptionList).focus()
        self.set_interval(TICK_S, self._tick)
        self._compute()

    def dismiss(self, result: Taken | None = None) -> AwaitComplete:
        """Stop the computation, and close; its result is no longer shown."""
        if self.is_current:
            self._is_left = True
            self._growth.stop()
        return super().dismiss(result)

    def on_unmount(self) -> None:
        """Stop the computation at the end of the program; not that of a sheet that was opened since."""
        if not self._is_left:
            self._growth.stop()

    def on_resize(self) -> None:
        """Draw at this width."""
        self._draw()

    # --- computing ---

    def _compute(self) -> None:
        if self._is_computing:
            return
        self._is_computing = True
        app = self.app
        self._submit(self._growth, lambda result: app.call_from_thread(self._computed, result))
        self._tick()

    def _computed(self, result: Any) -> None:
        self._is_computing = False
        if not isinstance(result, BaseException):
            self._tree = result
            self.say("")
            self._draw()
        elif isinstance(result, CancelledError):
            self.say("stopped")
        else:
            self.say(one_line(str(result)), "$error")

    def _tick(self) -> None:
        if not self._is_computing:
            return
        stop = self.keymap.first("sheet.leave")
        done, all = self._growth.added, self._growth.limits.nodes
        begun = f"{done:,} of {all:,} tokens" if self._growth.runs else "waits for the model"
        self.say(f"{begun} … · {stop} stops")

    # --- keys ---

    def action_leave(self) -> None:
        """Stop the computation, or close."""
        if self._is_computing and self._tree is None and not self._growth.runs:
            self.dismiss(None)  # it waits: stopping takes as long
        elif self._is_computing and not self._growth.is_stopped:
            self._growth.stop()
        else:
            self.dismiss(None)

    def action_unfold(self) -> None:
        """Open the chosen path; in an open one go to its first continuation."""
        tree, index = self._tree, self._chosen()
        if tree is None or index is None:
            return
        below = self._below(tree, index)
        if not below:
            more = self.keymap.first("continuations.more")
            end = "the text ends here" if tree.nodes[index].is_end else f"{more} looks further"
            self.say(end if tree.nodes[index].joined is None else "goes on where the same text is likelier")
        elif self._at in self._open:
            self._at = path_of(tree, below[0])
            self._draw()
        else:
            self._open.add(self._at)
            self._draw()

    def action_fold(self) -> None:
        """Close the chosen path; in a closed one go to the path before its last token."""
        if self._at in self._open:
            self._open.remove(self._at)
        elif len(self._at) > 1:
            self._at = self._at[:-1]
        self._draw()

    def action_drop(self) -> None:
        """Leave the chosen path out of the list."""
        tree, index = self._tree, self._chosen()
        if tree is None or index is None:
            return
        beside = [one for one in self._below(tree, tree.nodes[index].parent or 0) if one != index]
        after = next((one for one in beside if one > index), beside[-1] if beside else None)
        self._dropped.append(self._at)
        self._at = self._at[:-1] if after is None else path_of(tree, after)
        self._draw()

    def action_undo(self) -> None:
        """Bring back the path that was dropped last."""
        if self._dropped:
            self._at = self._dropped.pop()
            self._open |= {self._at[:end] for end in range(1, len(self._at))}
            self._draw()
        else:
            self.say("no path was dropped")

    def action_more(self) -> None:
        """Compute twice as many nodes, or go on where it was stopped."""
        if self._is_computing:
            return
        if self._tree is None or self._tree.stopped:
            self._growth.resume()
        else:
            self._growth.more()
        self._compute()

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        """Show the text of the chosen path."""
        if event.option_id is not None:
            self._at = tuple(map(int, event.option_id.split()))
            if not self._is_computing:
                self.say("")
            self._show_text()

    def on_option_list_option_selected(self) -> None:
        self.action_take()

    def action_take(self) -> None:
        """Take the chosen path."""
        index = self._chosen()
        if self._tree is not None and index is not None:
            self.dismiss(Taken(self._tree, index))

    # --- rows ---

    def _chosen(self) -> int | None:
        """The node of the chosen path."""
        return None if self._tree is None or not self._at else node_of(self._tree, self._at)

    def _below(self, tree: Tree, index: int) -> list[int]:
        """The continuations of a node that were not dropped."""
        return [one for one in tree.nodes[index].children if path_of(tree, one) not in self._dropped]

    def _rows(self, tree: Tree, index: int) -> Iterator[tuple[Path, int]]:
        """(path, node) of each row, from the top; the rest of a node is its path with the node 0."""
        path = path_of(tree, index)
        if index and path not in self._open:
            return
        for child in self._below(tree, index):
            yield path_of(tree, child), child
            yield from self._rows(tree, child)
        if self._rest(tree, index) >= LEAST_REST:
            yield path, 0

    def _rest(self, tree: Tree, index: int) -> float:
        """The probability of what the rows below a node do not have."""
        gone = set(tree.nodes[index].children) - set(self._below(tree, index))
        return tree.rest(index) + math.fsum(tree.nodes[one].prob for one in gone)

    def _draw(self) -> None:
        tree = self._tree
        if tree is None or not self.is_attached:
            return
        rows = list(self._rows(tree, 0))
        places = [place for place, (path, node) in enumerate(rows) if node and path == self._at]
        first = next((place for place, (_, node) in enumerate(rows) if node), None)
        options = self.query_one(OptionList)
        offset = options.scroll_offset.y
        width = max(20, options.size.width or self.size.width - EDGES)
        shown = [
            Option(
                self._row(tree, path, node, width),
                id=" ".join(map(str, path)) if node else None,
                disabled=not node,
            )
            for path, node in rows
        ]
        self.list_options(shown, places[0] if places else first)
        options.scroll_to(y=offset, animate=False)
        options.scroll_to_highlight()
        self.title_with(f"{count_of(len(tree.nodes) - 1, 'token')} · {tree.remainder:.1%} elsewhere")
        self._show_text()

    def _row(self, tree: Tree, path: Path, index: int, width: int) -> Content:
        bar = BAR if width >= NARROW else 0
        indent = "  " * (len(path) - (1 if index else 0))
        if not index:
            owner = node_of(tree, path) or 0
            rest = self._rest(tree, owner)
            whole = math.log(rest)
            part = percent(whole - tree.nodes[owner].path_logprob)
            numbers = f"{percent(whole):>7} {draw_bar(rest, bar)}{' ' * bool(bar)}{part:>7}  "
            return Content.styled(fit(f"{numbers}{indent}  others", width).rstrip(), "$quiet")
        node = tree.nodes[index]
        below = self._below(tree, index)
        sign = " " if not below else "▾" if path in self._open else "▸"
        end = " ∎" if node.is_end else ""
        name = f"{name_of(tree, index)}{end}"
        left = f"{percent(node.path_logprob):>7} "
        right = f"{percent(node.logprob):>7}  {indent}"
        room = width - cell_width(left + right) - bar - 2 - bool(bar)
        goes = "" if path in self._open else self._likeliest(tree, index)
        name = fit(name, min(room, cell_width(name))) if room > 0 else ""
        left_over = room - cell_width(name)
        return Content.assemble(
            left,
            (draw_bar(node.prob, bar), "$primary"),
            f"{' ' * bool(bar)}{right}",
            (f"{sign} ", "$primary"),
            (name, "bold"),
            (fit(one_line(goes), left_over).rstrip() if left_over > 1 else "", "$quiet"),
        )

    def _likeliest(self, tree: Tree, index: int) -> str:
        """The likeliest text after a node."""
        found = ""
        while below := self._below(tree, index):
            index = below[0]
            found += _words(tree, index)
        return found

    def _show_text(self) -> None:
        """The text of the chosen path behind what is before it, and how it goes on."""
        tree, index = self._tree, self._chosen()
        width = max(20, self.size.width - EDGES)
        if tree is None or index is None:
            self._text.update(Content.styled(fit(self._before[-width:], width).rstrip(), "$quiet"))
            return
        nodes = (node_of(tree, self._at[: end + 1]) for end in range(len(self._at)))
        said = "".join(_words(tree, one) for one in nodes if one is not None)
        goes = self._likeliest(tree, index)
        entropy = tree.nodes[index].entropy
        facts = f"{percent(tree.nodes[index].path_logprob)} · {count_of(len(self._at), 'token')}"
        facts += "" if entropy is None else f" · then {entropy / LN2:.1f} bits of entropy"
        room = max(0, TEXT_ROWS * width - cell_width(said + goes) - 8)
        before = self._before
        self._text.update(
            Content.assemble(
                (f"{facts}\n", "$quiet"),
                (before if len(before) <= room else f"…{before[len(before) - room :]}", "$quiet"),
                (said, "bold $primary"),
                (goes, "$quiet"),
            )
        )


def path_of(tree: Tree, index: int) -> Path:
    """The ids of a path, which it has in a larger tree too."""
    return tuple(node.id for node in tree.path(index))


def node_of(tree: Tree, path: Path) -> int | None:
    """The node at the end of a path; None if the tree does not have it."""
    index = 0
    for id in path:
        found = next((one for one in tree.nodes[index].children if tree.nodes[one].id == id), None)
        if found is None:
            return None
        index = found
    return index


def _words(tree: Tree, index: int) -> str:
    """The text of a token, on one line; of one that ends a text a sign."""
    if tree.nodes[index].is_end:
        return " ∎"
    return one_line(clean(tree.nodes[index].bytes.decode("utf-8", "replace")))
