"""The README and the metadata on a package page."""

import re
import tomllib

import pytest
from published import PAGES, ROOT, absolute, with_urls

ADDRESS, TAG = "https://example.org/us/ropechat", "v0.1.0"


@pytest.mark.parametrize(
    ("page", "wanted"),
    [
        ("[a](docs/a.md#b)", f"[a]({ADDRESS}/blob/{TAG}/docs/a.md#b)"),
        ("![a](p.svg)", f"![a]({ADDRESS}/raw/{TAG}/p.svg)"),
        ("[![a](p.svg)](b.md)", f"[![a]({ADDRESS}/raw/{TAG}/p.svg)]({ADDRESS}/blob/{TAG}/b.md)"),
        ('<img src="p.svg">', f'<img src="{ADDRESS}/raw/{TAG}/p.svg">'),
        ("[a](#b) [c](https://d.example/e.md)", "[a](#b) [c](https://d.example/e.md)"),
        ("```sh\n[a](b.md)\n```\n", "```sh\n[a](b.md)\n```\n"),
    ],
)
def test_links_become_absolute(page: str, wanted: str) -> None:
    assert absolute(page, ADDRESS, TAG) == wanted


def test_the_readme_has_no_relative_link_left() -> None:
    page = absolute((ROOT / "README.md").read_text(encoding="utf-8"), ADDRESS, TAG)
    links = re.findall(r"(?:\]\(|src=\"|srcset=\")([^)\s\"]+)", page)
    assert len(links) > 20
    assert all(link.startswith((f"{ADDRESS}/", "https://", "#")) for link in links)


def test_the_addresses_of_the_package_page() -> None:
    made = with_urls((ROOT / "pyproject.toml").read_text(encoding="utf-8"), ADDRESS, TAG)
    urls = tomllib.loads(made)["project"]["urls"]
    assert urls["Source"] == ADDRESS
    assert urls.keys() == {"Source", *PAGES}
    assert all((ROOT / path).is_file() for path in PAGES.values())
