"""Where the settings of the sampler come from: the model, the catalog, the settings file, flags, the chat."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from cli_door import CompiledDoor, Door
from model_folders import byte_tokenizer
from models import write_llama

from ropechat.chat import events as ev
from ropechat.chat.session import Session
from ropechat.engine.engine import Engine
from ropechat.models.catalog import read_catalog
from ropechat.models.recommended import own_sampling
from ropechat.sampling import DEFAULTS, Sampling
from ropechat.sampling.sources import FLAG, SETTINGS_FILE, SourcedSampling, valid_numbers

OWN = {"temperature": 0.6, "top_k": 20, "top_p": 0.8, "presence_penalty": 1.5}


def write_model(folder: Path, generation: dict[str, Any] | None = None) -> Path:
    folder.mkdir()
    write_llama(folder, vocab_size=260)
    (folder / "tokenizer.json").write_text(json.dumps(byte_tokenizer()))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return folder


def info(**own: float) -> ev.ModelInfo:
    return ev.ModelInfo("m", "f32", 64, True, own_sampling=own)


# ---- what a model says


def test_generation_config(tmp_path: Path) -> None:
    model = write_model(tmp_path / "own", {"do_sample": True, **OWN, "num_beams": 1})
    engine = Engine.load(model, dtype="f32", threads=1)
    assert dict(engine.own_sampling) == OWN
    assert engine.sampling(top_k=3) == Sampling(**{**OWN, "top_k": 3})
    short = engine.sampling(max_tokens=4, seed=3)
    [(_, many)] = engine.generate_many([[1, 2]], dataclasses.replace(short))
    assert [step.id for step in engine.generate([1, 2], short)] == list(many.ids)
    assert dict(engine.recommended("off")) == OWN
    greedy = write_model(tmp_path / "greedy", {"do_sample": False, "temperature": 0.6, "top_p": 0.9})
    assert dict(Engine.load(greedy, dtype="f32", threads=1).own_sampling) == {"temperature": 0.0}
    plain = Engine.load(write_model(tmp_path / "plain"), dtype="f32", threads=1)
    assert (dict(plain.own_sampling), plain.sampling()) == ({}, DEFAULTS)


def test_the_catalog_knows_what_files_do_not_say() -> None:
    def own(name: str, generation: dict[str, Any] = {}, **more: bool) -> dict[str, float]:  # noqa: B006
        return own_sampling(Path("x") / name, name, generation, **more)

    assert own("SmolLM2-135M-Instruct.Q4_1.gguf") == {"temperature": 0.2, "top_p": 0.9}
    assert own("HuggingFaceTB/SmolLM2-360M-Instruct") == {"temperature": 0.2, "top_p": 0.9}
    assert own("SmolLM2-135M-Instruct.Q4_1.gguf", {"temperature": 0.5}) == {"temperature": 0.5}
    assert own("Qwen3-0.6B-Q8_0.gguf") == {"temperature": 0.6, "top_p": 0.95, "top_k": 20}
    quick = {"temperature": 0.7, "top_p": 0.8, "top_k": 20}
    assert own("Qwen3-0.6B-Q8_0.gguf", thinks=False) == quick
    assert own("Qwen/Qwen3-0.6B", {"temperature": 0.6}, thinks=False) == quick
    assert own("gpt-oss-20b-mxfp4.gguf") == {"temperature": 1.0, "top_p": 1.0, "top_k": 0}
    assert own("unknown-1b.gguf") == own("unknown-1b.gguf", thinks=False) == {}
    for entry in read_catalog():
        for given in (entry.sampling, entry.sampling_without_thinking):
            assert valid_numbers(given) == dict(given), entry.name


def test_values_without_a_meaning_are_left_out() -> None:
    given = {
        "temperature": 0.5,
        "top_p": 0.0,
        "min_p": 7.0,
        "top_k": 2.0,
        "seed": 1,
        "max_tokens": 3,
        "other": 1,
    }
    assert valid_numbers(given) == {"temperature": 0.5, "top_k": 2}
    assert isinstance(valid_numbers(given)["top_k"], int)


# ---- whose value counts


def test_given_values_go_before_the_models() -> None:
    given = SourcedSampling(Sampling(top_p=0.5, min_p=0.1), {"top_p": FLAG, "min_p": SETTINGS_FILE})
    found = given.with_own({**OWN, "min_p": 0.3})
    assert found.sampling == Sampling(**{**OWN, "top_p": 0.5, "min_p": 0.1})
    assert {name: found.source(name) for name in (*OWN, "min_p", "seed")} == {
        **dict.fromkeys(OWN, "model"),
        "top_p": "flag",
        "min_p": "settings",
        "seed": "default",
    }
    other = found.with_own({"temperature": 1.0})
    assert other.sampling == Sampling(temperature=1.0, top_p=0.5, min_p=0.1)
    assert (other.source("top_k"), other.source("presence_penalty")) == ("default", "default")
    assert found.line() == (
        "sampling: temperature 0.6, top_k 20, presence_penalty 1.5 (model); "
        "top_p 0.5 (flag); min_p 0.1 (settings)"
    )


def test_a_chat_takes_the_settings_of_each_model() -> None:
    session = Session("m", SourcedSampling(Sampling(top_p=0.5), {"top_p": FLAG}))
    session.apply(ev.ModelLoaded(info(**OWN)))
    assert session.sampling == Sampling(**{**OWN, "top_p": 0.5})
    session.sampling = dataclasses.replace(session.sampling, top_k=7)
    assert [session.sourced.source(name) for name in ("top_k", "top_p", "temperature")] == [
        "chat",
        "flag",
        "model",
    ]
    session.apply(ev.ModelLoaded(info(temperature=1.0)))
    assert session.sampling == Sampling(temperature=1.0, top_k=7, top_p=0.5)
    session.set_preset("creative")
    assert {session.sourced.source(name) for name in ("temperature", "top_k", "top_p", "min_p")} == {"preset"}
    session.apply(ev.ModelLoaded(info(**OWN)))
    assert session.sampling.temperature == 1.0
    own = session.own_sampling()
    assert own is not None
    session.restore_sampling(own)
    assert session.sampling == Sampling(**OWN)
    session.clear()
    assert session.sampling == Sampling(**{**OWN, "top_p": 0.5})


def test_without_a_thought_the_settings_of_such_answers_count() -> None:
    plain = {"temperature": 0.7, "top_p": 0.8}
    session = Session("m", SourcedSampling(Sampling(top_k=9), {"top_k": FLAG}))
    session.apply(ev.ModelLoaded(dataclasses.replace(info(**OWN), own_without_thinking=plain)))
    session.sampling = dataclasses.replace(session.sampling, think="off")
    assert (session.sampling.temperature, session.sampling.top_p, session.sampling.top_k) == (0.7, 0.8, 9)
    assert session.sampling.presence_penalty == 0.0  # only of thoughts
    session.sampling = dataclasses.replace(session.sampling, think="low", min_p=0.2)
    assert session.sampling == Sampling(**{**OWN, "top_k": 9}, think="low", min_p=0.2)
    session.sampling = dataclasses.replace(session.sampling, temperature=1.2)
    session.sampling = dataclasses.replace(session.sampling, think="off")
    assert (session.sampling.temperature, session.sampling.top_p) == (1.2, 0.8)
    began_off = Session("m", SourcedSampling(Sampling(think="off"), {}))
    began_off.apply(ev.ModelLoaded(dataclasses.replace(info(**OWN), own_without_thinking=plain)))
    assert began_off.sampling == Sampling(**plain, think="off")


def test_a_model_without_own_settings_has_no_preset() -> None:
    session = Session("m", Sampling(temperature=0.3))
    session.apply(ev.ModelLoaded(info()))
    assert (session.own_sampling(), session.sampling) == (None, Sampling(temperature=0.3))


# ---- commands


@pytest.fixture
def door(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Door:
    return CompiledDoor(monkeypatch, capfd)


def test_run_says_where_values_are_from(door: Door, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = write_model(tmp_path / "own", {"do_sample": True, **OWN})
    settings = tmp_path / "settings.toml"
    settings.write_text("[sampling]\ntop_k = 5\nmin_p = 0.1\n")
    monkeypatch.setenv("ROPECHAT_CONFIG", str(settings))
    monkeypatch.setenv("ROPECHAT_MIN_P", "0.2")
    run = ("run", "-m", model, "--raw", "--top-p", 0.7, "--max-tokens", 2, "--seed", 1, "abc")
    code, out, err = door(*run, "--json")
    found = json.loads(out)
    assert code == 0
    sources = {name: found["sampling_from"][name] for name in (*OWN, "min_p", "max_tokens", "xtc_threshold")}
    assert sources == {
        "temperature": "model",
        "top_k": "settings",
        "top_p": "flag",
        "presence_penalty": "model",
        "min_p": "environment",
        "max_tokens": "flag",
        "xtc_threshold": "default",
    }
    wanted = Sampling(
        temperature=0.6, top_k=5, top_p=0.7, min_p=0.2, presence_penalty=1.5, max_tokens=2, seed=1
    )
    assert Sampling(**found["sampling"]) == wanted
    assert "sampling: temperature 0.6, presence_penalty 1.5 (model); top_k 5 (settings); " in err


def test_a_batch_and_stages_take_the_models(door: Door, tmp_path: Path) -> None:
    model = write_model(tmp_path / "own", {"do_sample": False})
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "abc"}\n{"prompt": "abc"}\n{"prompt": "abc", "temperature": 1.0}\n')
    assert (
        door("batch", "-m", model, rows, "--raw", "--max-tokens", 8, "--seed", 1, "-o", tmp_path / "o.jsonl")[
            0
        ]
        == 0
    )
    texts = [json.loads(line)["text"] for line in (tmp_path / "o.jsonl").read_text().splitlines()]
    assert texts[0] == texts[1] != texts[2]
    code, out, _ = door("inspect", "-m", model, "--stages", "--format", "jsonl", "abc")
    assert (code, json.loads(out.splitlines()[0])["sampling"]["temperature"]) == (0, 0.0)
