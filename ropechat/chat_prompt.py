"""From the messages of a conversation to the ids that the model is fed.

Three rules: the model's chat template has the say; there is exactly one BOS; what people write stays text,
even where it spells a control token such as <|im_end|>.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ropechat.conversation import Message
from ropechat.errors import ChatTemplateError, RequestError
from ropechat.template import SYSTEM_FOLDED, ChatTemplate, checked_variables
from ropechat.tokenizer import Tokenizer

_NONCHARACTERS = [chr(code) for code in range(0xFDD0, 0xFDF0)]
"""For private marks: no text in the world should have them (Unicode, section 23.7)."""


class ChatPrompt:
    """How a model is asked. template: None continues the texts as they are.

    variables: what the template is told for every conversation. on_note: called with what a person should
    know about the prompt, once.
    """

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate | None) -> None:
        self.tokenizer = tokenizer
        self.template = template
        self.variables: dict[str, Any] = {}
        self.on_note: Callable[[str], None] = lambda text: None
        self._noted = False
        self._control: re.Pattern[str] | None = None

    def use(self, name: str | None = None, variables: Mapping[str, Any] | None = None) -> None:
        """Choose one of the model's templates by name, and what it is told from now on.

        Raises ChatTemplateError for a name that the model does not have, RequestError for bad variables.
        """
        checked = checked_variables(variables or {})
        if self.template is None:
            if name is not None or checked:
                raise ChatTemplateError("chat_template: this model has none; leave the options for it out")
            return
        if name is not None:
            self.template = self.template.select(name)
        self.variables = checked

    def ids(self, messages: Sequence[Message], variables: Mapping[str, Any] | None = None) -> list[int]:
        """The ids of a conversation up to where the reply begins. variables: go before those of `use`.

        Raises ChatTemplateError, TokenizerError, RequestError.
        """
        if self.template is None:
            if variables:
                raise RequestError("template variables: this model has no chat template; leave them out")
            return self.tokenizer.encode("".join(message.content for message in messages))
        ids = self._templated_ids(self.template, messages, {**self.variables, **(variables or {})})
        bos = self.tokenizer.bos_id
        if self.tokenizer.adds_bos and bos is not None and ids[:1] != [bos]:
            ids.insert(0, bos)
        return ids

    def _templated_ids(
        self, template: ChatTemplate, messages: Sequence[Message], variables: Mapping[str, Any]
    ) -> list[int]:
        control = self._control_pattern()
        spelled = {token for message in messages for token in control.findall(message.content)}
        if not spelled:
            ids = self.tokenizer.encode(template.prompt(messages, variables), add_special_tokens=False)
        else:
            mark = _mark(messages)

            def broken(match: re.Match[str]) -> str:
                return match[0][:1] + mark + match[0][1:]

            marked = [Message(message.role, control.sub(broken, message.content)) for message in messages]
            ids = self._plain_ids(template.prompt(marked, variables), mark, spelled)
        if template.folds_system and not self._noted:
            self._noted = True
            self.on_note(SYSTEM_FOLDED)
        return ids

    def _control_pattern(self) -> re.Pattern[str]:
        """What spells a control token; the longest first, as the tokenizer reads them."""
        if self._control is None:
            tokens = {self.tokenizer.token(id) or "" for id in self.tokenizer.special_ids} - {""}
            choice = "|".join(map(re.escape, sorted(tokens, key=len, reverse=True)))
            self._control = re.compile(choice or "(?!)")
        return self._control

    def _plain_ids(self, text: str, mark: str, spelled: set[str]) -> list[int]:
        """Ids of a text without its marks, one of which stands inside each spelling that is no control token.

        Raises RequestError where the tokenizer does not let text and control tokens be told apart.
        """
        ids = self.tokenizer.encode(text, add_special_tokens=False)
        kept, marks = self._without(ids, mark.encode())
        for token in sorted(spelled):
            id = self.tokenizer.id_of(token)
            if marks != text.count(mark) or len(token) == 1 or kept.count(id or 0) > text.count(token):
                raise RequestError(
                    f"messages: {token!r} is a control token that this tokenizer cannot read as text; "
                    "leave it out"
                )
        return kept

    def _without(self, ids: list[int], mark: bytes) -> tuple[list[int], int]:
        """The ids without the runs that spell the mark, and how many those are."""
        kept: list[int] = []
        marks = at = 0
        while at < len(ids):
            spelled, end = b"", at
            while end < len(ids) and len(spelled) < len(mark):
                spelled += self.tokenizer.token_bytes(ids[end])
                end += 1
            if spelled == mark:
                marks, at = marks + 1, end
            else:
                kept.append(ids[at])
                at += 1
        return kept, marks


def _mark(messages: Sequence[Message]) -> str:
    """A character that stands in no message."""
    used = {character for message in messages for character in message.content}
    for mark in _NONCHARACTERS:
        if mark not in used:
            return mark
    raise RequestError("messages: hold all noncharacters from U+FDD0 to U+FDEF; leave them out")
