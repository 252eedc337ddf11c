"""Where a search of the hopper family begins: shapes that suit an H200, fitted to the problem."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from gemmtune.space.configuration import Configuration, Value
from gemmtune.space.expression import expression
from gemmtune.space.gemm import Gemm
from gemmtune.space.gpu import Gpu

if TYPE_CHECKING:
    from gemmtune.space.families.hopper import Hopper

_BASE: dict[str, Value] = {
    "warpgroups": 2,
    "schedule": "pingpong",
    "cluster": "1x1",
    "raster": "rows",
    "group": 8,
    "splits": 1,
    "stream": 0,
    "swap": 0,
    "hints": "none",
    "store": "tma",
    "producer": 24,
    "persistent": 1,
    "blocks": 1,
}


_FEW_ROWS = 256
_SQUARES = ((128, 4, 2), (128, 2, 4), (128, 2, 2), (64, 2, 2))
"""Rows of a tile, and a cluster's blocks along M and N."""


def points(family: Hopper, gemm: Gemm, gpu: Gpu) -> list[Configuration]:
    """Candidates, not all of them valid, each once; best guesses first."""
    line = 128 // gemm.a.bytes
    few = _small(gemm, gpu, line) if gemm.m <= _FEW_ROWS else ()
    shapes = [*_clustered(gemm, gpu, line), *few, *_large(gemm, gpu, line)]
    out: dict[Configuration, None] = {}
    for shape in shapes:
        knobs = {**_BASE, **shape, "programmatic": family.programmatic}
        names = [p.name for p in family.parameters(gemm, gpu)]
        for store in (knobs["store"], "shared", "direct"):
            fitted = _deepest(family, gemm, gpu, {**knobs, "store": store, "stages": 2}, names)
            if fitted is not None:
                out[fitted] = None
                break
    return list(out)


def _deepest(family: Hopper, gemm: Gemm, gpu: Gpu, knobs: dict[str, Value], names: list[str]) -> Configuration | None:
    """The configuration with as many stages as fit, the smallest group and no persistence where they have no effect."""
    stages = next(p.values for p in family.parameters(gemm, gpu) if p.name == "stages")
    for persistent in dict.fromkeys((knobs["persistent"], 0)):
        for group in (knobs["group"], 4, 1):
            env: dict[str, Any] = {**family.environment(gemm, gpu), **knobs, "persistent": persistent, "group": group}
            for name, text in family.definitions.items():
                env[name] = expression(text)(env)
            fitting = [s for s in stages if isinstance(s, int) and s <= max(2, env["most_stages"])]
            values = {**knobs, "persistent": persistent, "group": group, "stages": fitting[-1]}
            made = Configuration.of(family.name, {name: values[name] for name in names})
            if not family.why_invalid(gemm, made, gpu):
                return made
    return None


def _widths(gemm: Gemm, gpu: Gpu, rows: int, most: int) -> list[int]:
    """The three widths of tiles (multiples of 16) that take the least time: turns times a tile's, loads included."""

    def cost(width: int) -> float:
        tiles = -(-gemm.m // rows) * -(-gemm.n // width)
        return -(-tiles // gpu.sms) * (rows * width + 24.0 * (rows + width))

    return sorted(range(64, most + 1, 16), key=cost)[:3]


def _large(gemm: Gemm, gpu: Gpu, line: int) -> Iterator[dict[str, Value]]:
    """Ping-pong of 128 x N, cooperative 128 x 256 and 256 x 128, three consumers of 192 x N."""
    yield {"bm": 128, "bn": 256, "bk": line, "schedule": "cooperative"}
    for width in _widths(gemm, gpu, 128, 192):
        yield {"bm": 128, "bn": width, "bk": line}
    for width in _widths(gemm, gpu, 64, 256)[:2]:
        yield {"bm": 64, "bn": width, "bk": line}
    for width in _widths(gemm, gpu, 128, 256):
        yield {"bm": 128, "bn": width, "bk": line, "schedule": "cooperative"}
    for width in _widths(gemm, gpu, 256, 192)[:2]:
        yield {"bm": 256, "bn": width, "bk": line, "schedule": "cooperative"}
    yield {"bm": 192, "bn": 192, "bk": line, "schedule": "cooperative", "warpgroups": 3, "store": "shared"}
    yield {"bm": 128, "bn": 256, "bk": line, "schedule": "cooperative", "cluster": "2x1", "group": 16}
    yield {"bm": 128, "bn": 128, "bk": line, "schedule": "pingpong", "raster": "columns"}
    yield {"bm": 128, "bn": 192, "bk": line, "schedule": "cooperative", "stream": 1}
    yield {"bm": 128, "bn": 128, "bk": line, "schedule": "cooperative", "blocks": 2, "store": "shared"}
    yield {"bm": 64, "bn": 128, "bk": 2 * line, "schedule": "cooperative", "warpgroups": 1, "splits": 2}


def _clustered(gemm: Gemm, gpu: Gpu, line: int) -> Iterator[dict[str, Value]]:
    """Few tiles: wide ones whose K a cluster shares, where an SM then takes in less for the same work.

    Of each size of cluster, with operands swapped and not, the tile that does best; the cheapest first. Then, of the
    cheapest two and of the best whole tiles, those whose neighbours load together what they share, which spares the L2,
    most of all where rows do not begin with its lines.
    """
    best: dict[tuple[int, int], tuple[float, int, int]] = {}
    swaps = (0, 1) if gemm.m <= _FEW_ROWS else (0,)
    for swap in swaps:
        parts = (-(-gemm.m // 8) * 8, -(-gemm.m // 16) * 8)
        for height, widest in ((64, 256), (128, 256), (192, 200), (256, 192)):
            for width in parts if swap else range(16, widest + 1, 8):
                for blocks in (1, 2, 4, 8):
                    found = (_intake(gemm, gpu, (line, height, width), blocks, swap), height, width)
                    if width <= widest:
                        best[swap, blocks] = min(best.get((swap, blocks), found), found)
    whole = min(best[swap, 1][0] for swap in swaps)
    shapes: dict[tuple[int, int], dict[str, Value]] = {}
    for (swap, blocks), (cost, height, width) in sorted(best.items(), key=lambda item: item[1]):
        if blocks == 1 or cost < whole:
            shapes[swap, blocks] = {
                "bm": height, "bn": width, "bk": line, "warpgroups": height // 64 if height < 256 else 2, "swap": swap,
                "schedule": "cooperative", "cluster": f"1x1x{blocks}", "store": "direct", "persistent": 0, "group": 1,
                "hints": "stream_b" if gemm.m <= (width if swap else height) else "none",
            }  # fmt: skip
    shared = [(swap, shape) for (swap, blocks), shape in shapes.items() if blocks > 1]
    yield from (shape for _, shape in shared)
    for swap, shape in shared[:2]:
        yield {**shape, "cluster": str(shape["cluster"]).replace("1x1", _sharing(2, swap))}
    for swap, together in itertools.product(swaps, (4, 2)):
        _, height, width = best[swap, 1]
        p, q = (gemm.n, gemm.m) if swap else (gemm.m, gemm.n)
        if -(-p // height) * -(-q // width) <= gpu.sms:
            yield {**shapes[swap, 1], "cluster": _sharing(together, swap), "store": "shared"}
    yield from _square(gemm, gpu, line)


def _square(gemm: Gemm, gpu: Gpu, line: int) -> Iterator[dict[str, Value]]:
    """Neighbours in both directions load together: the narrowest tile with which all their clusters run at once."""
    for height, down, across in _SQUARES if gemm.m > _FEW_ROWS else ():
        for width in range(32, 257, 8):
            clusters = -(-gemm.m // (down * height)) * -(-gemm.n // (across * width))
            # Some GPCs have room for fewer clusters than their SMs make.
            if down * across * clusters <= gpu.sms * 7 // 8:
                yield {
                    "bm": height, "bn": width, "bk": line, "warpgroups": height // 64, "cluster": f"{down}x{across}",
                    "group": 1, "schedule": "cooperative", "store": "tma", "persistent": 0,
                }  # fmt: skip
                break


def _sharing(blocks: int, swap: int) -> str:
    """A cluster whose ``blocks`` lie along N, and have the rows of A in common."""
    return f"{blocks}x1" if swap else f"1x{blocks}"


def _intake(gemm: Gemm, gpu: Gpu, tile: tuple[int, int, int], blocks: int, swap: int) -> float:
    """Bytes that the busiest SM takes in: operands and, fp32 both ways, sums of ``blocks`` that share a tile's K.

    A little more where the larger operand is read more than once; infinite where most of a tile is idle.
    """
    p, q = (gemm.n, gemm.m) if swap else (gemm.m, gemm.n)
    line, height, width = tile
    if (height >= 2 * p and height > 64) or (width >= 2 * q and width > 8):
        return math.inf
    down, across = -(-p // height), -(-q // width)
    usable = gpu.sms if blocks <= 2 else max(1, gpu.sms // 16 * 16)  # clusters lie in a GPC, of mostly 16 SMs
    turns = -(-(down * across * blocks) // usable)
    depth = -(-gemm.k // (line * blocks)) * line
    taken = (height + width) * depth * gemm.a.bytes + (8.0 * height * width if blocks > 1 else 0.0)
    return turns * taken * (1 + 0.03 * (across if swap else down))


def _small(gemm: Gemm, gpu: Gpu, line: int) -> Iterator[dict[str, Value]]:
    """Swapped: weights along wgmma's M, read once; K is split until every SM has work."""
    base: dict[str, Value] = {"swap": 1, "hints": "stream_b", "store": "shared", "schedule": "cooperative", "group": 1}
    width = min(256, -(-gemm.m // 8) * 8)
    for height, warpgroups in ((64, 1), (128, 2), (128, 1)):
        tiles = -(-gemm.n // height) * -(-gemm.m // width)
        best = sorted((1, 2, 3, 4, 6, 8), key=lambda s, t=tiles: -(-t * s // gpu.sms) / s + 0.02 * s)  # type: ignore[misc]
        for splits in best[:2]:
            yield {**base, "bm": height, "bn": width, "bk": 2 * line, "warpgroups": warpgroups, "splits": splits}
        yield {**base, "bm": height, "bn": width, "bk": 2 * line, "warpgroups": warpgroups, "stream": 1}
    half = -(-gemm.m // 16) * 8
    yield {**base, "bm": 128, "bn": half, "bk": 2 * line, "hints": "none", "cluster": "1x2"}
