"""How often a test repeats what it does at random: a few times, or for `make trust` many times."""

import os

import pytest

MANY = os.environ.get("ROPECHAT_TEST_REPEATS", "")


def repeats(few: int, many: int) -> pytest.MarkDecorator:
    """Give a test `count`: `few`, and in `make trust` `many`, or what ROPECHAT_TEST_REPEATS says."""
    many = int(MANY or many)
    marks = [pytest.mark.trust, pytest.mark.timeout(0)]
    return pytest.mark.parametrize("count", [few, pytest.param(many, marks=marks)])
