"""A server with a scripted engine: one for a module, its script anew for each test."""

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from tr.assemble import EMBEDDED
from tr.checkpoint.tokenizer import Tokenizer, load_tokenizer

if TYPE_CHECKING:  # the clients take seconds to import, and not every test here needs them
    from tests.serve.world import World


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return load_tokenizer(EMBEDDED)


@pytest.fixture(scope="module")
def serving(tokenizer) -> Iterator["World"]:
    from tests.serve.scripted import Scripted
    from tests.serve.world import World

    made = World(tokenizer, Scripted(tokenizer))
    yield made
    made.close()


@pytest.fixture
def world(serving) -> "World":
    serving.reset()
    return serving


@pytest.fixture
def other(tokenizer):
    """Further servers, with other options."""
    from tests.serve.scripted import Scripted
    from tests.serve.world import OPTIONS, World

    made: list[World] = []

    def make(rules=None, waiting: int = 3, capacity: int = 4096, **options: Any) -> World:
        engine = Scripted(tokenizer, capacity, waiting)
        world = World(tokenizer, engine, replace(OPTIONS, **options), rules)
        made.append(world)
        world.reset()
        return world

    yield make
    for world in made:
        world.close()
