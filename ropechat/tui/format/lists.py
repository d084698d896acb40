"""Chats, branches, personas and settings as lines of their dialogs and of the sidebar."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from ropechat.chat import presets
from ropechat.conversation import Role, thought_length
from ropechat.util.text import local_time, one_line, visible
from ropechat.util.width import fit

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from ropechat.conversation import ConversationTree, Node
    from ropechat.sampling import Sampling
    from ropechat.store.queries import Summary

Part = tuple[str, str]  # text, style
MAX_INDENTS = 12  # levels of a tree that are indented
SNIPPET = 200  # the most tokens, and characters, of an answer that are read
CHANGES = {"continue": "continued", "edit": "edited"}
NAME, VALUE = 18, 7  # cells of a setting
NOT_SAVED = "not saved"  # shown for a system text without a name
MAX_COMPARED = 4  # most answers side by side

# --- chats ---


def format_time(seconds: float, now: float | None = None) -> str:
    """A time as text: today's as hour and minute, others as a date."""
    return local_time(seconds).strftime("%H:%M" if days_ago(seconds, now) == 0 else "%Y-%m-%d")


def days_ago(seconds: float, now: float | None = None) -> int:
    """The number of midnights since then."""
    today = datetime.now() if now is None else local_time(now)
    return today.toordinal() - local_time(seconds).toordinal()


def chat_line(summary: Summary, current: str, facts: str, room: int) -> list[Part]:
    """A chat's title in `room` cells, then facts; marked when it is open or an answer is being written."""
    shown = summary.id == current
    mark = "●" if shown else "…" if summary.running else " "
    title = fit(one_line(summary.title) or "untitled", max(10, room))
    return [(f"{mark} ", "$primary"), (title, "bold" if shown else ""), (facts, "$quiet")]


# --- branches ---


def tree_rows(tree: ConversationTree) -> list[tuple[str, Node]]:
    """(lines that lead to it, node) of every node; a chain without branches is not indented further."""
    found: list[tuple[str, Node]] = []
    waiting = [("", "", root) for root in reversed(tree.children(None))]  # lines to it, lines below it
    while waiting:
        stem, under, node = waiting.pop()
        found.append((stem, node))
        below = tree.children(node.id)
        if len(below) == 1 or len(under) >= 3 * MAX_INDENTS:
            waiting += [(under, under, child) for child in reversed(below)]
            continue
        for child in reversed(below):
            last = child is below[-1]
            waiting.append((under + ("└─ " if last else "├─ "), under + ("   " if last else "│  "), child))
    return found


def folded_rows(tree: ConversationTree) -> list[tuple[str, Node]]:
    """The rows of `tree_rows` without redundant ones: answers that were continued, and the middle of runs
    without a branch.

    The first and last node of a run stay; `hidden_before` counts the others.
    """
    found = [(stem, node) for stem, node in tree_rows(tree) if tree.continued(node.id) is None]
    kept = []
    for stem, node in found:
        above = tree.nodes.get(node.parent or "")
        below = tree.children(node.id)
        inside = above is not None and len(tree.children(above.id)) == 1 and len(below) == 1
        inside = inside and len(tree.children(below[0].id)) == 1  # the answer before a fork stays, with it
        if not inside or (above is not None and above.parent is None and above.role is Role.SYSTEM):
            kept.append((stem, node))
    return kept


def hidden_before(tree: ConversationTree, node: Node, shown: Collection[str]) -> int:
    """The number of messages between a node and the next one above it that is shown."""
    count, at = 0, node.parent
    while at is not None and at not in shown:
        count, at = count + 1, tree[at].parent
    return count


def branch_rows(tree: ConversationTree) -> list[tuple[str, Node]]:
    """The rows of `tree_rows` that distinguish branches: where they part, and the last question of each."""
    found = tree_rows(tree)
    kept = {
        node.id
        for _, node in found
        if tree.sibling_position(node.id)[1] > 1 or len(tree.children(node.id)) > 1
    }
    for leaf in tree.leaves():
        kept.add(find_branch_row(tree, leaf, kept).id)
    return [(stem, node) for stem, node in found if node.id in kept]


def find_branch_row(tree: ConversationTree, leaf: Node, kept: set[str]) -> Node:
    """The last node of a branch that is in `kept`, or its last question."""
    node = leaf
    while node.id not in kept and node.role is not Role.USER:
        if node.parent is None:
            return leaf
        node = tree[node.parent]
    return node


def describe_node(tree: ConversationTree, node: Node) -> str:
    """The role of a node, then `describe_origin`."""
    who = {Role.SYSTEM: "system", Role.USER: "you", Role.ASSISTANT: "answer"}[node.role]
    return f"{who} {describe_origin(tree, node)}".rstrip()


def describe_origin(tree: ConversationTree, node: Node) -> str:
    """Which of its siblings a node is, and the change it was made by; "" for an only, original one."""
    place, of = tree.sibling_position(node.id)
    words = [f"{place}/{of}"] if of > 1 else []
    if (origin := node.origin) is not None:
        forked = origin.kind == "fork" and origin.index < len(node.steps)
        token = one_line(visible(node.steps[origin.index].bytes)) if forked else ""
        words.append(f"@{origin.index + 1} → {token}" if forked else CHANGES.get(origin.kind, ""))
        words = [word for word in words if word]
    return " ".join(words)


def snippet(node: Node) -> str:
    """The beginning of a node's text; of a fork, the text after its replaced token.

    Of an answer that ended inside its thought, the thought.
    """
    if not node.steps:
        return node.final_text or _of_thought(node.final_reasoning)
    forked = node.origin is not None and node.origin.kind == "fork"
    start = node.origin.index + 1 if forked and node.origin is not None else 0
    answer = thought_length(node.steps)
    if answer == len(node.steps) > 0:
        return _of_thought("".join(step.reasoning for step in node.steps[start : start + SNIPPET]))
    start = max(start, answer)
    return "".join(step.text for step in node.steps[start : start + SNIPPET])


def _of_thought(text: str) -> str:
    """A thought in the place of an answer."""
    return f"thought: {text.strip()}" if text.strip() else ""


def branch_line(node: Node, stem: str, head: str, mark: str, room: int, shown: bool) -> list[Part]:
    """A node in `room` cells after its stem: its description, then the beginning of its text."""
    said = one_line(" ".join(snippet(node)[:SNIPPET].split()))
    text = fit(f"{head}  {said}" if head else said, room)
    return [
        (f"{mark} ", "$primary"),
        (stem, "$quiet"),
        (text[: len(head)], "bold $primary" if node.role is Role.USER else "bold" if shown else ""),
        (text[len(head) :], "" if shown else "$quiet"),
    ]


# --- personas and settings ---


def persona_rows(system: str | None, kept: Mapping[str, str]) -> list[tuple[str, str]]:
    """(name, text) of no system prompt, of the one in use if it has no name, and of every persona."""
    found = [("no system text", ""), *kept.items()]
    if (system or "") not in [text for _, text in found]:
        found.insert(1, (NOT_SAVED, system or ""))
    return found


def persona_line(name: str, used: bool, width: int) -> list[Part]:
    """A persona's name, marked when it is in use."""
    return [("● " if used else "  ", "$primary"), (fit(one_line(name), width), "bold" if used else "")]


def setting_line(
    sampling: Sampling, name: str, lead: str, here: bool = False, width: int = NAME + VALUE + 1
) -> list[Part]:
    """A setting of the sampler and its value, in `width` cells; `here`: the one that keys change."""
    return [
        (lead, "$primary"),
        (name.ljust(NAME), "bold" if here else ""),
        (
            presets.format_value(sampling, name).rjust(width - NAME),
            "bold $primary" if here else "$foreground",
        ),
    ]
