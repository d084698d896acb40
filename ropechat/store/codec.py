"""Encoding of token records as bytes. A chunk has the records of consecutive tokens of one answer.

    chunk    one byte, the format (4; where no varentropy is known 2, or 3 if tokens belong to a thought), and
             the zlib stream of the records
    record   u32 id, rank, position, row position (0xffffffff: no row)
             f64 logprob, entropy, u (NaN: none), log-sum-exp, mass of the alternatives
             u16 length of the bytes, u32 length of the text, u16 alternatives, u8 stages, u8 finish_reason
             bytes; text as UTF-8; alternatives: u32 ids, then f32 logprobs
             stages: u8 name (its place in STAGES; 255: the name follows, u8 length first), u32 kept,
             f32 mass, f32 entropy, of _WITH_VALUE: f64 value (NaN: none)
             f64 start and end of the interval (NaN: none), u16 candidates
             candidates: u32 ids, u32 ranks, f32 probabilities, then u8 cuts: 0 or 1 + the place of the stage
             in this record's stages, plus 128 if penalized
             formats 3, 4: u8 channel (its place in CHANNELS), u32 length of the thought's text, text as UTF-8
             format 4: f64 varentropy (NaN: none)

Little-endian. Values that the engine computes in f64 stay f64; alternatives, stages and candidates are f32,
and the candidates' probabilities after each single stage are not kept. Format 1 ends with the stages.
"""

import math
import struct
import zlib
from collections.abc import Sequence

from ropechat.errors import HistoryError
from ropechat.trace import Candidate, Channel, FinishReason, Stage, Step, TokenDistribution

FORMAT, WITH_CHANNELS, WITH_VARENTROPY = 2, 3, 4
MAX_CHUNK_BYTES = 64 << 20
STAGES = (
    *("repetition_penalty", "temperature", "top_k", "top_p", "min_p", "logit_bias", "grammar", "forced"),
    *("presence_penalty", "frequency_penalty", "dry", "top_n_sigma", "xtc"),
)
CHANNELS: tuple[Channel, ...] = ("answer", "thought", "marker")
REASONS: tuple[FinishReason | None, ...] = (None, "stop", "length", "context", "cancelled")
_OTHER, _NO_ROW = 255, 0xFFFFFFFF
_HEAD = struct.Struct("<IIIIdddddHIHBB")
_STAGE, _VALUE = struct.Struct("<BIff"), struct.Struct("<d")
_WITH_VALUE = ("top_n_sigma", "xtc")
_DRAW = struct.Struct("<ddH")
_NO_INTERVAL = (math.nan, math.nan)
_PENALIZED = 128
_CHANNEL = struct.Struct("<BI")


def encode(steps: Sequence[Step]) -> bytes:
    """Encode records as a chunk."""
    form = WITH_CHANNELS if any(step.channel != "answer" for step in steps) else FORMAT
    if any(step.row is not None and step.row.varentropy is not None for step in steps):
        form = WITH_VARENTROPY
    records = [
        _record(step)
        + (_channel(step) if form >= WITH_CHANNELS else b"")
        + (_VALUE.pack(_varentropy(step)) if form >= WITH_VARENTROPY else b"")
        for step in steps
    ]
    return bytes([form]) + zlib.compress(b"".join(records), 1)


def _varentropy(step: Step) -> float:
    return math.nan if step.row is None or step.row.varentropy is None else step.row.varentropy


def _channel(step: Step) -> bytes:
    reasoning = step.reasoning.encode("utf-8", "replace")
    return _CHANNEL.pack(CHANNELS.index(step.channel), len(reasoning)) + reasoning


def _record(step: Step) -> bytes:
    text = step.text.encode("utf-8", "replace")
    row = step.row
    head = _HEAD.pack(
        step.id,
        step.rank,
        step.position,
        _NO_ROW if row is None else row.position,
        step.logprob,
        step.entropy,
        math.nan if step.u is None else step.u,
        math.nan if row is None else row.logsumexp,
        math.nan if row is None else row.top_mass,
        len(step.bytes),
        len(text),
        len(step.top),
        len(step.stages),
        REASONS.index(step.finish_reason),
    )
    ids, logprobs = zip(*step.top, strict=True) if step.top else ((), ())
    alternatives = struct.pack(f"<{len(ids)}I{len(ids)}f", *ids, *logprobs)
    return b"".join([head, step.bytes, text, alternatives, *map(_stage, step.stages), _draw(step)])


def _stage(stage: Stage) -> bytes:
    known = STAGES.index(stage.name) if stage.name in STAGES else _OTHER
    name = b"" if known != _OTHER else stage.name.encode()[:255]
    length = b"" if known != _OTHER else bytes([len(name)])
    value = (
        _VALUE.pack(math.nan if stage.value is None else stage.value) if stage.name in _WITH_VALUE else b""
    )
    return _STAGE.pack(known, stage.kept, stage.mass, stage.entropy) + length + name + value


def _draw(step: Step) -> bytes:
    """The interval and the candidates, by column: those of consecutive tokens are alike and compress well."""
    count = len(step.candidates)
    places = {stage.name: place for place, stage in enumerate(step.stages[: _PENALIZED - 1], 1)}
    columns = [one.id for one in step.candidates], [one.rank for one in step.candidates]
    probabilities = [one.probability for one in step.candidates]
    cuts = [places.get(one.cut or "", 0) | _PENALIZED * one.penalized for one in step.candidates]
    head = _DRAW.pack(*(step.interval or _NO_INTERVAL), count)
    body = struct.pack(f"<{2 * count}I{count}f", *columns[0], *columns[1], *probabilities)
    return head + body + bytes(cuts)


class _Reader:
    """A position in the bytes of a chunk. Reading beyond the end raises struct.error."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def unpack(self, shape: struct.Struct) -> tuple[float, ...]:
        values = shape.unpack_from(self.data, self.at)
        self.at += shape.size
        return values

    def take(self, length: int) -> bytes:
        if self.at + length > len(self.data):
            raise struct.error("truncated")
        self.at += length
        return self.data[self.at - length : self.at]


def decode(chunk: bytes) -> list[Step]:
    """Decode a chunk. Raises HistoryError if it is damaged or of an unknown format."""
    if not chunk or not 1 <= chunk[0] <= WITH_VARENTROPY:
        found = chunk[:1].hex() or "nothing"
        raise HistoryError(f"token records: format: must be from 1 to {WITH_VARENTROPY} (got {found})")
    unzip = zlib.decompressobj()
    try:
        reader = _Reader(unzip.decompress(chunk[1:], MAX_CHUNK_BYTES))
        if not unzip.eof:
            raise HistoryError(f"token records: truncated, or more than {MAX_CHUNK_BYTES} bytes")
        steps = []
        while reader.at < len(reader.data):
            step = _step(reader)
            step = step if chunk[0] == 1 else _with_draw(step, reader)
            step = _with_channel(step, reader) if chunk[0] >= WITH_CHANNELS else step
            steps.append(_with_varentropy(step, reader) if chunk[0] >= WITH_VARENTROPY else step)
    except (struct.error, zlib.error, UnicodeDecodeError, IndexError) as error:
        raise HistoryError(f"token records: damaged ({error}); the text of the answer is intact") from None
    return steps


def _step(reader: _Reader) -> Step:
    head = _HEAD.unpack(reader.take(_HEAD.size))
    id, rank, position, after, logprob, entropy, u, logsumexp, mass, size, length, count, stages, reason = (
        head
    )
    data, text = reader.take(size), reader.take(length).decode("utf-8")
    values = reader.unpack(struct.Struct(f"<{count}I{count}f"))
    top = tuple((int(one), value) for one, value in zip(values[:count], values[count:], strict=True))
    return Step(
        id=id,
        bytes=data,
        text=text,
        logprob=logprob,
        rank=rank,
        entropy=entropy,
        top=top,
        finish_reason=REASONS[reason],
        position=position,
        row=None if after == _NO_ROW else TokenDistribution(after, top, logsumexp, entropy, mass),
        stages=tuple(_read_stage(reader) for _ in range(stages)),
        u=None if math.isnan(u) else u,
    )


def _with_draw(step: Step, reader: _Reader) -> Step:
    start, end, number = reader.unpack(_DRAW)
    count = int(number)
    values = reader.unpack(struct.Struct(f"<{2 * count}I{count}f"))
    ids, ranks, probabilities = values[:count], values[count : 2 * count], values[2 * count :]
    names = [None, *(stage.name for stage in step.stages)]
    candidates = tuple(
        Candidate(int(id), int(rank), names[cut % _PENALIZED], cut >= _PENALIZED, probability)
        for id, rank, probability, cut in zip(ids, ranks, probabilities, reader.take(count), strict=True)
    )
    return step._replace(candidates=candidates, interval=None if math.isnan(start) else (start, end))


def _with_channel(step: Step, reader: _Reader) -> Step:
    channel, length = reader.unpack(_CHANNEL)
    return step._replace(channel=CHANNELS[int(channel)], reasoning=reader.take(int(length)).decode("utf-8"))


def _with_varentropy(step: Step, reader: _Reader) -> Step:
    [found] = reader.unpack(_VALUE)
    if step.row is None or math.isnan(found):
        return step
    return step._replace(row=step.row._replace(varentropy=found))


def _read_stage(reader: _Reader) -> Stage:
    known, kept, mass, entropy = reader.unpack(_STAGE)
    name = reader.take(reader.take(1)[0]).decode() if known == _OTHER else STAGES[int(known)]
    [value] = reader.unpack(_VALUE) if name in _WITH_VALUE else [math.nan]
    return Stage(name, int(kept), mass, entropy, None if math.isnan(value) else value)
