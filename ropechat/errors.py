"""What can go wrong, as one tree. The command line turns each into one line on stderr and `exit_code`.

RopechatError
├── ModelNotFoundError        4   no such model is to be had
│   ├── NotDownloadedError        not on this machine, or not whole; the Hub may have it
│   ├── DownloadError             the Hub, the way to it or the disk failed
│   └── ModelPathError        2   a path that names no model: the command line is at fault
├── RefusedInputError         2   the input is at fault; nothing was lost
│   ├── ModelFileError            a file is not what its format requires
│   │   ├── TensorError           missing, misshapen or of an unusable type
│   │   ├── ConfigError           config.json holds a value no model can have
│   │   └── TokenizerError        tokenizer.json cannot be used
│   ├── UnsupportedModelError     sound, but not computed here
│   ├── UnsafePathError           a path points out of the model's folder
│   ├── ChatTemplateError         the chat template fails or refuses
│   ├── NonFiniteError            NaN or infinity in the logits
│   ├── MemoryLimitError          would not fit
│   ├── ContextFullError          more tokens than the context holds
│   ├── RequestError              an argument out of range
│   ├── BatchInputError           a batch file cannot be read at all
│   ├── SettingsError             the settings file or a variable of the environment cannot be used
│   └── HistoryError              kept conversations cannot be used, or there is no such one
├── FileAccessError          74   the operating system refused
├── CancelledError          130   stopped on request
└── InternalError            70   a bug in ropechat
"""


class RopechatError(Exception):
    """Base of every error that ropechat raises on purpose."""

    exit_code = 2


class RefusedInputError(RopechatError):
    """The input is at fault: `<file>: <field>: <what it is>; <what is allowed>; <what to do>`."""


class ModelNotFoundError(RopechatError):
    """No model by that name is to be had."""

    exit_code = 4


class NotDownloadedError(ModelNotFoundError):
    """A Hub id whose model is not on this machine, or not whole."""


class DownloadError(ModelNotFoundError):
    """The Hub refused, could not be reached or sent wrong bytes, or the disk is full; what came is kept."""


class ModelPathError(ModelNotFoundError):
    """A path that names no model."""

    exit_code = 2


class ModelFileError(RefusedInputError):
    """A model file is not what its format requires."""


class TensorError(ModelFileError):
    """A tensor is missing, has another shape or an unusable type."""


class ConfigError(ModelFileError):
    """config.json holds a value that no model can have."""


class TokenizerError(ModelFileError):
    """tokenizer.json cannot be used, or a model without a tokenizer was given text."""


class UnsupportedModelError(RefusedInputError):
    """A model, key or value that is sound but that ropechat does not compute."""


class UnsafePathError(RefusedInputError):
    """A path inside a model points out of its folder, or is no regular file."""


class ChatTemplateError(RefusedInputError):
    """The chat template fails, or refuses these messages."""


class NonFiniteError(RefusedInputError):
    """NaN or infinity in the logits: the weights are damaged."""


class MemoryLimitError(RefusedInputError):
    """The model, its cache or a result would not fit in memory."""


class ContextFullError(RefusedInputError):
    """More tokens than the context holds."""


class RequestError(RefusedInputError):
    """An argument is out of range."""


class BatchInputError(RefusedInputError):
    """A batch file cannot be read at all (a bad line is a record in the output, not this)."""


class SettingsError(RefusedInputError):
    """The settings file, or an environment variable that stands for a setting, cannot be used."""


class HistoryError(RefusedInputError):
    """Kept conversations cannot be used, or there is no such one."""


class FileAccessError(RopechatError):
    """The operating system refused: permission, disk full, a file cut under us."""

    exit_code = 74


class CancelledError(RopechatError):
    """Stopped on request; everything is as it was before the call."""

    exit_code = 130


class InternalError(RopechatError):
    """A bug in ropechat."""

    exit_code = 70
