"""The examples of `--help`, of README.md and of the pages in docs/ run, with the built-in model.

docs/batch.md and docs/structured-output.md have tests of their own beside their code.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pages
import pytest
from api_server import Running
from shown import ID, Shown, blocks, differences, sessions

import ropechat
from ropechat.cli import main
from ropechat.errors import RopechatError
from ropechat.models.resolve import resolve

ROOT = Path(__file__).parents[2]
ELSEWHERE = {
    *("", "chat", "serve", "api"),  # a terminal, servers: the tests of the commands
    *("batch", "merge", "eval"),  # tests/batch; the harness has tasks of the Hub
    *("models pull", "models rm", "models", "models check"),  # the network, a folder
    *(
        "chats show",
        "chats export",
        "chats import",
        "chats rename",
        "chats rm",
        "chats",
    ),  # ids of stored chats
    *(
        "bench",
        "config",
        "config check",
        "completion",
        "man",
    ),  # minutes; an editor, a file; three shells; a folder
}
"""Commands whose examples do not run here."""
PAGES = (
    "inspect",
    "tree",
    "compare",
    "rope",
    "scoring",
    "stages",
    "inside-the-model",
    "../README",
    "why",
    "sampling",
    "chats",
    "run",
    "models",
    "api",
)
ALIKE = ("../README", "chats", "run", "models", "compare")
"""Pages whose outputs every processor gives; the others show those of a processor with SHOWN_ISA."""
SHOWN_ISA = "avx512-bf16"
"""`ROPECHAT_ISA=avx512-bf16 pytest ...` compares them on any processor that has it, Intel's too."""
PYTHON = (
    "python",
    "tree",
    "why",
    "scoring",
    "compare",
    "stages",
    "inside-the-model",
    "rope",
    "inspect",
)
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
COMMAND = r"^(?:ropechat|echo|printf|head|cat|cut|curl) .*"
SERVED = "127.0.0.1:8080"
FILES = {  # what the examples read
    "a.txt": "Once upon a time there was a cat.\n",
    "b.txt": "The capital of Italy is Rome.\n",
    "text.txt": "The cat sat on the mat. It was warm there.\n",
    "book.txt": "Once upon a time there was a token.\n" * 100,
    "essay.txt": "Rotary embeddings turn pairs of numbers.\n" * 8,
    "question.txt": "What is RoPE?",
    "reply.txt": "RoPE turns queries and keys.",
    "answer.txt": "The cat sat on the mat.",
    "answer.json": (ROOT / "tests/inspector/recorded/llama_cpp_python_chat.json").read_text(),
    "samples_capitals.jsonl": (ROOT / "tests/inspector/recorded/lm_eval_choices.jsonl").read_text(),
    "capitals.txt": "The capital of Italy is Madrid.\n",
    "chat.json": '[{"role": "user", "content": "Which city?"}]',
    "choices.jsonl": "".join(
        f'{{"id": "{id}", "prompt": "The capital of {name} is", '
        f'"choices": [" Madrid", " Paris", " Rome"], "answer": {answer}}}\n'
        for id, name, answer in (("fr", "France", 1), ("it", "Italy", 2), ("es", "Spain", 0))
    ),
    "labeled.csv": 'id,text,answer\n1,I love it,positive\n2,"Too slow, too loud",negative\n'
    "3,The best meal of the year,positive\n4,It broke after a day,negative\n5,Never again,negative\n"
    "6,What a wonderful film,positive\n",
    "prompt.txt": "Review: Terrible food.\nSentiment: negative\n\nReview: {{ text }}\nSentiment:",
    "notes.txt": "It has one sentence.\n",
    "minutes.txt": "The fair is on Saturday.\n\nThe fair was moved. It is on Sunday.\n",
    "person.json": '{"type": "object", "properties": {"age": {"type": "integer", "maximum": 99}}, '
    '"required": ["age"], "additionalProperties": false}',
}


def of_help() -> list[Any]:
    """The examples in the help of each command; those of one command run in one place, in their order."""
    found = []
    for name, command in pages.commands():
        if name not in ELSEWHERE:
            lines = textwrap.dedent(command.epilog or "").strip().splitlines()
            found.append(pytest.param(lines, id=name.replace(" ", "-")))
    return found


def of_page(name: str) -> list[Shown]:
    """The commands of a page, in their order, but those that name a model or file as a placeholder."""
    path, found = ROOT / "docs" / f"{name}.md", []
    for _, language, source in blocks(path):
        if language == "":
            found += [Shown(line, []) for line in re.findall(COMMAND, source, re.MULTILINE)]
    found += sessions(path)
    return [
        one
        for one in found
        if re.match(COMMAND, one.command) and not re.search(r"\b(org|folder)/(?!SmolLM2)", one.command)
    ]


def smollm2() -> Path | None:
    """The model of which the pages show outputs, if it is on this machine."""
    try:
        return resolve("smollm2:135m")
    except RopechatError:
        return None


def files_of(name: str) -> dict[str, str]:
    """The files that a page shows: their names stand in the line before."""
    found = {}
    for before, language, source in blocks(ROOT / "docs" / f"{name}.md"):
        named = re.search(r"`(\w+\.(?:py|txt))`[^\n]*:\s*\Z", before)
        if named is not None and language in ("python", "text"):
            found[named[1]] = source
    return found


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Any:
    """Runs a line: by bash where it needs one, else by `main` in this process, which is faster."""
    launcher = Path(sys.executable).with_name("ropechat")
    if not launcher.exists():
        pytest.skip("ropechat is not installed beside this Python")
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{launcher.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    monkeypatch.setenv("ROPECHAT_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("NO_COLOR", "1")

    def run(line: str) -> tuple[str, str]:
        words = shlex.split(line.replace("\\\n", ""), comments=True)
        if words[0] == "ropechat" and not re.search(r"[|<>;&$]", line):
            code = main(words[1:])
            out, error = capfd.readouterr()
        elif missing := [name for name in ("jq", "curl") if name in line and not shutil.which(name)]:
            pytest.skip(f"no {missing[0]} on this machine")
        else:
            done = subprocess.run(["bash", "-euo", "pipefail", "-c", line], capture_output=True, text=True)
            code, out, error = done.returncode, done.stdout, done.stderr
        assert code == 0 or (code == 1 and "--fail-below" in line), f"{line}\n{error}"
        assert "error:" not in error, f"{line}\n{error}"
        return out, error

    return run


@pytest.fixture
def served() -> Iterator[str]:
    """The address of a server."""
    running = Running(ropechat.Engine.load(smollm2() or "builtin"))
    yield "{}:{}".format(*running.address)
    running.close()


@pytest.mark.parametrize("lines", of_help())
def test_the_examples_of_a_help(lines: list[str], shell: Any) -> None:
    for line in lines:
        if "smollm2" in line:
            continue
        if " -c " in line:
            shell('ropechat run --store "Why is the sky blue?"')  # at a terminal the example before stores it
        shell(line)


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page(
    page: str, shell: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """Their output is compared with what the page shows where SmolLM2 is on this machine, see ALIKE."""
    model = smollm2()
    isa = ropechat.Engine.load("builtin", cache="off").facts["isa"]
    compared = model is not None and (page in ALIKE or isa == SHOWN_ISA)
    for name, source in files_of(page).items():
        (tmp_path / name).write_text(source)
    if model is not None:
        (tmp_path / "folder").mkdir()
        (tmp_path / "folder" / model.name).symlink_to(model)
        if "ROPECHAT_MODEL=smollm2:135m" in (ROOT / "docs" / f"{page}.md").read_text():
            monkeypatch.setenv("ROPECHAT_MODEL", "smollm2:135m")
    if page in ("why", "compare"):
        monkeypatch.setenv("COLUMNS", "80")
    wrong, ids, commands = [], {}, of_page(page)
    if page == "api":
        address = request.getfixturevalue("served")
        commands = [Shown(command.replace(SERVED, address), lines) for command, lines in commands]
    for written, shown in commands:
        command = ID.sub(lambda found: ids.get(found[0], found[0]), written)
        if "localhost:8080" in command:  # the server of another program
            continue
        if model is None and re.search("smollm2|folder/", command, re.IGNORECASE):
            continue
        if re.fullmatch(r"cat \S+", command) and shown:
            (tmp_path / command.removeprefix("cat ")).write_text("\n".join(shown) + "\n")
        out, error = shell(command)
        ids.update(zip(ID.findall("\n".join(shown)), ID.findall(out), strict=False))
        if compared and shown:
            wrong += [f"{command}: {text}" for text in differences(shown, out, error)]
    assert not wrong, "\n".join(wrong)


def test_what_differs_is_found() -> None:
    shown = ["a  12.3%  ███▏", "…", "3 rows, 1.5 s"]
    assert not differences(shown, "a  12.4%  ██\nb\n3 rows, 9 s\n", "")
    assert differences(shown, "a  14.4%  ██\n3 rows, 9 s\n", "") == ["shown: a  12.3%  ███▏"]
    assert differences(["a"], "a\nb\n", "note") == ["not shown: b"]
    assert not differences(["note: x", "a"], "a\n", "note: x\n")
    assert not differences(["3f2a81c0  2026-11-22 14:02  x"], "00765cfc  2026-12-01 08:00  x\n", "")
    assert not differences(['{"id": "a", "p":', "0.5}"], '{"id": "b", "p": 0.501}\n', "")
    assert differences(['{"p": 0.5}'], '{"p": 0.6}\n', "")
    assert differences(['{"p": 0.5}'], '{"p": 0.5, "q": 1}\n', "")


def test_examples_are_found() -> None:
    assert len(of_help()) > 12
    assert sum(len(of_page(page)) for page in PAGES) > 20
    assert "capitals.py" in files_of("inspect")


@pytest.mark.parametrize("page", PYTHON)
def test_the_python_of_a_page(page: str, shell: Any) -> None:
    """With the built-in model in the place of every other; a block goes on where the last one ended."""
    names: dict[str, Any] = {"ropechat": ropechat, "engine": ropechat.Engine.load("builtin", cache="off")}
    for before, language, source in blocks(ROOT / "docs" / f"{page}.md"):
        if language == "python" and "`capitals.py`" not in before[-40:]:
            source = source.replace("folder/config.json", str(resolve("builtin") / "config.json"))
            exec(re.sub(r'"(\w+:[\d.]+[bm]|path/to/model)"', '"builtin"', source), names)
