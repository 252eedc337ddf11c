"""Hopper's two intrinsics layers say the same: every function of hopper.cuh is in hopper.h with the same arguments."""

from __future__ import annotations

import re

from gemmtune.codegen.render import INTRINSICS
from gemmtune.device.emulator.build import HEADERS, NATIVE

GPU_TEXT = INTRINSICS.with_name("hopper.cuh").read_text()
CPU_TEXT = (NATIVE / "hopper.h").read_text()
_FUNCTION = re.compile(r"(?:HW_FN|__device__ __forceinline__)\s+(\w+)\s+(\w+)\(([^{;]*?)\)\s*[{;]")
_MADE = re.compile(r"^HW_STMATRIX\((\w+)\)", re.MULTILINE)


def functions(text: str) -> dict[str, set[str]]:
    """Names, each with its overloads' types; the emulator's line argument is dropped."""
    found: dict[str, set[str]] = {}
    for result, name, arguments in _FUNCTION.findall(text):
        plain = re.sub(r",?\s*HW_LINE", "", arguments)
        types = [re.sub(r"\b\w+$", "", a.strip()).replace(" ", "") for a in plain.split(",") if a.strip()]
        found.setdefault(name, set()).add(f"{result}({','.join(types)})")
    return found


def test_both_headers_can_be_included() -> None:
    for name in HEADERS:
        assert INTRINSICS.with_name(f"{name}.cuh").exists()
        assert (NATIVE / f"{name}.h").exists()


def test_every_intrinsic_exists_twice_with_one_signature() -> None:
    gpu, cpu = functions(GPU_TEXT), functions(CPU_TEXT)
    for name in _MADE.findall(CPU_TEXT):
        cpu[name] = gpu[name]
    cpu.pop("NAME")
    assert {"mbarrier_wait", "tma_load", "wgmma", "registers_more", "cluster_sync", "stmatrix_x4_trans"} <= set(gpu)
    assert gpu == cpu


def test_streaming_loads_exist_twice_with_one_signature() -> None:
    gpu, cpu = (INTRINSICS.with_name("stream.cuh").read_text(), (NATIVE / "stream.h").read_text())
    assert {"stream_policy", "load_stream", "select", "opaque"} <= set(functions(gpu))
    assert functions(gpu) == functions(cpu)
    for text in (gpu, cpu):
        assert "enum class Hint { plain, stream, far, first };" in text


def test_types_and_template_heads_agree() -> None:
    for text in (GPU_TEXT, CPU_TEXT):
        assert re.search(r"struct (?:__align__|alignas)\(64\) TensorMap \{ u64 words\[16\]; \};", text)
        assert "struct tf32 { u32 bits; };" in text
        assert "#define HW_TENSOR_MAP(name) const __grid_constant__ hw::TensorMap name" in text
    heads = [set(re.findall(r"template <([^>]*)> (?:HW_FN|__device__)[^(]* (\w+)\(", t)) for t in (GPU_TEXT, CPU_TEXT)]
    assert heads[0] == heads[1]
