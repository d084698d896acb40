"""The tree of continuations as text, records, picture and page; `ropechat tree`."""

import csv
import io
import json
import math
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from browser import Browser
from cli_door import CompiledDoor, Door
from hostile_html import strings

from ropechat import TreeSpec
from ropechat.cli.tree import _Watcher
from ropechat.engine.engine import Engine
from ropechat.inspector import tree_page, tree_view
from ropechat.inspector.tree import Tree, TreeNode
from ropechat.util.width import cell_width

TEXT = "The capital of Italy is Rome."


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine.load("builtin", threads=1)


@pytest.fixture(scope="module")
def tree(engine: Engine) -> Tree:
    return TreeSpec(TEXT, at=4, nodes=30).grow(engine)


@pytest.fixture
def door(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Door:
    return CompiledDoor(monkeypatch, capfd)


def made(*nodes: tuple[int, bytes, float], **meta: Any) -> Tree:
    """A tree of (parent, bytes, logprob)."""
    found = [TreeNode(None, 0)]
    for index, (parent, data, logprob) in enumerate(nodes, 1):
        above = found[parent]
        node = TreeNode(parent, above.depth + 1, index, data, logprob, above.path_logprob + logprob, 1)
        above.children.append(index)
        found.append(node)
    return Tree(meta, found)


def hostile() -> Tree:
    """A node for each of many strings, every 20th one deeper."""
    nodes = [
        (index // 20, text.encode("utf-8", "replace"), math.log(0.04)) for index, text in enumerate(strings())
    ]
    return made(*nodes, text=strings()[3], model=strings()[4])


def test_the_table() -> None:
    half = math.log(0.5)
    tree = made(
        (0, b" Rome", half), (1, b".", half), (1, b",", math.log(0.25)), (3, b" so", 0.0), (0, b"\n", half)
    )
    tree.nodes[2].is_end = tree.nodes[5].is_given = True
    tree.nodes[4].joined = 2
    tree.meta = {"text": "The capital of Italy is"}
    assert [*tree_view.lines(tree)] == [
        "   path                token  The capital of Italy is",
        "  50.0%  █████         50.0%  ·Rome",
        "  25.0%  ██▌           50.0%  ├ . ∎",
        "  12.5%  █▎            25.0%  ├ ,",
        "  12.5%  █▎           100.0%  │ └ ·so  ≡ ·Rome.",
        "  12.5%  █▎            25.0%  └ (rest)",
        "  50.0%  █████         50.0%  ⏎  ◂",
        "5 nodes: the ends of the paths have 87.5%, the rests 12.5%",
    ]  # fmt: skip


@pytest.mark.parametrize("width", [40, 80])
def test_lines_fit(tree: Tree, width: int) -> None:
    for one in (tree, hostile()):
        lines = [*tree_view.lines(one, width)]
        assert [line for line in lines if cell_width(line) > width or not line.isprintable()] == []
        assert len(lines) > 30


def test_records_of_both_forms_agree(tree: Tree) -> None:
    meta, *nodes, summary = map(json.loads, tree_view.json_lines(tree))
    assert (meta["schema"], meta["text"], meta["at"]) == ("ropechat.tree/1", tree.meta["text"], 4)
    assert summary["mass"] + summary["remainder"] == pytest.approx(1.0, abs=1e-9)
    leaves = [node for node in nodes if node["node"] not in {other["parent"] for other in nodes}]
    rests = math.fsum(node["rest"] for node in nodes) + meta["rest"]
    assert math.fsum(node["prob"] for node in leaves) + rests == pytest.approx(1.0, abs=1e-9)
    for node in nodes:
        assert node["prob"] == pytest.approx(2 ** -node["path_bits"])
        assert bytes(node["bytes"]) == tree.nodes[node["node"]].bytes
    rows = [*csv.DictReader(io.StringIO("".join(tree_view.csv_lines(tree))))]
    assert tuple(rows[0]) == tree_view.COLUMNS
    for row, node in zip(rows, nodes, strict=True):
        assert [float(row[name]) for name in ("prob", "path_logprob", "rest")] == [
            node[name] for name in ("prob", "path_logprob", "rest")
        ]
        assert row["bytes"] == bytes(node["bytes"]).hex()


def test_the_heights_of_the_picture_are_probabilities(tree: Tree) -> None:
    root = ElementTree.fromstring("".join(tree_page.svg(tree)))
    rects = [one for one in root.iter("{http://www.w3.org/2000/svg}rect") if "class" in one.attrib]
    first = [one for one in rects if float(one.attrib["x"]) == 16]
    children = [tree.nodes[child].prob for child in tree.nodes[0].children]
    heights = [float(one.attrib["height"]) / 520 for one in first]
    assert heights == pytest.approx([prob for prob in children if prob * 520 >= 0.6], abs=1e-4)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    made = Browser(tmp_path_factory.mktemp("browser"))
    yield made
    made.close()


def test_the_page_opens_and_closes_nodes(browser: Browser, tree: Tree, tmp_path: Path) -> None:
    path = tmp_path / "tree.html"
    path.write_text("".join(tree_page.render(tree, "What could follow")), "utf-8")
    page = browser.open(path)
    assert page.value("document.querySelectorAll('.nodes details, .nodes .leaf').length") >= 31
    assert page.value("document.querySelector('.nodes details').open")
    page.value("document.querySelector('.nodes summary').click()")
    assert not page.value("document.querySelector('.nodes details').open")
    wide = page.value("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    assert wide, "nothing is beside the page"
    assert page.requests() == page.faults() == []


def test_hostile_strings_make_no_element(browser: Browser, tmp_path: Path) -> None:
    known = {
        "details",
        "summary",
        "svg",
        "rect",
        "text",
        "title",
        "span",
        "div",
        "pre",
        "style",
        "script",
        "h1",
        "h2",
    }
    known |= {"html", "head", "body", "meta", "header", "p", "dl", "dt", "dd"}
    for name, pieces in (
        ("t.html", tree_page.render(hostile(), strings()[5])),
        ("t.svg", tree_page.svg(hostile())),
    ):
        path = tmp_path / name
        path.write_text("".join(pieces), "utf-8")
        page = browser.open(path)
        assert {*page.value("[...document.querySelectorAll('*')].map((one) => one.localName)")} <= known
        assert page.value("typeof window.hacked") == "undefined"
        assert page.requests() == page.faults() == []


@pytest.mark.parametrize("suffix", ["txt", "jsonl", "csv", "html", "svg"])
def test_the_same_bytes_as_the_command(door: Door, engine: Engine, tmp_path: Path, suffix: str) -> None:
    ours, theirs = tmp_path / f"python.{suffix}", tmp_path / f"command.{suffix}"
    options = ("--at", 4, "--nodes", 12, "--depth", 3, "--candidates", 4, "-o", theirs)
    assert door("tree", "-m", "builtin", "--threads", 1, TEXT, *options) == (0, "", "")
    TreeSpec(TEXT, at=4, nodes=12, depth=3, top_k=4).write(ours, engine)
    assert ours.read_bytes() == theirs.read_bytes()
    assert ours.stat().st_size > 500
    code, _, error = door("tree", "-m", "builtin", TEXT, "-o", theirs)
    assert code == 2
    assert "exists" in error


def test_chat_messages_and_files(door: Door, tmp_path: Path) -> None:
    file, chat = tmp_path / "a.txt", tmp_path / "chat.json"
    file.write_text("Hello")
    chat.write_text('[{"role": "user", "content": "Hello"}]')
    small = ("--nodes", 5, "--format", "jsonl")
    as_chat = door("tree", "-m", "builtin", "--chat", "Hello", *small)
    assert as_chat[0] == 0
    assert door("tree", "-m", "builtin", "--messages", chat, *small) == as_chat
    plain = door("tree", "-m", "builtin", "-f", file, *small)
    assert plain == door("tree", "-m", "builtin", *small, stdin=b"Hello")
    assert plain[1] != as_chat[1]
    begun = door("tree", "-m", "builtin", "--messages", chat, "--answer", "Hi", *small)
    assert json.loads(begun[1].splitlines()[0])["text"].endswith("Hi")


@pytest.mark.parametrize("to_file", [True, False])
def test_a_signal_keeps_what_is_found(
    door: Door, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to_file: bool
) -> None:
    def interrupted(self: Any, nodes: int) -> None:
        usual(self, nodes)
        if nodes == 7:
            os.kill(os.getpid(), signal.SIGINT)

    usual = _Watcher.added
    monkeypatch.setattr(_Watcher, "added", interrupted)
    out = tmp_path / "a.jsonl"
    options = ("-o", out) if to_file else ("--format", "jsonl")
    code, printed, error = door("tree", "-m", "builtin", TEXT, "--nodes", 50, *options)
    assert code == 130
    if to_file:
        assert error == f"stopped: {out}.partial contains the first 7 nodes\n"
        assert not out.exists()
    lines = Path(f"{out}.partial").read_text() if to_file else printed
    _, *nodes, summary = map(json.loads, lines.splitlines())
    assert (summary["nodes"], summary["stopped"], len(nodes)) == (7, True, 7)
    assert summary["mass"] + summary["remainder"] == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((TEXT, "-f", "a.txt"), "TEXT: not possible with --file; give one of them"),
        (("--answer", "Hi", TEXT), "--answer: requires --messages"),
        (("--chat", "--special", "tokens", TEXT), "--special tokens: not possible with --chat"),
        ((TEXT, "-o", "a.png"), "-o: must end in .txt, .jsonl, .csv, .html, .svg"),
        ((TEXT, "--at", 99), "at: must be from 1 to"),
        ((TEXT, "--depth", 201), "depth: must be at most 200"),
        (("",), "text: must have at least one character"),
    ],
)
def test_what_is_refused(door: Door, arguments: tuple[Any, ...], message: str) -> None:
    code, out, error = door("tree", "-m", "builtin", *arguments)
    assert (code, out) == (2, "")
    assert message in error
