"""Model lines that think, with chat templates as they were published: where those are, and their facts.

The templates are others' texts and not kept here. Some are in ../shared/goldens beside the checkout; the
others are in the source of the package llama-cpp-python, in llama.cpp's folder models/templates.
"""

from __future__ import annotations

import tarfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

SHARED = Path(__file__).parents[3] / "shared" / "goldens" / "templates" / "jinja"
PACKAGE = "llama-cpp-python==0.3.36"
GOLDEN = Path(__file__).parents[1] / "golden" / "templates" / "thoughts.json"
"""What transformers renders with them (`tests/differential/thought_templates.py` writes it)."""
QUESTION = "What is 2 + 2?"
TURNS = (
    ("user", QUESTION, ""),
    ("assistant", "4, I think.", "Two and two."),
    ("user", "And 3 + 3?", ""),
    ("assistant", "It is 6.", "Three doubled."),
)
"""Role, content, thought."""
NOW = "2025-01-15T12:34:56"
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
THINK = ("<think>", "</think>")


class Line(NamedTuple):
    """A line of models.

    name: of the line. file: of its template. start, end: its markers. key: the field of a message for the
    thought. off: the variables that turn thinking off. tokens: its control tokens, as in its vocabulary.
    shared: whether the template is in SHARED.
    """

    name: str
    file: str
    start: str = THINK[0]
    end: str = THINK[1]
    key: str | None = "reasoning_content"
    off: Mapping[str, Any] = MappingProxyType({})
    tokens: tuple[str, ...] = THINK
    shared: bool = False


NO_THINKING = {"enable_thinking": False}
HARMONY = ("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|return|>")
LINES = (
    Line("Qwen3", "qwen3", off=NO_THINKING, shared=True),
    Line("QwQ", "qwq", key=None, shared=True),
    Line("DeepSeek-R1-Distill", "deepseek_r1_distill_llama", key=None, shared=True),
    Line("DeepSeek-V3.1", "deepseek_v3.1", key=None, off={"thinking": False}, shared=True),
    Line("Granite-3.3", "granite3.3", key=None, off={"thinking": False}, tokens=(), shared=True),
    Line(
        "Seed-OSS",
        "seed_oss",
        "<seed:think>",
        "</seed:think>",
        off={"thinking_budget": 0},
        tokens=("<seed:think>", "</seed:think>"),
        shared=True,
    ),
    Line("SmolLM3", "smollm3", key=None, off=NO_THINKING, shared=True),
    Line("Nemotron-Nano-2", "nemotron_nano2", key=None, tokens=(), shared=True),
    Line(
        "Apertus",
        "apertus",
        "<|inner_prefix|>",
        "<|inner_suffix|>",
        None,
        NO_THINKING,
        ("<|inner_prefix|>", "<|inner_suffix|>"),
        shared=True,
    ),
    Line(
        "Command-R7B",
        "command_r7b_tools",
        "<|START_THINKING|>",
        "<|END_THINKING|>",
        None,
        tokens=("<|START_THINKING|>", "<|END_THINKING|>"),
        shared=True,
    ),
    Line(
        "gpt-oss",
        "openai-gpt-oss-120b",
        "<|channel|>analysis<|message|>",
        "<|end|><|start|>assistant<|channel|>final<|message|>",
        "thinking",
        tokens=HARMONY,
    ),
    Line("Qwen3.5", "Qwen3.5-4B", off=NO_THINKING),
    Line(
        "Gemma-4",
        "google-gemma-4-31B-it",
        "<|channel>thought",
        "<channel|>",
        None,
        NO_THINKING,
        ("<|channel>", "<channel|>"),
    ),
    Line(
        "Ministral-3-Reasoning",
        "mistralai-Ministral-3-14B-Reasoning-2512",
        "[THINK]",
        "[/THINK]",
        "content",
        tokens=("[THINK]", "[/THINK]"),
    ),
    Line("GLM-4.6", "GLM-4.6", off=NO_THINKING),
    Line("MiniMax-M2", "MiniMax-M2"),
    Line("LFM2.5", "LFM2.5-8B-A1B", key="thinking"),
    Line("Kimi-K2-Thinking", "Kimi-K2-Thinking"),
    Line(
        "Hunyuan-3",
        "tencent-Hy3",
        "<think:opensource>",
        "</think:opensource>",
        off={"reasoning_effort": "no_think"},
        tokens=("<think:opensource>", "</think:opensource>"),
    ),
    Line("Nemotron-3-Nano", "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", off=NO_THINKING),
    Line(
        "Solar-Open",
        "upstage-Solar-Open-100B",
        "<|think|>",
        "<|end|><|begin|>assistant<|content|>",
        "reasoning",
        {"reasoning_effort": "minimal"},
        ("<|think|>", "<|end|>", "<|begin|>", "<|content|>"),
    ),
    Line(
        "Apriel-1.6",
        "Apriel-1.6-15b-Thinker-fixed",
        "Here are my reasoning steps:",
        "[BEGIN FINAL RESPONSE]",
        tokens=(),
    ),
    Line(
        "Kimi-K3",
        "Kimi-K3",
        "<|open|>think<|sep|>",
        "<|close|>think<|sep|><|open|>response<|sep|>",
        off={"thinking": False},
        tokens=("<|open|>", "<|close|>", "<|sep|>"),
    ),
)


def unpack(package: Path, folder: Path) -> None:
    """Write the templates out of the package's source (.tar.gz) into a folder."""
    with tarfile.open(package) as files:
        for member in files:
            path = Path(member.name)
            if path.suffix == ".jinja" and path.parts[-3:-1] == ("models", "templates"):
                data = files.extractfile(member)
                assert data is not None
                (folder / path.name).write_bytes(data.read())


def messages_of(count: int, key: str | None) -> list[dict[str, Any]]:
    """The first turns, as a user of transformers gives them. key: as of a Line."""
    made: list[dict[str, Any]] = []
    for role, content, thought in TURNS[:count]:
        message: dict[str, Any] = {"role": role, "content": content}
        if thought and key == "content":
            blocks = [{"type": "thinking", "thinking": thought}, {"type": "text", "text": content}]
            message["content"] = blocks
        elif thought:
            message[key or "reasoning_content"] = thought  # transformers passes it on as `thinking`, too
        made.append(message)
    return made
