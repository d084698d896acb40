"""`--keep-prefix`: what the texts of a command begin with, kept on disk for the next command."""

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from ropechat.cli.common import current_setting
from ropechat.cli.exit_codes import say
from ropechat.cli.option_groups import F, option
from ropechat.errors import FileAccessError
from ropechat.settings.spec import GIGABYTE
from ropechat.util.kv_files import LEAST_KEPT, prefix_path

if TYPE_CHECKING:
    from ropechat.engine.engine import Engine


def keep_prefix_option(what: str) -> Callable[[F], F]:
    """The option --keep-prefix. what: that is kept."""
    return option(
        "--keep-prefix",
        metavar="NAME",
        expert=True,
        help=f"Save the KV cache of {what} as NAME; later runs reuse it.",
    )


@contextlib.contextmanager
def kept_prefix(engine: "Engine", name: str | None, on_note: Callable[[str], object] = say) -> Iterator[None]:
    """Take what is kept under a name when the body reads its first text; keep it at the end of the body.

    name: None keeps nothing. on_note: called with the reason if nothing was taken or kept.
    """
    if name is None:
        yield
        return
    total, key = current_setting("kv_disk_gb") * GIGABYTE, engine.cache_key
    if key is None or total == 0:
        why = "the cache is off" if key is None else "kv_disk_gb is 0"
        on_note(f"note: --keep-prefix: {why}; nothing is kept")
        yield
        return
    shared = engine.share_prefix(prefix_path(name, key))
    yield
    if shared.note is not None:
        on_note(f"note: {shared.note}")
    try:
        if not shared.keep(total):
            few = f"the texts have fewer than {LEAST_KEPT} tokens in common, or the disk is full"
            on_note(f"note: --keep-prefix: nothing is kept: {few}")
    except FileAccessError as error:
        on_note(f"note: --keep-prefix: {error}; nothing is kept")
