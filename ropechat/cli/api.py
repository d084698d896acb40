"""`ropechat api`: a model as an HTTP server of OpenAI's form."""

import os
from pathlib import Path
from typing import Any

import click

from ropechat.cli.common import (
    Real,
    logit_bias_option,
    model_options,
    sampling_options,
    sourced_sampling,
    speculative_options,
    template_options,
)
from ropechat.cli.exit_codes import say
from ropechat.cli.listening import host_names, is_loopback, shown_name
from ropechat.cli.loading import load, take_model
from ropechat.cli.option_groups import GroupedCommand, option, option_set
from ropechat.cli.status import ProgressLine, progress_option
from ropechat.errors import FileAccessError, RequestError
from ropechat.sampling import SETTINGS
from ropechat.sampling.sources import DEFAULT

INSTALL = "uvicorn is not installed; pip install 'ropechat[api]'"
KEY_VARIABLE = "ROPECHAT_API_KEY"
_EXAMPLES = """
  ropechat api -m smollm2:135m
  curl http://127.0.0.1:8080/v1/chat/completions \\
    -H 'Content-Type: application/json' \\
    -d '{"messages": [{"role": "user", "content": "What is RoPE?"}]}'
  ropechat api --host 0.0.0.0 --expose --api-key-file key.txt
"""

_server_options = option_set(
    option("--host", default="127.0.0.1", show_default=True, help="Address to listen on."),
    option(
        "--port",
        type=click.IntRange(0, 65535),
        metavar="N",
        default=8080,
        show_default=True,
        help="Port to listen on; 0 takes a free one.",
    ),
    option("--expose", is_flag=True, help="Allow a HOST that other machines can reach; requires a key."),
    option(
        "--api-key-file",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help=f"A file with the key that clients must send [env: {KEY_VARIABLE} has the key itself].",
    ),
    option(
        "--allow-origin",
        "origins",
        expert=True,
        multiple=True,
        metavar="ORIGIN",
        help="A site such as https://example.org whose pages may send requests. Repeatable.",
    ),
    option(
        "--alias",
        "aliases",
        expert=True,
        multiple=True,
        metavar="NAME",
        help="Another name of the model, for clients that ask for it. Repeatable.",
    ),
    option(
        "--parallel",
        "window",
        old=["--window"],
        expert=True,
        type=click.IntRange(1, 256),
        metavar="N",
        default=16,
        show_default=True,
        help="Sequences that are computed at the same time.",
    ),
    option(
        "--waiting",
        expert=True,
        type=click.IntRange(0, 10_000),
        metavar="N",
        default=256,
        show_default=True,
        help="Requests that may wait; further ones are refused with status 429.",
    ),
    option(
        "--timeout",
        expert=True,
        metavar="SECONDS",
        type=Real(above=True),
        default=600.0,
        show_default=True,
        help="Let a request fail that is not finished SECONDS after its start.",
    ),
    progress_option,
    option("--quiet", is_flag=True, help="Write no notes, progress and lines about requests to stderr."),
    title="Server",
)


@click.command(cls=GroupedCommand, epilog=_EXAMPLES)
@_server_options
@option_set(
    option("--system", metavar="TEXT", help="A system message for chats without one."), title="Prompt"
)
@template_options
@sampling_options
@logit_bias_option
@model_options
@speculative_options
def api(host: str, port: int, expose: bool, api_key_file: Path | None, **given: Any) -> None:
    """Serve a model over HTTP in the form of OpenAI's API, to programs of this machine.

    /v1/chat/completions, /v1/completions (with echo and the logprobs of the given text), /v1/models,
    /tokenize, /detokenize, /health and /metrics. Requests are computed together, and the same request gives
    the same answer as `ropechat run` and `ropechat batch`; fields of a request go before the options. A field
    that is not understood is refused by its name. Requires the extra `api`: pip install 'ropechat[api]'.
    """
    from ropechat.api.spec import ApiSpec, Limits

    key = _read_key(api_key_file)
    if not is_loopback(host):
        if not expose:
            raise RequestError(
                f"--host: must be a loopback address such as 127.0.0.1 (got {host!r:.60}); or add --expose"
            )
        if key is None:
            raise RequestError(f"--expose: requires a key; give --api-key-file, or set {KEY_VARIABLE}")
    try:
        from ropechat.api.server import listen, serve
    except ImportError:
        raise RequestError(INSTALL) from None
    sourced = sourced_sampling(given)
    model = take_model(given)
    spec, quiet = model.find(), given["quiet"]
    with listen(host, port) as listener:
        number = listener.getsockname()[1]
        server = ApiSpec(
            sourced.sampling,
            frozenset(name for name in SETTINGS if sourced.source(name) == DEFAULT),
            given["system"],
            (*_own_name(model.spec.name), *given["aliases"]),
            key,
            None if expose else host_names(host, number),
            frozenset(given["origins"]),
            Limits(window=given["window"], waiting=given["waiting"], seconds=given["timeout"]),
        )
        engine = load(spec, quiet=quiet, line=ProgressLine("none" if quiet else given["progress"]))
        from ropechat.api.app import Api  # imported here, while packed weights are written

        application = Api(engine, server, (lambda line: None) if quiet else say)
        say(f"http://{shown_name(host)}:{number}/v1  {application.names[0]}  (Ctrl-C to stop)")
        try:
            serve(application, [listener])
        finally:
            application.close()


def _own_name(name: str) -> tuple[str, ...]:
    """What -m calls the model, unless it is a path."""
    return () if Path(name).exists() else (name,)


def _read_key(file: Path | None) -> str | None:
    """The key of the file, else of the environment. Raises RequestError, FileAccessError."""
    from ropechat.api.spec import check_key

    if file is None:
        given = os.environ.get(KEY_VARIABLE)
        return None if not given else check_key(given, KEY_VARIABLE)
    try:
        with file.open("rb") as opened:
            data = opened.read(4096)
    except OSError as error:
        raise FileAccessError(f"{file}: {error.strerror or error}") from None
    return check_key(data.decode("utf-8", "replace"), str(file))
