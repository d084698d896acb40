"""The model that a script measures: its options on the command line, and random weights of a shape."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from ropechat.cli.bench import Q4_K_M
from ropechat.engine.bench.gguf import make_gguf
from ropechat.engine.bench.shapes import SHAPES, make

if TYPE_CHECKING:
    import argparse


def add_options(parser: argparse.ArgumentParser) -> None:
    """-m or --shape, --dtype, and --folder for what is made."""
    parser.add_argument("-m", "--model", default="builtin")
    parser.add_argument("--shape", choices=list(SHAPES))
    parser.add_argument("--dtype", default="auto", help=f"{Q4_K_M}: a GGUF file of the shape")
    add_folder(parser)


def add_folder(parser: argparse.ArgumentParser) -> None:
    """Where models are made."""
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "ropechat-bench")


def chosen(given: argparse.Namespace) -> tuple[str, str]:
    """The model of `add_options`, made if it is a shape, and the dtype to load it in."""
    if given.shape is None:
        return given.model, given.dtype
    return make_model(given.shape, given.dtype, given.folder)


def make_model(shape: str, dtype: str, folder: Path) -> tuple[str, str]:
    """Random weights of a shape: a folder, or a GGUF file for q4_k_m; and the dtype to load them in."""
    folder.mkdir(parents=True, exist_ok=True)
    as_gguf = dtype == Q4_K_M
    made = (make_gguf if as_gguf else make)(shape, folder, lambda text: None)
    return str(made), "auto" if as_gguf else dtype
