"""Files of recorded spaces: reading any known format, writing those that are exchanged; compressed where asked for."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gemmtune.space.errors import ConfigurationError, RecordingError, UnknownNameError
from gemmtune.space.recorded.compact import is_compact, read_compact
from gemmtune.space.recorded.kernel_tuner import is_kernel_tuner, kernel_tuner_data, read_kernel_tuner
from gemmtune.space.recorded.model import Recording
from gemmtune.space.recorded.own import is_own, own_data, read_own
from gemmtune.space.recorded.t4 import is_t4, read_t4, t4_data
from gemmtune.space.recorded.table import csv_text, read_csv
from gemmtune.space.whole_file import whole_file

_LARGEST = 1 << 30
"""Bytes of text that are read at most."""
_GZIP = b"\x1f\x8b"
_READERS: tuple[tuple[Callable[[dict[str, Any]], bool], Callable[[dict[str, Any], str], Recording]], ...] = (
    (is_own, read_own),
    (is_kernel_tuner, read_kernel_tuner),
    (is_t4, read_t4),
    (is_compact, read_compact),
)
_WRITERS: dict[str, Callable[[Recording], dict[str, Any]]] = {
    "json": own_data,
    "kernel_tuner": kernel_tuner_data,
    "t4": t4_data,
}
FORMATS = (*_WRITERS, "csv")
"""What :func:`write_recording` can write: gemmtune's own, Kernel Tuner's cache files, T4 results 1.0.0, a table."""


def read_recording(path: str | Path) -> Recording:
    """The recorded space in ``path``, of whatever known format; its name is the file's where it bears none.

    Raises:
        RecordingError: the file is missing, cut off, damaged, or of no known format.
    """
    where = Path(path)
    text = _text(where)
    name = where.name.removesuffix(".gz").removesuffix(".json").removesuffix(".csv")
    if text.startswith("family,outcome,"):
        return read_csv(text, name)
    data = _json(text, where)
    try:
        for fits, read in _READERS:
            if fits(data):
                return read(data, name)
    except (KeyError, TypeError, AttributeError, IndexError, ValueError, ConfigurationError) as error:
        if isinstance(error, RecordingError):
            raise
        raise RecordingError(f"The recording {str(path)!r} lacks or misnames a field: {error}.") from None
    raise RecordingError(
        f"The file {str(path)!r} is no recorded space: it is neither gemmtune's own, a Kernel Tuner cache file, T4 "
        f"results nor a table."
    )


def write_recording(recording: Recording, path: str | Path, form: str = "json") -> None:
    """Write ``recording``, all of it or nothing; compressed, always to the same bytes, where the name ends in ``.gz``.

    Raises:
        UnknownNameError: there is no such format.
        RecordingError: the format cannot hold it, or the file cannot be written.
    """
    if form not in FORMATS:
        raise UnknownNameError(f"Unknown format {form!r}: choose one of {', '.join(FORMATS)}.")
    text = csv_text(recording) if form == "csv" else json.dumps(_WRITERS[form](recording), separators=(",", ":"))
    target = Path(path)
    raw = (text.rstrip("\n") + "\n").encode()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(target) as file:
            file.write(gzip.compress(raw, mtime=0) if target.suffix == ".gz" else raw)
    except OSError as error:
        raise RecordingError(f"The recording {str(path)!r} cannot be written: {error.strerror or error}.") from None


def _text(path: Path) -> str:
    try:
        raw = path.read_bytes()
        if raw.startswith(_GZIP):
            unpacked = zlib.decompressobj(wbits=31)
            raw = unpacked.decompress(raw, _LARGEST)
            if not unpacked.eof:
                raise RecordingError(f"The recording {str(path)!r} was cut off, or is larger than {_LARGEST} bytes.")
        return raw.decode()
    except zlib.error as error:
        raise RecordingError(f"The recording {str(path)!r} cannot be unpacked: {error}.") from None
    except UnicodeDecodeError:
        raise RecordingError(f"The recording {str(path)!r} is no text.") from None
    except OSError as error:
        raise RecordingError(f"The recording {str(path)!r} cannot be read: {error.strerror or error}.") from None


def _json(text: str, path: Path) -> dict[str, Any]:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        try:  # Kernel Tuner leaves a cache file open until its tuning ends well
            data = json.loads(text.rstrip().rstrip(",") + "}}")
        except (ValueError, RecursionError):
            raise RecordingError(f"The recording {str(path)!r} is no JSON: {error}.") from None
    if not isinstance(data, dict):
        raise RecordingError(f"The recording {str(path)!r} is no JSON object.")
    return data
