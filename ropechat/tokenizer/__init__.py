"""Text and token ids: `Tokenizer`, from a tokenizer.json or from the vocabulary in a GGUF file."""

from ropechat.tokenizer.alignment import EncodedToken
from ropechat.tokenizer.control_tokens import ControlTokenEscaper
from ropechat.tokenizer.tokenizer import MAX_TEXT_BYTES, Tokenizer

__all__ = ["MAX_TEXT_BYTES", "ControlTokenEscaper", "EncodedToken", "Tokenizer"]
