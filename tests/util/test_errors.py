"""The exceptions: their texts are safe to print."""

import pytest

from ropechat.conversation import Message, Role
from ropechat.engine.templates.template import ChatTemplate
from ropechat.errors import ChatTemplateError, ModelFileError, RopechatError


def test_a_message_holds_nothing_that_a_terminal_obeys() -> None:
    assert (
        str(ModelFileError("a\x1b]52;c;AA\x07 \x9b2J \u202e \ud800 \x7f"))
        == "a␛]52;c;AA␇ ⟨009B⟩2J ⟨202E⟩ ⟨D800⟩ ␡"
    )
    kept = "é 日本 👩\u200d💻 \u00a0 two\nlines\tof text"
    assert str(RopechatError(kept)) == kept
    assert RopechatError("x", 3).args == ("x", 3)


def test_what_a_chat_template_says_is_cleaned() -> None:
    template = ChatTemplate("{{ raise_exception('no \\x1b[2J') }}", "x", {})
    with pytest.raises(ChatTemplateError) as caught:
        template.render([Message(Role.USER, "hi")])
    assert "no ␛[2J" in str(caught.value)
