"""The kernel cache: compiled kernels on disk, found by what they were made from.

An entry is one file, written aside and renamed into place, so that a reader sees all of it or nothing, and any number
of processes may share the folder. It carries the hash of its own contents: a truncated or altered entry is a miss, and
the next compile replaces it. Each use appends one byte behind the contents, which counts it and dates the last one.
The cache is a convenience: a folder that cannot be written costs time, never a result.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gemmtune.codegen.kernel import KernelSource
from gemmtune.codegen.render import further_headers, intrinsics

SCHEMA = 2
_MAGIC = b"gemmtune kernel 2\n"
_USE = b"+"
_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Made:
    """What one cubin is made from."""

    source: KernelSource
    options: Sequence[str]
    nvrtc: str


_KEY: dict[str, tuple[str, Callable[[_Made], object]]] = {
    "schema": ("a new entry format must not read the old one", lambda made: SCHEMA),
    "source": ("the kernel itself, its entry and compile-time sizes included", lambda made: made.source.text),
    "intrinsics": ("included by the source, but not part of its text", lambda made: intrinsics()),
    "headers": ("the further ones that the source includes", lambda made: further_headers(made.source.text)),
    "options": ("architecture, language and what the log reports", lambda made: list(made.options)),
    "nvrtc": ("another compiler makes another cubin", lambda made: made.nvrtc),
}
"""The fields of a key, each with the reason why it is there."""


@dataclass(frozen=True)
class Cached:
    """What the cache holds of a kernel: the cubin and the compiler's log."""

    cubin: bytes
    log: str
    uses: int = field(default=0, compare=False)
    """How often it has been taken from the cache since it was made."""


class KernelCache:
    """Compiled kernels by content.

    Args:
        root: its folder; by default ``$GEMMTUNE_CACHE``, else the user's cache folder. Created when first written.
    """

    def __init__(self, root: str | Path | None = None) -> None:
        self.root = Path(root) if root is not None else default_root()

    def key(self, source: KernelSource, options: Sequence[str], nvrtc: str) -> str:
        """The name of the entry: SHA-256 over every field of the key."""
        made = _Made(source, options, nvrtc)
        fields = {name: value(made) for name, (_, value) in _KEY.items()}
        return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()

    def path(self, key: str) -> Path:
        """Where the entry of ``key`` lies."""
        return self.root / "kernels" / key[:2] / key

    def get(self, source: KernelSource, options: Sequence[str], nvrtc: str) -> Cached | None:
        """The kernel, or None where there is no whole entry of it."""
        path = self.path(self.key(source, options, nvrtc))
        try:
            data = path.read_bytes()
        except OSError:
            return None
        found = unpack(data)
        if found is not None:
            with contextlib.suppress(OSError):  # not ours to write, or pruned just now: it must not come back empty
                descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
                try:
                    os.write(descriptor, _USE)
                finally:
                    os.close(descriptor)
        return found

    def put(self, source: KernelSource, options: Sequence[str], nvrtc: str, cubin: bytes, log: str) -> None:
        """Publish a kernel; where the folder cannot be written, say so in the log and go on without."""
        path = self.path(self.key(source, options, nvrtc))
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor, name = tempfile.mkstemp(prefix=".new-", dir=path.parent)
            aside = Path(name)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(_pack(Cached(cubin, log)))
                aside.replace(path)
            except BaseException:
                aside.unlink(missing_ok=True)
                raise
        except OSError as error:
            _logger.warning(
                "The kernel cache in %s cannot be written (%s): kernels are compiled anew.", self.root, error
            )


def default_root() -> Path:
    """``$GEMMTUNE_CACHE``, else the user's cache folder."""
    named = os.environ.get("GEMMTUNE_CACHE")
    if named:
        return Path(named).expanduser()
    from platformdirs import user_cache_path

    return user_cache_path("gemmtune")


def _pack(entry: Cached) -> bytes:
    """Magic, hash of the rest, lengths of log and cubin, log, cubin; uses follow."""
    log = entry.log.encode()
    body = len(log).to_bytes(8, "little") + len(entry.cubin).to_bytes(8, "little") + log + entry.cubin
    return _MAGIC + hashlib.sha256(body).digest() + body


def unpack(data: bytes) -> Cached | None:
    """What an entry's file holds; None where it is truncated, altered or of another version."""
    head = len(_MAGIC) + 32
    log, cubin = (int.from_bytes(data[head + i : head + i + 8], "little") for i in (0, 8))
    end = head + 16 + log + cubin
    body, uses = data[head:end], data[end:]
    whole = len(body) == 16 + log + cubin and uses == _USE * len(uses)
    if data[: len(_MAGIC)] != _MAGIC or not whole or data[len(_MAGIC) : head] != hashlib.sha256(body).digest():
        return None
    return Cached(cubin=body[16 + log :], log=body[16 : 16 + log].decode(errors="replace"), uses=len(uses))
