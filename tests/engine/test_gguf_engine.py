"""A GGUF file as the model: its tokenizer, stop ids and chat template reach the engine."""

import json
from pathlib import Path
from typing import Any

import fake_core
import pytest
from gguf_vocabularies import bytes_vocabulary
from model_folders import CHATML

import ropechat.engine
from ropechat.conversation import Message, Role
from ropechat.engine.engine import Engine
from ropechat.engine.loading import find_stop_ids, load_chat_template, load_tokenizer
from ropechat.errors import ChatTemplateError
from ropechat.sampling import Sampling


def write_gguf(folder: Path, **changes: Any) -> Path:
    """A file that fake_core reads the metadata of."""
    path = folder / "model.gguf"
    path.write_text(json.dumps(bytes_vocabulary(**changes)))
    return path


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setitem(__import__("sys").modules, "ropechat.engine._core", fake_core)
    monkeypatch.setattr(ropechat.engine, "_core", fake_core, raising=False)

    def loaded(path: Path) -> Engine:
        facts = fake_core.facts({"vocab_size": 262, "eos_token_id": 257})
        tokenizer = load_tokenizer(path, 262, fake_core.gguf_metadata)
        return Engine(fake_core.Engine(facts), path, tokenizer)  # type: ignore[arg-type]

    return loaded


def test_text_in_and_out(tmp_path: Path, load: Any) -> None:
    engine = load(write_gguf(tmp_path))
    assert not engine.has_chat_template
    assert (
        "".join(step.text for step in engine.generate("ab", Sampling(temperature=0, max_tokens=3))) == "cde"
    )


def test_template_and_stop_ids_of_the_file(tmp_path: Path, load: Any) -> None:
    engine = load(write_gguf(tmp_path, chat_template=CHATML, add_bos_token=True))
    assert engine.stop_ids == {257, 259}
    assert engine.prompt_ids([Message(Role.USER, "<|im_end|>")]) == [
        *(256, 258, *b"user\n<|im_end|>", 259, 10),
        *(258, *b"assistant\n"),
    ]


def test_eot_and_eom_end_a_text(tmp_path: Path, load: Any) -> None:
    assert load(write_gguf(tmp_path, eot_token_id=258, eom_token_id=3)).stop_ids == {3, 257, 258}


def test_what_lies_beside_the_file_goes_first(tmp_path: Path, load: Any) -> None:
    path = write_gguf(tmp_path, chat_template="of this file")
    assert load(path).prompt_ids([Message(Role.USER, "x")]) == [*b"of this file"]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "of config"}))
    assert load(path).prompt_ids([Message(Role.USER, "x")]) == [*b"of config"]
    (tmp_path / "chat_template.jinja").write_text("of its own")
    assert load(path).prompt_ids([Message(Role.USER, "x")]) == [*b"of its own"]


def test_a_template_that_fails_names_the_key(tmp_path: Path, load: Any) -> None:
    engine = load(write_gguf(tmp_path, chat_template="{{ raise_exception('no') }}"))
    with pytest.raises(ChatTemplateError, match=r"model\.gguf: tokenizer\.chat_template: .*no"):
        engine.prompt_ids([Message(Role.USER, "x")])


def test_harmony_ends_messages_not_replies(tmp_path: Path) -> None:
    """gpt-oss: a reply has several messages, each with <|end|>, and ends with <|return|>."""
    names = ["<|start|>", "<|end|>", "<|return|>", "<|call|>"]
    tokens = bytes_vocabulary()["tokenizer.ggml.tokens"]
    keys = {"tokens": [*tokens[:256], *names, *tokens[260:]], "eos_token_id": 258, "bos_token_id": None}
    path = write_gguf(tmp_path, chat_template="".join(names), **keys)
    tokenizer = load_tokenizer(path, 262, lambda path: json.loads(Path(path).read_text()))
    facts = {"vocab_size": 262, "eos_token_id": [258, 257]}
    assert find_stop_ids(path, facts, tokenizer, load_chat_template(path, tokenizer)) == {258, 259}
