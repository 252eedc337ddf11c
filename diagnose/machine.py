"""Is this machine fit to tune on: driver, compilers, cache, database, and the state of the card."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from gemmtune.diagnose.check import Found, ok, problem, skipped, warning
from gemmtune.space.errors import GemmtuneError

if TYPE_CHECKING:
    from gemmtune.device.cuda.card import Card

LITTLE_SPACE = 2**30
"""Bytes of free disk below which a night's run may end for want of space: a thousand kernels take about 0.1 GiB."""
HOT = 5
"""Degrees below the temperature at which the card slows itself down."""
_NETWORK = frozenset({"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "fuse.sshfs", "lustre", "gpfs", "ceph", "beegfs"})
_THERMAL = ("thermal", "hardware slowdown", "power brake")


def driver() -> Found:
    """The driver's version and the CUDA it speaks, against the CUDA that NVRTC compiles for."""
    from gemmtune.codegen.nvrtc import nvrtc_version
    from gemmtune.device.cuda import nvml
    from gemmtune.device.toolchain import device_count, require_cupy

    count = device_count()
    spoken = int(require_cupy().cuda.runtime.driverGetVersion())
    major, minor = spoken // 1000, spoken % 1000 // 10
    version = nvml.driver_version() or "of unknown version"
    text = f"{version}, speaks CUDA {major}.{minor}, sees {count} GPU{'s' if count > 1 else ''}"
    data = {"driver": version, "cuda": f"{major}.{minor}", "gpus": count}
    try:
        compiler = nvrtc_version()
    except GemmtuneError:  # which has a line of its own
        return ok(text, **data)
    if major < int(compiler.split(".")[0]):
        return problem(
            f"{text}, but NVRTC {compiler} makes kernels for CUDA {compiler.split('.')[0]}, which it refuses",
            "update the driver, or install 'gemmtune[cuda12]' in place of 'gemmtune[cuda13]'",
            **data,
        )
    return ok(text, **data)


def cupy() -> Found:
    """CuPy, which loads and launches kernels."""
    from gemmtune.device.toolchain import require_cupy

    version = str(require_cupy().__version__)
    return ok(version, version=version)


def cublas() -> Found:
    """The baseline's library."""
    from gemmtune.device import cublas as library

    version = library.version(library.library())
    return ok(f"{version}, the baseline", version=version)


def nvrtc() -> Found:
    """The compiler of kernels, and what it compiles for."""
    from gemmtune.codegen.nvrtc import nvrtc_version, supported_archs

    version, archs = nvrtc_version(), supported_archs()
    bindings = importlib.metadata.version("cuda-bindings")
    return ok(
        f"{version} (cuda-bindings {bindings}), compiles for sm_{archs[0]} to sm_{archs[-1]}",
        version=version,
        bindings=bindings,
        architectures=archs,
    )


def compiler(needed: bool) -> Found:
    """The emulator's C++ compiler; ``needed`` where the device is an emulated one."""
    from gemmtune.device.emulator.toolchain import find_toolchain

    try:
        found = find_toolchain()
    except GemmtuneError as error:
        return problem(str(error)) if needed else skipped(f"none is found, which only the emulator needs ({error})")
    return ok(found.version, command=list(found.command), flavour=found.flavour)


def cache() -> Found:
    """The kernel cache: where it is, what it holds, and whether it can be written."""
    from gemmtune.codegen.cache import default_root

    root = default_root()
    entries, size, left = 0, 0, 0
    for path in (root / "kernels").glob("*/*"):
        try:
            bytes_ = path.stat().st_size
        except OSError:  # another process has just replaced it
            continue
        left += path.name.startswith(".new-")
        entries += not path.name.startswith(".")
        size += bytes_
    data = {"path": str(root), "entries": entries, "bytes": size, "abandoned": left}
    kernels = f"{entries:,} kernel{'s' if entries != 1 else ''} of NVRTC"
    text = f"{root}: {kernels}, {_size(size)} ('gemmtune cache list' counts what the emulator built, too)"
    cure = "make the folder writable, or name another with GEMMTUNE_CACHE; until then kernels are compiled anew"
    blocked = _not_writable(root)
    if blocked:
        return warning(f"{text}, but {blocked}", cure, **data)
    free = _free(root)
    if free < LITTLE_SPACE:
        return warning(f"{text}, but its disk has {_size(free)} left", "free some space: gemmtune cache prune", **data)
    return ok(f"{text}, {_size(free)} free", **data)


def database(url: str | None) -> Found:
    """The history: whether it is whole, of the current schema, and can be written."""
    from gemmtune.db.engine import file_of, locate
    from gemmtune.db.health import examine_history

    path = file_of(locate(url))
    if path is not None and not path.exists():
        blocked = _not_writable(path.parent)
        if blocked:
            return problem(f"{path} is to be made, but {blocked}", "give another with --db or GEMMTUNE_DB")
        return ok(f"none yet: the first 'gemmtune tune' makes {path}", path=str(path), exists=False)
    health = examine_history(url)
    data = {
        "path": health.location, "exists": True, "schema": health.schema, "bytes": health.bytes,
        "studies": health.studies, "trials": health.trials, "claimed": health.claimed, "faults": list(health.faults),
    }  # fmt: skip
    size = "" if health.bytes is None else f", {_size(health.bytes)}"
    text = f"{health.location}: {health.trials:,} trials in {health.studies:,} studies{size}"
    if health.faults:
        return problem(
            f"{health.location} is damaged ({'; '.join(health.faults)})",
            "save what can be read with 'gemmtune db export', move the file away, and merge the export into a new one",
            **data,
        )
    if health.schema is None:
        return warning(
            f"{health.location} holds no history", "'gemmtune tune' makes one there; or give another with --db", **data
        )
    if health.schema != health.current:
        newer = health.schema > health.current
        cure = "upgrade gemmtune: pip install -U gemmtune" if newer else "the next command brings it up to date"
        told = f"{health.location} has schema {health.schema}, and this gemmtune writes {health.current}"
        return (problem if newer else warning)(told, cure, **data)
    if health.locked:
        return warning(
            f"{text}, but another process holds it locked",
            "a study commits within milliseconds: look for a program that keeps a transaction open",
            **data,
        )
    if path is not None:
        kind = _file_system(path)
        if kind in _NETWORK:
            return warning(
                f"{text}, on a network file system ({kind}), whose locks SQLite cannot rely on",
                "put it on a local disk with --db or GEMMTUNE_DB, and carry it with 'gemmtune db export'",
                **data,
            )
        free = _free(path.parent)
        if free < LITTLE_SPACE:
            return warning(f"{text}, but its disk has {_size(free)} left", "free some space", **data)
    return ok(f"{text}, schema {health.schema}, whole", **data)


# ------------------------------------------------------------------------------------------------------------- the card


def clocks(card: Card) -> Found:
    """What the clocks are, and whether anything but the power cap holds them down."""
    if card.clock_mhz is None:
        return warning(
            "NVML does not answer: clocks and throttling cannot be watched, so a hot card's times go unnoticed",
            "install the driver's libnvidia-ml.so.1 (in a container: run it with the utility capability)",
        )
    most = "" if card.max_clock_mhz is None else f" of {card.max_clock_mhz}"
    memory = "" if card.memory_clock_mhz is None else f", memory {card.memory_clock_mhz} MHz"
    text = f"SM {card.clock_mhz}{most} MHz now{memory}"
    data = {
        "sm_mhz": card.clock_mhz, "sm_max_mhz": card.max_clock_mhz, "memory_mhz": card.memory_clock_mhz,
        "memory_max_mhz": card.max_memory_clock_mhz, "throttle": card.throttle,
    }  # fmt: skip
    if any(word in card.throttle for word in _THERMAL):
        return problem(
            f"{text}, held down by: {card.throttle}",
            "let the card cool, check its fans, airflow and power supply; trials measured now are unstable",
            **data,
        )
    if "application clocks" in card.throttle:
        return warning(
            f"{text}, held down by: {card.throttle}",
            "programs that run without this setting meet other clocks: tune as they run, or reset it with "
            "'nvidia-smi -rac' and 'nvidia-smi -rgc'",
            **data,
        )
    return ok(text + (f", held down by: {card.throttle}" if card.throttle else ""), **data)


def power(card: Card) -> Found:
    """The power cap against its default: it decides the clock of every large product."""
    limit, default = card.power_limit, card.default_power_limit
    if limit is None:
        return skipped("NVML does not tell the power cap")
    now = "" if card.power is None else f"{card.power:.0f} W now, "
    data = {"watts": card.power, "limit_watts": limit, "default_limit_watts": default}
    if default is not None and limit < 0.98 * default:
        return warning(
            f"{now}cap {limit:.0f} W, below the default of {default:.0f} W",
            f"results hold for this cap only; the default is set with 'nvidia-smi -pl {default:.0f}' as root",
            **data,
        )
    return ok(f"{now}cap {limit:.0f} W", **data)


def temperature(card: Card) -> Found:
    """How far the card is from slowing itself down."""
    if card.temperature is None:
        return skipped("NVML does not tell the temperature")
    data = {"celsius": card.temperature, "slowdown_celsius": card.slowdown_temperature}
    limit = card.slowdown_temperature
    slows = f", slows down at {limit} C" if limit else ""
    if limit and card.temperature > limit - HOT:
        return warning(f"{card.temperature} C{slows}", "let the card cool before tuning, and check its airflow", **data)
    return ok(f"{card.temperature} C{slows}", **data)


def settings(card: Card) -> Found:
    """Persistence and compute mode."""
    data = {"persistence": card.persistence, "compute_mode": card.compute_mode}
    mode = f"compute mode {card.compute_mode}" if card.compute_mode else ""
    if card.compute_mode == "prohibited":
        return problem(f"{mode}: no program may use the card", "'nvidia-smi -c 0' as root allows it", **data)
    if card.persistence is False:
        return warning(
            "persistence mode is off: the driver unloads between programs, so each start takes seconds more",
            "'nvidia-smi -pm 1' as root, or the service nvidia-persistenced",
            **data,
        )
    told = [*(["persistence on"] if card.persistence else []), *([mode] if mode else [])]
    return ok(", ".join(told), **data) if told else skipped("NVML does not tell the card's settings")


def neighbours(card: Card) -> Found:
    """Whether other programs use the card, before gemmtune does."""
    data = {"processes": card.processes, "memory_used_bytes": card.memory_used}
    used = "" if card.memory_used is None else f", {_size(card.memory_used)} of memory in use"
    if card.processes:
        return warning(
            f"{card.processes} other program{'s hold' if card.processes > 1 else ' holds'} the card{used}",
            "end them while you tune: what they run meanwhile lands in the times",
            **data,
        )
    return ok(f"no other program on the card{used}", **data)


# ------------------------------------------------------------------------------------------------------------ internals


def _size(count: int) -> str:
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count} bytes"


def _existing(path: Path) -> Path:
    """``path``, or its nearest parent that is there."""
    return next(p for p in (path.absolute(), *path.absolute().parents) if p.exists())


def _not_writable(folder: Path) -> str:
    """Why nothing can be written into ``folder``, which need not exist yet; empty where it can."""
    nearest = _existing(folder)
    if not nearest.is_dir():
        return f"{nearest} is no folder"
    return "" if os.access(nearest, os.W_OK | os.X_OK) else f"{nearest} is read-only for you"


def _free(path: Path) -> int:
    return shutil.disk_usage(_existing(path)).free


def _file_system(path: Path) -> str:
    """The kind of file system that holds ``path``, e.g. ``"ext4"``; empty where the system does not say."""
    try:
        lines = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    real = _existing(path).resolve()
    kinds = {}
    for line in lines:
        _, place, kind, *_ = line.split(" ")
        kinds[Path(place.replace("\\040", " "))] = kind
    return next((kinds[p] for p in (real, *real.parents) if p in kinds), "")
