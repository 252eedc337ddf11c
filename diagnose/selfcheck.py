"""The self-check of those who multiply in low precision, in the order in which mistakes are made: does the precision
fit the GPU, are operands contiguous and aligned, does the size pay for tuning, is the target right, is the card warm,
is there memory for operands and the copies that timing rotates through.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from gemmtune.diagnose.check import Found, join, ok, problem, warning
from gemmtune.space.dtypes import DTYPES
from gemmtune.space.errors import ProblemError, UnsupportedError
from gemmtune.space.estimate import LAUNCH_US, floor_us
from gemmtune.space.families import families_for
from gemmtune.space.gemm import Gemm

if TYPE_CHECKING:
    from gemmtune.device.base import Report
    from gemmtune.space.family import Family
    from gemmtune.space.gpu import Gpu

VECTOR = 16
"""Bytes of the widest load and of an asynchronous copy."""
TILE = 128
"""A usual block's tile: what waves are counted in here."""
LONG_US = 1000.0
"""Beyond it the power cap sets the pace, and kernels that use it well differ by a few per cent."""
RESERVE = 2**30
"""Device memory for the context, cuBLAS, guard zones and float64 reference sums."""
SETTLED = 0.97
"""A clock under load of at least this fraction of the one before it has not fallen."""


def precision(gemm: Gemm, gpu: Gpu) -> Found:
    """Whether the GPU multiplies this type on its tensor cores, and with what error."""
    try:
        served = families_for(gemm, gpu)
    except UnsupportedError as error:
        others = [name for name in DTYPES if name != gemm.dtype and _served(gemm, name, gpu)]
        cure = f"use --dtype {' or '.join(others)}" if others else "no dtype is served on this GPU"
        return problem(str(error), cure, dtype=gemm.dtype, able=others)
    names = join([f.name for f in served])
    units = _units(served, gemm, gpu)
    peak = gpu.peak.get(gemm.dtype if "tensor" in units else "fp32", math.nan) / 1e12
    bound = gemm.error_bound().relative
    text = (
        f"{gemm.dtype} by {names}: {'tensor cores' if 'tensor' in units else 'FMA pipe'}, {peak:.0f} TFLOP/s at peak, "
        f"fp32 accumulation, error up to {bound:.1e} of |A||B|"
    )
    data = {"families": [f.name for f in served], "units": sorted(units), "peak_tflops": peak, "error_bound": bound}
    if "tensor" in units:
        return ok(text, **data)
    if gemm.dtype in ("fp16", "bf16"):
        idle = gpu.peak.get(gemm.dtype, 0.0) / 1e12
        if not idle:
            return warning(
                f"{text}; the tensor cores of {gpu.name} do not multiply {gemm.dtype}",
                "use --dtype fp16, which they do multiply" if "fp16" in gpu.peak else "expect the speed of fp32",
                **data,
            )
        return warning(
            f"{text}; no family uses the tensor cores of {gpu.name} ({idle:.0f} TFLOP/s), but cuBLAS does",
            "expect the baseline to win; tuned kernels pay on Turing and newer",
            **data,
        )
    faster = gpu.peak.get("tf32", 0.0) / 1e12
    if faster >= 2 * peak:
        return warning(
            f"{text}; tensor cores reach {faster:.0f} in tf32",
            "where inputs may be rounded to 10 bits of mantissa use --dtype tf32; else fp32 is right as it is",
            **data,
        )
    return ok(text, **data)


def operands(gemm: Gemm) -> Found:
    """Whether rows start where 16-byte loads can."""
    narrow, padded, steps = [], [], {}
    for tensor in gemm.tensors():
        if tensor.shape[0] == 1:
            continue
        size = tensor.dtype.bytes
        step = math.gcd(tensor.ld * size, VECTOR)
        steps[tensor.name] = step
        if step < VECTOR:
            narrow.append(f"{step} bytes in {tensor.name} (rows are {tensor.ld * size} bytes apart)")
            padded.append(f"{-(-tensor.ld * size // VECTOR) * VECTOR // size} in {tensor.name}")
    packed = all(t.ld == t.shape[1] for t in gemm.tensors())
    if narrow:
        slow = "; below 4 bytes there is no asynchronous copy either" if min(steps.values()) < 4 else ""
        return warning(
            f"in place of {VECTOR} bytes at once, kernels access {join(narrow)}{slow}",
            f"give rows a pitch of a multiple of {VECTOR} bytes ({join(padded)} elements): pad the size, or "
            "multiply a view of a wider buffer",
            access_bytes=steps,
            packed=packed,
        )
    form = "contiguous" if packed else "pitched"
    return ok(
        f"{form}, rows at multiples of {VECTOR} bytes; addresses must be, too, and the last dimension contiguous",
        access_bytes=steps,
        packed=packed,
    )


def size(gemm: Gemm, gpu: Gpu) -> Found:
    """Whether the product is long enough for a kernel to matter, and fills the GPU."""
    floor = floor_us(gemm, gpu)
    tiles = -(-gemm.m // TILE) * -(-gemm.n // TILE)
    waves = tiles / gpu.sms
    data = {"floor_us": floor, "launch_us": LAUNCH_US, "tiles": tiles, "waves": waves}
    bound = "memory" if gemm.bytes / gpu.bandwidth > gemm.flops / gpu.peak.get(gemm.dtype, math.inf) else "arithmetic"
    text = f"no kernel is faster than {_us(floor)} us (bound by {bound})"
    if floor < LAUNCH_US:
        return warning(
            f"{text}, less than the {LAUNCH_US:g} us that starting one takes",
            "do more in one launch: batch the products, fuse what follows (--epilogue), or replay a CUDA graph; a "
            "faster kernel hardly shows",
            **data,
        )
    if tiles < gpu.sms:
        rest = f"{tiles} tiles of {TILE}x{TILE} for {gpu.sms} SMs: small tiles and split K decide, tuning pays most"
    elif floor > LONG_US:
        rest = f"{waves:.1f} waves of {TILE}x{TILE} tiles: the power cap sets the pace, expect a few per cent"
    else:
        fill = waves / math.ceil(waves)
        tail = f", the last one leaves {100 * (1 - fill):.0f} % idle" if fill < 0.8 else ""
        rest = f"{waves:.1f} waves of {TILE}x{TILE} tiles on {gpu.sms} SMs{tail}: tuning pays"
    return ok(f"{text}; {rest}", **data)


def target(gpu: Gpu) -> Found:
    """Whether the installed NVRTC makes kernels for this GPU's own target: it compiles one."""
    from gemmtune.codegen.nvrtc import compile_kernel, nvrtc_version
    from gemmtune.codegen.render import render
    from gemmtune.space.configuration import Configuration

    # float32 in the naive kernel is what every GPU of the table can do
    source = render(Gemm(64, 64, 64, dtype="fp32"), Configuration.of("naive", {}))
    kernel = compile_kernel(source, gpu.arch)
    capability = ".".join(map(str, gpu.capability))
    own = ", with the instructions of this generation alone" if gpu.arch.endswith("a") else ""
    return ok(
        f"{gpu.arch} (compute capability {capability}{own}); NVRTC {nvrtc_version()} made a kernel for it in "
        f"{kernel.seconds:.1f} s",
        arch=gpu.arch,
        seconds=kernel.seconds,
    )


def pack(path: str, gpu: Gpu) -> Found:
    """Whether a pack's kernels are for this GPU."""
    from gemmtune.pack.format import read_pack

    tables = read_pack(Path(path)).tables
    made_for = sorted({f"{t.name} ({t.arch})" for t in tables})
    data = {"path": path, "devices": sorted({t.device for t in tables}), "archs": sorted({t.arch for t in tables})}
    if any(t.device == gpu.key for t in tables):
        return ok(f"{path} was made on {join(made_for)}, this GPU among them", **data)
    fits = [t for t in tables if t.arch == gpu.arch]
    told = f"{path} was made on {join(made_for) if made_for else 'no GPU'}, not on {gpu.name} ({gpu.arch})"
    if fits:
        return warning(
            f"{told}: its kernels load, but were not measured here",
            "tune and export here, or load it with allow_unmeasured=True",
            **data,
        )
    return problem(f"{told}: its kernels do not load here", "tune and export here: a pack serves its own GPU", **data)


def warm_up(report: Report, before_mhz: int | None, max_mhz: int | None) -> Found:
    """Whether the clock under load, at which everything is timed, differs from the idle one.

    ``report`` is a trial's in the sustained regime, ``before_mhz`` the SM clock before it.
    """
    time = report.measurement
    if time is None:
        told = f"the trial that was to warm the card ended as {report.outcome}: {report.detail or 'no reason given'}"
        return problem(told, "'gemmtune query failures' lists what others met", outcome=str(report.outcome))
    data = {
        "before_mhz": before_mhz, "loaded_mhz": time.clock_mhz, "max_mhz": max_mhz, "throttle": time.throttle,
        "us": time.us, "ratio": time.ratio,
    }  # fmt: skip
    speed = "" if time.ratio is None else f"; a first kernel ran at {time.ratio:.2f}x the baseline"
    if time.clock_mhz is None or before_mhz is None:
        return warning(
            f"the card was warmed before timing, but NVML does not tell its clock{speed}",
            "install libnvidia-ml.so.1, so that throttling is seen",
            **data,
        )
    held = f", held down by: {time.throttle}" if time.throttle else ""
    most = "" if max_mhz is None else f" of {max_mhz}"
    text = f"SM {before_mhz} MHz before, {time.clock_mhz:.0f}{most} MHz under load{held}"
    if any(word in time.throttle for word in ("thermal", "hardware slowdown", "power brake")):
        return problem(
            text + speed, "let the card cool and check its airflow: trials measured now are unstable", **data
        )
    if time.clock_mhz < SETTLED * before_mhz:
        text += ": times taken without warming up flatter; tuning and benchmarks warm up first"
    return ok(text + speed, **data)


def works(report: Report) -> Found:
    """Whether the device runs a known kernel right; ``report`` is that of a small one, proved against float64."""
    proof = report.verification
    if proof is None or not proof.passed:
        told = f"the simplest kernel ended as {report.outcome}: {report.detail or 'no reason given'}"
        return problem(told, "nothing this device says can be relied on until that is mended", outcome=report.outcome)
    return ok(
        f"the simplest kernel ran right: error {proof.rel_error:.1e}, bound {proof.error_bound:.1e}",
        rel_error=proof.rel_error,
        error_bound=proof.error_bound,
    )


def memory(gemm: Gemm, gpu: Gpu, free: int | None) -> Found:
    """Whether the operands fit, and enough copies that none is left in the L2 when its turn comes again.

    ``free`` is the device memory that is free now, in bytes; None for that of the whole GPU.
    """
    from gemmtune.device.cuda.operands import MOST_COPIES, copies_for

    each = sum(t.elements * t.dtype.bytes for t in gemm.tensors())
    have = gpu.memory if free is None else free
    room = max(0, have - RESERVE)
    copies = copies_for(gemm, gpu.l2, max(0, room - each))
    wanted = copies_for(gemm, gpu.l2, 2**62)
    data = {"operand_bytes": each, "free_bytes": have, "copies": copies, "copies_wanted": wanted, "l2_bytes": gpu.l2}
    text = f"operands take {_mib(each)}, and {_mib(have)} {'are free' if free is not None else 'are there'}"
    if each > room:
        return problem(
            text,
            "end other programs on the GPU, or use a smaller problem: one set of operands must fit beside "
            f"{_mib(RESERVE)} for libraries and proof",
            **data,
        )
    if copies < wanted and copies * each < 3 * gpu.l2:
        return warning(
            f"{text}: room for {copies} of the {wanted} sets that timing rotates through, so L2 flatters",
            "end other programs on the GPU, or read the times as those of a warm cache",
            **data,
        )
    if copies == MOST_COPIES and copies * each < 3 * gpu.l2:
        return warning(
            f"{text}: {copies} sets, the most that timing rotates through, still lie in the L2 ({_mib(gpu.l2)})",
            "read its times as those of a warm cache",
            **data,
        )
    sets = f"{copies} sets rotate, so that none" if copies > 1 else "one set is so large that nothing"
    return ok(f"{text}; {sets} is left in the L2 ({_mib(gpu.l2)})", **data)


# ------------------------------------------------------------------------------------------------------------ internals


def _served(gemm: Gemm, dtype: str, gpu: Gpu) -> bool:
    try:
        return bool(families_for(Gemm(gemm.m, gemm.n, gemm.k, dtype=dtype, layout=gemm.layout), gpu))
    except (UnsupportedError, ProblemError):
        return False


def _units(served: list[Family], gemm: Gemm, gpu: Gpu) -> set[str]:
    """Pipes that the families use here, as their own starting points say; a family without any counts as FMA."""
    units = set()
    for family in served:
        points = family.starting_points(gemm, gpu)
        units.add(family.traits(gemm, points[0], gpu).unit if points else _unit_of_any(family, gemm, gpu))
    return units


def _unit_of_any(family: Family, gemm: Gemm, gpu: Gpu) -> str:
    """The same by the first valid configuration, for a family (or a size) that names no starting points."""
    from gemmtune.space.errors import EmptySpaceError
    from gemmtune.space.space import Space

    try:
        return family.traits(gemm, Space(gemm, gpu, [family])[0], gpu).unit
    except (EmptySpaceError, IndexError):
        return "fma"


def _us(us: float) -> str:
    return f"{us:.0f}" if us >= 100 else f"{us:.2g}" if us < 1 else f"{us:.3g}"


def _mib(count: int) -> str:
    if count >= 2**30:
        return f"{count / 2**30:.1f} GiB"
    return f"{count / 2**20:.1f} MiB" if count >= 2**20 else f"{count / 2**10:.1f} KiB"
