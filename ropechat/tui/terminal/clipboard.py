"""Copying by OSC 52, which works over ssh: the user's own terminal takes the text."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_BASE64 = 74_994  # bytes in base64 that common terminals accept


def osc52_sequence(text: str, environ: Mapping[str, str]) -> str | None:
    """The sequence that copies a text (xterm: ctlseqs, OSC 52), or None if the text is too long.

    tmux takes the plain sequence with `set-clipboard`, and passes a wrapped one on with
    `allow-passthrough`. It ignores the other one, so both are sent. GNU screen takes only the wrapped one.
    """
    encoded = base64.b64encode(text.encode("utf-8", "replace")).decode("ascii")
    if len(encoded) > MAX_BASE64:
        return None
    plain = f"\x1b]52;c;{encoded}\a"
    if environ.get("TMUX"):
        return plain + "\x1bPtmux;" + plain.replace("\x1b", "\x1b\x1b") + "\x1b\\"
    if environ.get("STY"):
        return "".join(f"\x1bP{plain[at : at + 250]}\x1b\\" for at in range(0, len(plain), 250))
    return plain
