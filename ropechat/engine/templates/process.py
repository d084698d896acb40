"""The client of the renderer process (`sandbox`): one process for all chat templates, started on demand."""

import datetime
import json
from collections.abc import Mapping
from typing import Any

from ropechat.engine.templates.limits import CPU_SECONDS, MAX_OUTPUT_BYTES, MAX_REQUEST_BYTES, WALL_SECONDS
from ropechat.util.limited_process import LimitedProcess, LimitExceededError
from ropechat.util.text import limit_words

_MAX_REPLY = 6 * MAX_OUTPUT_BYTES + 1024  # ASCII JSON takes up to 6 bytes per UTF-8 byte


class TemplateFailureError(Exception):
    """A rendering failed. line: in the template.

    kind: "raised" (the template rejects the messages), "failed", "limit", or "stopped" (killed from outside).
    """

    def __init__(self, kind: str, what: str, line: int | None = None) -> None:
        super().__init__(what)
        self.kind = kind
        self.what = what
        self.line = line


class TemplateProcess(LimitedProcess):
    """A renderer process; `start` is optional."""

    def __init__(self) -> None:
        super().__init__(
            "ropechat.engine.templates.sandbox",
            ("jinja2", "markupsafe"),
            "renders chat templates",
            wall_seconds=WALL_SECONDS,
            max_reply=_MAX_REPLY,
        )

    def render(
        self, source: str, names: Mapping[str, Any] | None, now: datetime.datetime, *, strict: bool = False
    ) -> str:
        """Render a template with these variables (JSON values). `now`: the time of strftime_now.

        names: None compiles the template only, and returns the names that it uses, separated by spaces.
        strict: an undefined variable is a failure.
        Raises TemplateFailureError, FileAccessError if no process can be started, InternalError.
        """
        request = {
            "source": source,
            "names": None if names is None else dict(names),
            "now": now.isoformat(),
            "strict": strict,
        }
        data = json.dumps(request, ensure_ascii=False).encode("utf-8", "surrogatepass")
        if len(data) > MAX_REQUEST_BYTES:
            limit = f"messages {limit_words(MAX_REQUEST_BYTES, len(data))}"
            raise TemplateFailureError("limit", limit)
        try:
            reply = self.ask(data, CPU_SECONDS)
        except LimitExceededError as error:
            raise TemplateFailureError(error.kind, error.what) from None
        text, line = reply.get("text"), reply.get("line")
        if isinstance(text, str):
            return text
        where = line if isinstance(line, int) else None
        raise TemplateFailureError(str(reply.get("kind")), str(reply.get("error")), where)


SHARED = TemplateProcess()
"""The renderer process of this program."""
