"""`ropechat inspect --open` with records of other programs, whose formats tests/inspector has."""

import csv
import io
import json
from pathlib import Path

from cli_door import Door
from model_folders import byte_folder

from ropechat.cli.exit_codes import CHECK_FAILED, REFUSED

SAMPLES = Path(__file__).parents[1] / "inspector/recorded"
CHAT, CHOICES = SAMPLES / "llama_cpp_python_chat.json", SAMPLES / "lm_eval_choices.jsonl"


def test_the_views_of_a_record(door: Door) -> None:
    code, out, err = door("inspect", "--open", CHAT, "--candidates", 1)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[2].split() == ["0", "L", "4c", "15.2%", "2.72", "bit", "1", "–"]
    assert lines[-1] == "6 tokens, 6 scored: 7.44 bits, perplexity 2.36, 0.744 bits/byte"
    assert (
        door("inspect", "--open", "-", "--candidates", 1, stdin=CHAT.read_bytes())[1].splitlines()[1:]
        == lines[1:]
    )
    words = door("inspect", "--open", CHAT, "--by", "word", "--below", 0.1)[1].splitlines()
    assert words[1].split() == ["1", "5.34", "2.5%", "▎", "5", "L'Étoile"]
    chart = door("inspect", "--open", CHAT, "--chart", "--unit", "nat")[1]
    assert "surprisal   1.9 nat" in chart
    assert "entropy" not in chart  # not recorded
    for form in ("html", "svg"):
        assert "entropy" not in door("inspect", "--open", CHAT, "--chart", "--format", form)[1]
    assert "Étoile" not in door("inspect", "--open", CHAT, "--format", "svg")[2]
    code, _, err = door("inspect", "--open", CHAT, "--fail-below", 0.05)
    assert (code, err) == (CHECK_FAILED, f"unsure: {CHAT}:1: 2.5% in 5 tokens: L'Étoile\n")


def test_a_file_with_several_answers(door: Door) -> None:
    rows = [
        json.loads(line)
        for line in door("inspect", "--open", CHOICES, "--by", "line", "--format", "jsonl")[1].splitlines()
    ]
    assert [row["file"].removeprefix(f"{CHOICES}: ") for row in rows[::3]] == [
        f"doc {at}, choice 0" for at in range(4)
    ]
    table = door("inspect", "--open", CHOICES, "--by", "line", "--sort", "bits", "--rows", 2)[1].splitlines()
    assert table[1].split()[:6] == ["…:", "doc", "1,", "choice", "2:1", "16.0"]
    tokens = list(csv.DictReader(io.StringIO(door("inspect", "--open", CHOICES, "--format", "csv")[1])))
    assert [(row["token"], row["id"]) for row in tokens[:2]] == [("·Paris", ""), ("·Rome", "")]
    page = door("inspect", "--open", CHOICES, "--format", "html")[1]
    assert page.count('<section class="text card">') == 12


def test_what_needs_a_model_gets_the_text(door: Door, tmp_path: Path) -> None:
    model, prompt = byte_folder(tmp_path / "m"), tmp_path / "prompt.txt"
    prompt.write_text("Q")
    open_with = (
        "inspect",
        "--open",
        SAMPLES / "ollama.json",
        "-m",
        model,
        "--look-up",
        "P",
        "--candidates",
        0,
    )
    code, out, err = door(*open_with)
    assert (code, err) == (
        0,
        f"note: {SAMPLES / 'ollama.json'}: the text is read without its prompt, which --given-file adds\n",
    )
    assert [line.split()[1] for line in out.splitlines() if line[:4].strip().isdecimal()] == [*"Paris"]
    code, out, err = door(*open_with, "--given-file", prompt)
    assert (code, err) == (0, "")
    assert "5 tokens, 5 scored" in out.splitlines()[-1]
    code, _, err = door("inspect", "--open", CHAT, "-m", model)
    assert (code, "--model: not possible with --open; omit it" in err) == (REFUSED, True)
