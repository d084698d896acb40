"""A program of a user, with types: `tests/test_user_program.py` runs it and has it checked."""

import sys
from collections.abc import Iterator
from math import log
from pathlib import Path

import ropechat
from ropechat import (
    BatchSpec,
    Engine,
    Grammar,
    InspectSpec,
    Job,
    MatrixSpec,
    Message,
    ModelSpec,
    PromptOptions,
    Role,
    RopechatError,
    Sampling,
    Step,
    Trace,
    TreeSpec,
    WhySpec,
    run_to_file,
)


def answer(engine: Engine, question: str) -> str:
    """One answer, through the chat template."""
    steps: Iterator[Step] = engine.reply(
        [Message(Role.USER, question)], Sampling(temperature=0, max_tokens=8)
    )
    return "".join(step.text for step in steps)


def surprises(engine: Engine, text: str, bits: float) -> list[tuple[str, float, str | None]]:
    """The tokens of a text that surprise the model more, and what it expected instead."""
    trace: Trace = engine.score(text, top_k=1)
    found: list[tuple[str, float, str | None]] = []
    for token in trace:
        if token.logprob is not None and token.row is not None and token.logprob < -bits * log(2):
            (best, _), *_ = token.row.top
            found.append((token.text, -token.logprob / log(2), engine.tokenizer.token(best)))
    return found


def choose(engine: Engine, question: str, *choices: str) -> str:
    """The answer that is one of some."""
    sampling = Sampling(temperature=0, grammar=Grammar.choices(choices))
    jobs = [Job([Message(Role.USER, question)], sampling=sampling)]
    ((_, completion),) = engine.generate_many(jobs)
    return completion.text


def main(folder: Path) -> int:
    """Everything, into a folder."""
    try:
        engine = Engine.load("builtin", cache="off")
    except RopechatError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    print(ropechat.__version__, answer(engine, "What is RoPE?"))
    print(surprises(engine, "The cat sat on the mat.", 6.0), choose(engine, "Is water wet?", "yes", "no"))
    probabilities = engine.probabilities(engine.tokenizer.encode("The cat"))
    print(probabilities.shape, float(probabilities[-1].sum()))
    InspectSpec(["The cat sat on the mat."]).write(folder / "cat.html", engine)
    TreeSpec("The cat", nodes=4, depth=2).write(folder / "tree.jsonl", engine)
    matrix = MatrixSpec(prompts=["The cat"], answers=[" sat", " ran"], form="csv")
    (folder / "matrix.csv").write_text("".join(matrix.pieces(matrix.run(engine))))
    why = WhySpec("It rains. The street is", answer=" wet", by="sentence").run(engine)
    print(why.complete)
    (folder / "in.jsonl").write_text('{"prompt": "Hello"}\n')
    batch = BatchSpec(
        folder / "in.jsonl",
        model=ModelSpec("builtin", cache="off"),
        prompts=PromptOptions(samples=2),
        sampling=Sampling(max_tokens=4, seed=1),
    )
    print(run_to_file(batch, folder / "out.jsonl").totals.ok)
    engine.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
