"""Kept conversations from the command line, and to and from files."""

import dataclasses
import html.parser
import io
import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from chats import answer, branched

from ropechat.chat.export import export, format_chat, new_file
from ropechat.conversation import ConversationTree, Role, unscored_step
from ropechat.errors import FileAccessError, HistoryError
from ropechat.sampling import Sampling
from ropechat.store.imports.read import read_file
from ropechat.store.queries import Chat
from ropechat.store.store import Store
from ropechat.trace import Step
from ropechat.util.width import cell_width


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> Callable[..., tuple[int, str, str]]:
    """`ropechat chats ...` on a folder with two conversations: (exit code, stdout, stderr)."""
    from ropechat.cli import main

    monkeypatch.setenv("ROPECHAT_DATA", str(tmp_path))
    store = Store(tmp_path / "conversations")
    for number, title in enumerate(("the sky", "a \x1b[31mred\ntitle")):
        store.insert(Chat(f"c{number}a77", title, branched(number))).result(60)
    store.close()
    capfd.readouterr()

    def command(*arguments: str, keys: str = "") -> tuple[int, str, str]:
        code = main(["chats", *arguments])
        out, err = capfd.readouterr()
        return int(code or 0), out, err

    return command


def test_list_search_show(run: Any) -> None:
    code, out, _ = run("list")
    assert code == 0
    lines = out.splitlines()
    assert [line.split()[0] for line in lines] == ["c1a77", "c0a77"]
    assert "\x1b" not in out
    assert json.loads(run("list", "--json", "--limit", "1")[1])["nodes"] == 6
    code, out, _ = run("search", "longer", "WAY")
    assert code == 0
    assert "A longer way through air." in out
    assert run("search", "nothing", "here")[1] == ""
    code, out, _ = run("show", "c0")
    assert code == 0
    assert out.startswith("# the sky\n")
    assert out.index("Be brief.") < out.index("Why is") < out.index("Rayleigh, mostly.") < out.index("dusk")
    assert "scattering" not in out


def test_a_conversation_is_one_line_of_the_list(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert run("rename", "c0", "why is 空 the sky " * 30)[0] == 0
    lines = run("list")[1].splitlines()
    assert len(lines) == 2
    assert max(map(cell_width, lines)) in (79, 80)  # a wide character may not fit into the last cell
    assert any(line.endswith("…") for line in lines)
    assert max(len(json.loads(line)["title"]) for line in run("list", "--json")[1].splitlines()) == 200


def test_export_import_rename(run: Any, tmp_path: Path) -> None:
    target = tmp_path / "out.json"
    assert run("export", "c0", "--format", "json", "-o", str(target)) == (0, "", "")
    assert target.stat().st_mode & 0o077 == 0
    before = target.read_bytes()
    code, out, err = run("export", "c0", "--format", "md", "-o", str(target))
    assert (code, out) == (2, "")
    assert "out.json: exists; choose another output or add --overwrite" in err
    assert target.read_bytes() == before
    assert run("export", "c0", "--format", "json", "-o", str(target), "--overwrite")[0] == 0
    code, out, _ = run("import", str(target))
    assert code == 0
    assert run("rename", out.strip(), "the copy")[0] == 0
    assert "the copy" in run("list")[1]
    assert (
        run("export", out.strip(), "--format", "md")[1].split("\n", 1)[1]
        == run("show", "c0a77")[1].split("\n", 1)[1]
    )


def test_a_dash_is_stdout_and_stdin(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    before = set(tmp_path.iterdir())
    code, exported, err = run("export", "c0", "--format", "json", "-o", "-")
    assert (code, err, set(tmp_path.iterdir())) == (0, "", before)
    assert json.loads(exported)["title"] == "the sky"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(exported.encode())))
    code, out, err = run("import", "-")
    assert (code, err) == (0, "")
    assert run("show", out.strip())[1] == run("show", "c0a77")[1]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"{")))
    code, out, err = run("import", "-")
    assert (code, out) == (2, "")
    assert err.startswith("error: stdin: not valid JSON (")


def test_rm(run: Any, tmp_path: Path) -> None:
    assert run("rm", "c0a77", "--yes") == (0, "", "")
    assert "sky" not in run("list")[1]
    (tmp_path / "conversations" / "damaged-1.db").write_text("")
    code, _, err = run("rm", "c1", "--yes")
    assert code == 0
    assert "may still contain it" in err
    assert run("list")[1] == ""


@pytest.mark.parametrize(
    "arguments", [["show", "zz"], ["rm", "zz", "--yes"], ["export", "zz"], ["rename", "zz", "t"]]
)
def test_what_is_not_there(run: Any, arguments: list[str]) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("error: conversation 'zz': not found")
    assert err.count("\n") == 1


def test_chat_refuses_what_cannot_be_together(capfd: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from ropechat.cli import main

    assert main(["chat", "-m", "x", "--incognito", "--continue"]) == 2
    assert "--incognito: not possible with" in capfd.readouterr().err
    monkeypatch.setenv("ROPECHAT_STORE", "off")
    assert main(["chat", "-m", "x", "--continue"]) == 2
    assert "the setting store is false, so nothing is stored; add --store" in capfd.readouterr().err
    monkeypatch.delenv("ROPECHAT_STORE")
    assert main(["chat", "-m", "x", "--resume", "abc"]) == 2
    assert "require a terminal" in capfd.readouterr().err


# ---- Files


def chat_of(tree: ConversationTree) -> Chat:
    return Chat("id", "the <sky>", tree)


def rounded(step: Step) -> Step:
    """NaN is not equal to itself."""
    return step._replace(logprob=-1.0, entropy=0.0) if step.logprob != step.logprob else step


def test_json_there_and_back(tmp_path: Path) -> None:
    tree = branched()
    last = answer(random.Random(1), tree, "more and more")
    last.steps[0] = last.steps[0]._replace(row=last.steps[0].row._replace(varentropy=2.5))
    last.steps.append(unscored_step(77, 30))
    question = tree.path()[1]
    question.context_start = question.id
    export(chat_of(tree), "json", tmp_path / "a.json")
    [read] = read_file(tmp_path / "a.json").chats
    assert read.title == "the <sky>"
    names = dict(zip(tree.nodes, read.tree.nodes, strict=True))
    assert not names.keys() & set(names.values())
    assert tree.current is not None
    assert read.tree.current == names[tree.current]
    for old, new in zip(tree.nodes.values(), read.tree.nodes.values(), strict=True):
        origin = old.origin and dataclasses.replace(old.origin, node=names[old.origin.node])
        start = old.context_start and names[old.context_start]
        facts = {"parent": new.parent, "origin": origin, "final_text": new.final_text, "context_start": start}
        same = dataclasses.replace(old, id=new.id, **facts)
        assert dataclasses.replace(new, steps=list(map(rounded, new.steps))) == dataclasses.replace(
            same, steps=list(map(rounded, same.steps))
        )
        assert old.parent is None or names[old.parent] == new.parent
        assert old.text == new.text


def spoiled(change: Callable[[Any], Any]) -> str:
    data = json.loads(format_chat(chat_of(branched()), "json"))
    return json.dumps(change(data) or data)


def put(path: str, value: Any) -> Callable[[Any], Any]:
    """A change of the value at a path like nodes.1.parent."""

    def change(data: Any) -> None:
        *way, name = [int(part) if part.isdecimal() else part for part in path.split(".")]
        for part in way:
            data = data[part]
        data[name] = value

    return change


BAD = [
    ("ropechat", 2),
    ("nodes", {}),
    ("nodes.0", "x"),
    ("nodes.0.id", None),
    ("nodes.1.id", "SAME"),
    ("nodes.1.parent", "nowhere"),
    ("nodes.1.role", "robot"),
    ("nodes.1.role", ["user"]),
    ("nodes.2.state", "asleep"),
    ("nodes.2.sampling", {"temperature": "hot"}),
    ("nodes.2.sampling", [1]),
    ("nodes.2.tokens.0.id", -1),
    ("nodes.2.tokens.0.id", 2**32),
    ("nodes.2.tokens.0.rank", True),
    ("nodes.2.tokens.0.bytes", "zz"),
    ("nodes.2.tokens.0.top", [[1]]),
    ("nodes.2.tokens.0.top", [[1, "x"]]),
    ("nodes.2.tokens.0.row", [1, 2]),
    ("nodes.2.tokens.0.stages", [["a", 1, 1, "x"]]),
    ("nodes.2.tokens.0.candidates", [[1, 1, None, False]]),
    ("nodes.2.tokens.0.candidates", [[1, 1, None, 0, 0.5]]),
    ("nodes.2.tokens.0.candidates", [[1, 1, 7, False, 0.5]]),
    ("nodes.2.tokens.0.candidates", [[1, 1, None, False, 1.5]]),
    ("nodes.2.tokens.0.interval", [0.5]),
    ("nodes.2.tokens.0.interval", [0.5, None]),
    ("nodes.2.tokens.0.logprob", 10**400),
    ("nodes.2.tokens.0.finish_reason", "tired"),
    ("nodes.3.origin", {"node": 1}),
    ("nodes.1.start", 5),
    ("title", 5),
]


@pytest.mark.parametrize(("path", "value"), BAD)
def test_a_bad_file_is_refused_and_the_place_named(tmp_path: Path, path: str, value: Any) -> None:
    def change(data: Any) -> None:
        put(path, data["nodes"][0]["id"] if value == "SAME" else value)(data)

    (tmp_path / "bad.json").write_text(spoiled(change))
    with pytest.raises(HistoryError) as caught:
        read_file(tmp_path / "bad.json")
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / 'bad.json'}: ")
    assert "\n" not in message
    assert len(message) < 400 + len(str(tmp_path))
    if path != "ropechat":
        assert path.rpartition(".")[0].replace(".", "[", 1).split(".")[0] in message.replace("]", "")


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '{"ropechat": 1}', "[" * 100_000, "\xff"])
def test_what_is_no_export(tmp_path: Path, text: str) -> None:
    (tmp_path / "bad.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(HistoryError, match=r"bad\.json: "):
        read_file(tmp_path / "bad.json")
    with pytest.raises(FileAccessError, match=r"none\.json: "):
        read_file(tmp_path / "none.json")


class Page(html.parser.HTMLParser):
    """What a page says and with which tags."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)
        assert not any(name.startswith("on") for name, _ in attrs)

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_says_everything_and_runs_nothing() -> None:
    tree = branched()
    tree.write(Role.USER, "<script>alert(1)</script> & \x1b[31m \x07")
    answer(random.Random(2), tree, "<img src=x onerror=alert(1)> </pre>")
    page = Page()
    source = format_chat(chat_of(tree), "html")
    page.feed(source)
    assert "img" not in page.tags
    assert page.tags.count("script") == 3  # two blocks of data and the page's own, which the policy names
    assert source.count("'sha256-") == 2
    assert "alert(1)" not in source.rsplit("<script>", 1)[1]
    assert "<script>alert(1)</script>" in page.text
    assert "<img src=x onerror=alert(1)> </pre>" in page.text
    assert "\x1b" not in source
    assert "\x07" not in source
    assert "2/2" in page.text
    assert source.count("<span") >= len(tree.path()[-1].steps)
    assert 'class="t' in source


def test_the_page_has_the_texts_of_alternatives() -> None:
    tree = ConversationTree()
    question = tree.write(Role.USER, "Which?")
    node = tree.answer(question.id, "m", Sampling())
    top = ((7, -0.1), (8, -2.5), (9, -5.0))
    node.steps.append(Step(8, b" left", " left", -2.5, 2, 0.5, top, "stop", 3, None, (), 0.5))
    spell = {("m", 7): b" right", ("m", 8): b" left"}
    source = format_chat(chat_of(tree), "html", lambda model, id: spell.get((model, id), b""))
    assert "90.5% ·right" in source
    assert json.loads(source.split('id="rows">')[1].split("</script>")[0]) == [
        [8, -2.5, 2, 0.5, [7, -0.1, 8, -2.5, 9, -5.0]]
    ]
    words = json.loads(source.split('id="words">')[1].split("</script>")[0])
    assert words == {"7": "·right", "8": "·left", "9": "#9"}


def test_markdown_is_what_was_said() -> None:
    text = format_chat(chat_of(branched()), "md")
    assert text.startswith("# the <sky>\n\n## System · ")
    assert "Why is the sky blue?" in text
    assert "## m · " in text


def test_an_export_is_whole_or_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileAccessError, match="not written"):
        export(chat_of(branched()), "md", tmp_path / "no" / "folder.md")
    assert list(tmp_path.iterdir()) == []


# ---- Names of files


@pytest.mark.parametrize(
    ("title", "name"),
    [
        ("What is a token?", "What-is-a-token-"),
        ("../../etc/passwd", "etc-passwd-"),
        ("-rf *; $(reboot) `x` | \x1b[31m\n", "rf-reboot-x-31m-"),
        ("CON: a\\b\u202egnp.exe", "CON-a-b-gnp.exe-"),
        ("法国的首都是哪里？ नमस्ते", "法国的首都是哪里-नमस्ते-"),
        ("...", "chat-id-"),
    ],
)
def test_a_file_is_named_by_title_date_and_sampling(tmp_path: Path, title: str, name: str) -> None:
    tree = branched()
    for node in tree.path():
        node.created = 1.7e9
    found = new_file(Chat("id", title, tree), "html", tmp_path)
    assert found == tmp_path / f"{name}2023-11-14-temperature-0.5-top_k-40-top_p-0.95.html"
    found.touch()
    assert new_file(Chat("id", title, tree), "html", tmp_path).name.endswith("-0.95-2.html")
    long = new_file(Chat("id", title * 400, tree), "html", tmp_path)
    assert len(long.name.encode()) < 200
    long.touch()


def test_export_into_a_folder(run: Any, tmp_path: Path) -> None:
    (tmp_path / "pages").mkdir()
    code, out, _ = run("export", "c0", "--format", "html", "-o", str(tmp_path / "pages"))
    [page] = (tmp_path / "pages").iterdir()
    assert (code, out) == (0, f"{page}\n")
    assert page.name.startswith("the-sky-")
    assert "temperature 0.5, top_k 40, top_p 0.95 · seed 5" in page.read_text()
