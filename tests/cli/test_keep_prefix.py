"""`--keep-prefix`: the same output with and without it, less reading, and files that cannot be used."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest

from ropechat.cli import main
from ropechat.util.kv_files import ChatFile, kv_folder, prefix_path, remove_files

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="XDG_CACHE_HOME says where the cache is")
STORY = "Once upon a time there was a little cat who sat on a red mat and saw one big dog. " * 12
Result = tuple[int, bytes, str]


@pytest.fixture
def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., Result]:
    """Runs a command on the built-in model: the exit code, what it wrote, stderr."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("ROPECHAT_MODEL", "ROPECHAT_CACHE"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "story.txt").write_text(STORY)
    rows = [{"id": f"{n}", "prompt": f"{STORY}Then {word}"} for n, word in enumerate(["she", "he", "a dog"])]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pairs = [{"id": f"{n}", "prompt": STORY, "completion": f" Then {word}."} for n, word in enumerate("abc")]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in pairs))
    given = str(tmp_path / "story.txt")
    out = tmp_path / "out.jsonl"
    commands = {
        "inspect": ["inspect", "--given-file", given, "Then she ran home.", "-o", str(out)],
        "batch": ["batch", str(tmp_path / "rows.jsonl"), "--max-tokens", "5", "--seed", "1", "-o", str(out)],
        "score": ["batch", str(tmp_path / "pairs.jsonl"), "--score", "-o", str(out)],
    }

    def start(command: str, *more: str) -> Result:
        capfd.readouterr()
        code = main([*commands[command], "--overwrite", *more])
        return code, out.read_bytes(), capfd.readouterr().err

    return start


def files() -> list[Path]:
    return sorted(kv_folder().glob("*"))


def tokens_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The tokens that each sequence takes from the cache, as they are asked for."""
    from ropechat.engine import prefill

    found: list[int] = []
    take = prefill.Prefill.take

    def watched(self: prefill.Prefill, path: Path) -> str | None:
        note = take(self, path)
        found.append(self.done)
        return note

    monkeypatch.setattr(prefill.Prefill, "take", watched)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("command", ["inspect", "batch", "score"])
def test_the_same_bytes_and_less_reading(
    run: Callable[..., Result], command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = tokens_read(monkeypatch)
    plain = run(command)
    assert plain[0] == 0
    assert files() == []
    assert taken == []
    first = run(command, "--keep-prefix", "story")
    (path,) = files()
    assert path.suffix == ".kv"
    assert path.stat().st_mode & 0o777 == 0o600
    before = path.read_bytes()
    second = run(command, "--keep-prefix", "story")
    assert first[:2] == second[:2] == plain[:2]
    assert taken[0] == 0
    assert taken[1] >= 200
    assert files() == [path]
    assert path.read_bytes() == before, "nothing changed"
    assert "note" not in first[2] + second[2]


def test_rows_in_another_order_share_the_prefix(
    run: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("batch", "--keep-prefix", "story")
    taken = tokens_read(monkeypatch)
    rows = (tmp_path / "rows.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "rows.jsonl").write_text("".join(reversed(rows)))
    found = run("batch", "--keep-prefix", "story")
    assert taken[0] >= 200
    assert found[:2] == run("batch")[:2]


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["cut", "flipped", "foreign", "empty"])
def test_a_file_that_cannot_be_used_is_ignored_with_a_note(
    run: Callable[..., Result], damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = run("inspect")
    run("inspect", "--keep-prefix", "story")
    (path,) = files()
    whole = path.read_bytes()
    if damage == "foreign":
        run("inspect", "--keep-prefix", "story", "--kv-dtype", "q8_0")
        other = next(one for one in files() if one != path)
        path.write_bytes(other.read_bytes())
    else:
        middle = len(whole) // 2
        flipped = whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
        path.write_bytes({"cut": whole[:-1], "flipped": flipped, "empty": b""}[damage])
    path.chmod(0o600)
    code, out, err = run("inspect", "--keep-prefix", "story")
    assert (code, out) == plain[:2]
    assert err.count("note:") == 1
    assert str(path) in err
    assert "the text is read again" in err
    assert path.read_bytes() == whole, "it is written again"


@pytest.mark.parametrize(
    ("more", "environ", "words"),
    [
        (["--no-cache"], {}, "the cache is off"),
        ([], {"ROPECHAT_CACHE": "off"}, "the cache is off"),
        ([], {"ROPECHAT_KV_DISK_GB": "0"}, "kv_disk_gb is 0"),
    ],
)
def test_nothing_is_kept(
    run: Callable[..., Result],
    more: list[str],
    environ: dict[str, str],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    for command in ("inspect", "batch"):
        code, _, err = run(command, "--keep-prefix", "story", *more)
        assert code == 0
        assert words in err
        assert files() == []


def test_rows_without_a_common_beginning(run: Callable[..., Result], tmp_path: Path) -> None:
    rows = [{"prompt": text} for text in ("The cat sat.", "A dog ran.")]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    code, _, err = run("batch", "--keep-prefix", "story", "--raw")
    assert code == 0
    assert "fewer than 32 tokens in common" in err
    assert files() == []


def test_a_name_has_a_file_of_its_own(run: Callable[..., Result]) -> None:
    for name in ("one", "two", "../../three"):
        run("inspect", "--keep-prefix", name)
    assert len(files()) == 3


def test_a_name_that_is_the_id_of_a_chat_is_not_its_file(run: Callable[..., Result]) -> None:
    run("inspect", "--keep-prefix", "chat-1")
    kept = files()
    chat = ChatFile.of("chat-1")
    assert chat is not None
    assert prefix_path("chat-1", "key") != chat.path("key")
    remove_files("chat-1")
    assert files() == kept != []


def test_inspect_needs_a_context(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "--keep-prefix", "story", "The cat"]) == 2
    assert "requires --given-file" in capfd.readouterr().err
