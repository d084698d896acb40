"""A Markdown text of every kind, and short ways to read an answer in the chat."""

import math
from collections.abc import Iterable
from typing import Any

from fakes import fake_step

from ropechat.trace import Candidate, Stage, Step, TokenDistribution
from ropechat.tui.render import cursor as moves
from ropechat.tui.render.blocks import AnswerBlock

DOCUMENT = """# Title **x** #
Some text with *emphasis*, `code` and a [link](http://example.org/x).
Second line of it.

- one item that is long enough to wrap on a narrow screen indeed
- two
  - nested `a`

    more of nested
  - nested b
- three
  ```python
  def f(x):
      \"\"\"doc
      string\"\"\"
      return x + 1  # comment
  ```
1. first
2. second

> quote line
> more **bold**
>
> - item in quote
lazy

| Name | Value | Note |
|:-----|------:|:----:|
| a | 1 | x |
| long name | 12345 | *hello* |
| pipe \\| x | 2 |

```rust
fn main() { let x = "a very long string that goes on and on beyond the width"; }
```
Underlined
---
***
    indented code

    more of it
end <b>html</b> &lt;x&gt; 你好 👩\u200d👩\u200d👧
"""


async def answered(c: Any, text: str = "Tell") -> Any:
    """Ask, wait, and go to the transcript."""
    await c.ask(text)
    await c.idle()
    await c.pilot.press("escape")
    return c.app.transcript


def feed(view: Any, block: AnswerBlock, steps: Iterable[Step]) -> None:
    """Add tokens to an answer that has ended, and draw them."""
    block.answer.steps += steps
    view.feed(block)


def telling_step(index: int, token: bytes, chosen: int) -> Step:
    """A step with candidates and stages that belong together."""
    top = ((7, -0.5), (8, -1.5), (9, -2.5), (3, -3.0))
    base = fake_step(index, token, token.decode("utf-8", "replace"))
    stages = (Stage("top_k", 3, 0.9, 0.9), Stage("top_p", 2, 0.83, 0.8))
    logprob = dict(top)[chosen]
    rank = [id for id, _ in top].index(chosen) + 1
    row = TokenDistribution(index, top, 3.0, 1.1, 0.98)
    kept = {id: math.exp(dict(top)[id]) for id in (7, 8)}
    shares = {id: weight / sum(kept.values()) for id, weight in kept.items()}
    cuts = {9: "top_p", 3: "top_k"}
    candidates = tuple(
        Candidate(id, place, cuts.get(id), False, shares.get(id, 0.0)) for place, (id, _) in enumerate(top, 1)
    )
    interval = (0.0, shares[7]) if chosen == 7 else (shares[7], 1.0)
    return base._replace(
        id=chosen,
        logprob=logprob,
        rank=rank,
        entropy=1.1,
        top=top,
        row=row,
        stages=stages,
        candidates=candidates,
        interval=interval,
        u=interval[0] + 0.01,
    )


async def inspected(c: Any, token: bytes = b" dangle", chosen: int = 8) -> Any:
    """An answer whose last token has a telling record, under the inspector."""
    view = await answered(c)
    block = view.blocks[-1]
    feed(view, block, [telling_step(len(block.steps), token, chosen)])
    await c.pilot.press("left", "enter")
    await c.pilot.pause(0.2)
    return c.app.inspector


def row_of_cursor(c: Any) -> int:
    view = c.app.transcript
    place = moves.place_of(view.page, view.cursor)
    return int(view.page.y_of(place)) - round(view.scroll_y)
