"""Packed weights on disk, as people and programs meet them. (The files: rust/core/tests/pack_cache.rs.)"""

import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from model_folders import byte_tokenizer
from models import write_llama

from ropechat import Engine
from ropechat.engine import _core
from ropechat.errors import RequestError
from ropechat.models.pack_cache import packed_entries, packed_folder

IDS = [5, 6, 7, 8]
RUN = "import sys; from ropechat.cli import main; sys.exit(main(['run', *sys.argv[1:]]))"
RUN_AND_PACK = "import ropechat.cli.loading as loading; loading._PACK_S = 60.0; " + RUN
"""The end waits for the pack however busy the machine is."""
needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="XDG_CACHE_HOME says where the cache is")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of packed weights, for models of any size."""
    monkeypatch.setattr("ropechat.models.pack_cache.cache_folder", lambda: tmp_path / "cache")
    monkeypatch.setenv("ROPECHAT_CACHE", "all")
    return packed_folder()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model that never ends a text by itself, with a byte tokenizer."""
    folder = write_llama(tmp_path / "model", vocab_size=260, eos_token_id=None, bos_token_id=None)
    (folder / "tokenizer.json").write_text(json.dumps(byte_tokenizer()))
    return folder


def pack(model: Path, dtype: str = "q8_0") -> Engine:
    engine = Engine.load(model, dtype=dtype)
    assert engine.finish_pack(60)
    return engine


def test_the_second_start_takes_the_pack_and_has_the_same_bits(cache: Path, model: Path) -> None:
    first = pack(model)
    second = Engine.load(model, dtype="q8_0")
    assert (first.facts["from_pack"], second.facts["from_pack"]) == (False, True)
    assert np.array_equal(first.logits(IDS), second.logits(IDS))
    assert first.facts["notes"] == second.facts["notes"]
    assert first.facts["notes"][0].startswith("dtype: q8_0, made from f32 (")


def test_entries_say_what_lies_there(cache: Path, model: Path, tmp_path: Path) -> None:
    assert packed_entries() == []
    pack(model)
    pack(model, "auto")
    other = write_llama(tmp_path / "other", seed=1)
    pack(other)
    (cache / "q8_0-00.pack.1-0.part").write_text("half of one")
    (cache / "note.txt").write_text("somebody's")
    entries = packed_entries()
    assert {(entry.model, entry.dtype) for entry in entries} == {
        (str(model.resolve() / "model.safetensors"), "q8_0"),
        (str(model.resolve() / "model.safetensors"), "auto"),
        (str(other.resolve() / "model.safetensors"), "q8_0"),
        ("", ""),
    }
    assert all(entry.size == entry.path.stat().st_size for entry in entries)


def test_other_weights_of_the_same_size_and_time_are_packed_again(cache: Path, model: Path) -> None:
    first = pack(model)
    file = model / "model.safetensors"
    status, data = file.stat(), bytearray(file.read_bytes())
    data[-32:] = bytes(32)  # the final norm: zeros
    file.unlink()  # mapped
    file.write_bytes(data)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    again = Engine.load(model, dtype="q8_0")
    assert (file.stat().st_size, file.stat().st_mtime_ns) == (status.st_size, status.st_mtime_ns)
    assert not again.facts["from_pack"]
    assert not np.array_equal(first.logits(IDS), again.logits(IDS))


@pytest.mark.parametrize(
    "edit",
    [
        {"rope_theta": 10001.0},
        {"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 64}},
        {"rms_norm_eps": 1.0000001e-5},
        {"hidden_act": "gelu"},
        {"num_hidden_layers": 1},
    ],
    ids=str,
)
def test_keys_and_values_are_of_one_config(cache: Path, model: Path, edit: dict[str, object]) -> None:
    """An edit that the weights do not show makes stored keys and values those of another model."""
    before = Engine.load(model).cache_key
    assert before is not None
    assert Engine.load(model).cache_key == before
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | edit))
    assert Engine.load(model).cache_key not in (None, before)


def test_a_pack_can_go_while_it_is_used(cache: Path, model: Path) -> None:
    pack(model)
    engine = Engine.load(model, dtype="q8_0")
    expected = engine.logits(IDS)
    packed_entries()[0].path.unlink()
    assert np.array_equal(engine.logits(IDS), expected)


def test_damage_is_told_once(cache: Path, model: Path) -> None:
    expected = pack(model).logits(IDS)
    path = packed_entries()[0].path
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.unlink()
    path.write_bytes(data)
    engine = pack(model)
    assert [str(path) in warning for warning in engine.facts["warnings"]] == [True]
    assert np.array_equal(engine.logits(IDS), expected)
    again = Engine.load(model, dtype="q8_0")
    assert again.facts["from_pack"]
    assert not again.facts["warnings"]


def test_a_pack_of_an_older_layout_is_replaced_without_a_warning(cache: Path, model: Path) -> None:
    pack(model)
    (file,) = cache.iterdir()
    older = cache / "q8_0-0123456789abcdef.pack"
    older.write_bytes(b"RCPACK\0\x01" + file.read_bytes()[8:])
    file.unlink()
    assert pack(model).facts["warnings"] == []
    assert list(cache.iterdir()) == [file]


def test_runs_that_are_too_short_for_a_pack_leave_one_together(cache: Path, model: Path) -> None:
    """As on a busy machine: nothing but the end of each run writes, and only one piece."""
    expected, runs = None, 0
    while not (engine := Engine.load(model, dtype="q8_0")).facts["from_pack"]:
        if expected is None:
            expected = engine.logits(IDS)
        written = engine.finish_pack(1e-9)
        (entry,) = packed_entries()
        assert entry.path.name.endswith(".pack" if written else ".pack.partial")
        assert (entry.model, entry.dtype) == (str(model.resolve() / "model.safetensors"), "q8_0")
        assert stat.S_IMODE(entry.path.stat().st_mode) == 0o600
        runs += 1
        assert runs < 100
    assert runs > 3
    assert not engine.facts["warnings"]
    assert np.array_equal(engine.logits(IDS), expected)


@pytest.mark.slow
@needs_linux
def test_a_pack_survives_the_death_of_its_writers(cache: Path, model: Path) -> None:
    """Killed at any time, they leave a whole pack or a part of one with which the next goes on."""
    code = """
import os, sys, threading
from ropechat import Engine
engine = Engine.load(sys.argv[1], dtype="q8_0")
threading.Timer(float(sys.argv[2]), os.kill, (os.getpid(), 9)).start()
while not engine.finish_pack(1e-9):
    pass
"""
    changes = {"XDG_CACHE_HOME": str(cache.parent.parent), "ROPECHAT_CACHE": "all"}
    folder = cache.parent.parent / "ropechat" / "packed"
    for delay in (0.0, 0.001, 0.003, 0.01):
        command = [sys.executable, "-c", code, str(model), str(delay)]
        subprocess.run(command, env=os.environ | changes, timeout=60, stderr=subprocess.DEVNULL)
        assert len(list(folder.glob("*"))) <= 1
    one_token = ("--max-tokens", "1", "--temperature", "0")
    process = run(model, cache.parent.parent, *one_token)
    stderr = process.communicate(timeout=60)[1]
    assert (process.returncode, b"damaged" in stderr) == (0, False)
    assert [path.suffix for path in folder.glob("*")] == [".pack"]


def test_off_keeps_nothing(cache: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROPECHAT_CACHE", "off")
    pack(model)
    monkeypatch.setenv("ROPECHAT_CACHE", "auto")
    pack(model)  # too small to be worth it
    assert not cache.exists()
    monkeypatch.setenv("ROPECHAT_CACHE", "of")
    with pytest.raises(RequestError, match=r"ROPECHAT_CACHE: must be auto, off or all \(got 'of'\)"):
        Engine.load(model)


def test_what_is_chosen_goes_before_the_environment(cache: Path, model: Path) -> None:
    """ROPECHAT_CACHE is all here, and stays that."""
    Engine.load(model, dtype="q8_0", cache="off").finish_pack(60.0)
    Engine.load(model, dtype="q8_0", cache="auto").finish_pack(60.0)
    assert not cache.exists()
    with pytest.raises(RequestError, match=r"cache: must be auto, off or all \(got 'on'\)"):
        Engine.load(model, cache="on")
    Engine.load(model, dtype="q8_0").finish_pack(60.0)
    assert cache.exists()


def run(model: Path, cache_home: Path, *options: str, code: str = RUN) -> "subprocess.Popen[bytes]":
    """A process of its own, with a cache of its own."""
    changes = {"XDG_CACHE_HOME": str(cache_home), "ROPECHAT_CACHE": "all"}
    return subprocess.Popen(
        [sys.executable, "-c", code, "-m", str(model), "--dtype", "q8_0", *options, "ab"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | changes,
    )


@needs_linux
def test_one_token_is_enough_for_a_quick_next_start(model: Path, tmp_path: Path) -> None:
    one_token = ("--max-tokens", "1", "--temperature", "0")
    outputs = []
    for _ in range(2):
        process = run(model, tmp_path / "home", *one_token, code=RUN_AND_PACK)
        outputs.append(process.communicate(timeout=60)[0])
        assert process.returncode == 0
        packs = list((tmp_path / "home/ropechat/packed").iterdir())
        assert [path.suffix for path in packs] == [".pack"]
        assert stat.S_IMODE(packs[0].stat().st_mode) == 0o600
    assert outputs[0] == outputs[1]
    packs[0].unlink()
    process = run(model, tmp_path / "home", *one_token, "--no-cache")
    assert process.communicate(timeout=60)[0] == outputs[0]
    assert not list(packs[0].parent.iterdir())


ENDLESS = ("--raw", "--max-tokens", "1000000", "--context", "1000000")


@needs_linux
@pytest.mark.parametrize("before", ["", "import faulthandler; faulthandler.enable(); "])
def test_a_file_that_is_cut_ends_the_program_in_order(model: Path, tmp_path: Path, before: str) -> None:
    run(model, tmp_path, "--max-tokens", "1", code=RUN_AND_PACK).communicate(timeout=60)
    (pack_file,) = (tmp_path / "ropechat/packed").iterdir()
    process = run(model, tmp_path, *ENDLESS, code=before + RUN)
    assert process.stdout is not None
    process.stdout.read(50)
    os.truncate(pack_file, 0)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 74
    told = "the file was truncated while it was in use; load the model again when it is complete"
    assert stderr.decode() == f"error: {pack_file}: {told}\n"


@needs_linux
def test_a_full_screen_app_gives_the_terminal_back(model: Path, tmp_path: Path) -> None:
    import pty
    import termios

    code = """
import os, sys, tty
from ropechat import Engine
from ropechat.engine.native import exit_when_cut
from ropechat.models.pack_cache import packed_entries
engine = Engine.load(sys.argv[2], dtype="q8_0")
if not engine.facts["from_pack"]:
    assert engine.finish_pack(60)
    sys.exit(5)
tty.setraw(0)
os.write(1, b"\\x1b[?1049h")
exit_when_cut(screen=True)
os.truncate(packed_entries()[0].path, 0)
engine.logits([1, 2, 3])
"""
    run(model, tmp_path, code=code).communicate(timeout=60)
    changes = {"XDG_CACHE_HOME": str(tmp_path), "ROPECHAT_CACHE": "all"}
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(sys.executable, [sys.executable, "-c", code, "-m", str(model)], os.environ | changes)
    shown = b""
    while b"it is complete" not in shown:
        shown += os.read(terminal, 1000)
    settings = termios.tcgetattr(terminal)
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 74
    assert settings[3] & termios.ECHO
    assert settings[3] & termios.ICANON
    assert shown.index(b"\x1b[?1049h") < shown.index(b"\x1b[?1049l") < shown.index(b"the file was truncated")


@needs_linux
def test_a_library_leaves_signals_alone(model: Path, tmp_path: Path) -> None:
    """Without the command line a cut file is what it is everywhere: SIGBUS."""
    library = """
import os, sys
from ropechat import Engine, Sampling
from ropechat.models.pack_cache import packed_entries
engine = Engine.load(sys.argv[2], dtype="q8_0")
if not engine.facts["from_pack"]:
    assert engine.finish_pack(60)
    sys.exit(5)
os.truncate(packed_entries()[0].path, 0)
engine.logits([1, 2, 3])
"""
    codes = []
    for _ in range(2):
        process = run(model, tmp_path, code=library)
        process.communicate(timeout=60)
        codes.append(process.returncode)
    assert codes == [5, -signal.SIGBUS]


def test_functions_say_what_they_do_themselves() -> None:
    said = {f.__name__: f.__doc__ or "" for f in (_core.exit_when_cut, _core.free_memory)}
    assert {name for name, text in said.items() if "exit code 74" in text} == {"exit_when_cut"}
    assert "Bytes" in said["free_memory"]


@needs_linux
def test_a_signal_that_is_not_ours_goes_to_whom_it_was_for(model: Path, tmp_path: Path) -> None:
    code = """
import faulthandler, os, signal
from ropechat.engine.native import exit_when_cut
faulthandler.enable()
exit_when_cut(screen=False)
os.kill(os.getpid(), signal.SIGBUS)
"""
    process = run(model, tmp_path, code=code)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGBUS
    assert b"Fatal Python error: Bus error" in stderr
