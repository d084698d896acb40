"""From a Hub id to text with the real engine: a GGUF of the goldens, downloaded from the stand-in Hub."""

import subprocess
import sys
from pathlib import Path

import pytest
from hub_server import COMMIT, Repo, serve, use

GOLDEN = Path(__file__).parents[1] / "golden" / "gguf" / "llama3"
LAUNCH = """
import sys
seen = []
sys.addaudithook(lambda event, _: seen.append(event) if event.startswith("socket.") else None)
from ropechat.cli import main
code = main(sys.argv[1:])
print(len(seen), "sockets", file=sys.stderr)
sys.exit(code)
"""


def run(model: str | Path, *options: str) -> subprocess.CompletedProcess[str]:
    arguments = ["run", "-m", str(model), "--temperature", "0", "--max-tokens", "8", *options, "Hello there"]
    return subprocess.run([sys.executable, "-c", LAUNCH, *arguments], capture_output=True, text=True)


@pytest.mark.slow
def test_a_gguf_of_the_hub_is_downloaded_and_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {f"m-{kind.upper()}.gguf": (GOLDEN / f"{kind}.gguf").read_bytes() for kind in ("q8_0", "q4_0")}
    with serve() as hub:
        use(hub, tmp_path, monkeypatch)
        hub.repos["org/name"] = Repo(files)
        refused = run("org/name:Q8_0")
        assert (refused.returncode, refused.stdout) == (4, "")
        first = run("org/name:Q8_0", "--download")
    assert first.returncode == 0, first.stderr
    assert not first.stderr.endswith("\n0 sockets\n")
    snapshot = tmp_path / "hf" / "hub" / "models--org--name" / "snapshots" / COMMIT
    assert [path.name for path in snapshot.iterdir()] == ["m-Q8_0.gguf"]
    again, local = run("org/name:Q8_0"), run(GOLDEN / "q8_0.gguf")  # the server is gone
    assert (again.returncode, local.returncode) == (0, 0)
    assert again.stderr.endswith("\n0 sockets\n")
    assert first.stdout == again.stdout == local.stdout
    assert len(first.stdout) > 1
