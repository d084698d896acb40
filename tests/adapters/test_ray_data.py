"""`Answer` in real Ray Data: the texts of a batch, for any number of actors and size of batch."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.extras, pytest.mark.timeout(300)]
pytest.importorskip("ray", reason="Ray is not installed (make test-all)")

PROGRAM = """
import json, logging, sys
import ray
from ropechat.adapters.ray import Answer
ray.init(num_cpus=4, include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False)
ray.data.DataContext.get_current().enable_progress_bars = False
found = {}
for size, rows in ((1, 5), (2, 3)):
    ds = ray.data.read_json(sys.argv[1], file_extensions=None).map_batches(
        Answer,
        fn_constructor_kwargs={"seed": 7, "sampling": {"temperature": 0.8, "max_tokens": 6}},
        compute=ray.data.ActorPoolStrategy(size=size), num_cpus=1, batch_size=rows,
    )
    found[size] = sorted(ds.take_all(), key=lambda row: row["id"])
json.dump(found, open(sys.argv[2], "w"), default=str)
"""


def test_rows_of_a_data_set_are_those_of_batch(tmp_path: Path) -> None:
    pytest.importorskip("pandas", reason="ray[data] is not installed (make test-all)")
    rows = tmp_path / "rows.jsonl"
    lines = [{"id": f"r{n:02}", "prompt": f"Tell me about {n}."} for n in range(12)]
    rows.write_text("".join(json.dumps(line) + "\n" for line in lines))
    environ = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, rows, tmp_path / "found.json"],
        env=environ,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    command = [sys.executable, "-c", "import sys; from ropechat.cli import main; sys.exit(main())", "batch"]
    options = ["--seed", "7", "--temperature", "0.8", "--max-tokens", "6", "-o", str(tmp_path / "out.jsonl")]
    subprocess.run([*command, str(rows), *options], check=True, capture_output=True)
    records = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    wanted = [(record["id"], record["text"], record["seed"]) for record in records]
    for found in json.loads((tmp_path / "found.json").read_text()).values():
        assert [(row["id"], row["text"], row["row_seed"]) for row in found] == wanted
        assert {row["error"] for row in found} == {""}


def test_columns_of_numpy_and_rows_that_fail() -> None:
    import numpy as np

    from ropechat.adapters.ray import Answer

    answer = Answer(sampling={"temperature": 0.0, "max_tokens": 3}, raw=True)
    talk = np.array([[{"role": "user", "content": "Hi"}]] * 3, dtype=object).reshape(3, 1)
    batch = {
        "id": np.array(["a", "b", "c"]),
        "prompt": np.array(["The cat", "", "A token"], dtype=object),
        "max_tokens": np.array([2, 2, 2]),
    }
    found = answer(batch)
    assert list(found["completion_tokens"]) == [2, 0, 2]
    assert "prompt: must have at least one character" in found["error"][1]
    assert (found["error"][0], found["finish_reason"][0]) == ("", "length")
    talks = answer({"id": np.array(["a", "b", "c"]), "messages": talk})
    assert len({*talks["text"]}) == 1
    assert np.isnan(talks["confidence"]).all()
    choices = np.array([{"choice": ["Yes", "No"]}] * 3, dtype=object)
    sure = Answer(fail_below=1.0)({**batch, "id": np.array(["a", "b", "c"]), "structured_outputs": choices})
    assert {sure["text"][0], sure["text"][2]} <= {"Yes", "No"}
    assert 0 < sure["confidence"][0] < 1
    assert "unsure: below 1" in sure["error"][0]
