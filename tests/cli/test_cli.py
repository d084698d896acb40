"""The command line: what goes to stdout, what to stderr, and with which exit code it ends."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from cli_door import CompiledDoor, Door, command, environment, on_terminal, process
from model_folders import byte_folder, chat_folder

from ropechat.errors import Terminated

NOTE = "note: this model has no chat template; it continues the text\n"


@pytest.fixture
def chat_model(tmp_path: Path) -> Path:
    """Its prompts end in "\\n", so that greedy replies begin with vertical tab; <|im_end|> ends a turn."""
    return chat_folder(tmp_path / "chat")


# ---- run


def test_run_streams_text_and_talks_on_stderr(door: Door, model: Path) -> None:
    code, out, err = door("run", "-m", model, "--temperature", 0, "--max-tokens", 5, "xa")
    assert (code, out) == (0, "bcdef\n")
    assert err.startswith(f"{NOTE}dtype: f32, as stored (0 bytes)\n")
    assert "sampling: temperature 0 (flag)\n" in err
    assert "prompt 2 tokens" in err
    assert "reply 5 tokens" in err
    assert err.count("\n") == 4
    code, out, err = door("run", "-m", model, "--temperature", 0, "--max-tokens", 5, "--quiet", "xa")
    assert (code, out, err) == (0, "bcdef\n", "")


def test_an_argument_that_is_not_unicode(door: Door) -> None:
    code, out, err = door("chats", "show", "a\udcff")
    assert (code, out) == (2, "")
    assert err == "error: 'a\\udcff': must be valid Unicode (got a lone surrogate)\n"


def test_run_reads_stdin(door: Door, model: Path) -> None:
    for arguments in (["-"], []):
        code, out, _ = door("run", "-m", model, "--temperature", 0, "--max-tokens", 2, *arguments, stdin=b"a")
        assert (code, out) == (0, "bc\n")
    code, out, err = door("run", "-m", model, "Summarize:", "-", stdin=b"")
    assert (code, out) == (2, "")
    assert err == "error: prompt: must have at least one character (stdin is empty)\n"
    code, _, err = door("run", "-m", model, stdin=b"\xff")
    assert (code, err) == (2, "error: stdin: must be UTF-8 (byte 0 is not); convert the text to UTF-8\n")


def test_run_json(door: Door, model: Path) -> None:
    code, out, _ = door("run", "-m", model, "--temperature", 0, "--max-tokens", 3, "--json", "a")
    record = json.loads(out)
    assert code == 0
    assert out.count("\n") == 1
    assert (record["text"], record["ids"], record["finish_reason"]) == ("bcd", [98, 99, 100], "length")
    assert record["usage"] == {"prompt_tokens": 1, "cached_tokens": 0, "completion_tokens": 3}
    assert len(record["logprobs"]) == 3
    assert record["timings"]["ttft_s"] > 0


def test_a_bias_of_tokens(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    door = CompiledDoor(monkeypatch, capfd)
    given = ["-m", "builtin", "--temperature", 0, "--max-tokens", 3]  # token 276 is " b", 271 " c"
    code, out, _ = door("run", *given, "--logit-bias", "276=50", "--logit-bias", "271=100", "a")
    assert (code, out) == (0, " c c c\n")
    (tmp_path / "in.jsonl").write_text('{"prompt": "a"}\n{"prompt": "a", "logit_bias": {"276": 100}}\n')
    batch = ["batch", tmp_path / "in.jsonl", "-o", tmp_path / "out.jsonl", "--raw", *given]
    assert door(*batch, "--resume", "--logit-bias", "271=100")[0] == 0
    texts = [json.loads(line)["text"] for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert texts == [" c c c", " b b b"]
    code, _, err = door(*batch, "--resume", "--logit-bias", "271=99")
    assert (code, "logit_bias" in err) == (2, True), err
    for value in ("198", "x=1", "1=101", "1=nan"):
        code, _, err = door("run", *given, "--logit-bias", value, "a")
        assert (code, "--logit-bias" in err) == (2, True), err


def test_run_fails_below_a_probability(door: Door, model: Path) -> None:
    run = ["run", "-m", model, "--temperature", 0, "--max-tokens", 3, "a"]
    code, out, err = door(*run, "--fail-below", 1)
    assert (code, out) == (1, "bcd\n")
    assert err.splitlines()[-1].startswith("unsure: line 1: ")
    assert err.splitlines()[-1].endswith(" in 3 tokens: bcd")
    code, _, err = door(*run, "--fail-below", 0)
    assert (code, "unsure" in err) == (0, False)
    code, out, err = door(*run, "--fail-below", 1, "--json", "--quiet")
    record = json.loads(out)
    assert code == 1
    assert err == f"unsure: line 1: {record['unsure'][0]['prob']:.1%} in 3 tokens: bcd\n"
    assert record["unsure"][0]["logprob"] == pytest.approx(sum(record["logprobs"]))
    assert (record["unsure"][0]["text"], record["unsure"][0]["span"]) == ("bcd", [0, 3])
    assert json.loads(door(*run, "--fail-below", 0, "--json")[1])["unsure"] == []
    assert "unsure" not in json.loads(door(*run, "--json")[1])


def test_the_seed_of_run_json_repeats_it(door: Door, model: Path) -> None:
    run = ["run", "-m", model, "--temperature", 1, "--max-tokens", 9, "--json", "a"]
    first = json.loads(door(*run)[1])
    again = json.loads(door(*run, "--seed", first["seed"])[1])
    assert (again["seed"], again["ids"]) == (first["seed"], first["ids"])
    assert json.loads(door(*run)[1])["seed"] != first["seed"]


def test_run_uses_the_template_unless_raw(door: Door, chat_model: Path) -> None:
    options = ["-m", chat_model, "--temperature", 0, "--max-tokens", 2, "--json"]
    _, out, err = door("run", *options, "a")
    assert "note:" not in err
    assert json.loads(out)["usage"]["prompt_tokens"] == len("|user\na|\n|assistant\n")
    _, out, _ = door("run", *options, "--system", "s", "a")
    assert json.loads(out)["usage"]["prompt_tokens"] == len("|system\ns|\n|user\na|\n|assistant\n")
    _, out, err = door("run", *options, "--raw", "a")
    assert json.loads(out)["text"] == "bc"
    assert "note:" not in err


def test_run_takes_the_model_from_the_environment(
    door: Door, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = []
    for given in ("", str(model)):
        monkeypatch.setenv("ROPECHAT_MODEL", given)
        code, out, _ = door("run", "--max-tokens", 1, "--json", "a")
        assert code == 0
        names.append(json.loads(out)["model"])
    assert names[0] == "builtin"
    assert names[1].endswith("/model")


def test_no_cache_is_of_one_command(
    door: Door, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("models.pack_cache", "tokenizer.cache"):
        monkeypatch.setattr(f"ropechat.{module}.cache_folder", lambda: tmp_path / "cache")
    monkeypatch.setattr("ropechat.tokenizer.cache._MIN_FILE_BYTES", 0)
    monkeypatch.setenv("ROPECHAT_CACHE", "all")
    assert door("run", "-m", model, "--no-cache", "--max-tokens", 1, "a")[0] == 0
    assert os.environ["ROPECHAT_CACHE"] == "all"
    assert not (tmp_path / "cache").exists()
    assert door("run", "-m", model, "--max-tokens", 1, "a")[0] == 0
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["tokenizers"]


# ---- Errors and exit codes


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["run", "-m", "{missing}", "a"], 2, "model not found"),
        (
            ["run", "-m", "{model}", "--top-p", "2", "a"],
            2,
            "--top-p: must be a number above 0 to 1 (got 2.0)",
        ),
        (
            ["run", "-m", "{model}", "--seed", "-1", "a"],
            2,
            "--seed: must be an integer from 0 to 18446744073709551615 (got -1)",
        ),
        (
            ["run", "-m", "{model}", "--temperature", "nan", "a"],
            2,
            "--temperature: must be a number from 0 to 100 (got nan)",
        ),
        (["run", "-m", "{model}", "--max-tokens", "x", "a"], 2, "--max-tokens"),
        (["run", "-m", "{model}", "--dtype", "int4", "a"], 2, "--dtype"),
        (["run", "-m", "{model}", ""], 2, "prompt: must have at least one character"),
        (["run", "-m", "{model}", "--raw", ""], 2, "prompt: must have at least one token"),
        (["run", "-m", "{model}", "a" * 65], 2, "65 tokens"),
        (["run", "-m", "{broken}", "a"], 2, "config.json"),
        (["inspect", "-m", "{model}", "--candidates", "-1", "a"], 2, "--candidates"),
        (["batch", "-m", "{model}", "{missing}", "-o", "{missing}.out"], 2, "file not found"),
        (["models", "check", "{missing}"], 2, "model not found"),
        (["models", "check", "{broken}"], 2, "config.json"),
        (["nonsense"], 2, "nonsense"),
        (["--nonsense"], 2, "--nonsense"),
    ],
)
def test_refusals_are_one_line(
    arguments: list[str], code: int, words: str, door: Door, model: Path, tmp_path: Path
) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("")
    paths = {"missing": tmp_path / "nowhere", "broken": tmp_path / "broken", "model": model}
    got, out, err = door(*(argument.format(**paths) for argument in arguments))
    lines = [line for line in err.splitlines() if not line.startswith("note:")]
    assert (got, out, len(lines)) == (code, "", 1)
    assert lines[0].startswith("error: ")
    assert words in lines[0]


def test_help_and_version(door: Door) -> None:
    code, out, _ = door("--help")
    assert code == 0
    assert all(name in out for name in ("chat", "run", "inspect", "batch", "models"))
    assert door("-V")[0] == 0
    assert "--max-tokens" in door("run", "-h")[1]
    assert "--max-tokens" in door("chat", "-h")[1]


@pytest.mark.parametrize("group", ["models", "chats", "config"])
def test_a_group_without_a_command_shows_its_help(door: Door, group: str) -> None:
    assert door(group) == door(group, "--help")
    assert door(group)[0] == 0


def test_an_error_line_cannot_act_on_the_terminal(door: Door) -> None:
    _, _, err = door("run", "-m", "/no\x1b]52;c;AA\x07\nwhere", "a")
    assert "\x1b" not in err
    assert err.count("\n") == 1


def test_a_bug_is_70_and_one_line(door: Door, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class PanicException(BaseException):
        pass

    def panic(*_: object, **__: object) -> None:
        raise PanicException("index out of bounds")

    monkeypatch.setattr("fake_core.Engine.step", panic)
    code, out, err = door("run", "-m", model, "a")
    assert (code, out) == (70, "")
    assert err.splitlines()[-1].startswith("error: a bug in ropechat: PanicException: index out of bounds")
    assert "Traceback" not in err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_while_a_class_is_made_is_no_bug(
    door: Door, model: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, code: int
) -> None:
    """As in a module that is imported late: a stop found this at a random moment."""

    class Name:
        def __set_name__(self, *_: object) -> None:
            os.kill(os.getpid(), number)

    def step(*_: object, **__: object) -> None:
        type("Late", (), {"name": Name()})

    monkeypatch.setattr("fake_core.Engine.step", step)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        found, _, err = door("run", "-m", model, "a")
    finally:
        signal.signal(signal.SIGINT, before)
    assert (found, "a bug" in err) == (code, False)


def test_a_signal_may_come_as_soon_as_it_is_handled(
    door: Door, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle, before = signal.signal, signal.getsignal(signal.SIGTERM)

    def handled(number: signal.Signals, handler: Any) -> Any:
        found = handle(number, handler)
        if number == signal.SIGTERM and handler is not before:
            os.kill(os.getpid(), number)
        return found

    monkeypatch.setattr(signal, "signal", handled)
    code, _, err = door("run", "-m", model, "a")
    assert (code, err) == (143, "")
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_full_disk_is_74(model: Path) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            command(["run", "-m", str(model), "--max-tokens", "5", "a"]),
            stdout=full,
            stderr=subprocess.PIPE,
            env=environment(),
        )
    assert done.returncode == 74
    assert done.stderr.splitlines()[-1] == b"error: stdout: No space left on device"


@pytest.mark.parametrize("closed", [1, 2])
def test_a_closed_stream_is_no_bug(closed: int, model: Path) -> None:
    arguments = command(["run", "-m", str(model), "--max-tokens", "5", "--temperature", "0", "a"])
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {closed}>&-', "sh", *arguments], capture_output=True, env=environment()
    )
    assert b"Traceback" not in done.stderr
    if closed == 2:
        assert (done.returncode, done.stdout) == (0, b"bcdef\n")
    else:  # the answer is lost
        assert done.returncode == 74
        assert done.stderr.splitlines()[-1].startswith(b"error: stdout: closed; ")


def test_a_reader_that_leaves_is_quiet(model: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        command(["inspect", "-m", str(model), "some text"]),
        stdout=write,
        stderr=subprocess.PIPE,
        env=environment(),
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_signals_end_it_in_order(number: signal.Signals, code: int, model: Path) -> None:
    slow = "import time, fake_core; fake_core.Engine._advance_fast = fake_core.Engine._advance\n"
    slow += (
        "fake_core.Engine._advance = lambda *a: (time.sleep(0.2), fake_core.Engine._advance_fast(*a))[1]\n"
    )
    arguments = command(["run", "-m", str(model), "--max-tokens", "60", "--temperature", "0", "!"])
    arguments[2] = arguments[2].replace("from ropechat.cli", slow + "from ropechat.cli")
    child = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment())
    assert child.stdout is not None
    assert child.stdout.read(1) == b'"'
    child.send_signal(number)
    out, err = child.communicate(timeout=60)
    assert child.returncode == code
    assert out.endswith(b"\n")
    assert b"Traceback" not in err


# ---- On a terminal


@pytest.mark.slow
def test_a_terminal_gets_cleaned_text_a_pipe_the_raw(model: Path) -> None:
    arguments = ["run", "-m", str(model), "--temperature", "0", "--max-tokens", "5", "--quiet", "\x19"]
    assert process(arguments).stdout == b"\x1a\x1b\x1c\x1d\x1e\n"
    assert "␚␛␜␝␞\n" in on_terminal(arguments)[1]


@pytest.mark.slow
def test_colours_only_where_they_are_wanted(model: Path) -> None:
    arguments = ["inspect", "-m", str(model), "abz"]
    assert "\x1b[" in on_terminal(arguments)[1]
    assert "\x1b" not in on_terminal(arguments, NO_COLOR="1")[1]
    assert "\x1b" not in on_terminal(arguments, TERM="dumb")[1]
    assert b"\x1b" not in process(arguments).stdout


def test_a_terminal_without_a_screen(model: Path) -> None:
    chat = ["chat", "-m", str(model), "--temperature", "0", "--max-tokens", "2"]
    code, text = on_terminal(chat, typed=b"a\n\x04", TERM="dumb")
    assert code == 0, text
    assert "note: this terminal has no full screen (TERM is dumb); each line is a message" in text
    assert text.endswith("bc\n")
    assert "\x1b" not in text
    reader = ["inspect", "-i", __file__, "-m", str(model)]
    assert "-i: requires a terminal (TERM not dumb)" in on_terminal(reader, TERM="dumb")[1]


def test_a_locale_without_utf8() -> None:
    """Arguments and messages are UTF-8 all the same; `entry` starts Python again."""
    code = "import sys; from ropechat import cli; cli.main = lambda: print(*sys.argv[1:], flush=True) or 3; "
    words = [sys.executable, "-c", code + "cli.entry()", "né", "\u2013"]
    done = subprocess.run(words, capture_output=True, env=environment(LC_ALL="C", PYTHONUTF8="0"), timeout=60)
    assert (done.returncode, done.stdout.decode()) == (3, "né \u2013\n"), done.stderr


# ---- inspect


@pytest.mark.slow
def test_inspect_table_fits_every_width(door: Door, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ropechat.util.width import cell_width

    for width in (1, 30, 40, 60, 80, 100, 160):
        monkeypatch.setenv("COLUMNS", str(width))
        table = door("inspect", "-m", model, "ab 日\x1b", "--candidates", 3)[1]
        lines = table.splitlines()
        assert len(lines) == 1 + 7 + 6 * 3 + 1 + 3 + 1
        assert all(cell_width(line) <= max(width, 30) for line in lines[:-1])
        assert "\x1b" not in table


def test_inspect_table_says_what_the_trace_says(door: Door, model: Path) -> None:
    code, out, err = door("inspect", "-m", model, "ab", "--candidates", 2)
    lines = out.splitlines()
    assert (code, err) == (0, "")
    assert lines[1].split() == ["0", "a", "61", *"––––"]
    assert lines[2].split()[:3] == ["1", "b", "62"]
    assert lines[3].endswith("b ◂")
    assert not lines[4].endswith("◂")
    assert lines[-1].startswith("2 tokens, 1 scored: ")


def test_inspect_spells_tokens_as_the_chat_does(door: Door, model: Path) -> None:
    from ropechat.util.text import visible

    _, out, _ = door("inspect", "-m", model, " \né", "--candidates", 1)
    data = [b" ", b"\n", b"\xc3", b"\xa9"]
    spelled = [line.split()[1] for line in out.splitlines()[1:-1] if line.split()[0].isdecimal()]
    assert spelled == [visible(one) for one in data] == ["·", "⏎", "⟨C3⟩", "⟨A9⟩"]


def test_inspect_jsonl(door: Door, model: Path) -> None:
    code, out, _ = door("inspect", "-m", model, "--format", "jsonl", "--candidates", 2, "aé")
    meta, *tokens, following, summary = [json.loads(line) for line in out.splitlines()]
    assert (code, summary["summary"], summary["scored"]) == (0, True, 2)
    assert (meta["schema"], meta["vocab"], meta["top_k"], meta["log_base"]) == (
        "ropechat.trace/1",
        260,
        2,
        "e",
    )
    assert [token["i"] for token in tokens] == [0, 1, 2]
    assert [token["bytes"] for token in tokens] == [[97], [195], [169]]
    assert [token["span"] for token in tokens] == [[0, 1], [1, 2], [2, 3]]
    assert tokens[0]["logprob"] is tokens[0]["rank"] is tokens[0]["top"] is None
    assert tokens[1]["surprisal_bits"] == pytest.approx(-tokens[1]["logprob"] / 0.6931471805599453)
    assert len(tokens[1]["top"]) == 2
    assert (following["next"], len(following["top"])) == (True, 2)
    assert (
        len(json.loads(door("inspect", "-m", model, "--format", "jsonl", "ab")[1].splitlines()[2])["top"])
        == 20
    )


def test_jsonl_says_what_computed_it(door: Door, model: Path, tmp_path: Path) -> None:
    meta = json.loads(door("inspect", "-m", model, "--format", "jsonl", "ab")[1].splitlines()[0])
    assert meta["revision"] is None
    facts = {
        "kv_dtype": "f32",
        "isa": "scalar",
        "trained_length": 64,
        "beyond_trained_length": 0,
        "text": "ab",
    }
    assert facts.items() <= meta.items()
    hub = byte_folder(tmp_path / "models--org--name" / "snapshots" / "0123abc")
    meta = json.loads(door("inspect", "-m", hub, "--format", "jsonl", "ab")[1].splitlines()[0])
    assert (meta["model"], meta["revision"]) == ("org/name", "0123abc")


def test_a_text_beyond_the_trained_length_is_noted(door: Door, tmp_path: Path) -> None:
    model = byte_folder(tmp_path / "short", max_position_embeddings=4)
    inspect = ["inspect", "-m", model, "--format", "jsonl"]
    assert door(*inspect, "abcd")[2] == ""
    code, out, err = door(*inspect, "--one-sequence", "abcdef")
    assert (code, json.loads(out.splitlines()[0])["beyond_trained_length"]) == (0, 2)
    assert err.count("\n") == 1
    assert err.startswith("warning: 6 tokens exceed the trained length of 4: ")


def test_jsonl_has_no_infinity(door: Door, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fake_core

    judge = fake_core.Engine._judge
    monkeypatch.setattr(fake_core.Engine, "_judge", lambda *a: {**judge(*a), "logprob": float("-inf")})
    code, out, _ = door("inspect", "-m", model, "--format", "jsonl", "ab")
    assert code == 0
    assert json.loads(out.splitlines()[2])["logprob"] is None
    assert "Infinity" not in out


# ---- models, chat


def test_models_check(door: Door, model: Path) -> None:
    code, out, err = door("models", "check", model)
    assert (code, err) == (0, "")
    assert out.endswith("ok\n")
    assert "stop ids:       257" in out
    (model / "tokenizer.json").unlink()
    code, out, err = door("models", "check", model)
    assert code == 2
    assert not out.endswith("ok\n")
    assert err.startswith(f"error: {model}: tokenizer: not found; ")
    assert "tokenizer.json" in err


def test_line_chat_remembers(door: Door, model: Path) -> None:
    code, out, err = door("chat", "-m", model, "--temperature", 0, "--max-tokens", 2, stdin=b"a\n\nx\n")
    assert (code, out, err) == (0, "bc\nyz\n", NOTE)
    assert door("-m", model, "--temperature", 0, "--max-tokens", 1, stdin=b"a")[:2] == (0, "b\n")


def test_line_chat_starts_over_when_the_context_is_full(door: Door, model: Path) -> None:
    lines = b"".join(bytes([97 + i]) * 20 + b"\n" for i in range(3))
    code, out, err = door("chat", "-m", model, "--temperature", 0, "--max-tokens", 3, stdin=lines)
    assert (code, out) == (0, "bcd\ncde\ndef\n")
    assert err.count("starting a new conversation") == 1
    assert door("chat", "-m", model, stdin=b"a" * 65)[0] == 2


# ---- What is imported


@pytest.mark.slow
def test_run_inspect_and_batch_import_little(model: Path, tmp_path: Path) -> None:
    after = "print(*sorted({m.partition('.')[0] for m in sys.modules}), file=sys.stderr)"
    source = tmp_path / "in.jsonl"
    source.write_text('{"id": "a", "prompt": "a"}\n')
    for arguments in (
        ["run", "-m", str(model), "--max-tokens", "2", "a"],
        ["inspect", "-m", str(model), "a"],
        ["batch", "-m", str(model), str(source), "-o", str(tmp_path / "out.jsonl"), "--max-tokens", "2"],
    ):
        done = process(arguments, after=after)
        loaded = set(done.stderr.decode().splitlines()[-1].split())
        assert done.returncode == 0
        assert {"tokenizers", "click", "ropechat"} <= loaded
        assert not loaded & {"textual", "rich", "huggingface_hub", "jinja2", "httpx", "sqlite3"}


def test_the_package_itself_imports_nothing() -> None:
    source = "import sys; import ropechat; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", source],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        check=True,
    )
    loaded = set(done.stdout.split())
    assert "ropechat" in loaded
    assert not {name for name in loaded if name.startswith(("ropechat.", "numpy", "click", "tokenizers"))}


def test_public_names() -> None:
    import ropechat

    assert all(getattr(ropechat, name) is not None for name in ropechat.__all__)
    with pytest.raises(AttributeError):
        _ = ropechat.nonsense


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (("hello",), 'hello: unknown command; did you mean `ropechat run "hello"`?'),
        (("hello", "world"), 'hello: unknown command; did you mean `ropechat "hello world"`?'),
        (("say", '"a"'), 'say: unknown command; did you mean `ropechat "say \\"a\\""`?'),
        (("chta",), 'chta: unknown command; did you mean `ropechat chat`, or `ropechat run "chta"`?'),
        (
            ("why", "is", "it", "so"),
            'Got unexpected extra arguments (it so); to ask a question: `ropechat "why is it so"`',
        ),
        (("modles", "list"), "modles: unknown command; did you mean `ropechat models`, or "),
    ],
)
def test_what_is_no_command_is_answered_with_what_was_meant(
    door: Door, arguments: tuple[str, ...], meant: str
) -> None:
    code, out, err = door(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {meant}")
    assert err.count("\n") == 1


def test_the_program_ends_with_its_exit_code_and_all_that_was_begun() -> None:
    code = """
import atexit, os, threading, time
def late():
    time.sleep(0.2)
    os.write(1, b"thread ")
atexit.register(lambda: os.write(1, b"handler"))
from ropechat.cli import entry
threading.Thread(target=late).start()
entry()
"""
    done = subprocess.run(
        [sys.executable, "-c", code, "chats", "show", "none"],
        capture_output=True,
        env=environment(),
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (2, b"thread handler")
    assert done.stderr.startswith(b"error: conversation 'none'")
    shown = subprocess.run([sys.executable, "-c", code, "--help"], capture_output=True, timeout=60)
    assert (shown.returncode, b"Usage:" in shown.stdout) == (0, True)
    assert b"thread " in shown.stdout  # before or after the help text: that depends on the machine's load
    assert shown.stdout.endswith(b"handler")


def test_ctrl_c_during_the_imports_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    from ropechat import cli

    def interrupted(given: object) -> list[str]:
        raise KeyboardInterrupt

    monkeypatch.setattr("ropechat.cli.route.with_command", interrupted)
    assert cli.main(["models", "list"]) == 130


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_that_a_callback_swallows_ends_the_command_later(number: signal.Signals) -> None:
    from ropechat.cli import exit_codes

    with exit_codes._ending_signals():
        with contextlib.suppress(KeyboardInterrupt, Terminated):
            os.kill(os.getpid(), number)
            time.sleep(1)  # the handler runs at the latest here
        with pytest.raises((KeyboardInterrupt, Terminated)):
            exit_codes.check_signals()
    with exit_codes._ending_signals():
        exit_codes.check_signals()  # of the next command


NATIVE_WAIT = """
import hashlib, sys, threading, time
import click
from ropechat.cli import interrupt
from ropechat.cli.exit_codes import run_command
interrupt._APART, interrupt._GRACE = 0.05, 0.1
@click.command()
def wait():
    sys.setswitchinterval(1000)  # so "ready" is said when this thread has given the GIL away for minutes
    threading.Thread(target=lambda: (time.sleep(0.05), print("ready", flush=True)), daemon=True).start()
    hashlib.pbkdf2_hmac("sha256", b"x", b"x", 10**9)  # minutes, without the GIL
sys.exit(run_command(wait, []))
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_second_signal_ends_every_wait(number: signal.Signals, code: int) -> None:
    with subprocess.Popen([sys.executable, "-c", NATIVE_WAIT], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        while child.poll() is None:
            child.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(0.1)
    assert child.returncode == code
