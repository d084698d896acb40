"""Requests to the Hub through huggingface_hub (this is its only importer), with its token and session.

Only listing and session are used: the library's own downloads restart from zero after an interruption (since
2.x each deletes its partial file), so `transfer` writes the files.
"""

import contextlib
import logging
import os
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ropechat.errors import DownloadError, HubUnreachableError, RopechatError
from ropechat.models.hub.names import MAIN, HubName
from ropechat.util.files import parse_json
from ropechat.util.text import format_bytes

if TYPE_CHECKING:
    from pathlib import Path

_SITE = "https://huggingface.co"
_TRUE = ("1", "on", "yes", "true")
_TIMEOUT = 10.0  # seconds without a byte


def endpoint() -> str:
    """The URL of the Hub: HF_ENDPOINT, or huggingface.co."""
    return (os.environ.get("HF_ENDPOINT") or _SITE).rstrip("/")


def check_online(name: HubName) -> None:
    """Raise DownloadError if the environment forbids network access."""
    for variable in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        if os.environ.get(variable, "").lower() in _TRUE:
            raise DownloadError(f"{name}: {variable} is set, so nothing is downloaded; unset it")


def _quiet_library() -> None:
    """Disable the telemetry of huggingface_hub."""
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")  # read when the library is imported


def listing(name: HubName) -> Any:
    """The repository at a revision: `sha` and `siblings` with sizes and hashes. Raises DownloadError."""
    check_online(name)
    _quiet_library()
    with explained(name):
        from huggingface_hub import HfApi

        logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # it logs server responses to stderr
        api = HfApi(endpoint=endpoint(), library_name="ropechat")
        return api.model_info(name.repo, revision=name.revision, files_metadata=True, timeout=_TIMEOUT)


@contextlib.contextmanager
def opened(name: HubName, commit: str, file: str, start: int = 0) -> Iterator[Any]:
    """Open a response with a file from byte `start` on (status 206), or all of it (200).

    The token goes to the Hub only: the session drops it on a redirect to another host.
    Raises the session's exceptions; see `explained`.
    """
    from huggingface_hub import get_session, hf_hub_url, hf_raise_for_status
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    headers = build_hf_headers(library_name="ropechat") | {"Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
    url = hf_hub_url(name.repo, file, revision=commit, endpoint=endpoint())
    with get_session().stream("GET", url, headers=headers, timeout=_TIMEOUT) as response:
        hf_raise_for_status(response)
        yield response


def read_json(name: HubName, commit: str, file: str, limit: int, where: "Path") -> dict[str, Any]:
    """Download a small JSON file of a repository. Raises DownloadError, ConfigError."""
    data = bytearray()
    with explained(name), opened(name, commit, file) as response:
        for piece in response.iter_raw():
            data += piece
            if len(data) > limit:
                raise DownloadError(
                    f"{name}: {file}: must be at most {format_bytes(limit)}; check HF_ENDPOINT"
                )
    return parse_json(bytes(data), where)


@contextlib.contextmanager
def explained(name: HubName) -> Iterator[None]:
    """Convert the library's exceptions to DownloadError, without their text: it may contain signed URLs."""
    try:
        yield
    except RopechatError:
        raise
    except Exception as error:
        raise explanation(error, name) from None


def kinds(error: BaseException) -> set[str]:
    """Names of an exception's classes; the HTTP library's module name differs between releases."""
    return {kind.__name__ for kind in type(error).__mro__}


def is_transient(error: BaseException) -> bool:
    """Whether a retry may help: the connection broke, or the server is overloaded."""
    code = status(error)
    return code in (408, 429) or code >= 500 or "TransportError" in kinds(error)


def is_answer(error: BaseException) -> bool:
    """Whether the Hub or the network failed, not this machine. (Some of these are OSErrors.)"""
    return status(error) > 0 or bool(kinds(error) & {"HTTPError", "OfflineModeIsEnabled"})


def status(error: BaseException) -> int:
    """The HTTP status of an error, or 0."""
    return getattr(getattr(error, "response", None), "status_code", 0) or 0


def explanation(error: Exception, name: HubName) -> DownloadError:
    """Describe in one line what failed and what to do."""
    site = endpoint()
    known, code, page = kinds(error), status(error), f"{site}/{name.repo}"
    if "GatedRepoError" in known:
        what = f"gated: open {page}, accept its terms, then run `hf auth login` (or set HF_TOKEN)"
    elif "RevisionNotFoundError" in known:
        what = f"revision {name.revision!r} not found; see {page}/tree/{MAIN}"
    elif "DisabledRepoError" in known:
        what = f"disabled by the Hub; see {page}"
    elif "RepositoryNotFoundError" in known:
        what = (
            f"not found on {site}, or private; check the spelling, or run `hf auth login` (or set HF_TOKEN)"
        )
    elif "EntryNotFoundError" in known:
        what = f"a listed file does not exist; see {page}"
    elif "ProxyError" in known or code == 407:
        what = "the proxy refused the request; check HTTPS_PROXY, HTTP_PROXY and NO_PROXY"
    elif "OfflineModeIsEnabled" in known:
        what = "HF_HUB_OFFLINE is set, so nothing is downloaded; unset it"
    elif code in (401, 403):
        what = f"{site} answered {code}: the token is invalid or lacks permission; run `hf auth login`"
    elif code == 429:
        what = f"{site} answered 429: too many requests; wait a few minutes (a token has higher limits)"
    elif code:
        what = f"{site} answered {code}; try again later"
    elif "TimeoutException" in known:
        what = f"{site} does not answer; check the connection and try again"
    elif "TransportError" in known:
        what = f"cannot reach {site} ({_reason(error)}); check the connection, HF_ENDPOINT and proxies"
    elif "TooManyRedirects" in known or "InvalidURL" in known or "UnsupportedProtocol" in known:
        what = f"{site}: not a valid Hub URL; check HF_ENDPOINT"
    else:
        what = f"{site} does not answer like a Hub ({type(error).__name__}); check HF_ENDPOINT and proxies"
    is_away = code in (407, 429) or code >= 500 or bool(known & {"TransportError", "TimeoutException"})
    return (HubUnreachableError if is_away else DownloadError)(f"{name}: {what}")


def _reason(error: BaseException) -> str:
    """The system's reason for a failed connection."""
    return (
        re.sub(r"^\[Errno -?\d+\] ", "", str(error)) if kinds(error) & {"ConnectError"} else "connection lost"
    )
