"""lm-evaluation-harness with `ropechat` and with its own `hf`, both in f32: choices and documents per second.

    python tests/bench/harness.py PROMPTS MODEL [--count 500] [--batch-size 16] [--threads 2] [--http]
        [--gguf URL]

PROMPTS: a folder with gsm8k_test.jsonl, self_instruct_seed_tasks.jsonl and tinystories_prefixes_200.jsonl.
The tasks are the harness's own arc_easy, hellaswag and piqa; only their data are local: files with the
columns of their data sets, made of these texts. MODEL: a Hugging Face folder. Needs
`pip install "lm_eval[api]" torch transformers accelerate`. Each model has a process of its own, one after
the other; the seconds are those of its scoring. A choice differs if it is another one and the two are not
within 1e-4 of each other. The exit code is 1 if one differs.

hf stops at a document whose context ends in the middle of a token of the whole text
(lm-evaluation-harness#4055); such documents are left out.

--http: `ropechat api` and the harness's `local-completions` in place of `ropechat`; the server is a process
of its own. Left out are then documents that do not fit in the context, which `local-completions` cuts at one
token less than `hf`, and those that transformers' tokenizer encodes in another way than tokenizer.json says.
`hf` adds no BOS, as the server's tokenizer adds none for the harness.

--gguf: beside them the harness's `gguf` with a server that has the same weights in f32, such as
`python -m llama_cpp.server --model FILE --logits_all true --n_ctx 2048 --n_threads 2`. What it says is
reported only.
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
TASKS = ("arc_easy", "hellaswag", "piqa")


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def write_lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def drawn(draw: random.Random, answers: list[str], own: int, count: int) -> tuple[list[str], int]:
    """The answer of a row and those of others in random order, and where the own one is."""
    others = [answer for answer in answers if answer != answers[own]]
    endings = [answers[own], *draw.sample(others, count - 1)]
    draw.shuffle(endings)
    return endings, endings.index(answers[own])


def documents(prompts: Path) -> dict[str, list[dict[str, Any]]]:
    """The documents of each task, in the columns of its data set."""
    draw = random.Random(1)
    maths = read_lines(prompts / "gsm8k_test.jsonl")
    tales = read_lines(prompts / "tinystories_prefixes_200.jsonl")
    numbers = [row["answer"].rsplit("#### ", 1)[1] for row in maths]
    arc = []
    for index, row in enumerate(maths):
        texts, own = drawn(draw, numbers, index, 4)
        choices = {"text": texts, "label": list("ABCD")}
        arc.append(
            {"id": f"{index}", "question": row["question"], "choices": choices, "answerKey": "ABCD"[own]}
        )

    texts = [(tale["prefix"] + tale["gold_continuation"]).strip() for tale in tales]
    parts = [text.rsplit(". ", 2)[:2] for text in texts] + [row["question"].rsplit(". ", 1) for row in maths]
    cut = [(part[0], part[1].split(" ")) for part in parts if len(part) == 2]
    cut = [(before, words) for before, words in cut if len(words) > 4]
    ends = [" ".join(words[2:]) for _, words in cut]
    swag = []
    for index, (before, words) in enumerate(cut):
        endings, own = drawn(draw, ends, index, 4)
        first = {"ctx_a": f"{before}.", "ctx_b": " ".join(words[:2]).lower()}
        whole = f"{first['ctx_a']} {first['ctx_b']}"
        last = {"source_id": f"local~{index}", "split": "val", "split_type": "indomain", "label": f"{own}"}
        swag.append(
            {"ind": index, "activity_label": "Reading", **first, "ctx": whole, "endings": endings, **last}
        )

    sentences = [text.replace("\n", " ").split(". ") for text in texts]
    goals = [
        (". ".join(found[:cut]) + ".", f"{found[cut]}.")
        for cut in (3, 4, 2)
        for found in sentences
        if len(found) > cut + 1
    ]
    for row in read_lines(prompts / "self_instruct_seed_tasks.jsonl"):
        solution = row["instances"][0]["output"].strip()[:200].strip()
        if solution:
            goals.append((row["instruction"].strip(), solution))
    goals += [(row["question"], row["answer"].split("\n")[0]) for row in maths]
    solutions = [solution for _, solution in goals]
    piqa = []
    for index, (goal, _) in enumerate(goals):
        two, own = drawn(draw, solutions, index, 2)
        piqa.append({"goal": goal, "sol1": two[0], "sol2": two[1], "label": own})
    return {"arc_easy": arc, "hellaswag": swag, "piqa": piqa}


def own_task(name: str, file: Path) -> Any:
    """A task as the harness defines it, with the documents of a file in each of its splits."""
    import lm_eval.tasks

    (definition,) = Path(lm_eval.tasks.__file__).parent.glob(f"*/{name}.yaml")
    files = dict.fromkeys(("train", "validation", "test"), str(file))
    data = {"dataset_path": "json", "dataset_name": None, "dataset_kwargs": {"data_files": files}}
    changed = file.with_suffix(".yaml")
    changed.write_text(json.dumps({"include": str(definition), **data}))
    return lm_eval.tasks.TaskManager(include_defaults=False).load(str(changed))["tasks"][name]


def is_possible(encode: Any, context: str, wholes: list[str], most: int | None) -> bool:
    """Whether no token of the text lies on both sides of the join for any ending. most: tokens of a text."""
    sizes = [len(encode(whole)) for whole in wholes]
    return min(sizes) > len(encode(context)) and (most is None or max(sizes) <= most)


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

    def is_alike(texts: list[str]) -> bool:
        """Whether the server's tokenizer makes the same ids of the texts."""
        plain = {"add_special_tokens": False}
        return own is None or all(own.encode(one, **plain) == tokenizer.encode(one, **plain) for one in texts)

    sizes = {}
    for name, rows in documents(prompts).items():
        all_rows = write_lines(folder / f"all_{name}.jsonl", rows)
        task, kept = own_task(name, all_rows), list[dict[str, Any]]()
        for row, doc in zip(rows, task.eval_docs, strict=True):
            context = task.doc_to_text(doc)
            wholes = [f"{context} {ending}" for ending in task.doc_to_choice(doc)]
            if is_possible(encode, context, wholes, most) and is_alike([context, *wholes]):
                kept.append(row)
            if len(kept) == count:
                break
        write_lines(folder / f"{name}.jsonl", kept)
        sizes[name] = len(kept)
    return sizes


def evaluate(
    kind: str, model: str, folder: Path, batch_size: int, threads: int, *, http: bool, gguf: str
) -> dict[str, Any]:
    """Run the harness in this process.

    Of each task: the logprob and the characters of each ending by document, and the seconds of scoring.
    """
    import lm_eval
    from lm_eval.api.registry import get_model

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
    elif kind == "gguf":
        given = {"base_url": gguf}
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
    found = {}
    for name in TASKS:
        spent = 0.0
        task = own_task(name, folder / f"{name}.jsonl")
        results = lm_eval.simple_evaluate(model=chosen, tasks=[task], bootstrap_iters=0)
        samples = sorted(results["samples"][name], key=lambda sample: sample["doc_id"])
        logprobs = [[pair[0] for pair in sample["filtered_resps"]] for sample in samples]
        endings = [[pair[1][1:] for pair in sample["arguments"]] for sample in samples]  # without the space
        sizes = [[*map(len, texts)] for texts in endings]
        found[name] = {"logprobs": logprobs, "sizes": sizes, "seconds": spent}
    return found


def compare(ours: dict[str, Any], theirs: dict[str, Any]) -> Iterator[tuple[str, int, float]]:
    """Yield what differs of a task: (measure, document, by how much the choice is better for hf)."""
    rows = zip(ours["logprobs"], theirs["logprobs"], theirs["sizes"], strict=True)
    for index, (own, others, sizes) in enumerate(rows):
        for measure, lengths in (("acc", [1] * len(sizes)), ("acc_norm", sizes)):  # as the harness counts
            a = [value / length for value, length in zip(own, lengths, strict=True)]
            b = [value / length for value, length in zip(others, lengths, strict=True)]
            if a.index(max(a)) != b.index(max(b)):
                yield measure, index, max(b) - b[a.index(max(a))]


def furthest(ours: dict[str, Any], theirs: dict[str, Any]) -> float:
    """The largest difference of two logprobs."""
    rows = zip(ours["logprobs"], theirs["logprobs"], strict=True)
    pairs: list[tuple[float, float]] = [pair for row in rows for pair in zip(*row, strict=True)]
    return max(abs(a - b) for a, b in pairs)


def run_worker(kind: str, given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """`evaluate` in a process of its own."""
    sizes = ["--batch-size", given.batch_size, "--threads", given.threads]
    words = [given.prompts, given.model, *sizes, "--worker", kind, "--folder", folder]
    words += ["--http"] if given.http else []
    words += ["--gguf", given.gguf] if given.gguf else []
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
    parser.add_argument("--gguf", default="", metavar="URL", help="a server of the same weights")
    workers = ("ropechat", "local-completions", "hf", "gguf")
    parser.add_argument("--worker", choices=workers, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        words = given.worker, given.model, given.folder, given.batch_size, given.threads
        found = evaluate(*words, http=given.http, gguf=given.gguf)
        print(json.dumps(found))
        return 0
    wrong = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        most = context_of(given.model) - 2 if given.http else None
        sizes = write_tasks(folder, given.prompts, given.model, given.count, most)
        own = "local-completions" if given.http else "ropechat"
        ours, theirs = (run_worker(kind, given, folder) for kind in (own, "hf"))
        peer = run_worker("gguf", given, folder) if given.gguf else None
        for task, count in sizes.items():
            differences = list(compare(ours[task], theirs[task]))
            ties = [gap for _, _, gap in differences if gap <= TIE]
            wrong += len(differences) - len(ties)
            other, apart = len(differences) - len(ties), furthest(ours[task], theirs[task])
            speeds = [count / one[task]["seconds"] for one in (ours, theirs)]
            print(
                f"{task:15} {count} documents: {other} choices differ, {len(ties)} ties, logprobs within "
                f"{apart:.1e}; ropechat {speeds[0]:.1f} documents/s, hf {speeds[1]:.1f}: "
                f"{speeds[0] / speeds[1]:.1f} times"
            )
            if peer is not None:
                other, apart = (
                    len(list(compare(peer[task], theirs[task]))),
                    furthest(peer[task], theirs[task]),
                )
                speed = count / peer[task]["seconds"]
                print(
                    f"{'':15} gguf: {other} choices differ, logprobs within {apart:.1e}; "
                    f"{speed:.1f} documents/s"
                )
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
