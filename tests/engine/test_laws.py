"""Laws 2 to 4: no T x V array; no trace of a cancel; nothing native on the terminal. (1: test_invariance.)"""

import json
import re
import shutil
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from core import CancelToken, add, add_score, drain, generate, load, score, scored
from damages import DAMAGES, PROMPTS
from golden_cases import GOLDEN
from models import write_llama

from ropechat import Engine, Sampling
from ropechat.errors import CancelledError, NonFiniteError

# ---- 2: no T x V array -----------------------------------------------------------------------------------

PEAK = """
import sys
from core import CancelToken, load
def kib(name): return next(int(l.split()[1]) for l in open("/proc/self/status") if l.startswith(name))
engine = load(sys.argv[1], context=2048, threads=2)
sequence = engine.score([i % 100 for i in range(1024)], readout_top_k=4)
before, rows = kib("VmRSS"), 0
while events := engine.step([sequence], CancelToken()):
    rows += sum(event.row is not None for event in events)
assert rows == 1024, rows
print(kib("VmHWM") - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak of memory from /proc")
def test_scoring_holds_no_array_of_all_logits(tmp_path: Path) -> None:
    """1024 rows of 65 536 logits would take 256 MiB; a block of 32 rows takes 8 MiB."""
    model = write_llama(tmp_path, vocab_size=65536, tie_word_embeddings=True, max_position_embeddings=2048)
    done = child(PEAK, model)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 64 * 1024, f"{done.stdout.strip()} KiB were taken by scoring"


# ---- 3: cancel leaves no trace ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Slow enough to be cancelled in the middle of a step."""
    sizes = {"hidden_size": 192, "head_dim": 64, "intermediate_size": 512, "num_hidden_layers": 4}
    return write_llama(tmp_path_factory.mktemp("slow"), max_position_embeddings=8192, **sizes)


def cancelled() -> CancelToken:
    token = CancelToken()
    token.cancel()
    assert token.cancelled
    return token


def test_a_cancelled_step_leaves_every_sequence_as_it_was(slow: Path, rng: np.random.Generator) -> None:
    """At random moments of prefill, decode and scoring; what was cancelled is done again, to the bit."""
    prompts = [rng.integers(0, 105, length).tolist() for length in (70, 33, 120)]
    expected = score(load(slow), *prompts)
    (story, _, _), engine = generate(load(slow), prompts[0], 12), load(slow, threads=2)
    sequences = [add_score(engine, ids) for ids in prompts]
    writer, written, rows, failures = add(engine, prompts[0], 12), [], [{} for _ in prompts], 0
    while True:
        token = CancelToken()
        timer = threading.Timer(float(rng.uniform(0, 4e-3)), token.cancel)
        timer.start()
        try:
            events = engine.step([*sequences, writer], token)
        except CancelledError:
            failures += 1
            if failures > 40:  # a step is never starved: from now on let it finish
                events = engine.step([*sequences, writer], CancelToken())
            else:
                continue
        finally:
            timer.cancel()
            timer.join()
        if not events:
            break
        for event in events:
            if event.kind == "token":
                written.append(event.id)
            elif event.row is not None:
                index = sequences.index(event.sequence)
                at = len(prompts[index]) if event.kind == "next" else event.position
                rows[index][at] = event.row.logsumexp
    assert written == story
    for found, given in zip(rows, expected, strict=True):
        assert found == {position: row[0] for position, row in given.items()}


def test_a_token_cancelled_beforehand(slow: Path) -> None:
    engine, ids = load(slow), list(range(50))
    sequence, kv_bytes = add_score(engine, ids), []
    for _ in range(3):
        with pytest.raises(CancelledError):
            engine.step([sequence], cancelled())
        kv_bytes.append(engine.kv_bytes)
    assert len(set(kv_bytes)) == 1
    assert scored(engine, {sequence: ids}) == score(load(slow), ids)
    with pytest.raises(CancelledError):
        engine.logits(ids, cancelled())


def test_computing_releases_the_gil_and_cancel_is_heard(slow: Path) -> None:
    """If the GIL were held, this thread would wake when all is done, and nothing would be left to cancel."""
    engine, token, outcome = load(slow, context=8192, threads=2), CancelToken(), []

    def work() -> None:
        try:
            outcome.append(engine.logits([i % 105 for i in range(8000)], token))
        except CancelledError as error:
            outcome.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    time.sleep(0.02)
    token.cancel()
    thread.join()
    assert isinstance(outcome[0], CancelledError)


def test_python_cancel(slow: Path) -> None:
    """Engine.cancel from another thread, and closing the iterator: no exception, and the engine goes on."""
    engine, prompt = Engine.load(slow, dtype="f32", threads=2, context=4096), [i % 105 for i in range(200)]
    greedy = Sampling(temperature=0, max_tokens=40)
    expected = [step.id for step in engine.generate(prompt, greedy)]
    steps = []
    for step in engine.generate(prompt, greedy):
        steps.append(step.id)
        if len(steps) == 5:
            threading.Thread(target=engine.cancel).start()
    assert 5 <= len(steps) <= 40
    assert steps == expected[: len(steps)]
    iterator = engine.generate(prompt, greedy)
    assert next(iterator).id == expected[0]
    iterator.close()  # type: ignore[attr-defined]
    assert [step.id for step in engine.generate(prompt, greedy)] == expected


def test_cancel_during_prefill(slow: Path) -> None:
    """From the callback that reports prefill: the iterator ends without a token, the next is untouched."""
    engine, prompt = Engine.load(slow, dtype="f32", context=4096), [i % 105 for i in range(2000)]
    greedy = Sampling(temperature=0, max_tokens=3)
    stopped = list(engine.generate(prompt, greedy, on_prefill=lambda done, total: engine.cancel()))
    assert [step.id for step in stopped if step.finish_reason != "cancelled"] == []
    fresh = Engine.load(slow, dtype="f32", context=4096)
    assert [s.id for s in engine.generate(prompt, greedy)] == [s.id for s in fresh.generate(prompt, greedy)]


@pytest.mark.slow
def test_memory_does_not_grow_with_requests(slow: Path) -> None:
    limit = 4 << 20
    engine = load(slow, prefix_bytes=limit)
    for round in range(90):
        generate(engine, [round, *range(100)], 4)
        assert engine.kv_bytes <= limit
    assert engine.kv_bytes > limit // 2, "too few requests to reach the limit"


def test_a_prompt_of_nan_fails_alone(tmp_path: Path) -> None:
    """Learned positions of NaN from 45 on: whoever gets there fails, and the others see nothing of it."""
    source, damaged = GOLDEN / "gpt2_unscaled_old", tmp_path / "damaged"
    shutil.copytree(source, damaged)
    weights = bytearray((damaged / "model.safetensors").read_bytes())
    body = 8 + int.from_bytes(weights[:8], "little")
    wpe = json.loads(weights[8:body])["transformer.wpe.weight"]
    begin, end = (body + at for at in wpe["data_offsets"])
    row = 4 * wpe["shape"][1]
    weights[begin + 45 * row : end] = np.float32(np.nan).tobytes() * ((end - begin - 45 * row) // 4)
    (damaged / "model.safetensors").write_bytes(weights)
    prompts = [list(range(20)), list(range(60)), [7] * 44, list(range(40)), [3, 5]]
    greedy = Sampling(temperature=0, max_tokens=6)
    expected = dict(Engine.load(source, dtype="f32").generate_many(prompts, greedy))
    found = dict(Engine.load(damaged, dtype="f32", threads=2).generate_many(prompts, greedy))
    failed = {index for index, result in found.items() if isinstance(result.error, NonFiniteError)}
    assert failed == {1, 2}  # the second at its first token, the third two tokens later
    for index in found.keys() - failed:
        assert found[index].error is None
        assert (found[index].ids, found[index].logprobs) == (expected[index].ids, expected[index].logprobs)


# ---- 4: nothing native on the terminal -------------------------------------------------------------------


def child(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter that can import what the tests can."""
    path = f"import sys; sys.path.append({str(Path(__file__).parents[1] / 'support')!r})\n"
    command = [sys.executable, "-c", path + textwrap.dedent(code), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, errors="replace")


def test_bad_input_is_one_line_and_nothing_on_the_terminal(tmp_path: Path) -> None:
    """Every damage is a RopechatError of one line; descriptors 1 and 2 stay empty."""
    done = child("from damages import main, Path; main(Path(sys.argv[1]))", tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    said = json.loads((tmp_path / "said.json").read_text())
    assert said.keys() == DAMAGES.keys() | PROMPTS.keys()
    wrong = {name: message for name, message in said.items() if not re.fullmatch(r"2 .{10,600}", message)}
    nothing_there = {"weights: missing", "directory: empty"}  # 4 is as good an answer: no model here
    assert not {name: m for name, m in wrong.items() if name not in nothing_there or not m.startswith("4 ")}


def test_computing_is_silent(slow: Path) -> None:
    code = """
        import sys
        from core import add, drain, load
        engine = load(sys.argv[1], threads=3)
        assert list(drain(engine, [add(engine, [1, 2, 3], 10)]))
    """
    done = child(code, slow)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_drain_is_over_when_all_are_finished(slow: Path) -> None:
    engine = load(slow)
    sequence = add(engine, [1, 2, 3], 2)
    assert list(drain(engine, [sequence]))
    assert engine.step([sequence], CancelToken()) == []
