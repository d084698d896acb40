"""From the messages of a conversation to the ids that the model is fed.

Three rules: the model's chat template has the say; there is exactly one BOS; what people write stays text,
even where it spells a control token such as <|im_end|>.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ropechat.conversation import Message
from ropechat.errors import ChatTemplateError, RequestError
from ropechat.template import SYSTEM_FOLDED, ChatTemplate, checked_variables
from ropechat.tokenizer import Tokenizer

KEPT = 4
"""Prompts whose ids are kept: a reply asks for them several times, and so do more answers to a question."""


class ChatPrompt:
    """How a model is asked. template: None continues the texts as they are.

    control_ids: the tokens that text never becomes. variables: what the template is told for every
    conversation. on_note: called with what a person should know about the prompt, once.
    """

    def __init__(
        self, tokenizer: Tokenizer, template: ChatTemplate | None, control_ids: frozenset[int]
    ) -> None:
        self.tokenizer = tokenizer
        self.template = template
        self.control_ids = control_ids
        self.variables: dict[str, Any] = {}
        self.on_note: Callable[[str], None] = lambda text: None
        self._noted = False
        self._known: tuple[tuple[object, list[int]], ...] = ()  # the newest prompts, the last one first

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

    def unused(self) -> list[str]:
        """The variables of `use` that the template does not mention: perhaps a slip of the pen."""
        template = self.template
        return [] if template is None else [name for name in self.variables if not template.mentions(name)]

    def ids(
        self, messages: Sequence[Message], variables: Mapping[str, Any] | None = None, begun: str = ""
    ) -> list[int]:
        """The ids of a conversation up to where the reply begins, and of `begun`, with which it begins.

        variables: go before those of `use`.

        Raises ChatTemplateError, TokenizerError, RequestError.
        """
        told = repr({**self.variables, **(variables or {})})  # 1 and True are equal, but not rendered so
        asked = (tuple(messages), told, variables is None, begun, self.template, self.control_ids)
        known = next((ids for before, ids in self._known if before == asked), None)
        if known is None:
            known = self._ids(messages, variables, begun)
            self._known = ((asked, known), *self._known)[:KEPT]
        return list(known)

    def _ids(self, messages: Sequence[Message], variables: Mapping[str, Any] | None, begun: str) -> list[int]:
        control = self.tokenizer.quoting(self.control_ids)
        quoted = [Message(message.role, control.quote(message.content)) for message in messages]
        if self.template is None:
            if variables:
                raise RequestError("template variables: this model has no chat template; leave them out")
            text = "".join(message.content for message in quoted)
        else:
            text = self.template.prompt(quoted, {**self.variables, **(variables or {})})
            self._note_folding(self.template)
        ids = control.encode(text + control.quote(begun))
        bos = self.tokenizer.bos_id
        if self.tokenizer.adds_bos and bos is not None and ids[:1] != [bos]:
            ids.insert(0, bos)
        return ids

    def reply_ids(self, messages: Sequence[Message], text: str) -> list[int]:
        """The ids of a reply that somebody wrote, as they stand behind the conversation. Raises as `ids`."""
        prompt, whole = self.ids(messages), self.ids(messages, begun=text)
        if whole[: len(prompt)] == prompt:
            return whole[len(prompt) :]
        control = self.tokenizer.quoting(self.control_ids)  # the seam was read as one token
        return control.encode(control.quote(text))

    def _note_folding(self, template: ChatTemplate) -> None:
        if template.folds_system and not self._noted:
            self._noted = True
            self.on_note(SYSTEM_FOLDED)
