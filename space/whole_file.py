"""Files that appear whole or not at all: how everything is written that a user names a file for."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def whole_file(path: str | Path) -> Iterator[BinaryIO]:
    """A file to write ``path``'s new bytes into: they take its place, on the disk, once the block has ended well.

    A symbolic link stays, and what it points to is replaced. A device or a pipe is written to as it is: another file
    in its place would take it from every other program.

    Raises:
        OSError: the file cannot be written; what stood there before stays.
    """
    target = Path(path)
    if is_special(target):
        with target.open("wb") as file:
            yield file
        return
    target = Path(os.path.realpath(target))
    aside = target.with_name(f".{uuid.uuid4().hex}.new")  # the target's own name may be as long as a name can be
    try:
        with aside.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        aside.replace(target)
    finally:
        aside.unlink(missing_ok=True)


def is_special(path: str | Path) -> bool:
    """Whether a device, a pipe or a socket stands at ``path``: nothing that holds bytes to read back or to lose."""
    where = Path(path)
    return where.exists() and not where.is_file() and not where.is_dir()
