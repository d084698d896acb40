"""Merging shards: the records of several machines, in the order of the input, as one run would have them."""

import json
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ropechat.batch.forms import Records
from ropechat.batch.journal import differences
from ropechat.batch.line import LineId
from ropechat.batch.output import RUN_SCHEMA
from ropechat.batch.shard import MAX_SHARDS
from ropechat.errors import BatchInputError, FileAccessError
from ropechat.util.text import count_of

_FACTS = (
    *("schema", "input", "ok", "failed", "prompt_tokens", "cached_tokens", "completion_tokens"),
    *("resumed", "copied", "elapsed_s", "tok_s", "shard"),
    *("answered", "accuracy", "accuracy_stderr", "accuracy_per_byte", "accuracy_per_byte_stderr"),
    *("f1_macro", "confusion"),
    *("allowed_median", "allowed_low", "confidence_mean"),
)
"""Fields of OUT.run.json about one run; the others are settings, which shards must share."""
_OF_MODEL = ("model", "engine", "dtype", "kv_dtype", "isa", "context", "template", "template_vars")
_MISSING = -1


class ShardFile:
    """The file of a finished shard. Raises BatchInputError if it is not one, FileAccessError.

    number, count: shard `number` of `count`. header: the settings. records: how many it has. elapsed: in
    seconds. resumed: records of earlier runs.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        facts = _read_run_record(path)
        shard = facts.get("shard")
        if not (isinstance(shard, list) and len(shard) == 2 and all(isinstance(part, int) for part in shard)):
            raise BatchInputError(f"{path}: must be a shard, written with --shard i/n")
        self.number, self.count = shard
        self.header = {name: value for name, value in facts.items() if name not in _FACTS}
        self.records: int = facts["ok"] + facts["failed"]
        self.elapsed: float = facts["elapsed_s"]
        self.resumed: int = facts["resumed"]

    def lines(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield (offset, record) of each line."""
        offset = number = 0
        try:
            with self.path.open("rb") as file:
                for number, data in enumerate(file, 1):
                    yield offset, self._record(number, data)
                    offset += len(data)
        except OSError as error:
            raise FileAccessError(f"{self.path}: {error.strerror}") from None
        if number != self.records:
            raise BatchInputError(
                f"{self.path}: must have {self.records} records, as its .run.json says (got {number}); "
                "copy it again"
            )

    def _record(self, number: int, data: bytes) -> dict[str, Any]:
        try:
            value = json.loads(data)
        except (ValueError, RecursionError):
            value = None
        if not (
            isinstance(value, dict)
            and isinstance(value.get("index"), int)
            and isinstance(value.get("sample"), int)
            and {"id", "ok", "req"} <= value.keys()
        ):
            raise BatchInputError(
                f"{self.path}: line {number}: must be a record of a shard; copy the file again"
            )
        return value


def _read_run_record(path: Path) -> dict[str, Any]:
    beside = path.with_name(path.name + ".run.json")
    try:
        value = json.loads(beside.read_bytes())
    except FileNotFoundError:
        hint = "copy it together with the shard" if path.exists() else "finish the shard first"
        raise BatchInputError(f"{beside}: file not found; {hint}") from None
    except OSError as error:
        raise FileAccessError(f"{beside}: {error.strerror}") from None
    except (ValueError, RecursionError):
        value = None
    counts = ("ok", "failed", "resumed", "elapsed_s")
    if (
        not isinstance(value, dict)
        or value.get("schema") != RUN_SCHEMA
        or not all(isinstance(value.get(name), int | float) for name in counts)
    ):
        raise BatchInputError(f"{beside}: must be the file that batch wrote with the shard ({RUN_SCHEMA})")
    return value


def common_header(shards: Sequence[ShardFile], *, any_isa: bool = False) -> dict[str, Any]:
    """The settings of all shards. any_isa: instruction sets may differ, and with them last bits.

    Raises BatchInputError if a shard is missing or given twice, or if settings differ, naming the fields.
    """
    first = max(shards, key=lambda shard: shard.records)
    for shard in shards:
        empty = () if shard.records else _OF_MODEL  # a shard without rows needs no model
        ignored = (*empty, *(("isa",) if any_isa else ()))
        found = differences(_without(first.header, ignored), _without(shard.header, ignored))
        if first.count != shard.count:
            found.insert(0, f"number of shards: {first.count} there, {shard.count} here")
        if found:
            raise BatchInputError(
                f"{shard.path}: made with other settings than {first.path.name}: {'; '.join(found)}; "
                "compute it again with the same ones"
            )
    given: dict[int, ShardFile] = {}
    for shard in shards:
        other = given.setdefault(shard.number, shard)
        if other is not shard:
            raise BatchInputError(
                f"{shard.path}: is shard {shard.number}/{shard.count}, and so is {other.path.name}"
            )
    missing = [f"{number}/{first.count}" for number in range(1, first.count + 1) if number not in given]
    if missing:
        more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        raise BatchInputError(f"shards: {', '.join(missing[:5])}{more} missing; give the files of all shards")
    sets = sorted({shard.header["isa"] for shard in shards if "isa" in shard.header})
    return {**first.header, **({"isa": ", ".join(sets)} if sets else {})}


def _without(header: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: value for name, value in header.items() if name not in names}


class Merged:
    """The records of all shards by the index of their row. Raises BatchInputError for doubles and damage."""

    def __init__(self, shards: Sequence[ShardFile]) -> None:
        assert len(shards) <= MAX_SHARDS
        self._shards = shards
        self._offsets, self._samples = array("q"), array("B")
        self._owners = array("H")
        for owner, shard in enumerate(shards):
            before = -1, -1
            for offset, record in shard.lines():
                before = self._add(owner, offset, record, before)

    def _add(
        self, owner: int, offset: int, record: Mapping[str, Any], before: tuple[int, int]
    ) -> tuple[int, int]:
        index, sample = record["index"], record["sample"]
        path = self._shards[owner].path
        if index == before[0] and sample == before[1] + 1:
            self._samples[index] = sample + 1
            return index, sample
        if sample != 0 or index < 0:
            raise BatchInputError(f"{path}: row {index + 1}: sample {sample} without the samples before it")
        missing = index + 1 - len(self._offsets)
        if missing > 0:
            self._offsets.extend([_MISSING] * missing)
            self._owners.extend([0] * missing)
            self._samples.extend([0] * missing)
        if self._offsets[index] != _MISSING:
            other = self._shards[self._owners[index]].path
            raise BatchInputError(f"{path}: row {index + 1} ({record['id']!r:.60}) is also in {other.name}")
        self._offsets[index], self._owners[index], self._samples[index] = offset, owner, 1
        return index, sample

    def rows(self, ids: Iterable[tuple[int, LineId]]) -> Iterator[Records]:
        """Yield the records of each row. ids: (index, id) of the rows of the input, in order.

        Raises BatchInputError for a row without records, and for records of another row or of none.
        """
        files = [shard.path.open("rb") for shard in self._shards]
        rows = 0
        try:
            for index, id in ids:
                rows += 1
                if index >= len(self._offsets) or self._offsets[index] == _MISSING:
                    raise BatchInputError(
                        f"row {index + 1} ({id!r:.60}): in no shard; did the input grow? Run the shards "
                        "again with --resume"
                    )
                owner = self._owners[index]
                files[owner].seek(self._offsets[index])
                records = [json.loads(files[owner].readline()) for _ in range(self._samples[index])]
                if json.dumps(records[0]["id"]) != json.dumps(id):
                    raise BatchInputError(
                        f"{self._shards[owner].path}: row {index + 1}: is {records[0]['id']!r:.60}, but "
                        f"{id!r:.60} in the input; it has changed: run the shards again with --resume"
                    )
                yield records
        finally:
            for file in files:
                file.close()
        if rows < len(self._offsets):
            owner = self._owners[rows]
            has = count_of(rows, "row")
            raise BatchInputError(
                f"{self._shards[owner].path}: row {rows + 1}: not in the input, which has {has}"
            )
