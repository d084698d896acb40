"""Errors as OpenAI's API gives them: a status code and {"error": {"message", "type", "param", "code"}}."""

import re
from typing import Any

from ropechat.batch.line import LineError
from ropechat.errors import (
    CancelledError,
    ContextFullError,
    InternalError,
    MemoryLimitError,
    NonFiniteError,
    RopechatError,
    RowTimeoutError,
)

_FIELD = re.compile(r"([a-z][a-zA-Z_.\[\]0-9-]{0,80}): ")
_STATUS: tuple[tuple[type[RopechatError], int, str | None], ...] = (
    (ContextFullError, 400, "context_length_exceeded"),
    (RowTimeoutError, 504, "timeout"),
    (MemoryLimitError, 503, "memory"),
    (CancelledError, 503, "stopping"),
    (NonFiniteError, 500, "non_finite"),
    (InternalError, 500, None),
)


class ApiError(Exception):
    """A request that is answered with an error. param: the field at fault. code: a name of the error."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: tuple[tuple[str, str], ...] = (),
    ) -> None:
        super().__init__(message)
        self.status, self.param, self.code, self.headers = status, param, code, headers

    @property
    def body(self) -> dict[str, Any]:
        """The body of the response, and the data of an event of a stream."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}


def refuse(message: str, *, status: int = 400, code: str | None = None) -> ApiError:
    """The error of an invalid field, which the message begins with."""
    found = _FIELD.match(message)
    return ApiError(status, message, param=found.group(1) if found else None, code=code)


def error_of(error: BaseException) -> ApiError:
    """What a client is told of an error; of a bug only its class."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, LineError):
        return refuse(str(error))
    if isinstance(error, RopechatError):
        for kind, status, code in _STATUS:
            if isinstance(error, kind):
                return refuse(str(error), status=status, code=code)
        return refuse(str(error))
    return ApiError(500, f"a bug in ropechat: {type(error).__name__}; ROPECHAT_DEBUG=1 shows where")
