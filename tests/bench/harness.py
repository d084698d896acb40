"""lm-evaluation-harness with `ropechat` and with its own `hf`, both in f32: choices and documents per second.

    python tests/bench/harness.py PROMPTS MODEL [--count 500] [--batch-size 16] [--threads 2] [--http]

PROMPTS: a folder with gsm8k_test.jsonl, self_instruct_seed_tasks.jsonl and tinystories_prefixes_200.jsonl.
Three tasks are made of them, in the forms of arc_easy (a question, four answers), hellaswag (a text, four
endings) and piqa (a goal, two solutions). MODEL: a Hugging Face folder. Needs
`pip install lm_eval torch transformers accelerate`. Each model has a process of its own, one after the other;
the seconds are those of its scoring. A choice differs if it is another one and the two are not within 1e-4 of
each other. The exit code is 1 if one differs.

hf stops at a document whose context ends in the middle of a token of the whole text
(lm-evaluation-harness#4055); such documents are left out.

--http: `ropechat api` and the harness's `local-completions` in place of `ropechat`; the server is a process
of its own. Left out are then documents that do not fit in the context, which `local-completions` cuts at one
token less than `hf`, and those that transformers' tokenizer encodes in another way than tokenizer.json says.
`hf` adds no BOS, as the server's tokenizer adds none for the harness.
"""

import argparse
import atexit
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TIE = 1e-4
TASK = """task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{ context }}}}"
doc_to_choice: "{{{{ endings }}}}"
doc_to_target: label
target_delimiter: " "
metric_list: [{{metric: acc}}, {{metric: acc_norm}}]
"""


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def document(draw: random.Random, context: str, answers: list[str], own: int, choices: int) -> dict[str, Any]:
    """A document: the answer of its row and those of others, in random order."""
    others = [answer for answer in answers if answer != answers[own]]
    endings = [answers[own], *draw.sample(others, choices - 1)]
    draw.shuffle(endings)
    return {"context": context, "endings": endings, "label": endings.index(answers[own])}


def documents(prompts: Path, count: int) -> dict[str, list[dict[str, Any]]]:
    """The documents of each task."""
    draw = random.Random(1)
    maths = read_lines(prompts / "gsm8k_test.jsonl")
    numbers = [row["answer"].rsplit("#### ", 1)[1] for row in maths]
    arc = [
        document(draw, f"Question: {row['question']}\nAnswer:", numbers, index, 4)
        for index, row in enumerate(maths)
    ]
    parts = [row["question"].rsplit(". ", 1) for row in maths]
    cut = [(f"{part[0]}.", part[1]) for part in parts if len(part) == 2]
    ends = [end for _, end in cut]
    swag = [document(draw, context, ends, index, 4) for index, (context, _) in enumerate(cut)]
    tales = read_lines(prompts / "tinystories_prefixes_200.jsonl")
    goals = [(tale["prefix"], tale["gold_continuation"].strip().split("\n")[0][:200]) for tale in tales]
    for row in read_lines(prompts / "self_instruct_seed_tasks.jsonl"):
        solution = row["instances"][0]["output"].strip()[:200].strip()
        if solution:
            goals.append((f"Question: {row['instruction'].strip()}\nAnswer:", solution))
    goals += [(row["question"], row["answer"].split("\n")[0]) for row in maths[: count - len(goals)]]
    solutions = [solution for _, solution in goals]
    piqa = [document(draw, goal, solutions, index, 2) for index, (goal, _) in enumerate(goals)]
    return {"arc_form": arc, "hellaswag_form": swag, "piqa_form": piqa}


def is_possible(encode: Any, each: dict[str, Any], most: int | None) -> bool:
    """Whether no token of the text lies on both sides of the join for any ending. most: tokens of a text."""
    context = len(encode(each["context"]))
    sizes = [len(encode(f"{each['context']} {ending}")) for ending in each["endings"]]
    return min(sizes) > context and (most is None or max(sizes) <= most)


def context_of(model: str) -> int:
    """The most tokens that a Hugging Face folder's model reads."""
    found: int = json.loads((Path(model) / "config.json").read_text())["max_position_embeddings"]
    return found


def write_tasks(folder: Path, prompts: Path, model: str, count: int, most: int | None) -> dict[str, int]:
    """Write the tasks; return how many documents each has. most: tokens of each text."""
    from transformers import AutoTokenizer

    from ropechat.tokenizer import Tokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)  # that of `hf`, which may differ from tokenizer.json

    def encode(text: str) -> list[int]:
        found: list[int] = tokenizer.encode(text)
        return found

    own = None if most is None else Tokenizer.load(Path(model), len(tokenizer))

    def is_alike(each: dict[str, Any]) -> bool:
        """Whether the server's tokenizer makes the same ids of the texts."""
        texts = (each["context"], *(f"{each['context']} {ending}" for ending in each["endings"]))
        plain = {"add_special_tokens": False}
        return own is None or all(own.encode(one, **plain) == tokenizer.encode(one, **plain) for one in texts)

    sizes = {}
    for name, found in documents(prompts, count).items():
        kept = [each for each in found if is_possible(encode, each, most) and is_alike(each)][:count]
        file = folder / f"{name}.jsonl"
        file.write_text("".join(json.dumps(each) + "\n" for each in kept))
        (folder / f"{name}.yaml").write_text(TASK.format(name=name, file=file))
        sizes[name] = len(kept)
    return sizes


def evaluate(
    kind: str, model: str, folder: Path, batch_size: int, threads: int, *, http: bool
) -> dict[str, Any]:
    """Run the harness in this process: logprobs per task and document, and the seconds of scoring."""
    import lm_eval
    from lm_eval.api.registry import get_model
    from lm_eval.tasks import TaskManager

    if kind == "hf":
        import torch

        torch.set_num_threads(threads)
        given = {"pretrained": model, "dtype": "float32", "batch_size": batch_size, "device": "cpu"}
        given |= {"add_bos_token": False} if http else {}
    elif kind == "local-completions":
        server = [
            "api",
            "-m",
            model,
            "--dtype",
            "f32",
            "--port",
            "0",
            "--window",
            batch_size,
            "--threads",
            threads,
        ]
        process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                "import sys; from ropechat.cli import main; sys.exit(main())",
                *map(str, server),
            ],
            stderr=subprocess.PIPE,
            text=True,
        )
        atexit.register(process.terminate)
        assert process.stderr is not None
        said = process.stderr
        address = next(line for line in said if line.startswith("http")).split()[0]
        threading.Thread(target=said.read, daemon=True).start()
        given = {"model": None, "base_url": f"{address}/completions", "tokenizer_backend": "remote"}
        given |= {"num_concurrent": batch_size, "max_length": context_of(model), "max_retries": 1}
    else:
        import ropechat.adapters.lm_eval  # noqa: F401  (registers the model)

        given = {"model": model, "dtype": "f32", "window": batch_size, "threads": threads}
    chosen = get_model(kind)(**given)
    plain, spent = chosen.loglikelihood, 0.0

    def timed(requests: Any, **options: Any) -> Any:
        nonlocal spent
        begun = time.perf_counter()
        found = plain(requests, **options)
        spent += time.perf_counter() - begun
        return found

    chosen.loglikelihood = timed
    names = sorted(path.stem for path in folder.glob("*.yaml"))
    logprobs, seconds = {}, {}
    for name in names:
        spent = 0.0
        results = lm_eval.simple_evaluate(
            model=chosen, tasks=[name], task_manager=TaskManager(include_path=str(folder)), bootstrap_iters=0
        )
        samples = sorted(results["samples"][name], key=lambda sample: sample["doc_id"])
        logprobs[name] = [[pair[0] for pair in sample["filtered_resps"]] for sample in samples]
        seconds[name] = spent
    return {"logprobs": logprobs, "seconds": seconds}


def compare(folder: Path, name: str, ours: list[Any], theirs: list[Any]) -> Iterator[tuple[str, int, float]]:
    """Yield what differs of a task: (measure, document, by how much the choice is better for hf)."""
    for index, each in enumerate(read_lines(folder / f"{name}.jsonl")):
        sizes = [len(ending) for ending in each["endings"]]  # as acc_norm counts: characters
        for measure, lengths in (("acc", [1] * len(sizes)), ("acc_norm", sizes)):
            a = [value / length for value, length in zip(ours[index], lengths, strict=True)]
            b = [value / length for value, length in zip(theirs[index], lengths, strict=True)]
            if a.index(max(a)) != b.index(max(b)):
                yield measure, index, max(b) - b[a.index(max(a))]


def run_worker(kind: str, given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """`evaluate` in a process of its own."""
    sizes = ["--batch-size", given.batch_size, "--threads", given.threads]
    words = [given.prompts, given.model, *sizes, "--worker", kind, "--folder", folder]
    words += ["--http"] if given.http else []
    done = subprocess.run([sys.executable, __file__, *map(str, words)], stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"{kind}: ended with {done.returncode}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("prompts", type=Path)
    parser.add_argument("model")
    parser.add_argument("--count", type=int, default=500, help="documents per task")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--http", action="store_true", help="ropechat over HTTP")
    parser.add_argument("--worker", choices=("ropechat", "local-completions", "hf"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        found = evaluate(
            given.worker, given.model, given.folder, given.batch_size, given.threads, http=given.http
        )
        print(json.dumps(found))
        return 0
    wrong = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        most = context_of(given.model) - 2 if given.http else None
        sizes = write_tasks(folder, given.prompts, given.model, given.count, most)
        own = "local-completions" if given.http else "ropechat"
        ours, theirs = (run_worker(kind, given, folder) for kind in (own, "hf"))
        for task, count in sizes.items():
            a, b = ours["logprobs"][task], theirs["logprobs"][task]
            differences = list(compare(folder, task, a, b))
            ties = [gap for _, _, gap in differences if gap <= TIE]
            wrong += len(differences) - len(ties)
            pairs = [pair for rows in zip(a, b, strict=True) for pair in zip(*rows, strict=True)]
            largest = max(abs(x - y) for x, y in pairs)
            speeds = [count / one["seconds"][task] for one in (ours, theirs)]
            other = len(differences) - len(ties)
            print(
                f"{task:15} {count} documents: {other} choices differ, {len(ties)} ties, "
                f"logprobs within {largest:.1e}; ropechat {speeds[0]:.1f} documents/s, hf {speeds[1]:.1f}: "
                f"{speeds[0] / speeds[1]:.1f} times"
            )
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
