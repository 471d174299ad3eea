"""Build the tokenizer that a GGUF file describes in its metadata.

Three kinds: byte-level BPE (`gpt2`), SentencePiece BPE (`llama`) and SentencePiece unigram (`t5`). Each becomes what the
original model's tokenizer.json would be. Keys and token types: ggml's docs/gguf.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Pipeline

from gristmill.core.errors import ModelFileError
from gristmill.text.merges import derive_merges
from gristmill.text.pretokenizers import pre_tokenizer
from gristmill.text.token_bytes import SPACE_MARK

_BEST_SCORE = float("inf")
# Phi-3's control tokens swallow the white space that follows them, but for these; GGUF has no key for that.
_PHI3_KEEPS_SPACE = frozenset({"<unk>", "<s>", "<|endoftext|>"})
# What an `llama` file means that does not say it; these are the ids of the first Llama's SentencePiece model.
_SENTENCEPIECE_IDS = {"unknown_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")


class TokenType(IntEnum):
    """What a GGUF file says a token is for."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """The ids around and at the end of a text."""

    bos_id: int | None
    eos_id: int | None
    prefix: tuple[int, ...]  # put before a text
    suffix: tuple[int, ...]  # put after it
    end_ids: frozenset[int]  # end a generation, whatever the template


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The parallel lists of a GGUF file, checked."""

    tokens: list[str]
    types: list[int]
    scores: list[float]
    merges: list[str]

    @classmethod
    def read(cls, metadata: Mapping[str, Any]) -> Vocabulary:
        """Check lengths and values. Raises: ModelFileError naming the key."""
        tokens = [token or f"[EMPTY_{i}]" for i, token in enumerate(_array(metadata, "tokens", str))]
        if not tokens:
            raise _broken("tokenizer.ggml.tokens", "is missing or empty")
        if len(set(tokens)) != len(tokens):
            raise _broken("tokenizer.ggml.tokens", "has the same token twice")
        types = _array(metadata, "token_type", int) or [int(TokenType.NORMAL)] * len(tokens)
        scores = _array(metadata, "scores", float) or [0.0] * len(tokens)
        for name, values in (("token_type", types), ("scores", scores)):
            if len(values) != len(tokens):
                raise _broken(f"tokenizer.ggml.{name}", f"has {len(values):,} entries for {len(tokens):,} tokens")
        if any(score != score for score in scores):
            raise _broken("tokenizer.ggml.scores", "holds NaN")
        return cls(tokens, types, scores, _array(metadata, "merges", str))

    def ids(self, *kinds: TokenType) -> list[int]:
        """Return the ids of the tokens of these kinds, in order."""
        return [token_id for token_id, kind in enumerate(self.types) if kind in kinds]


def build_pipeline(metadata: Mapping[str, Any]) -> tuple[Pipeline, SpecialTokens]:
    """Return the tokenizer and its special tokens.

    Raises: ModelFileError naming the key that is broken or the kind that is not supported.
    """
    builders = {"gpt2": _byte_level_bpe, "llama": _sentencepiece_bpe, "t5": _sentencepiece_unigram}
    kind = metadata.get("tokenizer.ggml.model")
    if kind not in builders:
        raise ModelFileError(
            f"tokenizer.ggml.model is {kind!r}, a kind of tokenizer that is not supported.",
            f"use a model with one of: {', '.join(builders)}.",
        )
    vocabulary = Vocabulary.read(metadata)
    try:
        pipeline = builders[kind](vocabulary, metadata)
    except ModelFileError:
        raise
    except Exception as error:  # the library has no narrower class for a vocabulary and merges that contradict each other
        raise _broken("the tokenizer's vocabulary", f"was refused: {error}") from error
    return pipeline, _special_tokens(vocabulary, metadata)


def _byte_level_bpe(vocabulary: Vocabulary, metadata: Mapping[str, Any]) -> Pipeline:
    cut = pre_tokenizer(str(metadata.get("tokenizer.ggml.pre", "default")))
    pairs = [tuple(merge.split(" ", 1)) for merge in vocabulary.merges]
    merges = [(pair[0], pair[1]) for pair in pairs if len(pair) == 2]
    if len(merges) != len(pairs) or not merges:
        raise _broken("tokenizer.ggml.merges", "is missing, or has an entry that is not two tokens")
    ids = {token: token_id for token_id, token in enumerate(vocabulary.tokens)}
    pipeline = Pipeline(models.BPE(ids, merges, ignore_merges=cut.ignores_merges))
    normalizer = cut.normalizer()
    if normalizer is not None:
        pipeline.normalizer = normalizer
    pipeline.pre_tokenizer = cut.splitter()
    pipeline.decoder = decoders.ByteLevel()
    _add_tokens(pipeline, vocabulary.tokens, vocabulary)
    return pipeline


def _sentencepiece_bpe(vocabulary: Vocabulary, metadata: Mapping[str, Any]) -> Pipeline:
    pieces = _pieces(vocabulary)
    # A user's pieces win over all others in SentencePiece; their true score is lost when a GGUF file is written.
    user_defined = set(vocabulary.ids(TokenType.USER_DEFINED))
    scores = [_BEST_SCORE if i in user_defined else score for i, score in enumerate(vocabulary.scores)]
    ids = {piece: piece_id for piece_id, piece in enumerate(pieces)}
    falls_back = bool(vocabulary.ids(TokenType.BYTE))
    unknown = _unknown_token(pieces, metadata)
    merges = derive_merges(pieces, scores, ids)
    pipeline = Pipeline(models.BPE(ids, merges, unk_token=unknown, fuse_unk=True, byte_fallback=falls_back))
    prefixes = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
    marks = normalizers.Replace(" ", SPACE_MARK)
    pipeline.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE_MARK), marks]) if prefixes else marks
    pipeline.decoder = _sentencepiece_decoder(strips=prefixes)
    swallows_space = metadata.get("general.architecture") == "phi3"
    _add_tokens(pipeline, pieces, vocabulary, keeps_space=_PHI3_KEEPS_SPACE if swallows_space else None)
    return pipeline


def _sentencepiece_unigram(vocabulary: Vocabulary, metadata: Mapping[str, Any]) -> Pipeline:
    pieces = _pieces(vocabulary)
    unknown = _unknown_token(pieces, metadata)
    falls_back = bool(vocabulary.ids(TokenType.BYTE))
    scored = list(zip(pieces, vocabulary.scores, strict=True))
    pipeline = Pipeline(models.Unigram(scored, unk_id=pieces.index(unknown) if unknown else None, byte_fallback=falls_back))
    steps: list[normalizers.Normalizer] = []
    character_map = metadata.get("tokenizer.ggml.precompiled_charsmap")
    if character_map is not None and len(character_map):
        steps.append(normalizers.Precompiled(bytes(byte & 0xFF for byte in character_map)))
    if metadata.get("tokenizer.ggml.remove_extra_whitespaces", True):
        steps += [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    if steps:
        pipeline.normalizer = normalizers.Sequence(steps)
    prefixes = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
    pipeline.pre_tokenizer = pre_tokenizers.Metaspace(SPACE_MARK, prepend_scheme="always" if prefixes else "never")
    pipeline.decoder = _sentencepiece_decoder(strips=prefixes)
    _add_tokens(pipeline, pieces, vocabulary)
    return pipeline


def _sentencepiece_decoder(*, strips: bool) -> decoders.Decoder:
    steps: list[decoders.Decoder] = [decoders.Replace(SPACE_MARK, " "), decoders.ByteFallback(), decoders.Fuse()]
    return decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if strips else steps)


def _pieces(vocabulary: Vocabulary) -> list[str]:
    # llama.cpp's converter writes a user's pieces with spaces where SentencePiece has its mark.
    pairs = zip(vocabulary.tokens, vocabulary.types, strict=True)
    return [token.replace(" ", SPACE_MARK) if kind == TokenType.USER_DEFINED else token for token, kind in pairs]


def _add_tokens(
    pipeline: Pipeline, pieces: list[str], vocabulary: Vocabulary, *, keeps_space: frozenset[str] | None = None
) -> None:
    def added(token_id: int, *, special: bool) -> AddedToken:
        piece = pieces[token_id]
        swallows = special and keeps_space is not None and piece not in keeps_space
        return AddedToken(piece, normalized=False, special=special, rstrip=swallows)

    pipeline.add_special_tokens([added(i, special=True) for i in vocabulary.ids(TokenType.CONTROL, TokenType.UNKNOWN)])
    pipeline.add_tokens([added(i, special=False) for i in vocabulary.ids(TokenType.USER_DEFINED)])


def _unknown_token(pieces: list[str], metadata: Mapping[str, Any]) -> str | None:
    unknown_id = _token_id(metadata, "unknown_token_id", len(pieces))
    return None if unknown_id is None else pieces[unknown_id]


def _special_tokens(vocabulary: Vocabulary, metadata: Mapping[str, Any]) -> SpecialTokens:
    size = len(vocabulary.tokens)
    bos_id, eos_id = (_token_id(metadata, key, size) for key in ("bos_token_id", "eos_token_id"))
    is_bpe = metadata["tokenizer.ggml.model"] == "gpt2"
    adds_bos = pre_tokenizer(str(metadata.get("tokenizer.ggml.pre", "default"))).adds_bos if is_bpe else bos_id is not None
    adds_bos = bool(metadata.get("tokenizer.ggml.add_bos_token", adds_bos)) and bos_id is not None
    adds_eos = bool(metadata.get("tokenizer.ggml.add_eos_token", metadata["tokenizer.ggml.model"] == "t5"))
    ends = {_token_id(metadata, key, size) for key in _END_KEYS}
    ends |= {_checked_id("eos_token_ids", value, size) for value in _array(metadata, "eos_token_ids", int)}
    return SpecialTokens(
        bos_id=bos_id,
        eos_id=eos_id,
        prefix=(bos_id,) if adds_bos and bos_id is not None else (),
        suffix=(eos_id,) if adds_eos and eos_id is not None else (),
        end_ids=frozenset(token_id for token_id in ends if token_id is not None),
    )


def _token_id(metadata: Mapping[str, Any], key: str, size: int) -> int | None:
    value = metadata.get(f"tokenizer.ggml.{key}")
    if value is None and metadata["tokenizer.ggml.model"] == "llama":
        value = _SENTENCEPIECE_IDS.get(key)
    return None if value is None else _checked_id(key, value, size)


def _checked_id(key: str, value: Any, size: int) -> int:
    if not isinstance(value, int) or not 0 <= value < size:
        raise _broken(f"tokenizer.ggml.{key}", f"is {value!r}; the vocabulary has {size:,} tokens")
    return value


def _array(metadata: Mapping[str, Any], name: str, kind: type[Any]) -> list[Any]:
    values = metadata.get(f"tokenizer.ggml.{name}")
    if values is None:
        return []
    if not isinstance(values, Iterable) or isinstance(values, str | bytes):
        raise _broken(f"tokenizer.ggml.{name}", "is not an array")
    items = values.tolist() if hasattr(values, "tolist") else list(values)
    if not all(isinstance(item, kind) for item in items):
        raise _broken(f"tokenizer.ggml.{name}", f"holds something that is not a {kind.__name__}")
    return items


def _broken(key: str, fact: str) -> ModelFileError:
    return ModelFileError(f"{key} {fact}.", "fetch the file again, or use another conversion of this model.")
