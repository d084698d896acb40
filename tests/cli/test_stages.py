"""inspect --stages, run --trace, inspect --open and --replay, on a compiled (small, random) model."""

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from cli_door import CompiledDoor, Door
from model_folders import byte_tokenizer
from models import write_llama

from ropechat.cli.exit_codes import REFUSED, SOME_FAILED


@pytest.fixture
def door(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Door:
    return CompiledDoor(monkeypatch, capfd)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_llama(tmp_path_factory.mktemp("stages"), vocab_size=260, max_position_embeddings=512)
    (folder / "tokenizer.json").write_text(json.dumps(byte_tokenizer()))
    return folder


def records(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.removesuffix("\n").split("\n")]  # U+0085 ends no line of JSON


# ---- inspect --stages

NUCLEUS = ("--temperature", 0.7, "--top-k", 0, "--top-p", 0.5)


def test_stages_in_jsonl(door: Door, model: Path) -> None:
    code, out, _ = door("inspect", "-m", model, "--stages", *NUCLEUS, "--format", "jsonl", "abcabc")
    meta, *tokens, following, summary = records(out)
    assert code == 0
    assert (meta["sampling"]["temperature"], meta["sampling"]["top_k"], meta["sampling"]["top_p"]) == (
        0.7,
        0,
        0.5,
    )
    assert "sampler" not in following
    judged = [token["sampler"] for token in tokens if "sampler" in token]
    assert len(judged) == len(tokens) - 1
    for token, one in zip(tokens[1:], judged, strict=True):
        assert [stage["name"] for stage in one["stages"]] == ["temperature", "top_p"]
        own = next(candidate for candidate in one["candidates"] if candidate["id"] == token["id"])
        assert (one["cut"], one["p"], one["rank"]) == (own["cut"], own["p"], own["rank"])
        assert (one["u"], one["interval"] is None) == (None, one["cut"] is not None)
        assert one["cut"] == (None if own["rank"] <= one["stages"][1]["kept"] else "top_p")
        assert len(own["by_stage"]) == 2
    produced = sum(one["cut"] is None for one in judged)
    assert summary["producible"] == {
        "tokens": len(judged),
        "produced": produced,
        "share": produced / len(judged),
        "cut_by": {"top_p": len(judged) - produced} if produced < len(judged) else {},
    }


def test_stages_in_a_table(door: Door, model: Path) -> None:
    code, out, _ = door("inspect", "-m", model, "--stages", *NUCLEUS, "--candidates", 1, "abc")
    results = [line for line in out.splitlines() if line.startswith(("    cut by top_p, rank ", "    p 0."))]
    assert code == 0
    assert len(results) == 2
    assert all(" · temperature 260 · top_p " in line for line in results)
    assert out.splitlines()[-1].startswith("temperature 0.7, top_p 0.5 can produce ")
    assert " of 2 tokens (" in out.splitlines()[-1]
    assert door("inspect", "-m", model, "abc")[1].count("top_p") == 0


@pytest.mark.parametrize("width", [40, 60, 100])
def test_the_result_of_a_draw_is_shown_at_any_width(
    door: Door, model: Path, width: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    file = tmp_path / "t.jsonl"
    settings = ["--top-p", 0.97, "--min-p", 0.001, "--repetition-penalty", 1.1, "--top-k", 200, "--seed", 3]
    traced(door, model, file, *settings)
    lines = door("inspect", "--open", file, "--candidates", 0)[1].splitlines()
    at = [place for place, line in enumerate(lines) if line.startswith("    p ")]
    assert len(at) == 30
    for place, following in zip(at, [*at[1:], len(lines) - 2], strict=True):
        told = " ".join(line.strip() for line in lines[place:following] if line.startswith("    "))
        assert re.match(r"p [\d.]+( ·)? u [\d.]+ in [\d.]+ to [\d.]+( ·)? repetition_penalty 260", told), told
        assert "top_k 200" in told
        assert "min_p " in told
        assert "…" not in told
    assert max(len(line) for line in lines[1:] if line.startswith(" ")) <= width


def test_stages_in_csv_and_on_a_page(door: Door, model: Path) -> None:
    ask = ("inspect", "-m", model, "--stages", *NUCLEUS, "--candidates", 3, "abc", "--format")
    judged = [one["sampler"] for one in records(door(*ask, "jsonl")[1]) if "sampler" in one]
    rows = list(csv.DictReader(io.StringIO(door(*ask, "csv")[1])))
    assert rows[0]["cut"] == rows[0]["top_p_kept"] == ""  # the first token has no context
    for one, row in zip(judged, rows[1:], strict=True):
        assert (row["cut"] or None, row["sampler_rank"]) == (one["cut"], str(one["rank"]))
        assert [row["interval_start"], row["interval_end"]] == [str(x) for x in one["interval"] or ("", "")]
        for stage in one["stages"]:
            assert row[f"{stage['name']}_kept"] == str(stage["kept"])
            assert float(row[f"{stage['name']}_mass"]) == stage["mass"]
    page = door(*ask, "html")[1]
    assert '<script type="application/json" id="stages">["temperature","top_p"]</script>' in page
    block = re.search(r'id="rows">(.*?)</script>', page)
    assert block is not None
    for one, row in zip(judged, json.loads(block[1])[1:], strict=False):
        left, cut, rank, p, *_ = row[6]
        assert left[1::3] == [stage["kept"] for stage in one["stages"]]
        assert (cut, rank, p) == (1 if one["cut"] else -1, one["rank"], round(one["p"], 5))
    assert "can be produced" in page
    code, _, err = door(*ask, "svg")
    assert (code, "--stages: not possible as svg; use one of table, jsonl, csv, html" in err) == (
        REFUSED,
        True,
    )


def test_stages_take_the_users_settings(
    door: Door, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "settings.toml"
    file.write_text("[sampling]\ntop_k = 7\nmin_p = 0.25\n")
    monkeypatch.setenv("ROPECHAT_CONFIG", str(file))
    monkeypatch.setenv("ROPECHAT_MIN_P", "0.5")
    ask = ("inspect", "-m", model, "--stages", "--format", "jsonl", "ab")
    settings = records(door(*ask)[1])[0]["sampling"]
    assert (settings["temperature"], settings["top_k"], settings["min_p"]) == (0.7, 7, 0.5)
    assert records(door(*ask, "--min-p", 0.1)[1])[0]["sampling"]["min_p"] == 0.1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--temperature", "1", "a"], "--temperature: requires --stages; add it"),
        (["--top-k", "1", "a"], "--top-k: requires --stages; add it, or --candidates for those shown"),
        (["--stages", "--top-p", "2", "a"], "--top-p: must be a number above 0 to 1 (got 2.0)"),
        (["--stages", "--top-k", "-2", "a"], "--top-k: must be an integer from 0"),
        (["--replay", "a"], "--replay: requires --open; add it"),
        (["--open", "{nothing}", "a"], "--open: not possible with TEXT; give only the record"),
        (["--against-dtype", "f32", "a"], "--against-dtype: requires --interactive"),
        (["--open", "{nothing}", "--stages"], "--stages: needs a model, which a record is not; add -m"),
        (["--open", "{nothing}", "--lens"], "--lens: needs a model"),
        (["--open", "{nothing}", "--look-up", "x"], "--look-up: needs a model"),
        (["-i", "x", "a"], "TEXT: not possible with -i"),
        *(
            (["-i", "x", *option], f"{option[0]}: not possible with -i; omit it")
            for option in (
                ["--chat"],
                ["--given-file", "x"],
                ["--messages", "x"],
                ["--look-up", "x"],
                ["--special", "tokens"],
                ["--bos", "no"],
                ["--stride", "2"],
                ["--one-sequence"],
                ["--roles", "user"],
                ["--candidates", "3"],
                ["--output", "x.html"],
                ["--format", "csv"],
                ["--by", "line"],
                ["--lens"],
                ["--stages"],
                ["--keep-prefix", "x"],
                ["--template-var", "x=1"],
                ["--file", "y"],
                ["--open", "y"],
            )
        ),
        (["--open", "{bad}"], "bad.jsonl: line 1: must be JSON"),
        (["--open", "{nothing}"], "nothing.jsonl: file not found"),
        (["--open", "{nothing}", "-m", "x"], "--model: not possible with --open"),
        (["--open", "{nothing}", "--window", "9"], "--window: not possible with --open"),
        (
            ["--open", "{nothing}", "--replay", "--candidates", "9"],
            "--candidates: not possible with --replay",
        ),
    ],
)
def test_what_inspect_refuses(door: Door, tmp_path: Path, arguments: list[str], words: str) -> None:
    (tmp_path / "bad.jsonl").write_text("nothing")
    names = {"{nothing}": "nothing.jsonl", "{bad}": "bad.jsonl"}
    code, out, err = door(
        "inspect", *(str(tmp_path / names[one]) if one in names else one for one in arguments)
    )
    assert (code, out) == (REFUSED, "")
    assert words in err
    assert err.count("\n") == 1


# ---- run --trace, inspect --open


def traced(door: Door, model: Path, file: Path, *options: object) -> tuple[str, list[dict[str, Any]]]:
    _, out, _ = door(
        "run",
        "-m",
        model,
        "--quiet",
        "--max-tokens",
        30,
        "--temperature",
        1,
        "--trace",
        file,
        *options,
        "abc",
    )
    return out, records(file.read_text())


def test_a_run_is_recorded_shown_and_replayed(door: Door, model: Path, tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl"
    text, [meta, *tokens, summary] = traced(door, model, file, "--seed", 3)
    assert (meta["schema"], meta["text"]) == ("ropechat.trace/1", text.removesuffix("\n"))
    parts = [meta["text"].encode()[slice(*token["span"])].decode() for token in tokens]  # whole characters
    assert "".join(parts) == meta["text"]
    assert len(tokens) == 30
    assert summary["summary"] is True
    for token in tokens:
        start, end = token["sampler"]["interval"]
        assert start <= token["sampler"]["u"] < end
        assert len(token["sampler"]["candidates"]) in (20, 21)
        assert len(token["top_text"]) == 20
    code, out, err = door("inspect", "--open", file, "--replay")
    assert (code, out, err) == (0, "30 draws replayed, 0 mismatches\n", "")
    code, out, _ = door("inspect", "--open", file)
    assert code == 0
    assert out.count(" u 0.") == 30
    listed = [line for line in out.splitlines() if re.match(" {4}[█▏▎▍▌▋▊▉ ]* [0-9.<]+%  ", line)]
    assert len(listed) == 30 * 5  # candidates, as in the table of a text
    assert door("inspect", "--open", file, "--candidates", 1)[1].count("%  ") == 30 * 2
    assert records(door("inspect", "--open", file, "--format", "jsonl")[1])[1:-1] == tokens
    code, out, _ = door("inspect", "--open", "-", "--replay", stdin=file.read_bytes())
    assert code == 0


def test_a_changed_record_is_found(door: Door, model: Path, tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl"
    _, [meta, *tokens, summary] = traced(door, model, file, "--seed", 9)
    tokens[3]["sampler"]["u"] = (tokens[3]["sampler"]["u"] + 0.5) % 1.0
    file.write_text("".join(json.dumps(one) + "\n" for one in (meta, *tokens, summary)))
    code, out, _ = door("inspect", "--open", file, "--replay")
    assert code == SOME_FAILED
    assert out.startswith(f"{tokens[3]['i']}: ")
    assert out.endswith("30 draws replayed, 1 mismatch\n")


def test_a_text_has_nothing_to_replay(door: Door, model: Path, tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl"
    assert door("inspect", "-m", model, "--stages", "-o", file, "abc")[0] == 0
    code, out, err = door("inspect", "--open", file, "--replay")
    assert (code, out) == (SOME_FAILED, "0 draws replayed, 0 mismatches\n")
    assert "run --trace" in err


def test_a_recorded_trace_becomes_a_page(door: Door, model: Path, tmp_path: Path) -> None:
    traced(door, model, tmp_path / "t.jsonl")
    assert door("inspect", "--open", tmp_path / "t.jsonl", "-o", tmp_path / "t.html")[0] == 0
    assert (tmp_path / "t.html").read_text().startswith("<!DOCTYPE html>")


def test_hostile_texts_in_a_trace_stay_texts(door: Door, model: Path, tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl"
    _, [meta, *tokens, summary] = traced(door, model, file, "--seed", 3)
    escape = "\x1b]0;owned\x07\u202e"
    tokens[1]["token"], tokens[1]["bytes"] = escape, list(escape.encode())
    tokens[1]["top_text"] = [escape] * 20
    meta["model"] = meta["text"] = escape
    file.write_text("".join(json.dumps(one) + "\n" for one in (meta, *tokens, summary)))
    for more in ((), ("--replay",)):
        _, out, err = door("inspect", "--open", file, *more)
        assert "owned" in out or more
        assert not {"\x1b", "\x07", "\u202e"} & set(out + err)


def test_a_seed_that_was_not_given_is_recorded(door: Door, model: Path, tmp_path: Path) -> None:
    """So that this draw too can be replayed and repeated."""
    file = tmp_path / "t.jsonl"
    _, [meta, *tokens, _] = traced(door, model, file)
    print(f"seed {meta['sampling']['seed']}")
    assert door("inspect", "--open", file, "--replay")[:2] == (
        0,
        f"{len(tokens)} draws replayed, 0 mismatches\n",
    )
    _, [_, *again, _] = traced(door, model, file, "--seed", meta["sampling"]["seed"])
    for token in (*tokens, *again):
        token.pop("drafted", None)  # which drafts there were depends on measured times
    assert again == tokens


def test_a_trace_in_place_of_the_text(door: Door, model: Path) -> None:
    run = ("run", "-m", model, "--quiet", "--max-tokens", 3, "--seed", 4, "abc")
    code, out, _ = door(*run, "--trace", "-")
    assert code == 0
    assert [one.get("i") for one in records(out)] == [None, *(one["i"] for one in records(out)[1:-1]), None]
    assert len(records(out)) == 5


def test_json_with_candidates(door: Door, model: Path) -> None:
    run = ("run", "-m", model, "--quiet", "--max-tokens", 3, "--seed", 4, "--json", "abc")
    plain, found = (json.loads(door(*run, *more)[1]) for more in ((), ("--candidates", 2)))
    assert "tokens" not in plain
    assert plain["ids"] == found["ids"] == [token["id"] for token in found["tokens"]]
    assert found["sampling"]["seed"] == 4
    assert [len(token["top"]) for token in found["tokens"]] == [2, 2, 2]
    assert all(token["sampler"]["u"] is not None for token in found["tokens"])


def test_a_trace_that_cannot_be_written_is_refused_first(door: Door, tmp_path: Path) -> None:
    code, out, err = door("run", "-m", "no-model-is-needed", "--trace", tmp_path / "no" / "t.jsonl", "a")
    assert (code, out) == (74, "")
    assert "not found; choose another file" in err
    code, _, err = door("run", "--trace", tmp_path / "t.jsonl", "--candidates", 0, "a")
    assert (code, "--candidates: must be at least 1" in err) == (REFUSED, True)
