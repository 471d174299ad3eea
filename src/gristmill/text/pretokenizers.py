"""How byte-level BPE cuts a text into words, by the name that a GGUF file gives.

A GGUF file carries vocabulary and merges, but of the pre-tokenizer only a name (`tokenizer.ggml.pre`). The patterns are those
of the original models' tokenizer.json files; which name stands for which is the registry of llama.cpp (src/llama-vocab.cpp).
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Regex, normalizers, pre_tokenizers

from gristmill.core.errors import ModelFileError

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_DIGIT = r"\p{N}"
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_LLAMA3 = _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_QWEN2 = _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_QWEN35 = _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SEED_CODER = _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_GPT4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTION}?|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTION}?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_DEEPSEEK_V3 = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"""
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
)
_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+", _DIGIT)
_BLOOM = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
_DEFAULT = (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """One way to cut a text into words, and what the models that use it have in common."""

    patterns: tuple[str, ...]  # each in turn cuts what the former left: matches and gaps become pieces of their own
    composes: bool = False  # the text is brought into normal form C first
    ignores_merges: bool = False  # a word that is in the vocabulary is one token, whatever the merges say
    adds_bos: bool = False  # where the file does not say

    def splitter(self) -> pre_tokenizers.PreTokenizer:
        """Return the cut, ended by the mapping of bytes to printable characters."""
        splits: list[pre_tokenizers.PreTokenizer] = [pre_tokenizers.Split(Regex(p), "isolated") for p in self.patterns]
        return pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])

    def normalizer(self) -> normalizers.Normalizer | None:
        """Return what happens to the text before the cut, if anything does."""
        return normalizers.NFC() if self.composes else None


_FAMILIES: tuple[tuple[tuple[str, ...], PreTokenizer], ...] = (
    (("default",), PreTokenizer(_DEFAULT)),
    (("gpt-2", "phi-2", "gigachat", "a.x-4.0", "mellum", "exaone4", "trillion", "jais"), PreTokenizer((_GPT2,))),
    (("olmo", "mpt"), PreTokenizer((_GPT2,), composes=True)),
    (("smollm", "starcoder", "refact", "codeshell", "exaone", "minerva-7b", "mellum2"), PreTokenizer((_DIGIT, _GPT2))),
    (("command-r",), PreTokenizer((_DIGIT, _GPT2), composes=True)),
    (
        ("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"),
        PreTokenizer((_LLAMA3,), ignores_merges=True, adds_bos=True),
    ),
    (("dbrx", "smaug-bpe", "glm4", "chatglm-bpe"), PreTokenizer((_LLAMA3,))),
    (("qwen2", "deepseek-r1-qwen", "kormo", "megrez", "stablelm2", "hunyuan"), PreTokenizer((_QWEN2,), composes=True)),
    (("qwen35",), PreTokenizer((_QWEN35,), composes=True)),
    (("seed-coder",), PreTokenizer((_SEED_CODER,))),
    (("tekken",), PreTokenizer((_TEKKEN,), ignores_merges=True, adds_bos=True)),
    (("gpt-4o", "llama4", "kanana2"), PreTokenizer((_GPT4O,))),
    (("deepseek-v3", "hunyuan-dense"), PreTokenizer(_DEEPSEEK_V3)),
    (("deepseek-coder",), PreTokenizer(_DEEPSEEK_CODER)),
    (("bloom", "gpt3-finnish", "poro-chat"), PreTokenizer((_BLOOM,))),
    (("viking",), PreTokenizer((_BLOOM, _DIGIT))),
)
PRE_TOKENIZERS = {name: family for names, family in _FAMILIES for name in names}


def pre_tokenizer(name: str) -> PreTokenizer:
    """Return the pre-tokenizer called `name`.

    Raises: ModelFileError with the list of those that we know.
    """
    if name not in PRE_TOKENIZERS:
        raise ModelFileError(
            f"tokenizer.ggml.pre is {name!r}, a pre-tokenizer that is not supported.",
            f"use a model with one of: {', '.join(sorted(PRE_TOKENIZERS))}.",
        )
    return PRE_TOKENIZERS[name]
