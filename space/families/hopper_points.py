"""Where a search of the hopper family begins: shapes that suit an H200, fitted to the problem."""

from __future__ import annotations

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


def points(family: Hopper, gemm: Gemm, gpu: Gpu) -> list[Configuration]:
    """Candidates, not all of them valid, each once; best guesses first."""
    line = 128 // gemm.a.bytes
    shapes = [*_small(gemm, gpu, line), *_large(gemm, gpu, line)] if gemm.m <= 256 else [*_large(gemm, gpu, line)]
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
