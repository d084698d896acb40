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
from pathlib import Path
from typing import Any

import pages
import pytest

from ropechat.cli import main

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
    *("bench", "config", "config check"),  # minutes; an editor; a file
}
"""Commands whose examples do not run here."""
PAGES = ("inspect", "tree", "compare", "rope", "scoring", "stages", "inside-the-model", "../README")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
COMMAND = r"^(?:\$ )?((?:ropechat|echo|printf|head|cat) .*)$"
FILES = {  # what the examples read
    "a.txt": "Once upon a time there was a cat.\n",
    "b.txt": "The capital of Italy is Rome.\n",
    "text.txt": "The cat sat on the mat. It was warm there.\n",
    "book.txt": "Once upon a time there was a token.\n" * 20,
    "essay.txt": "Rotary embeddings turn pairs of numbers.\n" * 8,
    "question.txt": "What is RoPE?",
    "reply.txt": "RoPE turns queries and keys.",
    "answer.txt": "The cat sat on the mat.",
    "answer.json": (ROOT / "tests/inspector/recorded/llama_cpp_python_chat.json").read_text(),
    "samples_capitals.jsonl": (ROOT / "tests/inspector/recorded/lm_eval_choices.jsonl").read_text(),
    "capitals.txt": "The capital of Italy is Madrid.\n",
    "chat.json": '[{"role": "user", "content": "Which city?"}]',
    "choices.jsonl": '{"id": "fr", "prompt": "The capital of France is", "choices": [" Madrid", " Paris"]}\n',
    "labeled.csv": 'id,text,answer\n1,I love it,positive\n2,"Too slow, too loud",negative\n',
    "prompt.txt": "Review: Terrible food.\nSentiment: negative\n\nReview: {{ text }}\nSentiment:",
    "notes.txt": "It has one sentence.\n",
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


def blocks(name: str) -> list[tuple[str, str, str]]:
    """(the text before it, language, source) of each block of code of a page."""
    parts = re.split(r"^```", (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    return [(before, *inside.split("\n", 1)) for before, inside in zip(parts[::2], parts[1::2], strict=False)]


def of_page(name: str) -> list[str]:
    """The commands of a page, in their order, but those that name a model or file as a placeholder."""
    shown = [source for _, language, source in blocks(name) if language in ("", "console")]
    lines = [line for source in shown for line in re.findall(COMMAND, source, re.MULTILINE)]
    return [line for line in lines if not re.search(r"\b(org|folder)/", line)]


def files_of(name: str) -> dict[str, str]:
    """The files that a page shows: their names stand in the line before."""
    found = {}
    for before, language, source in blocks(name):
        named = re.search(r"`([\w]+\.py)`[^\n]*:\s*\Z", before)
        if named is not None and language == "python":
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

    def run(line: str) -> None:
        words = shlex.split(line, comments=True)
        if words[0] == "ropechat" and not re.search(r"[|<>;&$]", line):
            code, error = main(words[1:]), capfd.readouterr().err
        elif "jq" in line and shutil.which("jq") is None:
            pytest.skip("no jq on this machine")
        else:
            done = subprocess.run(["bash", "-euo", "pipefail", "-c", line], capture_output=True, text=True)
            code, error = done.returncode, done.stderr
        assert code == 0, f"{line}\n{error}"
        assert "error:" not in error, f"{line}\n{error}"

    return run


@pytest.mark.parametrize("lines", of_help())
def test_the_examples_of_a_help(lines: list[str], shell: Any) -> None:
    for line in lines:
        if "smollm2" in line:
            continue
        if " -c " in line:
            shell('ropechat run --store "Why is the sky blue?"')  # at a terminal the example before stores it
        shell(line)


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page(page: str, shell: Any, tmp_path: Path) -> None:
    for name, source in files_of(page).items():
        (tmp_path / name).write_text(source)
    for line in of_page(page):
        shell(line)


def test_examples_are_found() -> None:
    assert len(of_help()) > 12
    assert sum(len(of_page(page)) for page in PAGES) > 20
    assert "capitals.py" in files_of("inspect")
