"""Small models that think: the built-in model with another chat template, and tokens for its markers."""

import json
import shutil
from pathlib import Path
from typing import Any

from model_folders import golden_folder
from models import TINY, write_llama

import ropechat.builtin

THINK = ("<think>", "</think>")
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.role == 'assistant' and message.reasoning_content is defined and loop.last %}"
    "<think>\n{{ message.reasoning_content }}\n</think>\n\n{% endif %}"
    "{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
"""Thinks if it likes; its template keeps the thought of the last answer only."""
OPENED = CHATML.replace(
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}",
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n"
    "{% else %}<think>\n{% endif %}",
)
"""Always thinks: its prompts end inside a thought."""
HARMONY = (
    "Reasoning: {{ reasoning_effort or 'medium' }}"
    "{% for message in messages %}{% if message.role == 'assistant' %}"
    "{% if message.thinking and loop.last %}"
    "<|start|>assistant<|channel|>analysis<|message|>{{ message.thinking }}<|end|>{% endif %}"
    "<|start|>assistant<|channel|>final<|message|>{{ message.content }}<|return|>"
    "{% else %}<|start|>{{ message.role }}<|message|>{{ message.content }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
"""Several messages in a reply, each in a channel."""


def thinking_model(folder: Path, template: str = CHATML, tokens: tuple[str, ...] = ()) -> Path:
    """Make a model of this template. tokens: control tokens in place of the last ones of the vocabulary."""
    shutil.copytree(Path(ropechat.builtin.__file__).parent, folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": template}))
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(add_tokens(json.loads(path.read_text()), tokens)))
    return folder


def tiny_thinker(folder: Path, template: str = CHATML, tokens: tuple[str, ...] = THINK) -> Path:
    """Make a model of tiny random weights: its thoughts and answers are tokens of any kind."""
    write_llama(folder, **{**TINY, "vocab_size": 4000, "max_position_embeddings": 4096})
    of = Path(ropechat.builtin.__file__).parent
    tokenizer = json.loads((of / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps(add_tokens(tokenizer, tokens)))
    config = json.loads((of / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": template}))
    return folder


def sentencepiece_thinker(folder: Path) -> Path:
    """Make a tiny model that always thinks and has tokens of single bytes, as SentencePiece has."""
    golden_folder(folder, "sp", 700)
    write_llama(folder, **{**TINY, "vocab_size": 700, "max_position_embeddings": 4096})
    tokenizer, config = folder / "tokenizer.json", folder / "tokenizer_config.json"
    tokenizer.write_text(json.dumps(add_tokens(json.loads(tokenizer.read_text()), THINK)))
    config.write_text(json.dumps({**json.loads(config.read_text()), "chat_template": OPENED}))
    return folder


def add_tokens(data: dict[str, Any], tokens: tuple[str, ...]) -> dict[str, Any]:
    """Give a tokenizer.json control tokens in place of its last ones."""
    if not tokens:
        return data
    vocabulary = data["model"]["vocab"]
    last = sorted(vocabulary, key=vocabulary.get)[-len(tokens) :]
    gone = set(last)
    data["model"]["merges"] = [
        [left, right] for left, right in data["model"]["merges"] if not gone & {left, right, left + right}
    ]
    for old, token in zip(last, tokens, strict=True):
        plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
        data["added_tokens"].append({"id": vocabulary.pop(old), "content": token, "special": False, **plain})
    return data
