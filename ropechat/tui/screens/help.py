"""The keys and commands."""

from __future__ import annotations

import textwrap
from itertools import groupby
from typing import TYPE_CHECKING

from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Input, Static

from ropechat.tui.commands.registry import ALL, CONTEXTS, DIALOG_CONTEXTS
from ropechat.tui.screens.dialog import Dialog, bindings
from ropechat.tui.widgets.input import SanitizedInput
from ropechat.util.width import cell_width

if TYPE_CHECKING:
    from textual.app import ComposeResult

    from ropechat.tui.commands.keymap import Keymap

MIN_WRAPPED = 16  # cells next to the keys; with fewer, long lines continue at the left edge
TALL = 40  # rows of a screen with room for all facts
NO_BREAK = "\N{NO-BREAK SPACE}"
MOVES = (  # left out where commands are listed in short
    *("read.down", "read.up", "read.left", "read.right", "read.word", "read.back", "read.home", "read.end"),
    *("read.page_down", "read.page_up", "composer.page_up", "composer.page_down"),
)
SHORT = {"transcript": "While reading (esc)", "composer": "While writing"}
FACTS = (
    "Coloured words surprised the model: the stronger the colour, the less probable the token was.",
    "All counts are exact: the gauge shows what the model reads, and nothing is truncated silently.",
    '@notes.md attaches a text file, @"my notes.md" one with spaces in its name; @@notes.md is only text.',
    'Other keys: the table [keys] of `ropechat config path`, as in "chat.new" = "f12".',
)
WORDS = (  # that the chat shows
    ("surprisal", "how much a token surprised the model: -log2 of its probability, in bits; 0 was certain"),
    ("bits/token", "the mean surprisal of an answer: the lower, the surer the model was"),
    ("ppl", "perplexity, 2 to the power of the bits per token: among how many tokens it seemed to choose"),
    ("entropy", "how uncertain the model was before it drew, in bits; 3 bits are like 8 equal choices"),
    ("raw, sampled", "the probability as the model gave it, and after temperature and filters"),
    ("rank", "the place of a token among all, by probability; 1 is the likeliest"),
    ("u", "the random number of a draw: the token is the one whose interval it falls into"),
    ("kept", "how many tokens a stage of the sampler left"),
    ("logit_bias", "what bans and favours add to the scores of tokens before they become probabilities"),
    ("prefill", "reading the prompt, many tokens at once; its rate is in tokens per second"),
    ("decode", "writing the answer, token by token"),
    ("KV cache", "what the model keeps of every token that it read, so that it reads each only once"),
    ("ctx", "the context: the tokens that the model can take in at once, question and answer included"),
    ("token", "a piece of text, often a word or a part of one"),
)


class HelpScreen(Dialog[None]):
    """Keys and commands, those of the current context first; a typed word filters all of them."""

    BINDINGS = bindings("help", "app.help")
    heading = "help"
    items = (("↓ ↑", "scroll"), ("type", "to filter"), "sheet.leave")

    def __init__(self, keymap: Keymap, context: str) -> None:
        super().__init__(keymap)
        self._place = context
        self._wanted = SanitizedInput(placeholder="Type a word, such as fork, copy or surprisal", id="filter")

    def compose(self) -> ComposeResult:
        with Vertical(classes="sheet whole broad"):
            yield self._wanted
            with VerticalScroll(id="help"), Horizontal(classes="columns"):
                yield Static(id="left", markup=False)
                yield Static(id="right", markup=False)
            yield self.key_hints

    def on_mount(self) -> None:
        self._fill("")
        self.query_one("#help").can_focus = False
        self._wanted.focus()

    def on_resize(self) -> None:
        """Wrap the lines again, once the width of a column is known."""
        self.call_after_refresh(lambda: self._fill(self._wanted.value))

    def on_input_changed(self, event: Input.Changed) -> None:
        """Show the lines that contain the words."""
        self._fill(event.value)
        self.query_one("#help").scroll_home(animate=False)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()

    def action_page(self, by: int) -> None:
        """Scroll by a page."""
        text = self.query_one("#help")
        text.scroll_relative(y=by * text.size.height, animate=False)

    def _fill(self, words: str) -> None:
        parts = self._found(words) if words.strip() else self._all()
        columns = split_columns(parts)
        for name, column in zip(("#left", "#right"), columns, strict=True):
            self.query_one(name, Static).update(Content("\n").join(column))

    def _found(self, words: str) -> list[list[Content]]:
        """Every command whose line contains all words."""
        wanted = words.casefold().split()
        tables = {CONTEXTS[one]: self._keys(one, together=False) for one in (self._place, *CONTEXTS)}
        tables["Typed"] = [(f"/{one.slash} {one.arguments}", one.help) for one in ALL if one.slash]
        found = []
        for title, table in tables.items():
            rows = [
                row for row in table if all(word in " ".join((*row, title)).casefold() for word in wanted)
            ]
            if rows:
                found.append(self._table(title, rows, max(cell_width(left) for left, _ in rows)))
        meant = [row for row in WORDS if any(word in row[0].casefold() for word in wanted)]
        if meant:
            found.insert(0, self._table("Words", meant, max(cell_width(left) for left, _ in meant)))
        facts = [fact for fact in FACTS if all(word in fact.casefold() for word in wanted)]
        found += [[Content.styled(fact, "$quiet") for fact in facts]] if facts else []
        return found or [[Content.styled(f"nothing about “{words}”", "$quiet")]]

    def _all(self) -> list[list[Content]]:
        """The keys of this place, and in few lines all others."""
        own = ["sheet", self._place] if self._place in DIALOG_CONTEXTS else [self._place]
        tables = {CONTEXTS[context]: self._keys(context) for context in dict.fromkeys(own)}
        if self._place == "composer":
            tables[CONTEXTS["everywhere"]] = self._keys("everywhere")
        widest = max(cell_width(left) for table in tables.values() for left, _ in table)
        parts = [self._table(title, table, widest) for title, table in tables.items()]
        others = [name for name in ("everywhere", "transcript", "composer") if CONTEXTS[name] not in tables]
        lines = [self._in_short(name) for name in others]
        lines.append(_flow("Typed", [f"/{one.slash}" for one in ALL if one.slash]))
        lines.append(_flow("Words (type one)", [word for word, _ in WORDS]))
        facts = FACTS if self.app.size.height >= TALL else FACTS[:1]
        return [*parts, [*lines, *(Content.styled(fact, "$quiet") for fact in facts)]]

    def _table(self, title: str, rows: list[tuple[str, str]], widest: int) -> list[Content]:
        made, indent = [Content.styled(title, "bold $primary")], widest + 2
        room = self.query_one("#left").content_size.width - indent
        for left, right in rows:
            gap = " " * (indent - cell_width(left))
            lines = textwrap.wrap(right, room) if room >= MIN_WRAPPED else [right]
            made.append(Content.assemble((left + gap, "bold"), f"\n{' ' * indent}".join(lines)))
        return [*made, Content("")]

    def _in_short(self, context: str) -> Content:
        found = [one for one in ALL if one.context == context and one.keys]
        found = [one for one in found if one.id not in MOVES and not one.id[-1].isdecimal()]
        words = [f"{self.keymap.first(one.id)} {one.label}".replace(" ", NO_BREAK) for one in found]
        return _flow(SHORT.get(context, CONTEXTS[context]), words)

    def _keys(self, context: str, *, together: bool = True) -> list[tuple[str, str]]:
        """(keys, help) rows; commands with the same help share one, and those with a common text."""
        found = [one for one in ALL if one.context == context and one.keys]
        rows: list[tuple[str, str]] = []
        common = ""  # the common text of the command before and this one
        for help, group in groupby(found, key=lambda one: one.help):
            same = list(group)
            shown = [self.keymap.shown(one.id) for one in same]
            keys = f"{shown[0]} … {shown[-1]}" if len(shown) > 2 else " ".join(shown)
            if common and together:
                rows[-1] = (f"{rows[-1][0]}  {keys}", common)
                common = ""
            else:
                rows.append((keys, help))
                common = same[-1].both
        return rows


def split_columns(parts: list[list[Content]]) -> list[list[Content]]:
    """The parts in two columns of about the same height."""
    total = sum(map(len, parts))
    columns: list[list[Content]] = [[], []]
    for part in parts:
        columns[2 * len(columns[0]) >= total] += part
    return columns


def _flow(title: str, words: list[str]) -> Content:
    """A title and words, one after another."""
    return Content.assemble((f"{title}: ", "bold $primary"), " · ".join(words))
