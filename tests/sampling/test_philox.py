import pytest

from gristmill.sampling.philox import philox, random_u64

# Random123's published known answers for philox4x32 with ten rounds: counter, key, result.
KNOWN_ANSWERS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "result"), KNOWN_ANSWERS)
def test_published_known_answers_hold(counter, key, result):
    assert philox(key, counter) == result


def test_the_64_bit_draw_takes_word_0_as_its_low_half():
    words = philox((0x89ABCDEF, 0x01234567), (3, 77, 0, 0))
    assert random_u64(0x0123456789ABCDEF, 3, 77) == words[0] + (words[1] << 32)


def test_seed_choice_position_and_draw_each_change_the_result():
    base = random_u64(1, 2, 3, 4)
    others = {random_u64(9, 2, 3, 4), random_u64(1, 9, 3, 4), random_u64(1, 2, 9, 4), random_u64(1, 2, 3, 9)}
    others.add(random_u64(1 + (1 << 32), 2, 3, 4))
    assert len(others) == 5
    assert base not in others
