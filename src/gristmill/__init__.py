"""gristmill: an inference engine and serving stack that knows exactly what every request cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["LLM", "SamplingParams", "__version__"]

if TYPE_CHECKING:
    from gristmill.core.sampling_params import SamplingParams
    from gristmill.llm import LLM


def __getattr__(name: str) -> Any:
    """Import the Python class only when it is asked for: commands that need no model stay quick."""
    if name == "LLM":
        from gristmill.llm import LLM

        return LLM
    if name == "SamplingParams":
        from gristmill.core.sampling_params import SamplingParams

        return SamplingParams
    raise AttributeError(f"module 'gristmill' has no attribute {name!r}")
