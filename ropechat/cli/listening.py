"""Addresses that a server of this machine listens on, and the names by which clients call it."""

import ipaddress
import socket


def is_loopback(host: str) -> bool:
    """Whether only programs of this machine reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def shown_name(host: str) -> str:
    """The name of an address in a URL; of all addresses, that of this machine."""
    if host in ("0.0.0.0", "::"):
        return socket.gethostname()
    return f"[{host}]" if ":" in host else host


def host_names(host: str, port: int) -> frozenset[str]:
    """The values of the header Host in requests to a server of this machine."""
    return frozenset(f"{name}:{port}" for name in (shown_name(host), "localhost", "127.0.0.1", "[::1]"))
