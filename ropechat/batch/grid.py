"""`ropechat batch --grid`: models, prompts and settings over the same rows, one table, checks.

A grid is a TOML or JSON file: `variant` is a list, each with a `name` and what differs from the command's
options; `check` is a list of what each answer must be. Each variant is a run of its own, with its own results
and journal beside the table.
"""

import dataclasses
import json
import re
import statistics
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

from ropechat.batch import grid_page
from ropechat.batch.journal import journal_name, line_of
from ropechat.batch.line import LineError
from ropechat.batch.reader import ALL
from ropechat.batch.row_template import RowTemplate
from ropechat.batch.run import BatchResult, run_to_file
from ropechat.batch.schema_check import matches, unknown_keyword
from ropechat.batch.spec import BatchSpec, BatchWatcher
from ropechat.engine.grammars import check_grammar, read_grammar
from ropechat.errors import BatchInputError, FileAccessError, RequestError
from ropechat.sampling import Sampling
from ropechat.sampling.grammar import Grammar
from ropechat.util.files import replacing
from ropechat.util.records import Csv, aligned, number
from ropechat.util.text import closest_name, count_of

FORMS = ("csv", "tsv", "jsonl", "html")
_NAME = re.compile(r"[\w-]{1,40}", re.ASCII)
_NO_SETTINGS = ("grammar", "logit_bias")
_SETTINGS = tuple(one.name for one in dataclasses.fields(Sampling) if one.name not in _NO_SETTINGS)
_PROMPTS = ("prompt", "prompt_file", "messages_file")
_KEYS = ("name", "model", *_PROMPTS, "system", "choices", "json_schema", *_SETTINGS)
_KINDS = ("equals", "contains", "regex", "schema")
_MAX_VARIANTS = 32


@dataclass(frozen=True)
class Check:
    """What an answer must be. kind: equals, contains or regex; template: makes the text from the row.

    Or it is schema: JSON of this schema.
    """

    kind: str
    template: RowTemplate | None = None
    ignore_case: bool = False
    schema: Any = None

    def passes(self, text: str, fields: Mapping[str, Any], index: int) -> bool:
        """Whether an answer passes. Raises LineError if the row lacks a field of the template, re.error."""
        if self.template is None:
            return matches(self.schema, text)
        wanted = self.template.content(fields, index)
        assert isinstance(wanted, str)
        if self.kind == "regex":
            return re.search(wanted, text, re.IGNORECASE if self.ignore_case else 0) is not None
        said, wanted = text.strip(), wanted.strip()
        if self.ignore_case:
            said, wanted = said.casefold(), wanted.casefold()
        return said == wanted if self.kind == "equals" else wanted in said


@dataclass(frozen=True)
class Variant:
    """One run of a grid."""

    name: str
    spec: BatchSpec


@dataclass(frozen=True)
class Grid:
    """The runs and the checks. least: the share of the rows that must pass, of each variant."""

    variants: Sequence[Variant]
    checks: Sequence[Check] = ()
    least: float = 1.0


@dataclass
class VariantSums:
    """What the table says of a variant. passed: rows that pass all checks; checks: rows that pass each."""

    rows: int = 0
    failed: int = 0
    passed: int = 0
    checks: list[int] = field(default_factory=list)
    confidence: list[float] = field(default_factory=list)
    tokens: int = 0


@dataclass
class GridResult:
    """What the runs gave. better: (variant, other) -> place and id of the rows that only the first passes."""

    grid: Grid
    sums: dict[str, VariantSums]
    differ: int = 0
    rows: int = 0
    better: dict[tuple[str, str], list[tuple[int, Any]]] = field(default_factory=dict)
    cancelled: bool = False

    @property
    def passes(self) -> bool:
        """Whether enough rows of each variant pass."""
        least = self.grid.least
        return not self.grid.checks or all(one.passed >= least * one.rows for one in self.sums.values())

    def take(self, row: Mapping[str, Any]) -> None:
        """Count a row of the table."""
        records = row["variants"]
        for name, record in records.items():
            sums, passed = self.sums[name], record.get("checks", ())
            if passed:
                sums.checks = [count + one for count, one in zip(sums.checks, passed, strict=True)]
                sums.passed += record["passed"]
            sums.rows += 1
            sums.failed += not record["ok"]
            sums.tokens += record.get("usage", {}).get("completion_tokens", 0)
            if record.get("confidence") is not None:
                sums.confidence.append(record["confidence"])
        for name, record in records.items():
            for other, against in records.items():
                if record.get("passed") and against.get("passed") is False:
                    self.better.setdefault((name, other), []).append((self.rows, row["id"]))
        self.rows += 1
        self.differ += row["differ"]

    def table(self) -> list[list[str]]:
        """A head and a row for each variant."""
        heads = [f"{check.kind} {place}" for place, check in enumerate(self.grid.checks, 1)]
        rows = [["", "passed", *heads, "failed", "confidence", "tokens"]]
        for name, sums in self.sums.items():
            share = f"{sums.passed} of {sums.rows}" if heads else "–"
            mean = statistics.fmean(sums.confidence) if sums.confidence else None
            counts = [str(count) for count in sums.checks]
            rows.append([name, share, *counts, str(sums.failed), number(mean, ".3f"), f"{sums.tokens:,}"])
        return rows

    def lines(self) -> list[str]:
        """A table of the variants, and how they differ."""
        found = aligned(self.table(), left=1)
        if len(self.sums) > 1:
            found.append(f"answers differ in {self.differ} of {count_of(self.rows, 'row')}")
        for (name, other), rows in self.better.items():
            shown = ", ".join(str(id) for _, id in rows[:5]) + (" ..." if len(rows) > 5 else "")
            found.append(f"{name} passes where {other} does not: {count_of(len(rows), 'row')} ({shown})")
        return found


# ---- Reading a grid


def _reject(text: str) -> NoReturn:
    raise RequestError(text)


def read_grid(path: Path, base: BatchSpec) -> Grid:
    """The grid of a file; what a variant does not say is as in `base`. Without a seed it is 0.

    Raises RequestError, FileAccessError.
    """
    if base.sampling.seed is None:
        base = replace(base, sampling=replace(base.sampling, seed=0))
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        _reject(f"{path}: file not found")
    except OSError as error:
        raise FileAccessError(f"{path}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        _reject(f"{path}: must be UTF-8 (byte {error.start} is not)")
    try:
        value = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        _reject(f"{path}: {error}")
    if not isinstance(value, dict):
        _reject(f"{path}: must be an object with the list variant")
    _known(path, "", value, ("variant", "check", "least"))
    listed = enumerate(_list(path, value, "variant"))
    variants = [_variant(path, f"variant[{place}]", one, base) for place, one in listed]
    names = [one.name for one in variants]
    if not 1 <= len(variants) <= _MAX_VARIANTS:
        _reject(f"{path}: variant: must be a list of 1 to {_MAX_VARIANTS} (got {len(variants)})")
    if twice := next((name for name in names if names.count(name) > 1), None):
        _reject(f"{path}: variant: names must be unique ({twice!r} occurs twice)")
    checks = [_check(path, f"check[{place}]", one) for place, one in enumerate(_list(path, value, "check"))]
    least = value.get("least", 1.0)
    if isinstance(least, bool) or not isinstance(least, int | float) or not 0 <= least <= 1:
        _reject(f"{path}: least: must be a number from 0 to 1 (got {least!r:.40})")
    return Grid(variants, checks, least)


def _list(path: Path, value: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    found = value.get(name, [])
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        _reject(f"{path}: {name}: must be a list of objects, [[{name}]] in TOML")
    return found


def _known(path: Path, place: str, value: Mapping[str, Any], names: Sequence[str]) -> None:
    for name in value:
        if name not in names:
            hint = closest_name(name, names)
            better = f"; did you mean {hint}?" if hint else f"; must be one of {', '.join(names)}"
            _reject(f"{path}: {place}{'.' if place else ''}{name}: unknown{better}")


def _text(path: Path, place: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        _reject(f"{path}: {place}: must be a text of at least one character (got {value!r:.40})")
    return value


def _variant(path: Path, place: str, value: dict[str, Any], base: BatchSpec) -> Variant:
    _known(path, place, value, _KEYS)
    name = value.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        _reject(f"{path}: {place}.name: must be 1 to 40 letters, digits, - and _ (got {name!r:.40})")
    asked = [key for key in ("model", *_PROMPTS, "system") if key in value]
    texts = {key: _text(path, f"{place}.{key}", value[key]) for key in asked}
    rows = replace(base.rows, keep=ALL)
    given = [key for key in _PROMPTS if key in texts]
    if len(given) > 1:
        _reject(f"{path}: {place}.{given[1]}: must not be given together with {given[0]}")
    if given:
        rows = replace(rows, template=_template(path, place, given[0], texts[given[0]]), prompt_field=None)
    model = replace(base.model, name=texts["model"]) if "model" in texts else base.model
    prompts = replace(base.prompts, system=texts.get("system", base.prompts.system))
    settings = {key: value[key] for key in _SETTINGS if key in value}
    if "choices" in value or "json_schema" in value:
        settings["grammar"] = _grammar(path, place, value, flexible=rows.flexible)
    try:
        sampling = replace(base.sampling, **settings)
    except (ValueError, TypeError) as error:
        _reject(f"{path}: {place}: {error}")
    unset = base.unset - settings.keys()
    spec = replace(base, model=model, rows=rows, prompts=prompts, sampling=sampling, unset=unset)
    return Variant(name, spec)


def _template(path: Path, place: str, kind: str, text: str) -> RowTemplate:
    if kind == "prompt":
        template = RowTemplate.of_text(text, f"{path}: {place}.prompt")
    else:
        file = path.parent / text
        template = RowTemplate.of_file(file) if kind == "prompt_file" else RowTemplate.of_messages(file)
    template.check()
    return template


def _grammar(path: Path, place: str, value: dict[str, Any], *, flexible: bool) -> Grammar:
    if "choices" in value and "json_schema" in value:
        _reject(f"{path}: {place}.json_schema: must not be given together with choices")
    if "choices" in value:
        choices = value["choices"]
        if not isinstance(choices, list) or not choices or not all(isinstance(one, str) for one in choices):
            _reject(f"{path}: {place}.choices: must be a list of texts (got {choices!r:.40})")
        return check_grammar(Grammar.choices(choices), f"{path}: {place}.choices")
    schema = value["json_schema"]
    if isinstance(schema, str):
        return read_grammar(path.parent / schema, "json_schema", flexible=flexible)
    if not isinstance(schema, dict):
        _reject(f"{path}: {place}.json_schema: must be an object or the name of a file")
    return check_grammar(Grammar.json_schema(schema, flexible=flexible), f"{path}: {place}.json_schema")


def _check(path: Path, place: str, value: dict[str, Any]) -> Check:
    if "python" in value:
        _reject(f"{path}: {place}.python: refused: a grid runs no program")
    _known(path, place, value, (*_KINDS, "ignore_case"))
    kinds = [kind for kind in _KINDS if kind in value]
    if len(kinds) != 1:
        _reject(f"{path}: {place}: must have one of {', '.join(_KINDS)} (got {', '.join(kinds) or 'none'})")
    (kind,) = kinds
    ignore_case = value.get("ignore_case", False)
    if not isinstance(ignore_case, bool):
        _reject(f"{path}: {place}.ignore_case: must be true or false (got {ignore_case!r:.40})")
    if kind == "schema":
        return Check(kind, schema=_schema(path, f"{place}.schema", value[kind]))
    template = RowTemplate.of_text(_text(path, f"{place}.{kind}", value[kind]), f"{path}: {place}.{kind}")
    template.check()
    return Check(kind, template, ignore_case)


def _schema(path: Path, place: str, value: Any) -> Any:
    """A schema that answers are checked against: an object, or the name of a file."""
    if isinstance(value, str):
        grammar = read_grammar(path.parent / value, "json_schema")
        value = json.loads(grammar.source[0])
    if not isinstance(value, dict):
        _reject(f"{path}: {place}: must be an object or the name of a file")
    if (name := unknown_keyword(value)) is not None:
        _reject(f"{path}: {place}: {name:.60}: not a keyword that a check knows")
    return value


# ---- Running it


def results_of(out: Path, name: str) -> Path:
    """The file with the results of a variant, which tables of several forms have in common."""
    return out.with_name(f"{out.stem}.{name}.jsonl")


def run_grid(
    grid: Grid,
    out: Path,
    form: str,
    *,
    keep: Sequence[str] = (),
    overwrite: bool = False,
    resume: bool = False,
    watcher: BatchWatcher | None = None,
) -> GridResult:
    """Run the variants and write the table. keep: fields of the rows that it has.

    A stopped grid goes on with `resume`. Raises as `run_to_file`.
    """
    watcher = watcher or BatchWatcher()
    files = {one.name: results_of(out, one.name) for one in grid.variants}
    if not (overwrite or resume):
        for path in (out, *files.values(), *map(journal_name, files.values())):
            if path.exists():
                raise BatchInputError(f"{path}: exists; choose another output or add --overwrite or --resume")
    if overwrite:
        for path in files.values():
            path.unlink(missing_ok=True)
            journal_name(path).unlink(missing_ok=True)
    result = GridResult(grid, {one.name: VariantSums(checks=[0] * len(grid.checks)) for one in grid.variants})
    for one in grid.variants:
        watcher.tell(f"variant {one.name}")
        done: BatchResult = run_to_file(one.spec, files[one.name], "jsonl", resume=True, watcher=watcher)
        if done.report.cancelled:
            result.cancelled = True
            return result
    _write(grid, files, out, form, keep, result)
    return result


def _rows(grid: Grid, files: Mapping[str, Path], keep: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the rows of the table: what is kept, the records with their checks, whether they differ."""
    opened = {name: path.open(encoding="utf-8") for name, path in files.items()}
    try:
        for lines in zip(*opened.values(), strict=True):
            records = {name: json.loads(line) for name, line in zip(opened, lines, strict=True)}
            row: dict[str, Any] = {}
            for record in records.values():
                kept = record.pop("input", None) or {}
                row = {
                    "id": record["id"],
                    "index": record["index"],
                    **({"input": kept} if kept else {}),
                    **row,
                }
                if grid.checks:
                    text, index = record.get("text"), record["index"]
                    passed = [text is not None and _passes(check, text, kept, index) for check in grid.checks]
                    record |= {"checks": passed, "passed": all(passed)}
            differ = len({record.get("text", "").strip().casefold() for record in records.values()}) > 1
            own = row.get("input", {})
            kept = {name: own.get(name) for name in keep}
            yield {**row, "kept": kept, "differ": differ, "variants": records}
    finally:
        for file in opened.values():
            file.close()


def _passes(check: Check, text: str, fields: Mapping[str, Any], index: int) -> bool:
    try:
        return check.passes(text, fields, index)
    except (LineError, re.error):  # a row without the field has no right answer
        return False


def _write(
    grid: Grid, files: Mapping[str, Path], out: Path, form: str, keep: Sequence[str], result: GridResult
) -> None:
    names, delimiter = list(files), "\t" if form == "tsv" else ","
    columns = ["id", *keep]
    for name in names:
        columns += [name, f"{name}.confidence", *([f"{name}.passed"] if grid.checks else [])]
    table = Csv([*columns, "differ"], delimiter, "\n")
    with replacing(out, sync=True) as file:
        if form in ("csv", "tsv"):
            file.write(table.head.encode())
        for row in _rows(grid, files, keep):
            result.take(row)
            if form == "jsonl":
                del row["kept"]
                file.write(line_of(row).encode())
            elif form != "html":
                file.write(table.line(_cells(row)).encode())
        if form == "html":  # its head has the sums
            title = f"Grid: {', '.join(names)}"
            head = grid_page.Head(result.table(), result.better, result.rows, bool(grid.checks))
            for piece in grid_page.render(head, _rows(grid, files, keep), title):
                file.write(piece.encode())


def _cells(row: Mapping[str, Any]) -> dict[str, Any]:
    """The cells of a row of a table."""
    cells: dict[str, Any] = {"id": row["id"], "differ": json.dumps(row["differ"])}
    cells |= {name: _cell(value) for name, value in row["kept"].items()}
    for name, record in row["variants"].items():
        cells |= {name: record.get("text"), f"{name}.confidence": record.get("confidence")}
        cells[f"{name}.passed"] = json.dumps(record.get("passed"))
    return cells


def _cell(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict | bool) else value
