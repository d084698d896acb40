"""Differential runs: random models, texts, draws and tensors, by ropechat and by another implementation.

    make differential                                  every subject, a few minutes each
    make differential DIFFERENTIAL="--size night"      the same for a night
    make differential DIFFERENTIAL="tokenizers samplers --count 5000 --seed 7"

Random numbers depend on the seed and the case alone, so that a case of the report can be run again. The exit
code is 1 if anything differs.
"""

import argparse
import importlib
import os
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path[1:1] = [str(TESTS.parent), str(TESTS / "support")]
os.environ |= {"HF_HUB_OFFLINE": "1", "TORCHDYNAMO_DISABLE": "1", "TOKENIZERS_PARALLELISM": "false"}

# Subject: its module, and how many cases of each kind a quick run and a run of a night has.
SUBJECTS = {
    "options": ("options", 2, 60),
    "tokenizers": ("vocabularies", 500, 100_000),
    "samplers": ("samplers", 1000, 10_000),
    "layouts": ("layouts", 20, 1000),
    "ggml": ("ggml_types", 20, 1000),
}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="tests/differential", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("subjects", nargs="*", metavar="SUBJECT", help=f"{', '.join(SUBJECTS)}; default: all")
    parser.add_argument("--size", choices=("quick", "night"), default="quick")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, help="cases of each kind; samplers: draws in all")
    parser.add_argument("--types", default="", help="kinds as the report names them, separated by ;")
    parser.add_argument("--gguf", type=Path, nargs="+", default=(), help="tokenizers: more vocabularies")
    parser.add_argument("--out", type=Path, default=TESTS.parent / "target" / "differential")
    options = parser.parse_args()
    if unknown := [name for name in options.subjects if name not in SUBJECTS]:
        parser.error(f"SUBJECT: must be of {', '.join(SUBJECTS)} (got {unknown[0]})")

    from report import Report
    from runs import Run

    settings = {name: str(value) for name, value in vars(options).items()}
    report = Report(options.out, settings)
    real = TESTS.parents[1] / "shared" / "real"
    types = frozenset(filter(None, options.types.split(";")))
    for subject in options.subjects or SUBJECTS:
        module, quick, night = SUBJECTS[subject]
        count = options.count or (quick if options.size == "quick" else night)
        run = Run(
            options.seed, count, types, options.out, real if real.is_dir() else None, tuple(options.gguf)
        )
        importlib.import_module(module).run(run, report)
        report.write()
    return 0 if report.is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
