"""Copying by OSC 52, which works over ssh: the terminal that the user sits at takes the text."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_BASE64 = 74_994  # bytes in base64: what common terminals take


def osc52_sequence(text: str, environ: Mapping[str, str]) -> str | None:
    """What is sent to the terminal, or None if the text is too long for it.

    tmux takes the plain sequence where `set-clipboard` is on, and hands on what is wrapped where
    `allow-passthrough` is on. It ignores the other, so both are sent. GNU screen only hands on.
    (xterm: ctlseqs, OSC 52.)
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
