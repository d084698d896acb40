"""The exceptions of ropechat. The command line prints each as one line on stderr and exits with `exit_code`.

RopechatError
├── ModelNotFoundError        4   model not found or not available
│   ├── NotDownloadedError        not on this machine, or incomplete; the Hub may have it
│   ├── DownloadError             the Hub, the network or the disk failed
│   │   └── HubUnreachableError       the Hub does not answer: no connection, or a proxy refuses
│   └── ModelPathError        2   a path without a model: the command line is at fault
├── RefusedInputError         2   invalid input; nothing was lost
│   ├── ModelFileError            a file is not what its format requires
│   │   ├── TensorError           missing, or of a wrong shape or type
│   │   ├── ConfigError           config.json has an invalid value
│   │   └── TokenizerError        tokenizer.json cannot be used
│   ├── UnsupportedModelError     valid, but not supported
│   ├── UnsafePathError           a path leads out of the model's folder
│   ├── ChatTemplateError         the chat template fails or refuses
│   ├── NonFiniteError            NaN or infinity in the logits
│   ├── MemoryLimitError          does not fit in memory
│   ├── ContextFullError          more tokens than fit in the context
│   ├── RowTimeoutError           a prompt of many took longer than was allowed
│   ├── UnsureError               an answer has a smaller probability than was asked for
│   ├── RequestError              an argument out of range
│   ├── BatchInputError           a batch file cannot be read at all
│   ├── SettingsError             the settings file or an environment variable is invalid
│   └── HistoryError              stored conversations are not usable, or one is not found
├── FileAccessError          74   the operating system refused
├── CancelledError          130   stopped on request
└── InternalError            70   a bug in ropechat
"""

_KEPT = "\n\t\u200c\u200d"


def _mark(character: str) -> str:
    """A character that a terminal obeys or hides, as a visible mark; others unchanged."""
    from unicodedata import category  # imported here: most messages need no marks

    if character in _KEPT or category(character) not in ("Cc", "Cf", "Cs", "Zl", "Zp"):
        return character
    code = ord(character)
    return chr(0x2400 + code) if code < 0x20 else "␡" if code == 0x7F else f"⟨{code:04X}⟩"


class RopechatError(Exception):
    """Base class of the errors that ropechat raises.

    A message may quote strangers' files, so what a terminal would obey is replaced by marks.
    """

    exit_code = 2

    def __init__(self, *given: object) -> None:
        super().__init__(*(self._clean(one) if isinstance(one, str) else one for one in given))

    @staticmethod
    def _clean(text: str) -> str:
        return text if text.isprintable() else "".join(map(_mark, text))


class RefusedInputError(RopechatError):
    """Invalid input. Messages read `<file>: <field>: must be <allowed> (got <value>); <what to do>`."""


class ModelNotFoundError(RopechatError):
    """Model not found, or not available."""

    exit_code = 4


class NotDownloadedError(ModelNotFoundError):
    """A Hub model that is not on this machine, or incomplete."""


class DownloadError(ModelNotFoundError):
    """The Hub refused, was unreachable or sent wrong bytes, or the disk is full. Received bytes are kept."""


class HubUnreachableError(DownloadError):
    """The Hub does not answer: no connection, a proxy refuses, or it is overloaded."""


class ModelPathError(ModelNotFoundError):
    """A path without a model."""

    exit_code = 2


class ModelFileError(RefusedInputError):
    """A model file violates its format."""


class TensorError(ModelFileError):
    """A tensor is missing or has a wrong shape or type."""


class ConfigError(ModelFileError):
    """config.json has an invalid value."""


class TokenizerError(ModelFileError):
    """tokenizer.json is invalid, or the model has no tokenizer and was given text."""


class UnsupportedModelError(RefusedInputError):
    """A valid model, key or value that ropechat does not support."""


class UnsafePathError(RefusedInputError):
    """A path inside a model leads out of its folder, or is not a regular file."""


class ChatTemplateError(RefusedInputError):
    """The chat template failed or rejected the messages."""


class NonFiniteError(RefusedInputError):
    """The logits contain NaN or infinity: the weights are damaged."""


class MemoryLimitError(RefusedInputError):
    """The model, its KV cache or a result does not fit in memory."""


class ContextFullError(RefusedInputError):
    """The tokens do not fit in the context."""


class RowTimeoutError(RefusedInputError):
    """A prompt of many took longer than was allowed."""


class UnsureError(RefusedInputError):
    """An answer has a smaller probability than was asked for."""


class RequestError(RefusedInputError):
    """An argument is out of range."""


class BatchInputError(RefusedInputError):
    """A batch file cannot be read at all. (An invalid line becomes an error record in the output.)"""


class SettingsError(RefusedInputError):
    """The settings file, or an environment variable for a setting, is invalid."""


class HistoryError(RefusedInputError):
    """The stored conversations are not usable, or a conversation is not found."""


class FileAccessError(RopechatError):
    """The operating system refused: no permission, disk full, or a file was truncated while in use."""

    exit_code = 74


class CancelledError(RopechatError):
    """Cancelled on request. The state is as before the call."""

    exit_code = 130


class InternalError(RopechatError):
    """A bug in ropechat."""

    exit_code = 70


class Terminated(BaseException):
    """SIGTERM or SIGHUP ends the program; code: its exit code. No `except Exception` catches it."""

    def __init__(self, code: int = 143) -> None:
        super().__init__()
        self.code = code
