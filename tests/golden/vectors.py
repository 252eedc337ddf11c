"""The cases of the golden vectors: every intrinsic with seeded inputs, shared by the recorder and the test.

Plain NumPy, no gemmtune: the recorder runs wherever a GPU is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

SOURCE = Path(__file__).with_name("golden_kernels.cu")
SEED = 20261129


@dataclass(frozen=True)
class Case:
    """One launch of one block.

    ``arrays`` are the pointer arguments in order; ``outputs`` names those that the kernel writes (their values here are
    what they hold before). ``count`` is passed as a last int argument where it is not None. ``exact``: compared bit for
    bit; else as fp32 sums whose order is the hardware's.
    """

    name: str
    entry: str
    threads: int
    arrays: dict[str, np.ndarray]
    outputs: tuple[str, ...]
    count: int | None = None
    shared: int = 0
    exact: bool = True
    tags: dict[str, object] = field(default_factory=dict)


def special_floats() -> np.ndarray:
    """fp32 patterns around every edge of fp16, bf16 and tf32: ties, subnormals, overflow, infinities, NaN payloads."""
    rng = np.random.default_rng(SEED)
    bits: list[np.ndarray] = []
    halves = np.arange(0, 0x7C01, 37, dtype=np.uint16).view(np.float16).astype(np.float32).view(np.uint32)
    for step in (0, 1, 0x0FFF, 0x1000, 0x1001, 0x1FFF):  # the middle between two fp16 (or tf32) values, and beside it
        bits.append(halves + np.uint32(step))
    tops = (np.arange(0, 0x7F81, 41, dtype=np.uint32) << 16).astype(np.uint32)
    for step in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF):  # likewise for bf16
        bits.append(tops + np.uint32(step))
    # fp16 subnormals: multiples of 2**-24 and the ties between them
    multiples = (np.arange(0, 1100, 3, dtype=np.float64)[:, None] + np.array([0.0, 0.25, 0.5, 0.5000001, 0.75])).ravel()
    bits.append((multiples * 2.0**-24).astype(np.float32).view(np.uint32))
    edges = [
        65504.0,
        65519.996,
        65520.0,
        65536.0,
        3.4028235e38,
        3.3895314e38,
        3.39615e38,
        1.1754944e-38,
        1e-45,
        2.0**-25,
        2.0**-24,
    ]
    bits.append(np.array(edges, np.float32).view(np.uint32))
    bits.append(
        np.array(
            [
                0,
                0x7F800000,
                0x7F800001,
                0x7FC00000,
                0x7FFFFFFF,
                0x7FA00000,
                0x7F801000,
                0x7F7FFFFF,
                0x7F7FF000,
                1,
                0x7FFFFF,
                0x800000,
            ],
            np.uint32,
        )
    )
    bits.append(rng.integers(0, 2**31, 4096, dtype=np.uint32))
    positive = np.unique(np.concatenate(bits))
    return np.concatenate([positive, positive | np.uint32(0x80000000)]).view(np.float32)


def _bits16(values: np.ndarray, kind: str) -> np.ndarray:
    if kind == "f16":
        return values.astype(np.float16).view(np.uint16)
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)  # bf16 by truncation: any value will do


def _mma_case(name: str, kind: str, a: int, b: int) -> Case:
    """24 products of random fragments; then 4 with tiny operands (subnormal in fp16) and 2 with infinities.

    tf32: the first half has the low 13 bits of the operands clear, as ``to_tf32`` leaves them, the rest has them set.
    """
    rng = np.random.default_rng([SEED, a, b, len(kind)])
    count = 30
    scale = np.ones(count, np.float32)
    scale[24:28] = 2.0**-16

    def operand(registers: int) -> np.ndarray:
        values = rng.standard_normal((count, 32, registers, 1 if kind == "tf32" else 2), dtype=np.float32)
        values *= scale[:, None, None, None]
        values[28:, 5, 0, 0] = np.inf
        if kind != "tf32":
            return _bits16(values, kind).reshape(count, 32, 2 * registers).view(np.uint32)
        bits = values.view(np.uint32)[..., 0].copy()
        bits[:12] &= np.uint32(0xFFFFE000)
        return bits

    one_a, one_b = operand(a), operand(b)
    d = rng.standard_normal((count, 32, 4), dtype=np.float32)
    d[:4] = 0
    d[24:28] *= np.float32(2.0**-32)
    arrays = {"a": one_a, "b": one_b, "d": d, "out": np.full((count, 32, 4), np.nan, np.float32)}
    tags: dict[str, object] = {"kind": kind, "k": 8 if kind == "tf32" or a == 2 else 16}
    return Case(f"mma {name}", f"golden_{name}", 32, arrays, ("out",), count, exact=False, tags=tags)


def cases() -> list[Case]:
    """All cases, always the same."""
    rng = np.random.default_rng(SEED)
    out = [
        _mma_case("mma_m16n8k8_f16", "f16", 2, 1),
        _mma_case("mma_m16n8k16_f16", "f16", 4, 2),
        _mma_case("mma_m16n8k16_bf16", "bf16", 4, 2),
        _mma_case("mma_m16n8k8_tf32", "tf32", 4, 2),
    ]
    rows = rng.integers(0, 2**32, 128, dtype=np.uint32)
    orders = {"in order": np.arange(32, dtype=np.int32), "shuffled": rng.permutation(32).astype(np.int32)}
    for count in (4, 2):
        for suffix in ("", "_trans"):
            for label, order in orders.items():
                name = f"ldmatrix_x{count}{suffix}"
                arrays = {"rows": rows, "row_of_lane": order, "out": np.zeros((32, count), np.uint32)}
                out.append(Case(f"{name} {label}", f"golden_{name}", 32, arrays, ("out",), shared=512))
    for size in (4, 8, 16):
        data = rng.integers(0, 256, 32 * size, dtype=np.uint8)
        arrays = {"in": data, "out": np.zeros(32 * size, np.uint8)}
        out.append(
            Case(
                f"cp_async {size} bytes, 0 to {size} from the source",
                f"golden_cp_async_{size}",
                32,
                arrays,
                ("out",),
                shared=32 * size,
            )
        )
    arrays = {"in": rng.integers(0, 256, 512, dtype=np.uint8), "out": np.zeros(512, np.uint8)}
    out.append(Case("cp_async groups", "golden_cp_async_groups", 32, arrays, ("out",), shared=512))
    floats = special_floats()
    narrow = [("from_float_f16", np.uint16), ("from_float_bf16", np.uint16)]
    for name, width in [*narrow, ("to_tf32_rna", np.uint32), ("to_tf32_rn", np.uint32)]:
        arrays = {"in": floats, "out": np.zeros(floats.size, width)}
        out.append(Case(name, f"golden_{name}", 256, arrays, ("out",), floats.size))
    every = np.arange(65536, dtype=np.uint16)
    for name in ("to_float_f16", "to_float_bf16"):
        arrays = {"in": every, "out": np.zeros(every.size, np.uint32)}
        out.append(Case(name, f"golden_{name}", 256, arrays, ("out",), every.size))
    last = np.array([0, 1, 2, 3, 7, 5, 0xFFFFFFFF, 4], np.uint32)
    start = np.array([0, 0, 1, 3, 7, 9, 0xFFFFFFFE, 4], np.uint32)
    arrays = {"last": last, "counters": start, "out": np.zeros((8, 6), np.uint32)}
    out.append(Case("atomic_inc wrap", "golden_atomic_inc", 1, arrays, ("counters", "out"), 8))
    return out
