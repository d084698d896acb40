"""ropechat: chat with local language models and see every token's probability.

    engine = ropechat.Engine.load("path/to/model")
    for step in engine.generate("Once upon a time", ropechat.Sampling(temperature=0)):
        print(step.text, end="")

Names are imported when they are first used, so that `import ropechat` costs nothing.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ropechat.batch.reader import RowOptions
    from ropechat.batch.row_template import RowTemplate
    from ropechat.batch.run import BatchResult, run_to_file, run_to_stream
    from ropechat.batch.spec import BatchSpec, BatchWatcher, PromptOptions
    from ropechat.conversation import Message, Role
    from ropechat.engine.engine import Engine
    from ropechat.engine.scheduler import Completion, Job
    from ropechat.engine.scoring import ScoreStream
    from ropechat.engine.spec import ModelSpec
    from ropechat.engine.templates.template import ChatTemplate
    from ropechat.errors import RopechatError
    from ropechat.inspector.matrix_spec import MatrixSpec, MatrixWatcher
    from ropechat.inspector.spec import InspectSpec, InspectWatcher
    from ropechat.inspector.stoppable import Watcher
    from ropechat.inspector.tree import Tree, TreeNode
    from ropechat.inspector.tree_spec import TreeSpec, TreeWatcher
    from ropechat.inspector.why.result import PartScore, Why, WhyWatcher
    from ropechat.inspector.why.spec import WhySpec
    from ropechat.models.download import pull
    from ropechat.sampling import Sampling
    from ropechat.sampling.grammar import Grammar
    from ropechat.tokenizer import Tokenizer
    from ropechat.trace import (
        Candidate,
        LensRow,
        Pair,
        Score,
        Stage,
        Step,
        TokenDistribution,
        TokenScore,
        Totals,
        Trace,
    )

__all__ = [
    "BatchResult",
    "BatchSpec",
    "BatchWatcher",
    "Candidate",
    "ChatTemplate",
    "Completion",
    "Engine",
    "Grammar",
    "InspectSpec",
    "InspectWatcher",
    "Job",
    "LensRow",
    "MatrixSpec",
    "MatrixWatcher",
    "Message",
    "ModelSpec",
    "Pair",
    "PartScore",
    "PromptOptions",
    "Role",
    "RopechatError",
    "RowOptions",
    "RowTemplate",
    "Sampling",
    "Score",
    "ScoreStream",
    "Stage",
    "Step",
    "TokenDistribution",
    "TokenScore",
    "Tokenizer",
    "Totals",
    "Trace",
    "Tree",
    "TreeNode",
    "TreeSpec",
    "TreeWatcher",
    "Watcher",
    "Why",
    "WhySpec",
    "WhyWatcher",
    "pull",
    "run_to_file",
    "run_to_stream",
]

_MODULES = {
    "batch.reader": ("RowOptions",),
    "batch.row_template": ("RowTemplate",),
    "batch.run": ("BatchResult", "run_to_file", "run_to_stream"),
    "batch.spec": ("BatchSpec", "BatchWatcher", "PromptOptions"),
    "engine.spec": ("ModelSpec",),
    "conversation": ("Message", "Role"),
    "engine.engine": ("Engine",),
    "errors": ("RopechatError",),
    "inspector.matrix_spec": ("MatrixSpec", "MatrixWatcher"),
    "inspector.spec": ("InspectSpec", "InspectWatcher"),
    "inspector.tree": ("Tree", "TreeNode"),
    "inspector.stoppable": ("Watcher",),
    "inspector.tree_spec": ("TreeSpec", "TreeWatcher"),
    "inspector.why.result": ("PartScore", "Why", "WhyWatcher"),
    "inspector.why.spec": ("WhySpec",),
    "sampling.grammar": ("Grammar",),
    "models.download": ("pull",),
    "sampling": ("Sampling",),
    "engine.scheduler": ("Job", "Completion"),
    "engine.templates.template": ("ChatTemplate",),
    "tokenizer": ("Tokenizer",),
    "engine.scoring": ("ScoreStream",),
    "trace": (
        *("Candidate", "LensRow", "Pair", "Score", "Stage", "Step"),
        *("TokenDistribution", "TokenScore", "Totals", "Trace"),
    ),
}


def __getattr__(name: str) -> Any:
    import importlib

    for module, names in _MODULES.items():
        if name in names:
            return getattr(importlib.import_module(f"ropechat.{module}"), name)
    if name == "__version__":
        from importlib.metadata import version

        return version("ropechat")
    raise AttributeError(f"module 'ropechat' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__, "__version__"])
