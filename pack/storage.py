"""A pack on disk: a directory, or one reproducible zip of the same files; read whole, refused where anything is odd.

Standard library only. This module knows names, sizes and bytes, and nothing of what the files mean: see
:mod:`gemmtune.pack.format` for that.

A zip holds its members stored (not compressed), sorted, with a fixed time and mode. :func:`read_files` accepts exactly
the bytes that :func:`zip_bytes` writes for the same files: so nothing can hide in the gaps of the container, no member
can stand twice, and nothing can inflate.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from gemmtune.space.errors import PackError, disk_is_full
from gemmtune.space.whole_file import whole_file

MAX_FILES = 12_290
"""Files of a pack: manifest, dispatch table and three for each of 4096 kernels."""
MAX_FILE = 64 * 2**20
"""Bytes of one file (the largest GEMM cubins seen have 0.3 MB)."""
MAX_TOTAL = 2**30
"""Bytes of all files."""

_NAME = re.compile(r"manifest\.json|dispatch\.json|kernels/[0-9a-f]{64}\.(?:cubin|cu|json)")
_TIME = (0, 1 << 5 | 1)  # midnight of 1980-01-01, the first moment the zip format can tell
_MODE = (stat.S_IFREG | 0o644) << 16
_LOCAL = struct.Struct("<4s5H3I2H")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_END = struct.Struct("<4s4H2IH")


def check_name(name: str) -> None:
    """Refuse a file name that no pack has.

    Raises:
        PackError: it is absolute, climbs out with ``..``, or is not one of a pack's own names.
    """
    if name.startswith(("/", "\\")) or re.match(r"[A-Za-z]:", name):
        raise PackError(f"The pack names the absolute path {name[:120]!r}: do not use this pack.")
    if ".." in re.split(r"[/\\]", name):
        raise PackError(f"The pack names {name[:120]!r}, which climbs out of it: do not use this pack.")
    if not _NAME.fullmatch(name):
        raise PackError(f"The pack has the file {name[:120]!r}, which no pack has: it was altered, or is no pack.")


def check_sizes(sizes: Mapping[str, int]) -> None:
    """Refuse more files or bytes than a pack may have.

    Raises:
        PackError: a cap is passed; the message has the value and the cap.
    """
    if len(sizes) > MAX_FILES:
        raise PackError(f"The pack has {len(sizes)} files, but {MAX_FILES} is the most a pack may have.")
    for name, size in sizes.items():
        if size > MAX_FILE:
            raise PackError(f"The pack's file {name!r} has {size} bytes, but {MAX_FILE} is the most a file may have.")
    if (total := sum(sizes.values())) > MAX_TOTAL:
        raise PackError(f"The pack has {total} bytes, but {MAX_TOTAL} is the most a pack may have.")


# ------------------------------------------------------------------------------------------------------------- reading


def read_files(path: Path) -> dict[str, bytes]:
    """Every file of the pack at ``path`` (a directory, or a zip file) by its name, e.g. ``kernels/<sha>.cubin``.

    Raises:
        PackError: there is nothing at ``path``, it cannot be read, a name is odd, a file is a link or not a plain
            file, a cap is passed, or the zip is not byte for byte what gemmtune writes.
    """
    try:
        if path.is_dir():
            return _read_directory(path)
        if path.is_file():
            return _read_zip(path)
    except OSError as error:
        raise PackError(f"The pack {str(path)!r} cannot be read: {error.strerror or error}.") from None
    if path.exists():
        raise PackError(f"{str(path)!r} is neither a directory nor a file, so it is no pack.")
    raise PackError(f"There is no pack at {str(path)!r}: check the path, or write one with 'gemmtune export'.")


def _walk(root: Path) -> Iterator[tuple[str, Path, int]]:
    count = 0
    for folder, prefix in ((root, ""), (root / "kernels", "kernels/")):
        if prefix and not folder.exists():
            return
        with os.scandir(folder) as entries:
            for entry in entries:
                count += 1
                if count > MAX_FILES + 1:
                    raise PackError(f"The pack has more than {MAX_FILES} files, the most a pack may have.")
                name = prefix + entry.name
                if entry.is_symlink():
                    raise PackError(
                        f"The pack's {name[:120]!r} is a symbolic link, which no pack has: do not use this pack."
                    )
                if name == "kernels" and entry.is_dir():
                    continue
                check_name(name)
                info = entry.stat(follow_symlinks=False)
                if not stat.S_ISREG(info.st_mode):
                    raise PackError(f"The pack's {name[:120]!r} is not a plain file: it was altered, or is no pack.")
                yield name, Path(entry.path), info.st_size


def _read_directory(root: Path) -> dict[str, bytes]:
    found = {name: (path, size) for name, path, size in _walk(root)}
    check_sizes({name: size for name, (_, size) in found.items()})
    return {name: _read_plain(path, size, name) for name, (path, size) in sorted(found.items())}


def _read_plain(path: Path, size: int, name: str) -> bytes:
    """The ``size`` bytes of a plain file, which must not have become a link or grown since it was listed."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0))
    with os.fdopen(handle, "rb") as file:
        raw = file.read(size + 1)
    if len(raw) != size:
        raise PackError(f"The pack's file {name!r} changed while it was read: try again when nothing writes to it.")
    return raw


def _read_zip(path: Path) -> dict[str, bytes]:
    size = path.stat().st_size
    if size > MAX_TOTAL + MAX_FILES * 400:
        raise PackError(f"The file {str(path)!r} has {size} bytes, more than a pack may have.")
    raw = path.read_bytes()
    files: dict[str, bytes] = {}
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            _check_members(members)
            for member in members:
                files[member.filename] = archive.read(member)
    except PackError:
        raise
    except Exception as error:  # zipfile lets many types through on a damaged archive
        raise PackError(
            f"{str(path)!r} is not a whole zip file ({error}): it is truncated, altered, or no pack."
        ) from None
    if zip_bytes(files) != raw:
        raise PackError(
            f"The zip {str(path)!r} is not as gemmtune wrote it: it was altered, or packed by another tool."
        )
    return files


def _check_members(members: list[zipfile.ZipInfo]) -> None:
    names: set[str] = set()
    for member in members:
        name = member.orig_filename
        check_name(name)
        if name in names:
            raise PackError(f"The zip has the member {name!r} twice: do not use this pack.")
        names.add(name)
        if stat.S_ISLNK(member.external_attr >> 16):
            raise PackError(f"The zip's member {name!r} is a symbolic link, which no pack has: do not use this pack.")
        if (
            member.compress_type != zipfile.ZIP_STORED
            or member.compress_size != member.file_size
            or member.flag_bits & 1
        ):
            raise PackError(
                f"The zip's member {name!r} is compressed or encrypted, which a pack's are not: unzip it first."
            )
    check_sizes({m.filename: m.file_size for m in members})


# ------------------------------------------------------------------------------------------------------------- writing


def zip_bytes(files: Mapping[str, bytes]) -> bytes:
    """A zip of ``files``: stored, sorted, the first day of the format as time, mode 0644; equal files, equal bytes.

    Written out by hand (APPNOTE.TXT 6.3, sections 4.3.7, 4.3.12 and 4.3.16), because :mod:`zipfile` promises no
    stable bytes from one Python to the next.
    """
    out: list[bytes] = []
    directory: list[bytes] = []
    offset = 0
    for name, data in sorted(files.items()):
        label, crc, size = name.encode("ascii"), zlib.crc32(data), len(data)
        local = _LOCAL.pack(b"PK\x03\x04", 20, 0, 0, *_TIME, crc, size, size, len(label), 0)
        central = _CENTRAL.pack(
            b"PK\x01\x02", 3 << 8 | 20, 20, 0, 0, *_TIME, crc, size, size, len(label), 0, 0, 0, 0, _MODE, offset
        )
        out += [local, label, data]
        directory += [central, label]
        offset += len(local) + len(label) + size
    tail = b"".join(directory)
    end = _END.pack(b"PK\x05\x06", 0, 0, len(files), len(files), len(tail), offset, 0)
    return b"".join([*out, tail, end])


def write_files(path: Path, files: Mapping[str, bytes], *, as_zip: bool, replaceable: bool) -> None:
    """Write ``files`` as a directory or a zip at ``path``: all of it or nothing, whatever happens on the way.

    Args:
        path: the target; its parent directory must exist.
        files: bytes by name.
        as_zip: one zip file instead of a directory.
        replaceable: whether what stands at ``path`` now may be replaced (the caller has looked at it).

    Raises:
        PackError: something stands at ``path`` that may not be replaced, or the disk refuses; the target is as before.
    """
    for name in files:
        check_name(name)
    check_sizes({name: len(data) for name, data in files.items()})
    if not path.parent.is_dir():
        raise PackError(f"The folder {str(path.parent)!r} does not exist: create it first.")
    if os.path.lexists(path) and not replaceable:
        raise PackError(f"{str(path)!r} exists and is not a pack: choose another name, or remove it first.")
    try:
        _write_zip(path, files) if as_zip else _write_directory(path, files)
    except OSError as error:
        if disk_is_full(error):
            raise PackError(
                f"The disk of the pack {str(path)!r} is full: free some space and export again; what stood there "
                f"before is kept."
            ) from None
        reason = error.strerror or error
        raise PackError(f"The pack {str(path)!r} cannot be written ({reason}): choose another place.") from None


def _write_zip(path: Path, files: Mapping[str, bytes]) -> None:
    with whole_file(path) as file:
        file.write(zip_bytes(files))


def _write_directory(path: Path, files: Mapping[str, bytes]) -> None:
    work = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent))
    try:
        fresh, old = work / "new", work / "old"
        fresh.mkdir()
        if any(name.startswith("kernels/") for name in files):
            (fresh / "kernels").mkdir()
        for name, data in files.items():
            with (fresh / name).open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        if path.exists():  # a directory that is not empty cannot be replaced in one step: the old one steps aside
            path.rename(old)
        try:
            fresh.rename(path)
        except OSError:
            with contextlib.suppress(OSError):
                old.rename(path)
            raise
    finally:
        shutil.rmtree(work, ignore_errors=True)
