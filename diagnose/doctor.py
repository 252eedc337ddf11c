"""The doctor: looks at the machine, then asks of a problem what users of low precision should ask themselves, in order.

Nothing is changed: no history or cache is created, no setting of a card is touched. Trials run, and are not recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from gemmtune.diagnose import machine, selfcheck
from gemmtune.diagnose.check import Check, Found, Status, guarded, ok, problem, skipped, warning
from gemmtune.space.configuration import Configuration
from gemmtune.space.errors import GemmtuneError, ToolchainError, UnsupportedError
from gemmtune.space.gemm import Gemm
from gemmtune.space.gpu import TABLE, Gpu

if TYPE_CHECKING:
    from gemmtune.device.base import Device, Report
    from gemmtune.device.cuda.card import Card
    from gemmtune.device.cuda.nvml import Monitor

MACHINE, NOISE = "machine", "noise"
"""Groups of checks; that of a self-check is its problem's key."""
MOST_FALSE = 0.02
"""Share of false differences above which this machine cannot tell kernels apart at half a per cent."""
_DEFAULT = "h200"
_SMALL = (96, 64, 48)

Look = tuple[str, Callable[[], Found]]


def examine(
    problems: Sequence[Gemm],
    device: str | None = None,
    *,
    history: str | None = None,
    pack: str | Path | None = None,
    noise: bool = False,
    progress: Callable[[str], None] | None = None,
) -> Iterator[Check]:
    """Every check, in order, each as soon as it is done.

    Args:
        problems: what is to be multiplied, one or several.
        device: ``cuda:N`` or ``emulator:NAME``; by default the first GPU, else the emulated H200.
        history: which history, as for :class:`gemmtune.db.History`.
        pack: a pack whose kernels should serve this GPU.
        noise: also time one kernel against itself, which takes minutes.
        progress: is told what is being looked at.

    Raises:
        UnknownNameError: a device that does not exist.
    """
    tell = progress or (lambda _: None)
    with _Patient(device) as patient:
        groups = [(MACHINE, _machine(patient, history))]
        groups += [(gemm.key, _problem(patient, gemm, pack)) for gemm in problems]
        if noise:
            groups.append((NOISE, iter([("false differences", lambda: _noise(patient.device, problems[0], tell))])))
        for group, looks in groups:
            for name, look in looks:
                tell(f"{group}: {name}")
                yield guarded(look).under(group, name)


class _Patient:
    """The device that is looked at, as far as it can be had.

    Raises:
        UnknownNameError: a device that does not exist.
    """

    def __init__(self, spec: str | None) -> None:
        from gemmtune.device import open_device

        self.spec = spec
        self.device: Device | None = None
        self.missing = ""
        """Why there is no GPU; empty where there is one, or none was asked for."""
        self.broken = ""
        """Why the device that is used cannot be opened."""
        try:
            self.device = open_device(spec if spec is not None else "cuda:0", running=True)
        except ToolchainError as error:
            self.missing = str(error)
        if self.device is None and spec is None:
            try:
                self.device = open_device(None)
            except ToolchainError as error:
                self.broken = str(error)
        elif self.device is None:
            self.broken, self.missing = self.missing, self.missing if spec and spec.startswith("cuda") else ""

    def __enter__(self) -> _Patient:
        return self

    def __exit__(self, *_: object) -> None:
        if self.device is not None:
            self.device.close()

    @property
    def real(self) -> bool:
        """Whether it is a present GPU."""
        return self.device is not None and not self.device.estimates

    @property
    def emulated(self) -> bool:
        """Whether it is, or would be, an emulated one."""
        return not self.real and not (self.spec or "").startswith("cuda")

    @property
    def gpu(self) -> Gpu:
        """The GPU it is or stands for; the emulated H200 where the device itself cannot be had."""
        if self.device is not None:
            return self.device.gpu
        kind, _, name = (self.spec or "").partition(":")
        return TABLE.get(name, TABLE[_DEFAULT]) if kind == "emulator" else TABLE[_DEFAULT]

    @property
    def index(self) -> int:
        """Of a real GPU, as CUDA numbers them."""
        return int((self.device.name if self.device else "cuda:0").partition(":")[2])

    def monitor(self) -> Monitor:
        """NVML's view of a real GPU."""
        from gemmtune.device.cuda.card import monitor

        return monitor(self.index)


# -------------------------------------------------------------------------------------------------------- the machine


def _machine(patient: _Patient, history: str | None) -> Iterator[Look]:
    yield "device", partial(_device, patient)
    wanted = not patient.emulated
    for name, look in (("driver", machine.driver), ("CuPy", machine.cupy), ("cuBLAS", machine.cublas)):
        yield name, look if wanted else partial(_if_there, look)
    yield "NVRTC", machine.nvrtc
    yield "C++ compiler", partial(machine.compiler, patient.emulated)
    yield "kernel cache", machine.cache
    yield "history", partial(machine.database, history)
    if not patient.real:
        yield "clocks", lambda: skipped("no GPU is looked at, so there are no clocks to read")
        return

    @lru_cache(maxsize=1)
    def read() -> Card:
        from gemmtune.device.cuda.card import read_card

        return read_card(patient.monitor())

    yield "clocks", lambda: machine.clocks(read())
    yield "power", lambda: machine.power(read())
    yield "temperature", lambda: machine.temperature(read())
    yield "settings", lambda: machine.settings(read())
    yield "neighbours", lambda: machine.neighbours(read())


def _device(patient: _Patient) -> Found:
    """Which device is looked at, and whether it is the one that the user would expect."""
    gpu = patient.gpu
    major, minor = gpu.capability
    facts = f"{gpu.name}, compute capability {major}.{minor}, {gpu.sms} SMs, {gpu.memory / 2**30:.0f} GiB"
    facts += f", MIG {gpu.mig}" if gpu.mig else ""
    if patient.device is None:
        asked = (patient.spec or "").startswith("cuda")
        about = f"what follows is about {gpu.name}, which stands in: " if asked else ""
        return problem(f"{patient.spec or 'the device'} cannot be used; {about}{patient.broken}")
    data = {"name": patient.device.name, "gpu": gpu.name, "key": gpu.key, "emulated": not patient.real}
    if patient.missing:
        return warning(
            f"{patient.device.name} stands in ({facts}): kernels are proved on the CPU, and times are estimates",
            "to use a GPU, mend what is said below of the driver and CuPy",
            **data,
        )
    return ok(f"{patient.device.name}, {facts}", **data)


def _if_there(look: Callable[[], Found]) -> Found:
    """A check of what an emulated device can do without."""
    try:
        return look()
    except GemmtuneError as error:
        return skipped("not here, and only a GPU needs it", str(error))


# -------------------------------------------------------------------------------------------------------- the problem


def _problem(patient: _Patient, gemm: Gemm, pack: str | Path | None) -> Iterator[Look]:
    gpu = patient.gpu
    yield "precision", lambda: selfcheck.precision(gemm, gpu)
    yield "operands", lambda: selfcheck.operands(gemm)
    yield "size", lambda: selfcheck.size(gemm, gpu)
    yield "target", lambda: selfcheck.target(gpu)
    if pack is not None:
        yield "pack", lambda: selfcheck.pack(str(pack), gpu)
    yield "first kernel", lambda: _works(patient, gemm)
    yield "warm-up", lambda: _warm_up(patient, gemm)
    yield "memory", lambda: selfcheck.memory(gemm, gpu, _free(patient))


def _works(patient: _Patient, gemm: Gemm) -> Found:
    """The simplest kernel of a small problem of this kind: worker, compiler, launch and proof do their work."""
    if patient.device is None:
        return skipped("the device cannot be opened")
    m, n, k = _SMALL
    small = Gemm(m, n, k, gemm.dtype, gemm.out_dtype, gemm.layout, gemm.epilogue)
    try:
        selfcheck.target(patient.gpu)
    except GemmtuneError:
        return skipped("no kernel can be compiled: see target")
    return selfcheck.works(_run(patient.device, small, Configuration.of("naive", {})))


def _warm_up(patient: _Patient, gemm: Gemm) -> Found:
    """One trial of the problem, in which the card is warmed before it is timed."""
    if patient.device is None:
        return skipped("the device cannot be opened")
    if patient.device.estimates:
        return skipped("an emulated GPU has no clock to warm: run this where the GPU is")
    from gemmtune.device.cuda.card import read_card

    watch = patient.monitor()
    before = read_card(watch)
    return selfcheck.warm_up(_run(patient.device, gemm), before.clock_mhz, before.max_clock_mhz)


def _run(device: Device, gemm: Gemm, configuration: Configuration | None = None) -> Report:
    """Prove one kernel of the problem; without a configuration also time it, and take what a search tries first."""
    from gemmtune.codegen.cache import KernelCache
    from gemmtune.codegen.nvrtc import compile_kernel
    from gemmtune.codegen.render import render
    from gemmtune.device.base import Job, Limits
    from gemmtune.search.noise import good_kernel

    if configuration is None:
        return device.run(Job(gemm, good_kernel(gemm, device), seed=0), Limits())
    kernel = compile_kernel(render(gemm, configuration), device.gpu.arch, KernelCache())
    return device.run(Job(gemm, kernel, seed=0, measure=False), Limits())


def _free(patient: _Patient) -> int | None:
    """Free memory of a real GPU in bytes, after the trials' own is given back; None of an emulated one."""
    if not patient.real or patient.device is None:
        return None
    patient.device.close()  # the worker holds the last problem's buffers; the next trial starts another
    used = patient.monitor().memory_used()
    return None if used is None else max(0, patient.gpu.memory - used)


# ---------------------------------------------------------------------------------------------------------- the noise


def _noise(device: Device | None, gemm: Gemm, tell: Callable[[str], None]) -> Found:
    """How often this machine sees a difference between a kernel and itself."""
    if device is None:
        return skipped("the device cannot be opened")
    from gemmtune.search.noise import measure_noise

    try:
        found = measure_noise(device, gemm, progress=lambda done, of: tell(f"noise: {done} of {of} pairs"))
    except UnsupportedError:
        return skipped("estimates have no noise: run this where the GPU is")
    data = {
        "problem": found.problem, "configuration": found.configuration, "pairs": found.pairs,
        "false_differences": found.false_differences, "rate": found.rate, "threshold": found.threshold,
        "spread": found.spread, "disturbed": found.disturbed,
    }  # fmt: skip
    text = (
        f"of {found.pairs} pairs of one kernel with itself {found.false_differences} seemed to differ by more than "
        f"{100 * found.threshold:g} % ({100 * found.rate:.1f} %); 95 % of them agree within {100 * found.spread:.2f} %"
    )
    if found.rate > MOST_FALSE:
        return warning(
            text,
            "end other programs on the GPU, let it cool, check its power cap; until then take differences below "
            f"{200 * found.threshold:g} % for noise",
            **data,
        )
    return ok(text, **data)


def worst(checks: Sequence[Check]) -> Status:
    """The gravest status among ``checks``: problem, warning, else ok."""
    found = {check.status for check in checks}
    return next((status for status in (Status.PROBLEM, Status.WARNING) if status in found), Status.OK)
