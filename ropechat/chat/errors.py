"""Errors in words for the screen."""

from ropechat.errors import RopechatError
from ropechat.util.text import one_line


def explain(error: BaseException) -> str:
    """An error as one clean line; anything that was not raised on purpose is called a bug."""
    if isinstance(error, RopechatError):
        return one_line(str(error) or type(error).__name__)
    if isinstance(error, OSError | MemoryError):
        return one_line(str(error) or "out of memory")
    return one_line(f"a bug in ropechat: {type(error).__name__}: {error}; ROPECHAT_DEBUG=1 shows where")


def exit_code(error: BaseException) -> int:
    """The exit code that belongs to an error."""
    if isinstance(error, RopechatError):
        return error.exit_code
    return 74 if isinstance(error, OSError) else 70
