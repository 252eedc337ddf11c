"""The dispatch table in other people's forms: rows for CSV, and the per-device JSON that serving engines read.

vLLM and SGLang keep tuned kernels in one JSON file for each problem and device, such as
``N=4096,K=14336,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128,128].json``: it maps M (text) to a
configuration, and the engine takes the M nearest to its own (the README beside their files says so). The files here
have that form, and those names for what both sides know (BLOCK_SIZE_M, BLOCK_SIZE_N, BLOCK_SIZE_K, GROUP_SIZE_M,
num_warps, num_stages). But these are no kernels of Triton's: an entry's ``kernel`` is the SHA-256 of a cubin of the
pack, or ``baseline``, so the plug-in that reads them launches that. Nearest M goes beyond what was measured, which a
pack's own look-up never does.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gemmtune.pack.format import PackData
from gemmtune.pack.schema import BASELINE, Kernel, Row, Table
from gemmtune.space.errors import PackError

_NAMES = {"fp32": "float32", "tf32": "tf32", "fp16": "float16", "bf16": "bfloat16"}
_STAGES = ("stages", "buffers")


def table_records(data: PackData) -> list[dict[str, Any]]:
    """Every point of every row, flat, in the order of the pack; times in microseconds, ``ratio`` baseline / kernel."""
    return [
        {
            "gpu": table.name, "device": table.device, "arch": table.arch, "regime": table.regime, "cache": table.cache,
            "kind": row.kind, **{f"{name}_first": low for name, (low, _) in row.axes.items()},
            **{f"{name}_last": high for name, (_, high) in row.axes.items()},
            **{f"{name}_measured": size for name, size in point.axes.items()},
            "dtype": row.dtypes["a"], "b_dtype": row.dtypes["b"], "out_dtype": row.dtypes["d"],
            "layout": row.layout, "epilogue": row.epilogue, "served_by": row.kernel, "candidate": row.candidate,
            "configuration": _configuration(data, row), "estimated": row.estimated,
            "us": point.us, "us_low": point.us_low, "us_high": point.us_high, "baseline_us": point.baseline_us,
            "ratio": point.ratio, "ratio_low": point.ratio_low, "ratio_high": point.ratio_high,
        }
        for table in data.tables
        for row in table.rows
        for point in row.points
    ]  # fmt: skip


def _configuration(data: PackData, row: Row) -> str:
    sha = row.candidate if row.kernel == BASELINE else row.kernel
    return "" if sha is None else str(data.kernels[sha].configuration)


def serving_files(
    data: PackData, regime: str = "sustained", cache: str = "cold"
) -> dict[str, dict[str, dict[str, Any]]]:
    """The files for serving engines: name to M (text, ascending) to configuration; one regime and cache state alone."""
    found: dict[str, dict[int, dict[str, Any]]] = defaultdict(dict)
    tables = [t for t in data.tables if (t.regime, t.cache) == (regime, cache)]
    for table in tables:
        # ranges first, so that the row for exactly this size has the last word
        for row in sorted((r for r in table.rows if not r.estimated), key=lambda r: r.exact):
            for m, entry in _entries(data, row):
                found[_file_name(table, row)][m] = entry
    return {name: {str(m): by_m[m] for m in sorted(by_m)} for name, by_m in sorted(found.items())}


def _file_name(table: Table, row: Row) -> str:
    words = [
        f"N={row.axes['n'][0]}", f"K={row.axes['k'][0]}", f"device_name={table.name.replace(' ', '_')}",
        f"dtype={_NAMES.get(row.dtypes['a'], row.dtypes['a'])}",
    ]  # fmt: skip
    if row.layout != "nt":
        words.append(f"layout={row.layout}")
    if row.dtypes["d"] != row.dtypes["a"]:
        words.append(f"out_dtype={_NAMES.get(row.dtypes['d'], row.dtypes['d'])}")
    if row.epilogue != "identity":
        words.append(f"epilogue={row.epilogue}")
    words += [f"{name}={value}" for name, value in sorted(row.pitches.items())]
    return ",".join(words) + ".json"


def _entries(data: PackData, row: Row) -> Iterator[tuple[int, dict[str, Any]]]:
    for point in row.points:
        measured = {"us": point.us, "baseline_us": point.baseline_us, "ratio": point.ratio}
        if row.kernel == BASELINE:
            yield point.axes["m"], {"kernel": BASELINE, "us": point.baseline_us, "baseline_us": point.baseline_us}
        else:
            kernel = data.kernels[row.kernel]
            yield point.axes["m"], {**_blocks(kernel), "kernel": kernel.sha, **measured}


def _blocks(kernel: Kernel) -> dict[str, Any]:
    """What Triton's users know by these names, then every knob."""
    knobs = dict(kernel.configuration)
    threads = kernel.recipe.block[0] * kernel.recipe.block[1] * kernel.recipe.block[2]
    out: dict[str, Any] = {"BLOCK_SIZE_M": kernel.recipe.tile.rows, "BLOCK_SIZE_N": kernel.recipe.tile.columns}
    if isinstance(knobs.get("bk"), int):
        out["BLOCK_SIZE_K"] = knobs["bk"]
    out["GROUP_SIZE_M"] = knobs.get("group", 1)
    out["num_warps"] = -(-threads // 32)
    out["num_stages"] = next((knobs[name] for name in _STAGES if name in knobs), 1)
    return {**out, "configuration": str(kernel.configuration)}


def write_serving_files(
    folder: str | Path, data: PackData, regime: str = "sustained", cache: str = "cold"
) -> list[Path]:
    """Write these files into ``folder``, which is made where it is missing; their paths.

    Raises:
        PackError: the pack has no measured row in this regime and cache state, or the disk refuses.
    """
    files = serving_files(data, regime, cache)
    if not files:
        raise PackError(f"The pack has no measured row for {regime} clocks and a {cache} cache: nothing was written.")
    written: list[Path] = []
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            path = Path(folder) / name
            path.write_text(json.dumps(content, indent=4) + "\n", encoding="utf-8")
            written.append(path)
    except OSError as error:
        raise PackError(f"The folder {str(folder)!r} cannot be written: {error.strerror}.") from None
    return written
