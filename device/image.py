"""Is a cubin whole? The driver is given an address without a length, and reads past the end of a truncated image."""

from __future__ import annotations

import struct

_HEADER = 64
_NOBITS = 8  # a section that occupies no bytes in the file


def damage(image: bytes) -> str | None:
    """What is wrong with the outline of a 64-bit ELF image, or None: its tables and sections must lie inside it."""
    size = len(image)
    if size < _HEADER or image[:5] != b"\x7fELF\x02":
        return f"its {size} bytes are no 64-bit ELF image"
    program_offset, section_offset = struct.unpack_from("<QQ", image, 32)
    program_size, program_count, section_size, section_count = struct.unpack_from("<HHHH", image, 54)
    for offset, each, count in (
        (program_offset, program_size, program_count),
        (section_offset, section_size, section_count),
    ):
        if count and (each < 56 or offset + each * count > size):
            return f"its tables end beyond its {size} bytes"
    for index in range(section_count):
        at = section_offset + index * section_size
        kind = struct.unpack_from("<I", image, at + 4)[0]
        offset, length = struct.unpack_from("<QQ", image, at + 24)
        if kind not in (0, _NOBITS) and offset + length > size:
            return f"section {index} ends beyond its {size} bytes"
    return None
