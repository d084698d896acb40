"""The reader as a program on a pseudo-terminal: however it ends, the terminal is as it was."""

import signal
import termios
from pathlib import Path

import pytest
from program import Program

TEXT = "Once upon a time there was a zzqx little girl.\n" * 400


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, b"q", b"\x03"])
def test_the_terminal_is_given_back_as_it_was(end: signal.Signals | bytes, tmp_path: Path) -> None:
    file = tmp_path / "story.txt"
    file.write_text(TEXT)
    program = Program(["inspect", "-i", str(file), "--against-dtype", "q4_0"], ROPECHAT_CACHE="off")
    program.until(b"scored", 60)
    program.press(b"c")
    program.until(b"KL", 60)  # both models compute
    assert termios.tcgetattr(program.master)[:4] != program.attributes[:4]
    if isinstance(end, bytes):
        program.press(end)
    else:
        program.child.send_signal(end)
    program.until(b"\x1b[?1049l", 20)
    program.drain(1)
    code = program.child.wait(60)
    seen = program.drain(1)
    assert termios.tcgetattr(program.master)[:4] == program.attributes[:4]
    assert b"Traceback" not in seen
    assert code == (0 if isinstance(end, bytes) else -end if end == signal.SIGKILL else 128 + end)
