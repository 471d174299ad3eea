"""What all tests share: the default model's file, fetched once when the environment is made."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The default model's GGUF, from the local store; never from the network."""
    from gristmill.weights.references import resolve

    return resolve("smollm2-135m", offline=True)


@pytest.fixture(scope="session")
def gemma3_path() -> Path:
    """The gemma3-270m GGUF, from the local store; never from the network."""
    from gristmill.weights.references import resolve

    return resolve("gemma3-270m", offline=True)
