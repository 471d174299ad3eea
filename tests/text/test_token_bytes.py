from __future__ import annotations

from tokenizers import decoders

from gristmill.text.token_bytes import TokenBytes, byte_level_bytes, sentencepiece_bytes


def test_byte_level_characters_stand_for_all_256_bytes():
    characters = [chr(code) for code in range(0x180)]
    mapped = {byte_level_bytes(character) for character in characters if len(byte_level_bytes(character)) == 1}
    assert mapped == {bytes([byte]) for byte in range(256)}
    assert byte_level_bytes("ĠhiĊ") == b" hi\n"


def test_token_with_a_character_outside_the_mapping_is_its_own_text():
    assert byte_level_bytes("<｜User｜>") == "<｜User｜>".encode()


def test_sentencepiece_tokens_are_bytes_or_text_with_marked_spaces():
    assert sentencepiece_bytes("<0x0A>") == b"\n"
    assert sentencepiece_bytes("▁mill▁") == b" mill "
    assert sentencepiece_bytes("<0x0A>x") == b"<0x0A>x"


def test_whether_the_first_space_is_dropped_is_read_from_the_decoder():
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    assert not TokenBytes(["a"], decoders.Sequence(steps)).strips_leading_space
    assert TokenBytes(["a"], decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)])).strips_leading_space
    assert TokenBytes(["a"], decoders.Metaspace()).strips_leading_space
    assert not TokenBytes(["a"], decoders.Metaspace(prepend_scheme="never")).strips_leading_space
    assert not TokenBytes(["a"], decoders.ByteLevel()).strips_leading_space
