"""The two intrinsics layers say the same: every function of hw.cuh is in hw.h with the same arguments, and back."""

from __future__ import annotations

import re

from gemmtune.codegen.render import INTRINSICS
from gemmtune.device.emulator.build import NATIVE

_FUNCTION = re.compile(r"(?:HW_FN|__forceinline__)\s+([\w:]+)\s+(\w+(?:<\w+>)?)\(([^{;]*)\)\s*[{;]")
_MACROS = re.compile(r"^HW_(MMA\w*|LDMATRIX)\((\w+)", re.MULTILINE)


def functions(text: str) -> dict[str, set[str]]:
    """Names without template arguments, each with its overloads' types; the emulator's line argument is dropped."""
    found: dict[str, set[str]] = {}
    for result, name, arguments in _FUNCTION.findall(text):
        plain = re.sub(r",?\s*HW_LINE", "", arguments)
        types = [re.sub(r"\s*=.*", "", a).strip() for a in re.split(r",(?![^(]*\))", plain) if a.strip()]
        types = [re.sub(r"\s*\b\w+$", "", t) if not t.endswith("]") else re.sub(r"\(&\w+\)", "(&)", t) for t in types]
        found.setdefault(name.split("<")[0], set()).add(f"{result}({', '.join(types)})")
    for _, name in _MACROS.findall(text):
        found.setdefault(name, set())
    return found


GPU = functions(INTRINSICS.read_text())
CPU = functions((NATIVE / "hw.h").read_text())
MADE_BY_MACRO = {"NAME"} | {n for n in CPU if n.startswith(("mma_", "ldmatrix_"))}


def test_the_lists_are_not_empty() -> None:
    assert {"ldg", "sts", "to_float", "from_float", "cp_async", "mma_m16n8k16_bf16", "ldmatrix_x4"} <= set(GPU) & set(
        CPU
    )


def test_every_intrinsic_exists_twice() -> None:
    helpers = {"shared_address", "NAME"}  # PTX wants 32-bit shared addresses; the emulator has no use for them
    assert set(GPU) - helpers == set(CPU) - helpers


def test_signatures_agree() -> None:
    for name in set(GPU) & set(CPU) - MADE_BY_MACRO:
        assert GPU[name] == CPU[name], name


def test_types_agree() -> None:
    for text in ((NATIVE / "hw.h").read_text(), INTRINSICS.read_text()):
        assert "struct f16 { u16 bits; };" in text
        assert "struct bf16 { u16 bits; };" in text
        assert re.search(r"template <class T, int N> struct \S+\(sizeof\(T\) \* N\) Pack \{ T v\[N\]; \};", text)
