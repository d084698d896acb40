"""One engine, the built-in model, for all tests of the API; each test has its own application."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from asgi import Client

from ropechat.api.app import Api
from ropechat.api.spec import ApiSpec
from ropechat.engine.engine import Engine


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    with Engine.load("builtin") as made:
        yield made


@pytest.fixture
def served(engine: Engine) -> Iterator[Callable[..., Client]]:
    """Makes a client of an application. spec: fields of ApiSpec; engine: another engine than `engine`."""
    made: list[Api] = []

    def serve(of: Engine = engine, log: Callable[[str], None] = lambda line: None, **spec: Any) -> Client:
        made.append(Api(of, ApiSpec(**spec), log))
        return Client(made[-1])

    yield serve
    for api in made:
        api.close()


@pytest.fixture
def client(served: Callable[..., Client]) -> Client:
    return served()
