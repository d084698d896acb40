"""`ropechat models`: model folders."""

from typing import Any

import click

from ropechat.cli.common import Out, say_warnings


def _size(count: int) -> str:
    for limit, unit in ((10**9, "B"), (10**6, "M"), (10**3, "K")):
        if count >= limit:
            return f"{count / limit:.3g}{unit}"
    return str(count)


def _sheet(facts: dict[str, Any]) -> list[tuple[str, str]]:
    tokenizer = facts["tokenizer"]
    return [
        ("architecture", str(facts["model_type"])),
        ("parameters", _size(facts["num_parameters"])),
        ("layers", str(facts["num_hidden_layers"])),
        ("hidden size", str(facts["hidden_size"])),
        ("heads", f"{facts['num_attention_heads']} ({facts['num_key_value_heads']} key/value)"),
        ("vocabulary", str(facts["vocab_size"])),
        ("trained length", str(facts["max_position_embeddings"])),
        ("tokenizer", "none: token ids only" if tokenizer is None else f"{tokenizer} tokens"),
        ("chat template", "yes" if facts["chat_template"] else "none: completes text"),
        ("stop ids", " ".join(map(str, facts["stop_ids"])) or "none"),
    ]


@click.group()
def models() -> None:
    """Check model folders."""


@models.command()
@click.argument("directory", type=click.Path(exists=True, file_okay=False))
def check(directory: str) -> None:
    """Validate a model folder without running it: exit code 0, or 2 with the reason."""
    from ropechat.engine import Engine

    facts, out = Engine.check(directory), Out()
    say_warnings(facts["warnings"])
    for name, value in _sheet(facts):
        out.write(f"{name + ':':16}{value}\n")
    out.write("ok\n")
