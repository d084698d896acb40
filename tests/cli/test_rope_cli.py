"""`ropechat rope`: its options, files and errors, on real configs and the built-in model."""

import json
import re
from pathlib import Path

import pytest
from golden_cases import GOLDEN

from ropechat.cli import main
from ropechat.cli.rope import _CONFIG, _WEIGHTS
from ropechat.inspector.rope.report import CONFIG_VIEWS, WEIGHT_VIEWS

LLAMA = str(GOLDEN / "llama3_new")


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("ROPECHAT_CACHE", "off")
    monkeypatch.delenv("ROPECHAT_MODEL", raising=False)


def run(capfd: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = main(["rope", *map(str, arguments)])
    return code, *capfd.readouterr()


def test_the_command_knows_the_views() -> None:
    assert (_CONFIG, _WEIGHTS) == (CONFIG_VIEWS, WEIGHT_VIEWS)


def test_the_bands_of_a_config_alone(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((GOLDEN / "llama3_new" / "config.json").read_bytes())
    for model in (tmp_path, tmp_path / "config.json"):
        code, out, err = run(capfd, "-m", model)
        assert (code, err) == (0, "")
        assert "V1 Bands" in out
        assert "llama3" in out
        assert "V2" not in out


def test_output_by_suffix(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    starts = {
        "json": "{",
        "csv": "view,part,",
        "svg": "<svg",
        "html": "<!DOCTYPE html>",
        "txt": "llama, trained",
    }
    for suffix, start in starts.items():
        file = tmp_path / f"out.{suffix}"
        code, out, _ = run(capfd, "-m", LLAMA, "--views", "bands,decay", "--max-distance", 100, "-o", file)
        assert (code, out) == (0, "")
        assert file.read_text().startswith(start)
        code, out, err = run(capfd, "-m", LLAMA, "-o", file)
        assert (code, out) == (2, "")
        assert "exists; choose another output or add --overwrite" in err
    assert run(capfd, "-m", LLAMA, "-o", file, "--overwrite")[0] == 0
    code, out, _ = run(capfd, "-m", LLAMA, "--format", "json", "--views", "all", "--max-distance", 50)
    assert [view["name"] for view in json.loads(out)["views"]] == ["model", *CONFIG_VIEWS]


def test_shapes(capfd: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capfd, "--shape", "list")
    assert code == 0
    assert "llama-3.2-1b" in out.split()
    code, out, _ = run(capfd, "--shape", "llama-3.2-1b", "--views", "properties")
    assert re.search(r"longest wavelength +6\.671e\+07", out)


def test_errors(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for arguments, words in (
        (("--views", "bands,colour"), "--views: must be some of bands, map"),
        (("--shift-test", "0"), "--shift-test: must be positions from 1"),
        (("--shift-test", "1,1073741825"), "--shift-test: must be positions from 1 to 1073741824"),
        (("--shape", "gpt-9"), "shape: must be one of"),
        (("--shape", "llama-7b", "--views", "usage"), "--shape has no weights"),
        (("--shape", "llama-7b", "-m", LLAMA), "--shape: not possible with --model"),
        (("-m", LLAMA, "-o", tmp_path / "a.png"), "-o: must end in"),
        (("-m", LLAMA, "-f", __file__), "used by the views matrix, shift"),
        (("-m", tmp_path / "config.json"), "config.json"),
    ):
        code, out, err = run(capfd, *arguments)
        assert out == ""
        assert code in (2, 4)
        assert words in err.replace("Invalid value for ", "").replace("'", "")
        assert err.count("\n") == 1
    code, _, err = run(capfd, "-m", LLAMA, "-o", tmp_path / "no" / "a.json")
    assert code == 74
    assert "a.json" in err


def test_views_with_weights(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("The cat sat on the mat. The cat sat.")
    arguments = (
        "--views",
        "split,usage,distance",
        "--shift-test",
        "1,131072",
        "-f",
        text,
        "--format",
        "json",
    )
    code, out, _ = run(capfd, *arguments)
    assert code == 0
    views = {view["name"]: view["blocks"] for view in json.loads(out)["views"]}
    assert list(views) == ["model", "split", "usage", "distance", "shift"]
    for shift, change, divergence, relative in views["shift"][1]["rows"]:
        assert shift in (1, 131_072)
        assert change <= 1e-4
        assert divergence < 1e-6
        assert relative is True
    values = dict(views["split"][1]["rows"])
    assert values["difference"] <= 1e-4


@pytest.mark.slow
def test_the_examples_of_the_help_run(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _, out, _ = run(capfd, "--help")
    examples = re.findall(r"^ +ropechat (rope.*)$", out, re.MULTILINE)
    assert len(examples) >= 5
    for example in examples:
        assert main(example.split()) == 0
    assert (tmp_path / "rope.html").is_file()
