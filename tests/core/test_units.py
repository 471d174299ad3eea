import pytest

from gristmill.core.errors import SettingsError
from gristmill.core.units import format_bytes, parse_bytes


@pytest.mark.parametrize(
    ("text", "count"), [("512MiB", 512 * 2**20), ("2GB", 2 * 10**9), ("1.5g", 15 * 10**8), ("7", 7), (" 3 KiB ", 3072)]
)
def test_bytes_are_read_as_people_write_them(text: str, count: int) -> None:
    assert parse_bytes(text, "kv_memory") == count


@pytest.mark.parametrize("text", ["", "-1", "1e9", "GB", "1 XB", "nan"])
def test_what_is_no_number_of_bytes_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="kv_memory"):
        parse_bytes(text, "kv_memory")


@pytest.mark.parametrize(("count", "text"), [(7, "7 B"), (1500, "1.50 kB"), (12_340_000, "12.3 MB"), (123_000_000_000, "123 GB")])
def test_bytes_are_written_with_three_digits(count: int, text: str) -> None:
    assert format_bytes(count) == text
