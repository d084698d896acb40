"""The messages of one chat. A leaf: imports nothing of ours."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum


class Role(StrEnum):
    """Who speaks."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"


@dataclass(frozen=True)
class Message:
    """One turn of a conversation."""

    role: Role
    content: str


class Conversation:
    """Messages in order, with one writer; `messages` is a copy that another thread may keep."""

    def __init__(self, messages: Iterable[Message] = ()) -> None:
        self._messages = list(messages)

    @property
    def messages(self) -> list[Message]:
        """A copy of the messages, oldest first."""
        return list(self._messages)

    def append(self, role: Role, content: str) -> Message:
        """Add a turn at the end."""
        message = Message(Role(role), content)
        self._messages.append(message)
        return message

    def replace_last(self, content: str) -> Message:
        """Give the last turn another content (a reply that grows, an edited question). Raises IndexError."""
        message = Message(self._messages[-1].role, content)
        self._messages[-1] = message
        return message

    def truncate(self, length: int) -> None:
        """Keep the first `length` turns."""
        if length < 0:
            raise ValueError(f"length: {length} is not allowed; 0 or more is")
        del self._messages[length:]

    def clear(self) -> None:
        """Forget every turn."""
        self._messages.clear()

    def __len__(self) -> int:
        return len(self._messages)

    def __iter__(self) -> Iterator[Message]:
        return iter(self.messages)
