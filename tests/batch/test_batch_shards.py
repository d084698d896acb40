"""Shards: parts of a file on several machines are, merged, the file that one run writes."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from cli_door import Door

from ropechat.batch.shard import Shard

ROWS = "".join(json.dumps({"id": f"row {number}", "prompt": "ab"}) + "\n" for number in range(30))
ODD = '{"id": "row 3", "prompt": "again"}\nnot JSON\n{"prompt": "no id"}\n{"id": 5}\n'
DRAWN = ("--seed", 7, "--max-tokens", 4, "--temperature", 1, "--quiet")


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text(ROWS + ODD)
    return path


def split(door: Door, rows: Path, model: Path, out: Path, count: int, *options: object) -> list[Path]:
    """Compute all shards of a file; return their files."""
    given = ("batch", rows, "-m", model, "-o", out, *DRAWN, *options)
    for number in range(1, count + 1):
        code, _, err = door(*given, "--shard", f"{number}/{count}")
        assert code in (0, 3), err
    return [Shard(number, count).file_of(out) for number in range(1, count + 1)]


def test_a_row_stays_in_its_shard() -> None:
    ids = [f"id {number}" for number in range(4000)]
    for count in (1, 2, 7):
        shards = [Shard(number, count) for number in range(1, count + 1)]
        sizes = [sum(map(shard.has, ids)) for shard in shards]
        assert sum(sizes) == len(ids)
        assert min(sizes) > 0.85 * len(ids) / count
    digest = hashlib.blake2b(b"id 1", digest_size=8).digest()
    assert Shard(int.from_bytes(digest, "little") % 8 + 1, 8).has("id 1")  # what other programs can compute


@pytest.mark.parametrize(
    "text", ["", "1", "0/2", "3/2", "1/0", "-1/2", "1/99999", "a/b", "1/2/3", "\u0662/\u0663x"]
)
def test_what_is_not_a_shard(text: str) -> None:
    with pytest.raises(ValueError, match="must be i/n"):
        Shard.parse(text)


@pytest.mark.parametrize(
    ("out", "file"), [("a.csv", "a.2of8.jsonl"), ("b", "b.2of8.jsonl"), ("c.d.jsonl.gz", "c.d.2of8.jsonl")]
)
def test_the_file_of_a_shard(out: str, file: str) -> None:
    assert Shard.parse("2/8").file_of(Path(out)) == Path(file)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("form", "options"),
    [
        ("jsonl", ("--n", "2", "--logprobs", "1")),
        ("openai", ()),
        ("json", ()),
        ("csv", ("--keep", "prompt")),
    ],
)
def test_merged_shards_are_the_file_of_one_run(
    form: str, options: tuple[str, ...], door: Door, rows: Path, model: Path, tmp_path: Path
) -> None:
    one = tmp_path / "one"
    door("batch", rows, "-m", model, "-o", one, "--format", form, *DRAWN, *options)
    for count in (1, 2, 4, 8):
        files = split(door, rows, model, tmp_path / f"by{count}", count, *options)
        out = tmp_path / f"merged{count}"
        code, _, err = door("merge", out, *reversed(files), "--order-of", rows, "--format", form)
        assert (code, f"rows of {count} shard" in err and ", 3 failed" in err) == (3, True)
        assert out.read_bytes() == one.read_bytes()
        if form == "openai":
            errors = tmp_path / f"merged{count}.errors"
            assert errors.read_bytes() == (tmp_path / "one.errors").read_bytes()
    counts = ("ok", "failed", "prompt_tokens", "completion_tokens", "run_seed", "isa", "model")
    whole, merged = (json.loads((tmp_path / f"{name}.run.json").read_text()) for name in ("one", "merged8"))
    assert [merged[name] for name in counts] == [whole[name] for name in counts]


def test_columns_of_a_csv_and_a_shard_without_rows(door: Door, model: Path, tmp_path: Path) -> None:
    rows = tmp_path / "rows.csv"
    rows.write_text('id,text,note\n1,ab,"x, y"\n2,cd,z\n')
    options = ("--prompt", "{{ text }}", "--keep", "all")
    door("batch", rows, "-m", model, "-o", tmp_path / "one.csv", *DRAWN, *options)
    files = split(door, rows, model, tmp_path / "by.csv", 8, *options)
    assert any(file.read_bytes() == b"" for file in files)
    code, _, err = door("merge", tmp_path / "all.csv", *files, "--order-of", rows)
    assert code == 0, err
    assert (tmp_path / "all.csv").read_bytes() == (tmp_path / "one.csv").read_bytes()


def test_scores_are_merged_with_their_accuracy(door: Door, model: Path, tmp_path: Path) -> None:
    rows = tmp_path / "choices.jsonl"
    lines = [{"id": n, "prompt": "a", "choices": ["x", "b"], "answer": n % 2} for n in range(6)]
    rows.write_text("".join(json.dumps(line) + "\n" for line in lines))
    door("batch", rows, "-m", model, "-o", tmp_path / "one.jsonl", "--score")
    for number in (1, 2):
        code, _, err = door(
            "batch", rows, "-m", model, "-o", tmp_path / "by.jsonl", "--score", "--shard", f"{number}/2"
        )
        assert code == 0, err
    shards = (tmp_path / "by.1of2.jsonl", tmp_path / "by.2of2.jsonl")
    code, _, err = door("merge", tmp_path / "all.jsonl", *shards, "--order-of", rows)
    assert "accuracy 0.5" in err
    assert (tmp_path / "all.jsonl").read_bytes() == (tmp_path / "one.jsonl").read_bytes()
    door("batch", rows, "-m", model, "-o", tmp_path / "one.csv", "--score")
    assert door("merge", tmp_path / "all.csv", *shards, "--order-of", rows)[0] == 0
    assert (tmp_path / "all.csv").read_bytes() == (tmp_path / "one.csv").read_bytes()


def test_merging_refuses_what_one_run_would_not_write(
    door: Door, rows: Path, model: Path, tmp_path: Path
) -> None:
    one, two = split(door, rows, model, tmp_path / "by", 2)
    out = tmp_path / "out.jsonl"

    def refused(*given: object, order: Path = rows) -> str:
        code, _, err = door("merge", out, *given, "--order-of", order)
        assert code == 2
        assert not out.exists()
        assert not list(tmp_path.glob("*.partial"))
        return err

    assert "shards: 2/2 missing" in refused(one)
    assert f"{one}: is shard 1/2, and so is {one.name}" in refused(one, two, one)
    assert "run.json: file not found; finish the shard first" in refused(one, tmp_path / "by.3of2.jsonl")
    assert "must be a shard" in refused(_plain(door, rows, model, tmp_path), two)
    for change, words in (
        ("".join(ROWS.splitlines(keepends=True)[1:]) + ODD, "row 1: is 'row 0', but 'row 1' in the input"),
        (ROWS + ODD + '{"id": "new", "prompt": "b"}\n', "row 35 ('new'): in no shard"),
        (ROWS, "row 31: not in the input, which has 30 rows"),
    ):
        other = tmp_path / "changed.jsonl"
        other.write_text(change)
        assert words in refused(one, two, order=other)
    lines = two.read_text().splitlines(keepends=True)
    run_record = two.with_name(two.name + ".run.json")
    for text, words in (
        ("".join(lines[:-1]), "as its .run.json says"),
        ("".join([*lines[:-1], lines[-1][:20]]), f"line {len(lines)}: must be a record"),
        ("".join([*lines[:-1], one.read_text().splitlines()[0]]), "is also in by.1of2.jsonl"),
    ):
        two.write_text(text)
        assert words in refused(one, two)
    two.write_text("".join(lines))
    facts: dict[str, Any] = json.loads(run_record.read_text())
    run_record.write_text(json.dumps({**facts, "isa": "amx", "dtype": "q8_0"}))
    assert "other settings than by." in (err := refused(one, two))
    assert "dtype: " in err
    assert "isa: " in err
    run_record.write_text(json.dumps({**facts, "isa": "amx"}))
    refused(one, two)
    assert door("merge", out, one, two, "--order-of", rows, "--any-isa")[0] == 3
    assert "amx" in json.loads((tmp_path / "out.jsonl.run.json").read_text())["isa"]
    code, _, err = door("merge", out, one, two, "--order-of", rows, "--any-isa")
    assert (code, "exists" in err) == (2, True)


def _plain(door: Door, rows: Path, model: Path, tmp_path: Path) -> Path:
    door("batch", rows, "-m", model, "-o", tmp_path / "plain.jsonl", *DRAWN)
    return tmp_path / "plain.jsonl"


def test_a_shard_is_resumed_with_new_rows(door: Door, rows: Path, model: Path, tmp_path: Path) -> None:
    split(door, rows, model, tmp_path / "by", 2, "--resume")
    rows.write_text('{"id": "first", "prompt": "x"}\n' + ROWS)
    files = split(door, rows, model, tmp_path / "by", 2, "--resume")
    door("batch", rows, "-m", model, "-o", tmp_path / "one", *DRAWN)
    code, _, err = door("merge", tmp_path / "all", *files, "--order-of", rows)
    assert code == 0, err
    assert (tmp_path / "all").read_bytes() == (tmp_path / "one").read_bytes()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("-o", "-", "--seed", 1), "requires a file"),
        (("-o", "x", "--seed", 1, "--format", "csv"), "use --format with `ropechat merge`"),
        (("-o", "x"), "requires --seed"),
        (("-o", "x", "--seed", 1, "--shard", "9/8"), "must be i/n"),
    ],
)
def test_shards_that_could_not_be_merged(
    options: tuple[Any, ...], words: str, door: Door, rows: Path
) -> None:
    code, _, err = door("batch", rows, "--shard", "1/2", *options)
    assert (code, words in err) == (2, True)
