"""ropechat in the real `llm`: its command line and its Python API."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.extras, pytest.mark.timeout(120)]
llm = pytest.importorskip("llm", reason="llm is not installed (make test-all)")
GREEDY = {"temperature": 0, "max_tokens": 6}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LLM_USER_PATH", str(tmp_path / "llm"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    return tmp_path


def command(*words: object) -> Any:
    """Run the command line of llm."""
    done = subprocess.run(
        [sys.executable, "-m", "llm", *map(str, words)], capture_output=True, text=True, env=os.environ
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_answer_is_that_of_run() -> None:
    given = ("--temperature", "0", "--max-tokens", "6")
    launcher = [sys.executable, "-c", "import sys; from ropechat.cli import main; sys.exit(main())"]
    own = subprocess.run([*launcher, "run", *given, "What is RoPE?"], capture_output=True, text=True).stdout
    options = [word for name, value in GREEDY.items() for word in ("-o", name, value)]
    assert command("-m", "ropechat", *options, "What is RoPE?").strip() == own.strip()
    assert command("-m", "ropechat", *options, "--no-stream", "What is RoPE?").strip() == own.strip()
    again = command("-c", *options, "And why?")
    logs = json.loads(command("logs", "--json"))
    assert [entry["response"].strip() for entry in logs] == [own.strip(), own.strip(), again.strip()]
    assert logs[0]["resolved_model"] == "builtin"
    assert logs[0]["input_tokens"] > 0
    assert "ropechat" in command("models", "list")


def test_a_conversation_has_its_history_and_logprobs() -> None:
    from ropechat.conversation import Message, Role
    from ropechat.engine.engine import Engine
    from ropechat.sampling import Sampling

    model = llm.get_model("ropechat")
    talk = model.conversation()
    first = talk.prompt("What is a token?", system="You are brief.", logprobs=2, **GREEDY)
    texts = [first.text()]
    second = talk.prompt("And RoPE?", **GREEDY)
    texts.append(second.text())
    engine = Engine.load("builtin")
    messages = [Message(Role.SYSTEM, "You are brief."), Message(Role.USER, "What is a token?")]
    steps = list(engine.reply(messages, Sampling(**GREEDY), top_k=2))  # type: ignore[arg-type]
    assert texts[0] == "".join(step.text for step in steps)
    found = first.response_json["logprobs"]
    assert [token["logprob"] for token in found] == [step.logprob for step in steps]
    assert [tuple(pair[:2]) for pair in found[0]["top"]] == list(steps[0].top)
    assert first.usage().output == len(steps)
    messages += [Message(Role.ASSISTANT, texts[0]), Message(Role.USER, "And RoPE?")]
    ids = engine.prompt_ids(messages)
    assert second.usage().input == len(ids)
    assert "logprobs" not in second.response_json


@pytest.mark.parametrize(
    ("options", "words"),
    [({"max_tokens": 0}, "max_tokens: must be"), ({"model": "/no/such"}, "/no/such")],
)
def test_errors_are_those_of_llm(options: dict[str, Any], words: str) -> None:
    with pytest.raises(llm.ModelError, match=words):
        llm.get_model("ropechat").prompt("x", **options).text()


def test_help_does_not_load_the_engine() -> None:
    code = "import sys, llm.cli; llm.get_models(); print('ropechat.adapters.llm' in sys.modules, "
    code += "[name for name in sys.modules if name.startswith(('ropechat.engine', 'tokenizers', 'torch'))])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "True []\n", done.stderr


def test_a_schema_is_honoured() -> None:
    schema = {
        "type": "object",
        "properties": {"answer": {"enum": ["yes", "no"]}, "sure": {"type": "boolean"}},
        "required": ["answer", "sure"],
        "additionalProperties": False,
    }
    given = json.loads(command("-m", "ropechat", "--schema", json.dumps(schema), "Is water wet?"))
    assert given["answer"] in ("yes", "no")
    assert isinstance(given["sure"], bool)
    logs = json.loads(command("logs", "--json"))
    assert json.loads(logs[0]["response"]) == given
    assert logs[0]["schema_json"] is not None
    sure = logs[0]["response_json"]
    assert set(sure["fields"]) == {"answer", "sure"}
    assert 0 < sure["confidence"] <= 1
    refused = {"type": "array", "uniqueItems": True}
    with pytest.raises(llm.ModelError, match="uniqueItems"):
        llm.get_model("ropechat").prompt("x", schema=refused).text()
