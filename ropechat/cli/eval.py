"""`ropechat eval`: lm-evaluation-harness with a model of this machine."""

import sys
from typing import Any

import click

from ropechat.cli.common import model_options
from ropechat.cli.exit_codes import OK
from ropechat.cli.loading import take_model
from ropechat.cli.option_groups import GroupedCommand, option, option_set
from ropechat.errors import RequestError

_EXAMPLES = """
  ropechat eval -m org/name --tasks hellaswag,arc_easy --limit 100
  ropechat eval --tasks gsm8k --apply_chat_template --output_path results
  ropechat eval --tasks my_task --include_path ./tasks  # a task of your own
"""


@click.command(
    "eval",
    cls=GroupedCommand,
    epilog=_EXAMPLES,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
)
@option_set(
    option(
        "--parallel",
        "window",
        old=["--window"],
        type=click.IntRange(1, 256),
        metavar="N",
        default=16,
        show_default=True,
        help="Requests that are computed at the same time.",
    ),
    option(
        "--max-length",
        type=click.IntRange(2),
        metavar="N",
        help="Tokens of a context [default: the trained length].",
    ),
    title="Run",
)
@model_options
@click.argument("words", metavar="[HARNESS OPTIONS]...", nargs=-1, type=click.UNPROCESSED)
def evaluate(words: tuple[str, ...], window: int, max_length: int | None, **given: Any) -> int:
    """Evaluate a model with lm-evaluation-harness, whose options follow (`lm_eval run --help` lists them).

    Needs `pip install 'ropechat[eval]'`. The data of the harness's own tasks are on the Hub; it downloads
    them.
    """
    try:
        from lm_eval._cli import HarnessCLI
        from lm_eval.utils import setup_logging

        import ropechat.adapters.lm_eval  # noqa: F401  (registers the model)
    except ImportError as error:
        raise RequestError(
            f"ropechat eval needs lm_eval ({error}); install it with `pip install 'ropechat[eval]'`"
        ) from None
    spec = take_model(given).find()
    options = {"model": spec.name, "window": window, "max_length": max_length}
    options |= {name: getattr(spec, name) for name in ("dtype", "kv_dtype", "threads", "context", "cache")}
    told = [f"{name}={value}" for name, value in options.items() if value is not None]
    before = sys.argv
    sys.argv = ["lm_eval", "run", "--model", "ropechat", *words, "--model_args", *told]
    try:
        setup_logging()
        parser = HarnessCLI()
        parser.execute(parser.parse_args())
    except (ValueError, KeyError, FileNotFoundError) as error:
        raise RequestError(f"lm_eval: {error}") from None
    finally:
        sys.argv = before
    return OK
