"""ropechat in the real lm-evaluation-harness, on tasks of a few rows that need no network."""

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = [pytest.mark.extras, pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]
pytest.importorskip("lm_eval", reason="lm_eval is not installed (make test-all)")

CHOICES = """task: local_choices
dataset_path: json
dataset_kwargs: {data_files: {test: FILE}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{ context }}"
doc_to_choice: "{{ endings }}"
doc_to_target: label
target_delimiter: ""
metric_list: [{metric: acc}, {metric: acc_norm}]
"""
TEXTS = """task: local_texts
dataset_path: json
dataset_kwargs: {data_files: {test: FILE}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{ context }}"
metric_list: [{metric: bits_per_byte}]
"""
ANSWERS = """task: local_answers
dataset_path: json
dataset_kwargs: {data_files: {test: FILE}}
test_split: test
output_type: generate_until
doc_to_text: "{{ context }}"
doc_to_target: "{{ endings[0] }}"
generation_kwargs: {until: ["."], max_gen_toks: 8, do_sample: false}
metric_list: [{metric: exact_match}]
"""
ROWS: list[dict[str, Any]] = [
    {"context": "RoPE turns each query and", "endings": [" key", " banana", " sky"], "label": 0},
    {"context": "A token is a piece of", "endings": [" cake", " text"], "label": 1},
    {"context": "The cat sat on the ", "endings": ["mat", "sun"], "label": 0},
]


@pytest.fixture
def tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with tasks in the harness's form."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    rows, folder = tmp_path / "rows.jsonl", tmp_path / "tasks"
    rows.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    folder.mkdir()
    for name, text in (("choices", CHOICES), ("texts", TEXTS), ("answers", ANSWERS)):
        (folder / f"{name}.yaml").write_text(text.replace("FILE", str(rows)))
    return folder


def evaluate(tasks: Path, out: Path, *options: str) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """Run `ropechat eval`; return the results, and the samples of each task."""
    launcher = [sys.executable, "-c", "import sys; from ropechat.cli import main; sys.exit(main())", "eval"]
    given = ["--include_path", str(tasks), "--output_path", str(out), "--log_samples", *options]
    done = subprocess.run([*launcher, *given], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (results,) = out.rglob("results_*.json")
    samples = {
        path.name.removeprefix("samples_").rsplit("_", 1)[0]: [
            json.loads(line) for line in path.read_text().splitlines()
        ]
        for path in out.rglob("samples_*.jsonl")
    }
    return json.loads(results.read_text()), samples


def test_tasks_get_what_the_engine_computes(tasks: Path, tmp_path: Path) -> None:
    from ropechat.engine.engine import Engine
    from ropechat.sampling import Sampling

    names = "local_choices,local_texts,local_answers"
    results, samples = evaluate(tasks, tmp_path / "out", "--tasks", names, "--parallel", "4")
    engine = Engine.load("builtin")
    ids = [engine.tokenizer.encode(row["context"]) for row in ROWS]
    for row, sample in zip(ROWS, samples["local_choices"], strict=True):
        context = row["context"].rstrip()
        spaces = row["context"][len(context) :]
        scores = engine.rank(context, [spaces + ending for ending in row["endings"]])
        found = [(float(logprob), greedy == "True") for ((logprob, greedy),) in sample["resps"]]
        assert found == [(pytest.approx(score.logprob, abs=1e-9), score.is_greedy) for score in scores]
    assert set(results["results"]) == {*names.split(",")}
    for text, sample in zip(ids, samples["local_texts"], strict=True):
        bos = min(engine.stop_ids) if engine.tokenizer.bos_id is None else engine.tokenizer.bos_id
        rows = engine.logits([bos, *text])[:-1].astype(np.float64)
        logprobs = rows - np.log(np.exp(rows - rows.max(-1, keepdims=True)).sum(-1, keepdims=True))
        logprobs -= rows.max(-1, keepdims=True)
        wanted = sum(row[id] for row, id in zip(logprobs, text, strict=True))
        assert float(sample["resps"][0][0]) == pytest.approx(wanted, rel=1e-6)
    for text, sample in zip(ids, samples["local_answers"], strict=True):
        steps = engine.generate(text, Sampling(temperature=0, max_tokens=8), stop=["."])
        assert sample["resps"][0][0] == "".join(step.text for step in steps)


def test_the_chat_template_is_applied(tasks: Path, tmp_path: Path) -> None:
    from ropechat.conversation import Message, Role
    from ropechat.engine.engine import Engine

    _, samples = evaluate(tasks, tmp_path / "out", "--tasks", "local_answers", "--apply_chat_template")
    engine = Engine.load("builtin")
    (prompt, _) = samples["local_answers"][0]["arguments"]["gen_args_0"].values()
    assert engine.tokenizer.encode(prompt) == engine.prompt_ids([Message(Role.USER, ROWS[0]["context"])])


def test_texts_beyond_the_window_and_empty_continuations() -> None:
    from lm_eval.api.instance import Instance

    from ropechat.adapters.lm_eval import RopeChatLM

    model = RopeChatLM(max_length=16)
    text = "RoPE turns each query and key by an angle that grows with its position in the text. " * 3
    whole = RopeChatLM()

    def rolling(one: RopeChatLM, given: str) -> float:
        request = Instance(request_type="loglikelihood_rolling", doc={}, arguments=(given,), idx=0)
        (value,) = one.loglikelihood_rolling([request], disable_tqdm=True)
        return value

    assert -math.inf < rolling(model, text) < 0
    assert rolling(model, text) != rolling(whole, text)  # less context
    requests = [
        Instance(request_type="loglikelihood", doc={}, arguments=pair, idx=0)
        for pair in (("Ro", "PE"), ("", "RoPE"), (text, " key"))
    ]
    for logprob, _ in model.loglikelihood(requests, disable_tqdm=True):
        assert -math.inf < logprob < 0


def test_errors_are_one_line(tasks: Path) -> None:
    launcher = [sys.executable, "-c", "import sys; from ropechat.cli import main; sys.exit(main())", "eval"]
    done = subprocess.run([*launcher, "-m", "/no/such", "--tasks", "x"], capture_output=True, text=True)
    assert (done.returncode, "/no/such" in done.stderr.splitlines()[-1]) == (2, True)
    done = subprocess.run([*launcher, "--tasks", "no_such_task"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_help_imports_no_harness() -> None:
    code = (
        "import sys; from ropechat.cli import main; main(['eval', '--help']); print('lm_eval' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.endswith("False\n"), done.stderr
