"""A truncated or damaged cubin is refused before the driver reads past its end."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmtune.device.image import damage


def elf(payload: bytes = b"code" * 8) -> bytes:
    """The smallest ELF image with one section of bytes and one without."""
    sections = 64 + len(payload)
    header = (
        b"\x7fELF\x02\x01\x01"
        + bytes(9)
        + struct.pack("<HHIQQQIHHHHHH", 2, 190, 1, 0, 0, sections, 0, 64, 56, 0, 64, 3, 0)
    )
    table = bytes(64)
    table += struct.pack("<IIQQQQIIQQ", 0, 1, 0, 0, 64, len(payload), 0, 0, 1, 0)
    table += struct.pack("<IIQQQQIIQQ", 0, 8, 0, 0, 64, 2**40, 0, 0, 1, 0)
    return header + payload + table


def test_a_whole_image_passes() -> None:
    assert damage(elf()) is None


@given(st.data())
def test_every_truncation_is_seen(data: st.DataObject) -> None:
    image = elf()
    assert damage(image[: data.draw(st.integers(0, len(image) - 1))]) is not None


@pytest.mark.parametrize("image", [b"", b"\x7fELF", b"PTX" * 100, bytes(1000)])
def test_what_is_no_elf_is_said_so(image: bytes) -> None:
    assert "no 64-bit ELF" in (damage(image) or "")


def test_a_section_beyond_the_end_is_seen() -> None:
    image = bytearray(elf())
    struct.pack_into("<Q", image, len(image) - 128 + 32, 10_000)
    assert "section 1" in (damage(bytes(image)) or "")


@given(st.binary(min_size=64, max_size=400))
def test_hostile_bytes_never_raise(tail: bytes) -> None:
    damage(b"\x7fELF\x02" + tail)


def test_what_nvrtc_makes_passes() -> None:
    nvrtc = pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC is not installed")
    _, program = nvrtc.nvrtcCreateProgram(b'extern "C" __global__ void f(int* p) { *p = 1; }', b"f.cu", 0, [], [])
    nvrtc.nvrtcCompileProgram(program, 1, [b"--gpu-architecture=sm_90a"])
    cubin = bytearray(nvrtc.nvrtcGetCUBINSize(program)[1])
    nvrtc.nvrtcGetCUBIN(program, cubin)
    assert damage(bytes(cubin)) is None
