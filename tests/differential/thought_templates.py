"""What transformers renders with the templates of models that think: `tests/golden/templates/thoughts.json`.

    pip download --no-deps --no-binary llama-cpp-python llama-cpp-python==0.3.36
    .venv-differential/bin/python tests/differential/thought_templates.py llama_cpp_python-0.3.36.tar.gz

Of each text that is kept which follows the first question, and a hash of what is before it: others' system
prompts.
"""

import argparse
import datetime
import hashlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "support"))

from thinking_lines import GOLDEN, LINES, NOW, QUESTION, SHARED, SPECIAL, Line, messages_of, unpack


def renderings(line: Line, source: str) -> dict[str, Any]:
    """The texts of one line: its prompt after an answer, a conversation, and a prompt without thinking."""
    from transformers.utils import chat_template_utils

    class Clock(datetime.datetime):
        @classmethod
        def now(cls, tz: Any = None) -> "Clock":
            return cls.fromisoformat(NOW)

    chat_template_utils.datetime = Clock
    asked = {"asked": (3, True, {}), "answered": (4, False, {}), "off": (1, True, line.off)}
    found: dict[str, Any] = {"sha256": hashlib.sha256(source.encode()).hexdigest()}
    for name, (count, prompts, variables) in asked.items():
        texts, _ = chat_template_utils.render_jinja_template(
            [messages_of(count, line.key)],
            chat_template=source,
            add_generation_prompt=prompts,
            **SPECIAL,
            **variables,
        )
        head, question, tail = texts[0].partition(QUESTION)
        found[name] = {"head": hashlib.sha256(head.encode()).hexdigest(), "tail": question + tail}
    return found


def main() -> None:
    import transformers

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("package", type=Path)
    package = parser.parse_args().package
    found: dict[str, Any] = {"transformers": transformers.__version__, "now": NOW}
    with tempfile.TemporaryDirectory() as made:
        unpack(package, Path(made))
        for line in LINES:
            folder = SHARED if line.shared else Path(made)
            found[line.name] = renderings(line, (folder / f"{line.file}.jinja").read_text())
    GOLDEN.write_text(json.dumps(found, ensure_ascii=False, indent=1) + "\n")


if __name__ == "__main__":
    main()
