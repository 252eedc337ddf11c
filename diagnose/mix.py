"""What a kernel's machine code consists of: kinds of instruction, and the arithmetic that each does.

Only ratios come from the code; how often its hot loop runs follows from the arithmetic that the problem asks for.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gemmtune.codegen.control_flow import Instruction

FMA, TENSOR, INTEGER, PACKING, CONVERSION, SHARED, GLOBAL, LOCAL, MOVE, CONTROL, OTHER = (
    "fma", "tensor", "integer", "packing", "conversion", "shared", "global", "local", "move", "control", "other",
)  # fmt: skip

_KINDS: Mapping[str, str] = {
    name: kind
    for kind, names in {
        FMA: "FFMA FADD FMUL FFMA2 FADD2 FMUL2 HFMA2 HADD2 HMUL2 DFMA DADD DMUL",
        TENSOR: "HMMA IMMA BMMA DMMA QMMA OMMA HGMMA IGMMA BGMMA QGMMA UTCHMMA UTCQMMA UTCIMMA",
        INTEGER: "IADD IADD3 IADD32I IMAD IMUL LEA LOP LOP3 LOP32I SHF SHL SHR ISETP ICMP IABS INEG IMNMX IMNMX3 VIADD "
        "VIADDMNMX VIMNMX VIMNMX3 VABSDIFF IDP IDP4A IDE BMSK BFE BFI BREV FLO POPC PRMT SEL SGXT LOP3_LUT XMAD ISCADD",
        PACKING: "F2FP I2FP F2IP I2IP",  # conversions at the rate of integer work
        CONVERSION: "F2F F2I I2F I2I FRND MUFU",  # those of the slow pipe
        SHARED: "LDS STS LDSM STSM ATOMS MOVM",
        GLOBAL: "LDG STG LDGSTS ATOM ATOMG RED REDG LD ST UBLKCP UTMALDG UTMASTG UTMAREDG",
        LOCAL: "LDL STL",
        MOVE: "MOV MOV32I UMOV CS2R S2R S2UR R2UR R2P P2R LDC LDCU ULDC SHFL",
        CONTROL: "BRA BRX BRXU JMP JMX CALL RET EXIT BSSY BSYNC BREAK WARPSYNC YIELD BAR DEPBAR LDGDEPBAR LDGBAR NOP "
        "MEMBAR ERRBAR CCTL WARPGROUP WARPGROUPSET SYNCS ELECT NANOSLEEP PLOP3 VOTE BMOV FENCE ARRIVES CGABAR_ARV",
    }.items()
    for name in names.split()
}
_SHAPE = re.compile(r"^\w+\.(?:SP\.)?(\d+)(?:x(\d+)x(\d+))?")
_WARP_SHAPES: Mapping[str, int] = {
    "884": 8 * 8 * 4, "1684": 16 * 8 * 4, "1688": 16 * 8 * 8, "16816": 16 * 8 * 16, "16832": 16 * 8 * 32,
    "16864": 16 * 8 * 64, "8816": 8 * 8 * 16, "8832": 8 * 8 * 32,
}  # fmt: skip
"""Multiply-adds of one warp instruction, by the digits in its name."""
_LANE_FLOPS: Mapping[str, int] = {
    "FFMA": 2, "FADD": 1, "FMUL": 1, "FFMA2": 4, "FADD2": 2, "FMUL2": 2, "HFMA2": 4, "HADD2": 2, "HMUL2": 2, "DFMA": 2,
    "DADD": 1, "DMUL": 1,
}  # fmt: skip


def kind_of(instruction: Instruction) -> str:
    """Its kind. Copies in the shape of arithmetic (``IMAD.MOV``, ``HFMA2.MMA R1, -RZ, RZ, ...``) count as moves."""
    name, opcode = instruction.name, instruction.opcode
    if opcode.startswith(("IMAD.MOV", "HFMA2.MMA")) or (name == "HFMA2" and "RZ" in instruction.operands[2:3]):
        return MOVE
    if name in _KINDS:
        return _KINDS[name]
    if name.startswith("U") and name[1:] in _KINDS:  # the uniform datapath: one lane's work for the whole warp
        return MOVE if _KINDS[name[1:]] == INTEGER else _KINDS[name[1:]]
    return OTHER


def flops_of(instruction: Instruction) -> float:
    """Floating-point operations of one warp's share of it (a multiply-add counts two)."""
    kind = kind_of(instruction)
    if kind == FMA:
        return 32.0 * _LANE_FLOPS[instruction.name]
    shape = _SHAPE.match(instruction.opcode) if kind == TENSOR else None
    if shape is None:
        return 0.0
    if shape.group(2):  # HGMMA.64x128x16: four warps together
        return 2.0 * int(shape.group(1)) * int(shape.group(2)) * int(shape.group(3)) / 4
    return 2.0 * _WARP_SHAPES.get(shape.group(1), 0)


@dataclass(frozen=True)
class Mix:
    """One turn of a kernel's hot loop: warp instructions by kind, and the floating-point operations of a warp in it.

    ``wide_integer`` are the integer multiply-adds among the integer instructions, which run on the FMA pipe.
    """

    counts: Mapping[str, int]
    flops: float
    wide_integer: int = 0

    @property
    def total(self) -> int:
        """All instructions of a turn."""
        return sum(self.counts.values())

    @property
    def math(self) -> int:
        """Those that do the problem's arithmetic."""
        return self.counts.get(TENSOR, 0) or self.counts.get(FMA, 0)

    @property
    def unit(self) -> str:
        """``"tensor"`` or ``"fma"``: what does the arithmetic."""
        return TENSOR if self.counts.get(TENSOR) else FMA

    @property
    def integer_per_math(self) -> float:
        """Integer instructions for one that computes."""
        return self.counts.get(INTEGER, 0) / self.math if self.math else 0.0

    @property
    def tidy_integer(self) -> int:
        """The integer instructions that a loop needs whose addresses only advance: one an access, four for the loop."""
        accesses = sum(self.counts.get(kind, 0) for kind in (SHARED, GLOBAL, LOCAL))
        return min(self.counts.get(INTEGER, 0), accesses + 4)


def mix_of(instructions: Iterable[Instruction]) -> Mix | None:
    """The mix of a loop, or None where it does no arithmetic, so that nothing can be said per multiply-add."""
    every = list(instructions)
    counts = Counter(kind_of(i) for i in every)
    mix = Mix(
        counts=dict(counts),
        flops=sum(flops_of(i) for i in every),
        wide_integer=sum(1 for i in every if kind_of(i) == INTEGER and i.name in ("IMAD", "IMUL", "XMAD")),
    )
    return mix if mix.flops > 0 else None
