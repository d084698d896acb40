"""Detection of network filesystems, on which SQLite's WAL mode, which needs shared memory, is unsafe."""

import os
import re
from pathlib import Path

_NETWORK = {
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "smbfs",
    "ncpfs",
    "afs",
    "9p",
    "ceph",
    "glusterfs",
    "lustre",
    "beegfs",
}
_NETWORK |= {"fuse.sshfs", "fuse.glusterfs", "fuse.s3fs", "fuse.rclone", "davfs", "fuse.davfs2"}


def network_kind(folder: Path, mounts: str | None = None) -> str:
    """The type of the network filesystem of a folder; "" for a local one, or if unknown.

    mounts: the content of /proc/self/mounts; read if not given.
    """
    if mounts is None:
        try:
            mounts = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="surrogateescape")
        except OSError:
            return ""
    at = Path(os.path.realpath(folder))
    kind, depth = "", -1
    for line in mounts.splitlines():
        fields = line.split(" ")
        if (
            len(fields) > 2
            and at.is_relative_to(place := _unescaped(fields[1]))
            and len(place.parts) >= depth
        ):
            kind, depth = fields[2], len(place.parts)  # of two at one mount point the later one is visible
    return kind if kind in _NETWORK else ""


def _unescaped(text: str) -> Path:
    return Path(re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text))


def network_warning(folder: Path) -> str:
    """A warning about a folder on a network filesystem; "" for any other."""
    kind = network_kind(folder)
    return (
        f"{folder}: on a network filesystem ({kind}), where two programs at once may damage the chats; "
        "set ROPECHAT_DATA to a folder on this machine"
        if kind
        else ""
    )
