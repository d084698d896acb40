"""Make README.md and pyproject.toml ready for a package page; the workflow knows the repository's address.

    python tests/packaging/published.py https://github.com/OWNER/ropechat v0.1.0    # in a clone to publish

Relative links and pictures become absolute ones of that tag, and pyproject.toml gets `project.urls`.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"(!?)\[((?:!\[[^]]*\]\([^)]*\)|[^]])*)\]\((?![a-z]+:|#)([^)\s]+)\)")
PICTURE = re.compile(r'\b(src|srcset)="(?![a-z]+:)([^"]+)"')
PAGES = {
    "Documentation": "docs/README.md",
    "Changelog": "CHANGELOG.md",
    "Benchmarks": "BENCHMARKS.md",
    "Security": "SECURITY.md",
}


def absolute(page: str, address: str, tag: str) -> str:
    """A page whose links to files of the repository work anywhere. Blocks of code are left as they are."""

    def full(found: re.Match[str]) -> str:
        mark, text, target = found.groups()
        return f"{mark}[{LINK.sub(full, text)}]({address}/{'raw' if mark else 'blob'}/{tag}/{target})"

    parts = re.split(r"(^```.*?^```$)", page, flags=re.DOTALL | re.MULTILINE)
    raw = rf'\1="{address}/raw/{tag}/\2"'
    return "".join(
        part if part.startswith("```") else PICTURE.sub(raw, LINK.sub(full, part)) for part in parts
    )


def with_urls(pyproject: str, address: str, tag: str) -> str:
    """pyproject.toml with the addresses that a package page shows."""
    urls = {"Source": address, **{name: f"{address}/blob/{tag}/{path}" for name, path in PAGES.items()}}
    table = "".join(f'{name} = "{url}"\n' for name, url in urls.items())
    before, found, after = pyproject.partition("[project.optional-dependencies]")
    assert found, "pyproject.toml: where project.urls would go is not found"
    return f"{before}[project.urls]\n{table}\n{found}{after}"


def main(address: str, tag: str) -> None:
    for name, made in (("README.md", absolute), ("pyproject.toml", with_urls)):
        path = ROOT / name
        path.write_text(made(path.read_text(encoding="utf-8"), address.rstrip("/"), tag), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
