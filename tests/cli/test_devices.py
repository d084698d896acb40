"""Output to a device, such as /dev/null: it is written to directly, and never replaced by a file."""

import contextlib
import errno
import os
import stat
import tty
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_door import Door
from model_folders import byte_folder

from ropechat.errors import FileAccessError
from ropechat.settings.file import SettingsFile
from ropechat.store.files import write_private
from ropechat.util.files import text_output


class Device:
    """A character device whose output can be read: one end of a pseudo-terminal."""

    def __init__(self) -> None:
        self._main, self._sub = os.openpty()
        tty.setraw(self._sub)
        self.path = Path(os.ttyname(self._sub))

    def read(self) -> str:
        assert stat.S_ISCHR(self.path.stat().st_mode)
        return os.read(self._main, 1 << 16).decode()

    def close(self) -> None:
        os.close(self._main)
        os.close(self._sub)


@pytest.fixture
def device() -> Iterator[Device]:
    made = Device()
    yield made
    made.close()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return byte_folder(tmp_path / "model")


@pytest.mark.parametrize(
    ("words", "begins"),
    [
        (("inspect", "ab", "-o"), " #  token"),
        (("inspect", "ab", "--format", "csv", "-o"), "file,i,id,token,"),
        (("run", "ab", "--max-tokens", "2", "--candidates", "1", "--trace"), '{"schema": "ropechat.trace/1"'),
        (("batch", "{rows}", "--max-tokens", "2", "-o"), '{"id": "line-1", "index": 0, "ok": true'),
    ],
)
def test_output_to_a_device(
    door: Door, model: Path, tmp_path: Path, device: Device, words: tuple[str, ...], begins: str
) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "ab"}\n')
    asked = [str(rows) if word == "{rows}" else word for word in words]
    code, _, err = door(*asked, device.path, "-m", model)
    assert code == 0, err
    assert device.read().startswith(begins)


def test_what_needs_a_file_refuses_a_device(door: Door, model: Path, tmp_path: Path, device: Device) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "ab"}\n')
    for flag in ("--resume", "--dedupe", "--shard=1/2"):
        code, _, err = door("batch", rows, "-m", model, flag, "--seed", 1, "-o", device.path)
        assert (code, f"{flag.partition('=')[0]}: requires a file (-o)" in err) == (2, True)


def test_an_export_to_a_device(device: Device) -> None:
    write_private(device.path, "# Title\n")
    assert device.read() == "# Title\n"


def test_settings_do_not_replace_a_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with ROPECHAT_CONFIG=/dev/null; a pipe stands for it, which reads as empty here."""
    pipe = tmp_path / "settings"
    os.mkfifo(pipe)
    monkeypatch.setenv("ROPECHAT_CONFIG", str(pipe))
    monkeypatch.setattr(Path, "read_bytes", lambda path: b"")
    with pytest.raises(FileAccessError, match="must be a regular file; the setting was not stored"):
        SettingsFile({}).change("theme", "light")
    assert pipe.is_fifo()


def test_an_incomplete_output_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    out.write_text("old")
    with contextlib.suppress(KeyboardInterrupt), text_output(out) as write:
        write("half")
        raise KeyboardInterrupt
    assert [path.name for path in tmp_path.iterdir()] == ["out"]

    def full(*given: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with (
        pytest.raises(FileAccessError, match="out: No space left on device; not written"),
        text_output(out) as write,
    ):
        write("whole")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert out.read_text() == "old"
