"""JSON schemas of a public collection: compiled, sampled from at temperature 1, and validated.

    python tests/bench/schemas.py COLLECTION [-m MODEL] [--schemas 200] [--samples 20]

COLLECTION: a clone of guidance-ai/jsonschemabench (a checkout or a bare repository), which is read where it
is. Needs `pip install 'jsonschema[format]'`. Prints one JSON object: how many schemas are refused and why,
how long compiling takes, how many documents are finished, and how many of these the package `jsonschema`
calls invalid (which must be 0). SIGTERM ends it early.
"""

import argparse
import collections
import json
import random
import re
import resource
import signal
import subprocess
import time
import warnings
from pathlib import Path

import jsonschema

from ropechat import Engine, Grammar, Job, Sampling
from ropechat.engine.grammars import check_grammar
from ropechat.errors import RopechatError


def git(folder: Path, *words: str) -> str:
    return subprocess.run(["git", "-C", folder, *words], capture_output=True, text=True, check=True).stdout


def find_schemas(folder: Path, count: int, seed: int) -> list[tuple[str, str]]:
    """(name, text) of schemas drawn at random, as many of each part of the collection."""
    names = [name for name in git(folder, "ls-tree", "-r", "HEAD", "--name-only", "data").split("\n") if name]
    parts = collections.defaultdict(list)
    for name in names:
        parts[name.split("/")[1]].append(name)
    draw = random.Random(seed)
    for part in parts.values():
        draw.shuffle(part)
    turns = [name for row in zip(*(part[:count] for part in parts.values()), strict=False) for name in row]
    return [(name, git(folder, "show", f"HEAD:{name}")) for name in turns[:count]]


def kind_of(error: RopechatError) -> str:
    text = str(error).removeprefix("grammar: ")
    return re.sub(r"\"[^\"]*\"|'[^']*'|\d+", "_", text)[:60]


def is_valid(validator: jsonschema.protocols.Validator, text: str) -> str | None:
    """None, or what is wrong."""
    try:
        validator.validate(json.loads(text))
    except jsonschema.ValidationError as error:
        return error.message[:200]
    except ValueError as error:
        return str(error)
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("collection", type=Path)
    parser.add_argument("-m", "--model", default="builtin")
    parser.add_argument("--schemas", type=int, default=200, help="how many that can be honoured")
    parser.add_argument("--samples", type=int, default=20)
    parser.add_argument("--max-tokens", type=int, default=300)
    parser.add_argument("--window", type=int, default=32)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    warnings.simplefilter("ignore")

    taken, refused, slowest, spent = [], collections.Counter(), 0.0, []
    for name, text in find_schemas(given.collection, 4 * given.schemas, given.seed):
        if len(taken) == given.schemas:
            break
        begun = time.thread_time(), time.perf_counter()
        try:
            grammar = check_grammar(Grammar.json_schema(text))
        except RopechatError as error:
            refused[kind_of(error)] += 1
            slowest = max(slowest, time.perf_counter() - begun[1])
            continue
        spent.append(time.perf_counter() - begun[1])
        taken.append((name, json.loads(text), grammar))
    engine = Engine.load(given.model)
    ids = [(number, sample) for sample in range(given.samples) for number in range(len(taken))]

    def jobs():
        for number, sample in ids:
            schema = taken[number][2]
            sampling = Sampling(
                temperature=1, top_k=0, top_p=1, max_tokens=given.max_tokens, seed=sample, grammar=schema
            )
            yield Job("Once upon a time", sampling)

    finished, invalid, failed, tokens = 0, [], collections.Counter(), 0
    reasons: collections.Counter[str] = collections.Counter()
    by_schema: collections.Counter[str] = collections.Counter()
    kinds = [jsonschema.validators.validator_for(schema) for _, schema, _ in taken]
    validators = [
        # The formats of the schema's own draft: FormatChecker() would take "time" from draft 3.
        kind(schema, format_checker=kind.FORMAT_CHECKER)
        for kind, (_, schema, _) in zip(kinds, taken, strict=True)
    ]
    begun = resource.getrusage(resource.RUSAGE_SELF)
    signal.signal(signal.SIGTERM, lambda *_: engine.cancel())
    done = 0
    for index, result in engine.generate_many(jobs(), window=given.window):
        if result.finish_reason == "cancelled":
            continue
        done += 1
        name = taken[ids[index][0]][0]
        tokens += result.completion_tokens
        if result.error is not None:
            failed[f"{name}: {result.error}"[:160]] += 1
            continue
        reasons[str(result.finish_reason)] += 1
        if result.finish_reason != "stop":
            continue
        finished += 1
        by_schema[name] += 1
        wrong = is_valid(validators[ids[index][0]], result.text)
        if wrong is not None:
            invalid.append([name, wrong, result.text[:200]])
    ended = resource.getrusage(resource.RUSAGE_SELF)
    spent.sort()
    print(
        json.dumps(
            {
                "schemas": len(taken),
                "refused": sum(refused.values()),
                "refused_because": dict(refused.most_common(8)),
                "slowest_refusal_s": round(slowest, 3),
                "check_s": {"p50": round(spent[len(spent) // 2], 4), "max": round(spent[-1], 3)},
                "documents": done,
                "finish_reasons": dict(reasons),
                "finished": finished,
                "schemas_with_a_finished_document": len(by_schema),
                "invalid": len(invalid),
                "failed": dict(failed),
                "tokens": tokens,
                "cpu_s": round(ended.ru_utime - begun.ru_utime, 1),
                "invalid_examples": invalid[:10],
            },
            indent=1,
        )
    )
    raise SystemExit(1 if invalid else 0)


if __name__ == "__main__":
    main()
