"""What a chat has read is kept on disk: the same answers, less reading, nothing left of a deleted chat."""

from __future__ import annotations

import os
import random
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from live_chat import Program, expected
from repeats import repeats

from ropechat.chat import events as ev
from ropechat.conversation import Role
from ropechat.engine.engine import Engine
from ropechat.sampling import Sampling
from ropechat.util.kv_files import kv_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ropechat.store.store import Store
    from ropechat.trace import Step

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="XDG_CACHE_HOME says where the cache is")
GREEDY = Sampling(temperature=0, max_tokens=6, seed=0)
KEPT = {"kv_bytes": 10**9}
WORDS = ["the", "cat", "sat", "on", "a", "red", "mat", "and", "saw", "one", "big", "dog", "run", "home"]
DOINGS = ["ask", "ask", "ask", "edit", "again", "go", "fork", "restart", "open", "new", "delete"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of keys and values."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return kv_folder()


@pytest.fixture
def program(store: Store) -> Iterator[Callable[..., Program]]:
    """Starts the program with this test's store; ended at the end."""
    made: list[Program] = []

    def start(**options: Any) -> Program:
        given = {"model": "builtin", "store": store, "sampling": GREEDY, **KEPT, **options}
        made.append(Program(**given))
        return made[-1]

    yield start
    for one in made:
        one.inference.shutdown(10.0)


def text(draw: random.Random, words: int) -> str:
    return " ".join(draw.choices(WORDS, k=words)).capitalize() + "."


def files(cache: Path) -> list[Path]:
    return sorted(cache.glob("*")) if cache.exists() else []


def bytes_of(paths: list[Path]) -> int:
    """Bytes of files that a writer may remove meanwhile."""
    total = 0
    for path in paths:
        with suppress(FileNotFoundError):
            total += path.stat().st_size
    return total


@pytest.mark.slow
def test_a_chat_that_is_opened_again_is_not_read_again(program: Callable[..., Program], cache: Path) -> None:
    first = program()
    first.answer(first.session.ask(text(random.Random(1), 300)))
    first.close()
    assert [path.suffix for path in files(cache)] == [".kv"]
    for reads_ahead in (False, True):
        again = program(reads_ahead=reads_ahead)
        again.open(first.session.recorder.id)
        again.read_ahead()
        request, steps = again.answer(again.session.ask("And then?"))
        assert again.cached > 300
        assert steps == expected(Engine.load("builtin", context=2048, cache="off"), request)
        assert not any(isinstance(event, ev.Notice) for event in again.seen)
        again.close()


def test_a_question_at_once_takes_the_file_too(program: Callable[..., Program]) -> None:
    first = program()
    first.answer(first.session.ask(text(random.Random(2), 300)))
    first.close()
    again = program(reads_ahead=False)
    again.open(first.session.recorder.id)
    again.answer(again.session.ask("And then?"))
    assert again.cached > 300


def test_questions_in_the_middle_of_reading(
    program: Callable[..., Program], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ropechat.chat.reading_ahead.SAVE_DELAY_S", 0.0)
    plain, one = Engine.load("builtin", context=2048, cache="off"), program()
    one.answer(one.session.ask(text(random.Random(11), 400)))
    for count in range(4):
        one.session.rewrite(one.session.turns[0].asked, text(random.Random(12 + count), 400))
        one.session.withdraw()
        one.chat.read_ahead()
        one.until(lambda: one.inference._ahead._prefill is not None or one.inference._ahead.wait is None)
        request, steps = one.answer(one.session.ask("And then?"))
        assert steps == expected(plain, request)
    one.until(lambda: one.inference._ahead.wait is None and not one.inference._ahead.writer._waiting)
    one.close()
    assert [path.suffix for path in files(cache)] == [".kv"]


def test_an_idle_chat_is_written(
    program: Callable[..., Program], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ropechat.chat.reading_ahead.SAVE_DELAY_S", 0.05)
    one = program()
    one.answer(one.session.ask(text(random.Random(3), 100)))
    one.read_ahead()
    one.until(lambda: [path.suffix for path in files(cache)] == [".kv"])
    (path,) = files(cache)
    assert path.stat().st_mode & 0o777 == 0o600
    before = path.stat().st_mtime_ns, path.read_bytes()
    one.read_ahead()
    time.sleep(0.5)
    assert path.read_bytes() == before[1], "nothing changed"
    one.answer(one.session.ask("And then?"))
    one.read_ahead()
    one.until(lambda: path.read_bytes() != before[1])


@pytest.mark.parametrize(
    "options",
    [{"kv_bytes": 0}, {"store": None}, {"load": {"cache": "off"}}],
    ids=["0", "incognito", "no cache"],
)
def test_nothing_is_written(program: Callable[..., Program], cache: Path, options: dict[str, Any]) -> None:
    one = program(**options)
    one.answer(one.session.ask(text(random.Random(4), 100)))
    one.read_ahead()
    one.close()
    assert files(cache) == []


@pytest.mark.slow
def test_another_model_and_a_damaged_file_are_ignored_with_a_note(
    program: Callable[..., Program], cache: Path
) -> None:
    first = program()
    first.answer(first.session.ask(text(random.Random(5), 200)))
    first.close()
    other = program(load={"kv_dtype": "q8_0"})
    other.open(first.session.recorder.id)
    other.read_ahead()
    assert not any(isinstance(event, ev.Notice) for event in other.seen), "it has a file of its own"
    other.close()
    assert len(files(cache)) == 2
    q8_0 = next(path for path in files(cache) if b"cache q8_0" in path.read_bytes())
    f32 = next(path for path in files(cache) if path != q8_0)
    whole = f32.read_bytes()
    plain = Engine.load("builtin", context=2048, cache="off")
    for damage, words in [
        (q8_0.read_bytes(), "from another model"),
        (whole[:-1], "truncated"),
        (whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:], "damaged"),
        (b"", "damaged"),
    ]:
        f32.write_bytes(damage)
        f32.chmod(0o600)
        again = program(reads_ahead=False)
        again.open(first.session.recorder.id)
        request, steps = again.answer(again.session.ask("And then?"))
        notes = [event.text for event in again.seen if isinstance(event, ev.Notice)]
        assert len(notes) == 1, notes
        assert words in notes[0]
        assert str(f32) in notes[0]
        assert steps == expected(plain, request)
        again.session.withdraw()
        again.close()


def test_of_a_deleted_chat_nothing_is_left(
    program: Callable[..., Program], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = program()
    ids = []
    for seed in range(3):
        one.answer(one.session.ask(text(random.Random(seed), 60)))
        ids.append(one.session.recorder.id)
        one.new()
    one.until(lambda: len(files(cache)) == 3 and all(path.suffix == ".kv" for path in files(cache)))
    contents = {path: path.read_bytes() for path in files(cache)}
    store = one.session.recorder.store
    assert store is not None
    assert store.delete(ids[1]).result(60)
    (gone,) = contents.keys() - set(files(cache))
    blocks = [contents[gone][at : at + 64] for at in range(0, len(contents[gone]) - 63, 256)]
    left = b"".join(path.read_bytes() for path in files(cache))
    known = b"".join(data for path, data in contents.items() if path != gone)
    own = [block for block in blocks if block.strip(b"\0") and block not in known]
    assert len(own) > 50, "what is searched for is the chat's alone"
    assert not any(block in left for block in own)
    one.open(ids[2])
    store.delete(ids[2]).result(60)
    one.new()  # the chat that was shown is deleted: nothing is written for it
    one.close()
    assert len(files(cache)) == 1


def test_a_deleted_branch_takes_the_file_along(program: Callable[..., Program], cache: Path) -> None:
    one = program()
    turn = one.session.ask(text(random.Random(7), 60))
    one.answer(turn)
    one.read_ahead()
    one.chat.save_kv()
    one.until(lambda: [path.suffix for path in files(cache)] == [".kv"])
    one.session.recorder.erase([])
    one.until(lambda: files(cache) == [])
    one.close()
    assert [path.suffix for path in files(cache)] == [".kv"], "what is left is kept again"


@pytest.mark.slow
def test_the_bound_holds_over_fifty_chats(program: Callable[..., Program], cache: Path) -> None:
    one = program()
    one.answer(one.session.ask(text(random.Random(8), 40)))
    one.new()
    one.until(lambda: bool(files(cache)) and files(cache)[0].suffix == ".kv")
    size = files(cache)[0].stat().st_size
    one.session.recorder.kv_bytes = 6 * size
    used = []
    for seed in range(50):
        one.answer(one.session.ask(text(random.Random(100 + seed), 40)))
        used.append(one.session.recorder.id)
        one.new()
        total = bytes_of(files(cache))
        assert total <= 7.1 * size, "with the one that is being written"
    one.close()
    found = files(cache)
    assert 4 <= len(found) <= 6
    assert bytes_of(found) <= 6.1 * size


def before_its_end(steps: Sequence[Step]) -> list[Step]:
    """The steps of an answer without the token that ended it, after which nothing is drawn."""
    return [step for step in steps if step.finish_reason != "stop"]


def steps_of(program: Callable[..., Program], draw: random.Random, count: int, temperature: float) -> None:
    """Random questions, edits, regenerations, forks, branches, restarts; each answer is compared."""
    plain = Engine.load("builtin", context=2048, cache="off", prefix_bytes=0, threads=2)
    chats: list[str] = []
    settings = Sampling(temperature=temperature, max_tokens=5, seed=draw.randrange(1000))
    one, taken = program(sampling=settings), 0
    for _ in range(count):
        session, tree = one.session, one.session.tree
        questions = [node for node in tree.nodes.values() if node.role is Role.USER]
        what = draw.choice(DOINGS)
        if what == "restart":
            one.close()
            one = program(sampling=settings, reads_ahead=draw.random() < 0.7)
        elif what == "new" or (what == "delete" and not chats):
            one.new()
        elif what == "delete":
            gone = chats.pop(draw.randrange(len(chats)))
            assert session.recorder.store is not None
            session.recorder.store.delete(gone).result(60)
            if gone == session.recorder.id:
                one.new()
        elif what == "open" and chats:
            one.open(draw.choice(chats))
        elif what == "go" and questions:
            session.go(draw.choice(list(tree.nodes)))
        else:
            prefix = []
            if what == "edit" and questions:
                turn = session.rewrite(draw.choice(questions).id, text(draw, draw.randint(1, 80)))
            elif what == "again" and questions:
                turn = session.answer(draw.choice(questions).id)
            elif (
                what == "fork" and questions and (said := before_its_end(session.turns[-1].answer.node.steps))
            ):
                answer = session.turns[-1].answer.node
                prefix = said[: draw.randint(1, len(said))]
                turn = session.answer(answer.parent or "", ev.AssistantPrefix(tuple(prefix)))
            else:
                turn = session.ask(text(draw, draw.randint(1, 80)))
            request, steps = one.answer(turn)
            if session.recorder.id not in chats:
                chats.append(session.recorder.id)
            found = list(
                plain.reply(request.messages, request.sampling, prefix=[s.id for s in prefix], top_k=20)
            )
            assert steps[len(steps) - len(found) :] == found
            taken += one.cached
        if draw.random() < 0.5:
            one.read_ahead()
    assert taken > 0
    one.close()


@pytest.mark.slow
@repeats(30, 5000)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_same_bytes_whatever_happens(
    program: Callable[..., Program], count: int, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ropechat.chat.reading_ahead.SAVE_DELAY_S", 0.01)
    seed = secrets.randbits(32)
    print("seed", seed)
    steps_of(program, random.Random(seed), count, temperature)


@pytest.mark.slow
@repeats(2, 1000)
def test_kill_9_while_it_is_written(count: int) -> None:
    from kv_crashes import FAULTS, kills

    seed = secrets.randbits(32)
    print("seed", seed)
    found = kills(count, random.Random(seed))
    assert {name: found[name] for name in FAULTS} == dict.fromkeys(FAULTS, 0)
    assert found["answers"] > 0


def test_a_full_disk_leaves_no_file(program: Callable[..., Program], cache: Path) -> None:
    """A limit on the size of files refuses a write in the middle, as a full disk does."""
    resource = pytest.importorskip("resource")
    one = program()
    one.answer(one.session.ask(text(random.Random(9), 300)))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, limits[1]))
        one.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)
    assert cache.is_dir()
    assert files(cache) == []
    again = program()
    again.open(one.session.recorder.id)
    again.answer(again.session.ask("And then?"))
    assert again.cached == 0
    again.close()
    assert [path.suffix for path in files(cache)] == [".kv"]


FULL_DISK = """
import sys
from pathlib import Path
sys.path[:0] = {paths!r}
from live_chat import Program, expected
from ropechat.engine.engine import Engine
from ropechat.engine.prefill import Prefill
from ropechat.sampling import Sampling
from ropechat.store.store import Store
from ropechat.util.kv_files import kv_folder

keep = Prefill.keep

class WithoutReserve:
    # Takes the last free byte of the disk, where the program leaves 5 GB.
    def __init__(self, prefix):
        self.prefix, self.tokens = prefix, prefix.tokens

    def write(self, path, cancel, *, total):
        written = self.prefix.write(path, cancel, total=total, keep_free=0)
        print("written", written)
        return written

Prefill.keep = lambda self: (prefix := keep(self)) and WithoutReserve(prefix)

def start():
    given = Sampling(temperature=0, max_tokens=6, seed=0)
    return Program("builtin", Store(Path({data!r})), given, kv_bytes=10**9, reads_ahead=False)

one = start()
ids = []
for words in {words!r}:
    one.answer(one.session.ask(words))
    ids.append(one.session.recorder.id)
    one.new()
one.close()
assert kv_folder().is_dir()
print("files", sum(path.suffix == ".kv" for path in kv_folder().glob("*")))
print("parts", sum(path.suffix != ".kv" for path in kv_folder().glob("*")))
plain = Engine.load("builtin", context=2048, cache="off")
again = start()
for id in ids:
    again.open(id)
    request, steps = again.answer(again.session.ask("And then?"))
    print("right", steps == expected(plain, request))
    again.session.withdraw()
again.close()
"""


@pytest.mark.slow
def test_a_disk_that_is_full(tmp_path: Path) -> None:
    """A file system of 3 MB, of which all but 100 KB is taken; a file of the chat needs more."""
    paths = [str(Path(__file__).parents[1] / "support"), str(Path(__file__).parents[2])]
    words = [text(random.Random(seed), 300) for seed in range(3)]
    code = FULL_DISK.format(paths=paths, data=str(tmp_path / "data"), words=words)
    disk = tmp_path / "cache"
    disk.mkdir()
    fill = f"head -c 2900000 /dev/zero > {shlex.quote(str(disk / 'other'))}"
    script = f'mount -t tmpfs -o size=3m none {shlex.quote(str(disk))} && {fill} && exec "$@"'
    unshared = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-rm"]
    if shutil.which("unshare") is None or subprocess.run([*unshared, "true"], capture_output=True).returncode:
        pytest.skip("no mounts of its own")
    environ = {**os.environ, "XDG_CACHE_HOME": str(disk)}
    command = [*unshared, "sh", "-c", script, "sh", sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=300)
    if "mount" in done.stderr:
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stderr
    found = done.stdout.splitlines()
    assert [line for line in found if not line.startswith("written")] == [
        *("files 0", "parts 0", "right True", "right True", "right True")
    ]
    assert found.count("written False") >= 3
    assert "written True" not in found
