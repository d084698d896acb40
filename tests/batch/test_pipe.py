"""Lines of a pipe that are not there yet."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from ropechat.batch.pipe import PipeReader
from ropechat.batch.source import Source


class Pipe:
    """Both ends of a pipe."""

    def __init__(self) -> None:
        read, self.write_end = os.pipe()
        self.stream: IO[bytes] = os.fdopen(read, "rb")

    def write(self, data: bytes) -> None:
        os.write(self.write_end, data)

    def end(self) -> None:
        os.close(self.write_end)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe()
    yield made
    made.stream.close()


def test_a_line_is_there_when_its_newline_is(pipe: Pipe) -> None:
    reader = PipeReader(pipe.stream)
    assert not reader.has_line()
    pipe.write(b"on")
    assert not reader.has_line()
    pipe.write(b"e\ntwo\nth")
    assert reader.has_line()
    assert [reader.readline(99), reader.readline(99)] == [b"one\n", b"two\n"]
    assert not reader.has_line()
    pipe.end()
    assert reader.has_line()  # the end is known: nothing blocks any more
    assert [reader.readline(99), reader.readline(99)] == [b"th", b""]


def test_a_line_above_the_limit_comes_in_parts(pipe: Pipe) -> None:
    pipe.write(b"abcdefg\nh\n")
    pipe.end()
    reader = PipeReader(pipe.stream)
    parts = [reader.readline(3) for _ in range(5)]
    assert parts == [b"abc", b"def", b"g\n", b"h\n", b""]


def test_a_line_without_end_is_not_read_ahead_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "long"
    path.write_bytes(b"x" * (5 << 20))
    with path.open("rb", buffering=0) as file:
        reader = PipeReader(file)
        assert reader.has_line()
        assert os.lseek(file.fileno(), 0, os.SEEK_CUR) <= 2 << 20
        assert len(reader.readline(6 << 20)) == 5 << 20


def test_rows_of_a_pipe_say_whether_the_next_one_is_there(pipe: Pipe, tmp_path: Path) -> None:
    pipe.write(b'{"a": 1}\n')
    source = Source(pipe.stream)
    assert source.check() is None
    rows = source.rows()
    assert next(rows).fields == {"a": 1}
    assert not source.has_row()
    pipe.write(b'{"a": 2}\n')
    assert source.has_row()
    assert next(rows).fields == {"a": 2}
    pipe.end()
    assert source.has_row()
    assert list(rows) == []
    file = tmp_path / "in.jsonl"
    file.write_bytes(b'{"a": 1}\n')
    assert Source(file).has_row()
