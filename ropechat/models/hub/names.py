"""Names of models on the Hub: org/name, org/name:QUANT, org/name@revision."""

import re
from typing import NamedTuple

from ropechat.models.weights import is_plain

MAIN = "main"
_PART = r"[A-Za-z0-9](?:[\w.-]*\w)?"
_REPO = rf"(?a){_PART}/{_PART}"
_MAX_REPO_LENGTH = 96
_SITES = ("https://huggingface.co/", "huggingface.co/", "hf.co/")


class HubName(NamedTuple):
    """A repository, its revision (branch, tag or commit), and the quantization of a GGUF in it."""

    repo: str
    revision: str = MAIN
    quant: str | None = None

    def __str__(self) -> str:
        revision = "" if self.revision == MAIN else f"@{self.revision}"
        return self.repo + (f":{self.quant}" if self.quant else "") + revision


def is_repo(text: str) -> bool:
    """Whether a text is a valid repository id, by the rules of huggingface_hub's validate_repo_id."""
    return (
        re.fullmatch(_REPO, text) is not None
        and len(text) <= _MAX_REPO_LENGTH
        and "--" not in text
        and ".." not in text
        and not text.endswith(".git")
    )


def parse(text: str) -> HubName | None:
    """Parse a Hub name; None if it is not one. QUANT and revision may come in either order."""
    for site in _SITES:
        text = text.removeprefix(site)
    repo = re.split("[:@]", text, maxsplit=1)[0]
    rest = re.findall(r"([:@])([^:@]+)", text[len(repo) :])
    marks = [mark for mark, _ in rest]
    if not is_repo(repo) or len(set(marks)) != len(marks):
        return None
    if sum(1 + len(value) for _, value in rest) != len(text) - len(repo):
        return None
    given = dict(rest)
    if not all(is_plain(value) for value in given.values()):
        return None
    return HubName(repo, given.get("@", MAIN), given.get(":"))
