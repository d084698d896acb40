"""The end of a Python process while a thread of it computes."""

import subprocess
import sys

PROGRAM = """
import sys, threading, time
from ropechat import Engine

def compute():
    begun.set()
    engine.logits(list(range(300)))

engine, begun = Engine.load("builtin", cache="off"), threading.Event()
threading.Thread(target=compute, daemon=True).start()
begun.wait()
time.sleep(0.05)  # the array of the result is made while Python ends
sys.exit(3)
"""


def test_python_ends_while_a_daemon_thread_computes() -> None:
    """Before 3.14, Python unwinds the stack of a thread that runs Python code meanwhile. Rust would answer by
    an abort: its first array imports NumPy."""
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 3, ended.stderr
