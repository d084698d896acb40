"""Templates made to harm: each is refused with a reason or renders to harmless text, and none acts."""

from pathlib import Path
from typing import Any

import pytest
from bad_inputs import Corpus, unsaid

from ropechat.conversation import Message, Role
from ropechat.engine.loading import load_template
from ropechat.errors import RopechatError

pytestmark = pytest.mark.slow

MESSAGES = [Message(Role.SYSTEM, "be kind"), Message(Role.USER, "hi")]


def test_every_template_of_the_corpus(tmp_path: Path) -> None:
    corpus = Corpus(tmp_path / "corpus")
    cases = corpus.cases("template")
    wrong = [f"{case['id']}: {fault}" for case in cases if (fault := fault_of(corpus.folder, case))]
    assert (len(cases), wrong, corpus.canary.exists()) == (64, [], False)


def fault_of(folder: Path, case: dict[str, Any]) -> str | None:
    """What is wrong with how a case ends."""
    try:
        template = load_template(folder / case["path"])
        text = None if template is None else template.prompt(MESSAGES)
    except RopechatError as error:
        if case["outcome"] == "OK":
            return f"refused: {error}"
        return f"does not say {words}: {error}" if (words := unsaid(case, str(error))) else None
    if text is None:
        return None if case["id"] == "template/none" else "has no template"
    if case["outcome"] == "OK" or case.get("may_render"):
        return None
    return f"renders {text:.40}"
