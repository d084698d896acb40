"""Templates made to harm: each is refused with a reason or renders to harmless text, and none acts.

They are made by a script that lies beside a checkout of the project's own machines.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ropechat.conversation import Message, Role
from ropechat.errors import RopechatError
from ropechat.model_check import load_template

SCRIPT = Path(__file__).parents[2] / "shared" / "bad_inputs" / "make_bad_inputs.py"
MESSAGES = [Message(Role.SYSTEM, "be kind"), Message(Role.USER, "hi")]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    if not SCRIPT.is_file():
        pytest.skip("no ../shared/bad_inputs beside this checkout")
    folder = tmp_path_factory.mktemp("bad") / "corpus"
    subprocess.run([sys.executable, str(SCRIPT), str(folder)], check=True, stdout=subprocess.DEVNULL)
    return folder, json.loads((folder / "manifest.json").read_text())


def test_every_template_of_the_corpus(corpus: tuple[Path, dict[str, Any]]) -> None:
    folder, manifest = corpus
    canary = Path(manifest["canary"])
    canary.unlink(missing_ok=True)
    cases = [case for case in manifest["cases"] if case["group"] == "template"]
    wrong = [f"{case['id']}: {fault}" for case in cases if (fault := fault_of(folder, case))]
    assert (len(cases), wrong, canary.exists()) == (64, [], False)


def fault_of(folder: Path, case: dict[str, Any]) -> str | None:
    """What is wrong with how a case ends."""
    try:
        template = load_template(folder / case["path"])
        text = None if template is None else template.prompt(MESSAGES)
    except RopechatError as error:
        one_of = case.get("names_any", [])
        words = [name for name in case.get("names", []) if name not in str(error)]
        if one_of and not any(name in str(error) for name in one_of):
            words += one_of
        if case["outcome"] == "OK":
            return f"refused: {error}"
        return f"does not say {words}: {error}" if words else None
    if text is None:
        return None if case["id"] == "template/none" else "has no template"
    if case["outcome"] == "OK" or case.get("may_render"):
        return None
    return f"renders {text:.40}"
