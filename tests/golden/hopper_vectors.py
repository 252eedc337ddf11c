"""The cases of Hopper's golden vectors, and what they should give, worked out in NumPy from the PTX ISA alone.

Shared by the recorder (an H200) and the test (the emulator): layouts of swizzled tiles, "Swizzling modes" of tensors,
"Matrix descriptor" and "Register fragments" of wgmma, "stmatrix", "mapa".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import ml_dtypes
import numpy as np

from gemmtune.codegen.render import TEMPLATES
from gemmtune.space.tensor_map import ELEMENT_BYTES, BoundMap

SOURCE = Path(__file__).with_name("hopper_kernels.cu.j2")
SEED = 20261130
SHAPES = (
    ("bf16", 8, False, False),
    ("bf16", 64, False, False),
    ("bf16", 96, True, True),
    ("bf16", 256, False, True),
    ("bf16", 128, True, False),
    ("f16", 24, False, False),
    ("f16", 176, False, False),
    ("f16", 64, True, True),
    ("tf32", 32, False, False),
    ("tf32", 200, False, False),
)
DTYPES = {"bf16": np.dtype(ml_dtypes.bfloat16), "f16": np.dtype(np.float16), "tf32": np.dtype(np.float32)}


def text() -> str:
    """The kernels' source."""
    loader = jinja2.FileSystemLoader([str(SOURCE.parent), str(TEMPLATES)])
    environment = jinja2.Environment(loader=loader, undefined=jinja2.StrictUndefined)
    return environment.get_template(SOURCE.name).render(shapes=SHAPES)


@dataclass(frozen=True)
class Case:
    """One launch of one block or cluster.

    The kernel's arguments: ``map`` of the array ``mapped`` where there is one, the other ``arrays`` in order, and the
    integers ``numbers``. ``wanted``: what ``output`` holds afterwards. ``exact``: bit for bit; else within ``bound`` of
    2**-23 times ``scale``.
    """

    name: str
    entry: str
    threads: int
    arrays: dict[str, np.ndarray]
    output: str
    wanted: np.ndarray
    numbers: tuple[int, ...] = ()
    shared: int = 0
    cluster: int = 1
    map: BoundMap | None = None
    mapped: str = ""
    exact: bool = True
    scale: np.ndarray | None = None


def swizzle(offset: Any, span: int) -> Any:
    """Where byte ``offset`` goes: the place of its 16 bytes in ``span`` is exclusive-ored with its 128-byte line's."""
    chunks = max(1, span // 16)
    return offset ^ ((offset // 128 % chunks) * 16)


def _box(tensor: np.ndarray, pitch: int, bound: BoundMap, x: int, y: int) -> np.ndarray:
    """The bytes that a load puts into shared memory."""
    size, (width, rows) = ELEMENT_BYTES[bound.element], bound.box
    inner, outer = bound.extents
    image = np.zeros(width * rows * size, np.uint8)
    for r in range(rows):
        for c in range(width):
            if not (0 <= x + c < inner and 0 <= y + r < outer):
                continue
            at = swizzle((r * width + c) * size, bound.swizzle)
            start = (y + r) * pitch + (x + c) * size
            image[at : at + size] = tensor[start : start + size]
    return image


def _loads() -> list[Case]:
    rng = np.random.default_rng(SEED)
    out = []
    places = {
        (0, 0): "inside", (-8, -3): "before the first row and column", (40, 30): "past the last row and column",
        (200, 0): "beside the tensor",
    }  # fmt: skip
    kinds = [
        ("bf16", 128, (64, 16)),
        ("f16", 64, (32, 24)),
        ("bf16", 32, (16, 9)),
        ("bf16", 0, (24, 8)),
        ("f32", 128, (32, 8)),
    ]
    for element, span, box in kinds:
        size = ELEMENT_BYTES[element]
        bound = BoundMap(element, (77, 37), 96 * size, box, span, 256)
        tensor = rng.integers(0, 256, 37 * 96 * size, dtype=np.uint8)
        for (x, y), where in places.items():
            image = _box(tensor, bound.pitch, bound, x, y)
            arrays = {"tensor": tensor, "out": np.zeros(image.size, np.uint8)}
            out.append(
                Case(f"tma_load {element} swizzle {span} {where}", "golden_tma_load", 64, arrays, "out", image,
                     (x, y, image.size), image.size + 16, map=bound, mapped="tensor")
            )  # fmt: skip
    bound = BoundMap("bf16", (77, 37), 192, (64, 16), 128, 128)
    tensor = rng.integers(0, 256, 37 * 192, dtype=np.uint8)
    image = _box(tensor, 192, bound, 16, 25)
    arrays = {"tensor": tensor, "out": np.zeros(2 * image.size, np.uint8)}
    out.append(
        Case("tma_load_multicast", "golden_tma_multicast", 64, arrays, "out", np.concatenate([image, image]),
             (16, 25, image.size), image.size + 16, cluster=2, map=bound, mapped="tensor")
    )  # fmt: skip
    # As tf32 a load rounds: half-way patterns among ordinary numbers.
    floats = rng.standard_normal(8 * 32, dtype=np.float32).view(np.uint32)
    floats[::3] = floats[::3] & np.uint32(0xFFFFE000) | np.uint32(0x1000)
    bound = BoundMap("tf32", (32, 8), 128, (32, 8), 0, 256)
    rounded = (floats + np.uint32(0xFFF) + (floats >> np.uint32(13) & np.uint32(1))) & np.uint32(0xFFFFE000)
    arrays = {"tensor": floats.view(np.uint8), "out": np.zeros(1024, np.uint8)}
    out.append(
        Case("tma_load tf32 rounds", "golden_tma_load", 64, arrays, "out", rounded.view(np.uint8), (0, 0, 1024), 1040,
             map=bound, mapped="tensor")
    )  # fmt: skip
    return out


def _stores() -> list[Case]:
    """Of a row, an H200 writes every 16 bytes that begin inside the tensor, and writes them whole.

    No store starts before the tensor: an H200 takes that for an illegal instruction, unlike such a load.
    """
    rng = np.random.default_rng([SEED, 1])
    out = []
    kinds = (
        ("bf16", 128, (64, 16)),
        ("bf16", 64, (32, 8)),
        ("bf16", 32, (16, 8)),
        ("bf16", 0, (40, 5)),
        ("f32", 128, (32, 8)),
    )
    for element, span, box in kinds:
        size = ELEMENT_BYTES[element]
        for inner, x, y in ((77, 0, 0), (77, 48, 30), (77, 64, 30), (72, 64, 30)):  # 72: a multiple of 16 bytes
            bound = BoundMap(element, (inner, 37), 96 * size, box, span, 0)
            image = rng.integers(0, 256, bound.box_bytes, dtype=np.uint8)
            tensor = np.full(37 * bound.pitch, 0xEE, np.uint8)
            wanted = tensor.copy()
            for r in range(min(box[1], 37 - y)):
                for byte in range(0, box[0] * size, 16):
                    if x * size + byte < inner * size:
                        at, start = swizzle(r * box[0] * size + byte, span), (y + r) * bound.pitch + x * size + byte
                        wanted[start : start + 16] = image[at : at + 16]
            arrays = {"tensor": tensor, "in": image}
            out.append(
                Case(f"tma_store {element} swizzle {span} at {x},{y} of {inner},37", "golden_tma_store", 32, arrays,
                     "tensor", wanted, (x, y, image.size), image.size, map=bound, mapped="tensor")
            )  # fmt: skip
    return out


def _operand(
    image: np.ndarray, at: int, transposed: bool, kind: str, rows: int, leading: int, stride: int
) -> np.ndarray:
    """An operand's 64 bytes of K (twice the first 32 where it is MN-major), [rows][K], out of the image."""
    dtype = DTYPES[kind]
    depth = 32 // dtype.itemsize
    r, k = np.meshgrid(np.arange(rows), np.arange(depth if transposed else 2 * depth), indexing="ij")
    if transposed:
        plain = at + r // 64 * leading + r % 64 * 2 + k // 8 * stride + k % 8 * 128
    else:
        plain = at + r // 8 * stride + r % 8 * 128 + k * dtype.itemsize
    values = image.view(dtype)[swizzle(plain, 128) // dtype.itemsize].astype(np.float64)
    return np.concatenate([values, values], axis=1) if transposed else values


def _products() -> list[Case]:
    out = []
    for kind, n, trans_a, trans_b in SHAPES:
        rng = np.random.default_rng([SEED, n, len(kind), trans_a, trans_b])
        across = -(-n // 64)
        a_leading, a_stride, a_bytes = (16, 1024, 2048) if trans_a else (16, 1024, 8192)
        b_leading, b_stride, b_bytes = (2048, 1024, across * 2048) if trans_b else (16, 1024, -(-n // 8) * 1024)
        image = rng.standard_normal((a_bytes + b_bytes) // DTYPES[kind].itemsize).astype(DTYPES[kind])
        if kind == "tf32":
            image = (image.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
        one_a = _operand(image, 0, trans_a, kind, 64, a_leading, a_stride)
        one_b = _operand(image, a_bytes, trans_b, kind, n, b_leading, b_stride)
        arrays = {"in": image.view(np.uint8), "out": np.zeros((128, n // 2), np.float32)}
        out.append(
            Case(f"wgmma {kind} n{n} {'T' if trans_a else 'K'}{'T' if trans_b else 'K'}",
                 f"golden_wgmma_{kind}_{n}_{int(trans_a)}{int(trans_b)}", 128, arrays, "out",
                 _fragments(one_a @ one_b.T, n).astype(np.float32),
                 (a_bytes, a_leading, b_leading, a_stride, b_stride, image.nbytes), image.nbytes, exact=False,
                 scale=_fragments(np.abs(one_a) @ np.abs(one_b).T, n))
        )  # fmt: skip
    return out


def _fragments(d: np.ndarray, n: int) -> np.ndarray:
    """D[64][n] as the 128 threads hold it."""
    thread, i = np.meshgrid(np.arange(128), np.arange(n // 2), indexing="ij")
    return d[thread // 32 * 16 + thread % 32 // 4 + i % 4 // 2 * 8, i // 4 * 8 + thread % 4 * 2 + i % 2]


def _epilogues() -> list[Case]:
    rng = np.random.default_rng([SEED, 2])
    registers = rng.integers(0, 2**32, (32, 4), dtype=np.uint32)
    order = rng.permutation(32).astype(np.int32)
    halves = registers.view(np.uint16).reshape(32, 4, 2)
    out = []
    for name, transposed in (("stmatrix_x4", False), ("stmatrix_x4_trans", True)):
        matrices = np.zeros((4, 8, 8), np.uint16)
        for lane in range(32):
            for e in range(2):
                g, t = lane // 4, lane % 4 * 2 + e
                matrices[(slice(None), t, g) if transposed else (slice(None), g, t)] = halves[lane, :, e]
        wanted = np.zeros((32, 8), np.uint16)
        wanted[order] = matrices.reshape(32, 8)
        arrays = {"in": registers, "row_of_lane": order, "out": np.zeros((32, 8), np.uint16)}
        out.append(Case(name, f"golden_{name}", 32, arrays, "out", wanted, (), 512))
    floats = (rng.standard_normal(512) * 100).astype(np.float32)
    packed = np.zeros((256, 2, 2), np.uint16)
    packed[:, 0] = floats.astype(DTYPES["bf16"]).view(np.uint16).reshape(256, 2)
    packed[:, 1] = floats.astype(np.float16).view(np.uint16).reshape(256, 2)
    arrays = {"in": floats, "out": np.zeros((256, 2, 2), np.uint16)}
    out.append(Case("packs", "golden_packs", 32, arrays, "out", packed, (512,)))
    return out


def _peers() -> list[Case]:
    size = 4096
    inputs = np.random.default_rng([SEED, 3]).integers(0, 256, (4, size), dtype=np.uint8)
    wanted = np.stack([inputs[(rank + j) % 4] for rank in range(4) for j in range(4)])
    arrays = {"in": inputs, "out": np.zeros((16, size), np.uint8)}
    return [Case("lds_cluster", "golden_lds_cluster", 96, arrays, "out", wanted, (size,), size, cluster=4)]


def cases() -> list[Case]:
    """All cases, always the same."""
    groups: tuple[Callable[[], list[Case]], ...] = (_loads, _stores, _products, _epilogues, _peers)
    return [case for group in groups for case in group()]
