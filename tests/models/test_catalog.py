"""The catalog of models: what it must state, its short names, and its check against a stand-in Hub."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from hub_server import Hub, Repo, serve, use

from ropechat.engine.native import model_types
from ropechat.models import catalog
from ropechat.models.catalog import CatalogModel, closest_short, find_short, read_catalog
from ropechat.models.hub.names import parse
from ropechat.models.weights import is_plain

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.mark.parametrize("model", read_catalog(), ids=lambda model: model.short[0])
def test_what_an_entry_states(model: CatalogModel) -> None:
    assert parse(str(model.hub_name)) == model.hub_name
    assert is_plain(model.file)
    assert model.file.endswith(".gguf") == (model.hub_name.quant is not None)
    assert all(name == name.lower() and catalog.is_short(name) for name in model.short)
    # A stored weight has between 4 and 17 bits.
    assert 4 / 8 < model.size / model.num_parameters < 17 / 8
    assert model.size < model.needs < model.size + 2 * 10**9
    assert len(model.name) <= 20
    assert len(model.about) <= 56  # a line of the dialog at 60 columns
    assert model.license == model.license.lower()
    assert not model.checked or len(model.checked) == len("2026-01-31")
    assert model.model_type in model_types()
    assert (model.num_attention_layers or 1) <= model.num_hidden_layers
    assert model.package is None or re.fullmatch("[0-9a-f]{64}", model.package.sha256)


def test_the_family_of_each_entry_has_a_golden() -> None:
    """Its numbers are compared with those of another implementation."""
    configs = [json.loads(file.read_bytes()) for file in GOLDEN.glob("*/config.json")]
    tested = {config.get("model_type") for config in configs}
    assert len(tested) > 50
    assert {one.model_type for one in read_catalog()} - tested == set()


def test_the_smallest_is_offered_and_is_in_a_package() -> None:
    model = catalog.offered_model()
    assert model is read_catalog()[0]
    assert model.package is not None
    assert catalog.shown_name(str(model.hub_name)) == model.name
    assert catalog.shown_name("org/other:Q4_1") == "org/other:Q4_1"
    assert catalog.shown_name("Some-Model") == "Some-Model"


def test_the_catalog_is_sorted_and_its_short_names_are_unique() -> None:
    models = read_catalog()
    assert [one.size for one in models] == sorted(one.size for one in models)
    names = [name for one in models for name in one.short]
    assert len(set(names)) == len(names)


def test_short_names() -> None:
    for text, name in (
        *(("qwen3:0.6b", "Qwen3 0.6B"), ("Qwen3:0.6B", "Qwen3 0.6B"), ("gemma3:4b", "Gemma 3 4B")),
        *(("llama3.2", "Llama 3.2 3B"), ("llama3.2:latest", "Llama 3.2 3B"), ("qwen3", "Qwen3 8B")),
    ):
        found = find_short(text)
        assert found is not None
        assert found.name == name
    for text in ("qwen3:0.7b", "org/name", "", "a b", "../x", "x.gguf", "qwen3:", ":0.6b", "qwen3:0.6b\n"):
        assert find_short(text) is None
    assert closest_short("qwen3:06b") == "qwen3:0.6b"
    assert closest_short("lama3.2:1b") == "llama3.2:1b"
    assert closest_short("zzzz") == ""


# ---- The check against the Hub


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "bench"))
    sys.modules.pop("catalog", None)
    import catalog as script

    return script


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A Hub that lists everything as the catalog has it."""
    with serve() as hub:
        use(hub, tmp_path, monkeypatch)
        for one in read_catalog():
            repo = hub.repos.setdefault(one.repo, Repo({"README.md": b"", "other-Q2_K.gguf": b""}))
            repo.files[one.file] = b""
            repo.sizes[one.file] = one.size
            repo.facts["cardData"] = {"license": one.license}
            if one.file.endswith(".gguf"):
                context = one.max_position_embeddings
                repo.facts["gguf"] = {"total": one.num_parameters + 32, "context_length": context}
        yield hub


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the catalog, to be written to."""
    copy = tmp_path / "catalog.toml"
    copy.write_bytes(catalog.FILE.read_bytes())
    monkeypatch.setattr(catalog, "FILE", copy)
    return copy


@pytest.mark.slow
def test_nothing_differs(
    script: ModuleType, hub: Hub, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert script.main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(read_catalog())
    assert all(line.endswith(": as the Hub lists it") for line in lines)
    assert file.read_bytes() == Path(catalog.__file__).with_name("catalog.toml").read_bytes()


def test_what_differs_is_said_and_is_not_marked(
    script: ModuleType, hub: Hub, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def repo(short: str) -> Repo:
        found = find_short(short)
        assert found is not None
        return hub.repos[found.repo]

    repo("qwen3:0.6b").sizes["Qwen3-0.6B-Q8_0.gguf"] = 7
    repo("gemma3:1b").gated = True
    repo("llama3.2:1b").facts["cardData"] = {"license": "other", "license_name": "llama9"}
    repo("qwen3:4b").facts["gguf"] = {"total": 1000, "context_length": 99}
    repo("ministral-3").files.pop("Ministral-3-3B-Instruct-2512-Q4_K_M.gguf")
    repo("qwen3:8b").files["other-Q4_K_M.gguf"] = b""
    hub.repos.pop("ggml-org/gpt-oss-20b-GGUF")
    assert script.main(["--write"]) == 1
    out = capsys.readouterr().out
    for words in (
        "qwen3:0.6b: size: 639446688, the Hub lists 7\n",
        "gemma3:1b: gated: False, the Hub lists True\n",
        "llama3.2:1b: license: llama3.2, the Hub lists llama9\n",
        "qwen3:4b: max_position_embeddings: 40960, the Hub lists 99\n",
        "qwen3:4b: num_parameters: 4022468096, the Hub lists 1000\n",
        "ministral-3:3b: mistralai/Ministral-3-3B-Instruct-2512-GGUF:Q4_K_M: no GGUF file matches Q4_K_M",
        "qwen3:8b: Qwen/Qwen3-8B-GGUF:Q4_K_M: 2 GGUF files match Q4_K_M",
        "gpt-oss:20b: ggml-org/gpt-oss-20b-GGUF:MXFP4: not found on",
        "gemma3:4b: as the Hub lists it\n",
    ):
        assert words in out
    read_catalog.cache_clear()
    unchecked = {one.short[0] for one in read_catalog() if not one.checked}
    before = Path(catalog.__file__).with_name("catalog.toml").read_text()
    assert len(file.read_text().splitlines()) == len(before.splitlines())
    read_catalog.cache_clear()
    wrong = {
        "qwen3:0.6b",
        "gemma3:1b",
        "llama3.2:1b",
        "qwen3:4b",
        "ministral-3:3b",
        "qwen3:8b",
        "gpt-oss:20b",
    }
    assert unchecked == wrong


def test_some_models_only(
    script: ModuleType, hub: Hub, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert script.main(["qwen3:0.6b", "smollm2"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    with pytest.raises(SystemExit):
        script.main(["nothing"])
