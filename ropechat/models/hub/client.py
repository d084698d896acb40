"""Talking to the Hub, by huggingface_hub: its token, proxies, endpoint and session. Its only importer.

Only the listing and the session are the library's: its own downloads begin anew after an interruption (since
2.x each writes to a partial file of its own and deletes it), so `transfer` writes the files.
"""

import contextlib
import logging
import os
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ropechat.errors import DownloadError, RopechatError
from ropechat.models.hub.names import MAIN, HubName
from ropechat.util.files import parse_json

if TYPE_CHECKING:
    from pathlib import Path

_SITE = "https://huggingface.co"
_TRUE = ("1", "on", "yes", "true")
_TIMEOUT = 10.0  # seconds without a byte


def endpoint() -> str:
    """The Hub's address: HF_ENDPOINT, or huggingface.co."""
    return (os.environ.get("HF_ENDPOINT") or _SITE).rstrip("/")


def check_online(name: HubName) -> None:
    """Raises DownloadError when the environment forbids the network."""
    for variable in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        if os.environ.get(variable, "").lower() in _TRUE:
            raise DownloadError(f"{name}: {variable} is set, so nothing is downloaded; unset it")


def _quiet_library() -> None:
    """huggingface_hub would ask the Hub for a list of agents and tell it what else is installed."""
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")  # read when the library is imported


def listing(name: HubName) -> Any:
    """The repository at a revision: `sha` and `siblings` with sizes and hashes. Raises DownloadError."""
    check_online(name)
    _quiet_library()
    with explained(name):
        from huggingface_hub import HfApi

        logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # it logs what servers say to stderr
        api = HfApi(endpoint=endpoint(), library_name="ropechat")
        return api.model_info(name.repo, revision=name.revision, files_metadata=True, timeout=_TIMEOUT)


@contextlib.contextmanager
def opened(name: HubName, commit: str, file: str, start: int = 0) -> Iterator[Any]:
    """A response whose body is a file from byte `start` on (status 206), or all of it (200).

    The token goes to the Hub only: the session drops it when a redirect leads to another host.
    Raises what the session raises; see `explained`.
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
    """A small JSON file of a repository. Raises DownloadError, ConfigError."""
    data = bytearray()
    with explained(name), opened(name, commit, file) as response:
        for piece in response.iter_raw():
            data += piece
            if len(data) > limit:
                raise DownloadError(f"{name}: {file}: longer than {limit} bytes; no such file of a model is")
    return parse_json(bytes(data), where)


@contextlib.contextmanager
def explained(name: HubName) -> Iterator[None]:
    """Whatever the library raises becomes a DownloadError; not its text, that may hold signed addresses."""
    try:
        yield
    except RopechatError:
        raise
    except Exception as error:
        raise explanation(error, name) from None


def kinds(error: BaseException) -> set[str]:
    """Names of an exception's classes: the HTTP library's module is called otherwise in other releases."""
    return {kind.__name__ for kind in type(error).__mro__}


def is_transient(error: BaseException) -> bool:
    """Whether trying again may help: the connection broke, or the server is overloaded."""
    code = status(error)
    return code in (408, 429) or code >= 500 or "TransportError" in kinds(error)


def is_answer(error: BaseException) -> bool:
    """Whether the Hub or the way to it failed, rather than this machine. (Some are kinds of OSError.)"""
    return status(error) > 0 or bool(kinds(error) & {"HTTPError", "OfflineModeIsEnabled"})


def status(error: BaseException) -> int:
    """The HTTP status that an error carries, or 0."""
    return getattr(getattr(error, "response", None), "status_code", 0) or 0


def explanation(error: Exception, name: HubName) -> DownloadError:
    """One line for people: what failed and what to do."""
    site = endpoint()
    known, code, page = kinds(error), status(error), f"{site}/{name.repo}"
    if "GatedRepoError" in known:
        what = f"gated: open {page}, accept its terms, then run `hf auth login` (or set HF_TOKEN)"
    elif "RevisionNotFoundError" in known:
        what = f"no revision {name.revision!r}; see {page}/tree/{MAIN}"
    elif "DisabledRepoError" in known:
        what = f"disabled by the Hub; see {page}"
    elif "RepositoryNotFoundError" in known:
        what = f"not on {site}, or private; check the spelling, or run `hf auth login` (or set HF_TOKEN)"
    elif "EntryNotFoundError" in known:
        what = f"a file is listed but not there; see {page}"
    elif "ProxyError" in known or code == 407:
        what = "the proxy refuses; check HTTPS_PROXY, HTTP_PROXY and NO_PROXY"
    elif "OfflineModeIsEnabled" in known:
        what = "HF_HUB_OFFLINE is set, so nothing is downloaded; unset it"
    elif code in (401, 403):
        what = f"{site} answers {code}: the token is not accepted or lacks rights; run `hf auth login`"
    elif code == 429:
        what = f"{site} answers 429: too many requests; wait some minutes (a token has higher limits)"
    elif code:
        what = f"{site} answers {code}; try again later"
    elif "TimeoutException" in known:
        what = f"{site} does not answer; check the connection and run it again"
    elif "TransportError" in known:
        what = f"{site} cannot be reached ({_reason(error)}); check the connection, HF_ENDPOINT and proxies"
    elif "TooManyRedirects" in known or "InvalidURL" in known or "UnsupportedProtocol" in known:
        what = f"{site}: not the address of a Hub; check HF_ENDPOINT"
    else:
        what = f"{site} does not answer like a Hub ({type(error).__name__}); check HF_ENDPOINT and proxies"
    return DownloadError(f"{name}: {what}")


def _reason(error: BaseException) -> str:
    """The system's words for why a connection failed."""
    return re.sub(r"^\[Errno -?\d+\] ", "", str(error)) if kinds(error) & {"ConnectError"} else "it broke off"
