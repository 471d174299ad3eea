"""A file mapped read-only: its bytes are the page cache's, and pages that are done with can be handed back."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gristmill.core.errors import ModelFileError


class MappedFile:
    """The bytes of one regular file. Arrays made from it keep it mapped."""

    def __init__(self, path: Path) -> None:
        """Map `path`. Raises: ModelFileError if it is missing, empty, unreadable or no regular file."""
        if not path.is_file():
            raise ModelFileError(f"{path} is no file.", "give the path of a model file that exists.")
        try:
            with path.open("rb") as file:
                self.data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise ModelFileError(
                f"{path} cannot be read: {error}.", "give a model file that is readable and not empty."
            ) from error
        self.path = path

    def __len__(self) -> int:
        return len(self.data)

    def array(self, start: int, count: int) -> NDArray[np.uint8]:
        """Return the bytes [start, start + count), which the caller has checked to be in the file."""
        assert start >= 0, "bytes before the file"
        assert 0 <= count <= len(self.data) - start, "bytes outside of the file"
        return np.frombuffer(self.data, np.uint8, count, start)

    def forget(self, start: int, count: int) -> None:
        """Tell the system that these bytes will not be read soon, so that they do not count as our memory."""
        first = start // mmap.PAGESIZE * mmap.PAGESIZE
        if hasattr(mmap, "MADV_DONTNEED"):
            self.data.madvise(mmap.MADV_DONTNEED, first, start + count - first)
