"""Model folders for tests: a config, and a tokenizer of the golden set or a small byte-level one."""

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).parents[1] / "golden"
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_alphabet() -> list[str]:
    """Character of each byte in byte-level vocabularies."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    extra = iter(range(0x100, 0x200))
    return [chr(byte) if byte in plain else chr(next(extra)) for byte in range(256)]


def byte_tokenizer(**changes: Any) -> dict[str, Any]:
    """One token per byte (id = byte), and <s> 256, </s> 257, <|im_start|> 258, <|im_end|> 259."""
    special = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": 256 + i, "content": text, **flags} for i, text in enumerate(special)],
        "normalizer": None,
        "pre_tokenizer": level,
        "post_processor": None,
        "decoder": level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {character: byte for byte, character in enumerate(byte_alphabet())},
            "merges": [],
        },
        **changes,
    }


def adds_bos() -> dict[str, Any]:
    """A post_processor that puts <s> in front."""
    return {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [256], "tokens": ["<s>"]}},
    }


def write_folder(
    path: Path,
    *,
    vocab_size: int = 260,
    tokenizer: dict[str, Any] | None = None,
    tokenizer_config: dict[str, Any] | None = None,
    generation_config: dict[str, Any] | None = None,
    **config: Any,
) -> Path:
    """A folder that fake_core loads; without weights."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps({"vocab_size": vocab_size, **config}))
    for name, data in (
        ("tokenizer.json", tokenizer),
        ("tokenizer_config.json", tokenizer_config),
        ("generation_config.json", generation_config),
    ):
        if data is not None:
            (path / name).write_text(json.dumps(data))
    return path


def byte_folder(path: Path, **changes: Any) -> Path:
    """A folder with the byte tokenizer; </s> ends a text."""
    given: dict[str, Any] = {
        "tokenizer": byte_tokenizer(),
        "tokenizer_config": {"bos_token": "<s>", "eos_token": "</s>"},
    }
    return write_folder(path, **{**given, **changes})


def chat_folder(path: Path) -> Path:
    """As `byte_folder`, with a chat template; <|im_end|> also ends a turn."""
    config = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": CHATML}
    return byte_folder(path, tokenizer_config=config)


def golden_folder(path: Path, kind: str, vocab_size: int) -> Path:
    """A folder with one of the golden tokenizers (bl: byte level, sp: byte fallback)."""
    write_folder(path, vocab_size=vocab_size)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(GOLDEN / "detok" / kind / name, path / name)
    return path


def load_fake(monkeypatch: Any, folder: Path, **options: Any) -> Any:
    """An Engine on fake_core, which takes the place of the compiled module."""
    import fake_core

    import ropechat.engine
    from ropechat.engine.engine import Engine

    monkeypatch.setitem(sys.modules, "ropechat.engine._core", fake_core)
    monkeypatch.setattr(ropechat.engine, "_core", fake_core, raising=False)
    return Engine.load(folder, **options)


def load_bytes(monkeypatch: Any, path: Path) -> Any:
    """An Engine on fake_core with one token per byte; greedy continues "a" with "bcdef..."."""
    return load_fake(monkeypatch, byte_folder(path / "bytes"))


def core_of(engine: Any) -> Any:
    """The fake_core.Engine of an engine."""
    return engine._core


def text_of(steps: Iterator[Any]) -> str:
    """What the steps say together."""
    return "".join(step.text for step in steps)
