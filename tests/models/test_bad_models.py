"""Models made to harm: each is refused with a message that names what is wrong, or works."""

import os
from pathlib import Path
from typing import Any

import pytest
from bad_inputs import Corpus, unsaid

from ropechat import Engine, Sampling
from ropechat.conversation import Message, Role
from ropechat.errors import ContextFullError, RopechatError

GROUPS = {"safetensors": 78, "paths": 39, "config": 98, "tokenizer": 58, "gguf": 143}
# From Python a model without a tokenizer serves token ids.
SERVES_IDS = "paths/tokenizer_missing"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return Corpus(tmp_path_factory.mktemp("bad") / "corpus")


@pytest.mark.slow
@pytest.mark.parametrize("group", GROUPS)
def test_every_model_of_the_corpus(group: str, corpus: Corpus) -> None:
    cases = [case for case in corpus.cases(group) if case["stage"] != "render"]
    wrong = [f"{case['id']}: {fault}" for case in cases if (fault := fault_of(corpus.folder, case))]
    assert (len(cases), wrong, corpus.canary.exists()) == (GROUPS[group], [], False)


def use(path: Path, case: dict[str, Any]) -> None:
    """Whatever the case is about: that the model is there, or that it writes."""
    if case["stage"] == "load":
        Engine.check(path)
        return
    letter, count, end = case.get("prompt_repeat", ["", 0, ""])
    prompt = case.get("prompt") or letter * count + end or "hello the"
    context = int(case["args"][1]) if "args" in case else None
    engine = Engine.load(path, threads=1, context=context)
    list(engine.reply([Message(Role.USER, prompt)], Sampling(temperature=0, max_tokens=4)))


def fault_of(folder: Path, case: dict[str, Any]) -> str | None:
    """What is wrong with how a case ends."""
    expected = {case["outcome"], case.get("also")}
    if case["id"] == SERVES_IDS or (case.get("special") == "mode000" and os.geteuid() == 0):
        return None
    try:
        use(folder / case["path"], case)
    except ContextFullError as error:
        return None if "OK" in expected else f"refused: {error}"  # its text was encoded
    except RopechatError as error:
        text = str(error)
        if "\n" in text or "root:x:0:0" in text:
            return f"shows too much: {text!r}"
        if not any(outcome.startswith("E_") for outcome in expected if outcome):
            return f"refused: {text}"
        return f"does not say {words}: {text}" if (words := unsaid(case, text)) else None
    return None if expected & {"OK", "WARN_OK"} else "is taken"
