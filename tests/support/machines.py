"""Machines of a small network, each with its own network, processes and /tmp, on this one. Linux, as root."""

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

SUBNET = "10.213.77"
_READY_SECONDS = 10.0


def are_possible() -> bool:
    """Whether this process may make namespaces and links between them."""
    if not all(map(shutil.which, ("unshare", "nsenter", "ip"))):
        return False
    tried = subprocess.run(
        ["unshare", "--net", "--pid", "--mount", "--fork", "ip", "link", "add", "probe", "type", "bridge"],
        capture_output=True,
    )
    return tried.returncode == 0


class Machine:
    """One machine. address: its IPv4 address in the network of the machines."""

    def __init__(self, number: int) -> None:
        self.address = f"{SUBNET}.{number}"
        private = "mount -t tmpfs tmpfs /dev/shm && mkdir -p /tmp/ray && mount -t tmpfs tmpfs /tmp/ray"
        words = ["unshare", "--net", "--pid", "--mount-proc", "--fork", "--kill-child", "bash", "-c"]
        self._holder = subprocess.Popen([*words, f"{private} && ip link set lo up && exec sleep infinity"])
        children = Path(f"/proc/{self._holder.pid}/task/{self._holder.pid}/children")
        deadline = time.monotonic() + _READY_SECONDS
        while not (found := children.read_text().split()) and time.monotonic() < deadline:
            time.sleep(0.01)
        self.pid = int(found[0])
        while b"sleep" not in Path(f"/proc/{self.pid}/cmdline").read_bytes() and time.monotonic() < deadline:
            time.sleep(0.01)

    def inside(self, *words: object) -> list[str]:
        """The command line that runs a command on the machine."""
        return ["nsenter", f"--target={self.pid}", "--net", "--pid", "--mount", *map(str, words)]

    def run(self, *words: object) -> None:
        """Run a command to its end. Raises CalledProcessError."""
        subprocess.run(self.inside(*words), check=True, capture_output=True)

    def kill(self) -> None:
        """End all processes of the machine at once, as a power loss does."""
        self._holder.kill()
        self._holder.wait()


@contextlib.contextmanager
def network(count: int) -> Iterator[list[Machine]]:
    """Machines that reach each other, and nothing else."""
    machines: list[Machine] = []
    try:
        for number in range(1, count + 1):
            machines.append(Machine(number))
        hub = machines[0]
        hub.run("ip", "link", "add", "hub", "type", "bridge")
        hub.run("ip", "address", "add", f"{hub.address}/24", "dev", "hub")
        hub.run("ip", "link", "set", "hub", "up")
        for machine in machines[1:]:
            port = f"port{machine.pid}"
            link = ["ip", "link", "add", port, "netns", str(hub.pid), "type", "veth"]
            subprocess.run([*link, "peer", "name", "eth0", "netns", str(machine.pid)], check=True)
            hub.run("ip", "link", "set", port, "master", "hub")
            hub.run("ip", "link", "set", port, "up")
            machine.run("ip", "address", "add", f"{machine.address}/24", "dev", "eth0")
            machine.run("ip", "link", "set", "eth0", "up")
        yield machines
    finally:
        for machine in machines:
            with contextlib.suppress(OSError):
                machine.kill()


def environment(**changes: str) -> dict[str, str]:
    """For programs on the machines: without the caller's settings of ropechat and Ray."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ROPECHAT", "RAY"))}
    return {**kept, "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", **changes}
