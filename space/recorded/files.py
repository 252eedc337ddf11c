"""Reading recorded spaces from files of any format that is known; compressed or not."""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path
from typing import Any

from gemmtune.space.errors import RecordingError
from gemmtune.space.recorded.compact import is_compact, read_compact
from gemmtune.space.recorded.model import Recording

_LARGEST = 1 << 30
"""Bytes of JSON that are read at most."""
_GZIP = b"\x1f\x8b"


def read_recording(path: str | Path) -> Recording:
    """The recorded space in ``path``: gemmtune's own format, a Kernel Tuner cache file, T4 results, a compact table.

    Raises:
        RecordingError: the file is missing, cut off, or of no known format.
    """
    where = Path(path)
    data = _load(where)
    name = where.name.removesuffix(".gz").removesuffix(".json")
    try:
        if is_compact(data):
            return read_compact(data, name)
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise RecordingError(f"The recording {str(path)!r} lacks or misnames a field: {error}.") from None
    raise RecordingError(f"The file {str(path)!r} is of no format of recorded spaces that is known.")


def _load(path: Path) -> dict[str, Any]:
    try:
        raw = path.read_bytes()
        if raw.startswith(_GZIP):
            unpacked = zlib.decompressobj(wbits=31)
            raw = unpacked.decompress(raw, _LARGEST)
            if not unpacked.eof:
                raise RecordingError(f"The recording {str(path)!r} was cut off, or is larger than {_LARGEST} bytes.")
        data = json.loads(raw)
    except (zlib.error, gzip.BadGzipFile, EOFError) as error:
        raise RecordingError(f"The recording {str(path)!r} cannot be unpacked: {error}.") from None
    except OSError as error:
        raise RecordingError(f"The recording {str(path)!r} cannot be read: {error.strerror or error}.") from None
    except ValueError as error:
        raise RecordingError(f"The recording {str(path)!r} is no JSON: {error}.") from None
    if not isinstance(data, dict):
        raise RecordingError(f"The recording {str(path)!r} is no JSON object.")
    return data
