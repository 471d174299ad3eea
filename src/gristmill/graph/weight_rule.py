"""How a weight that the graph reads is made from a tensor that the checkpoint stores."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WeightRule:
    """Where one canonical weight comes from; a weight without a rule is the stored tensor of its own name.

    `source` names the stored tensor as Hugging Face's checkpoint does. `rows` is the half-open range of its
    rows (a fused projection cut in parts). `add_one`: Hugging Face stores w - 1 (gemma's norms), so 1 is
    added in f32; GGUF files already hold w, and for them the flag has no effect.
    """

    source: str
    rows: tuple[int, int] | None = None
    add_one: bool = False
