"""Where a kernel runs: the words that every device shares, and the Device protocol.

A device proves a kernel right and times it, in a worker process of its own (:mod:`gemmtune.device.worker`). Parent and
worker exchange a :class:`Job` and a :class:`Report`, plain picklable data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, Protocol

from gemmtune.codegen.kernel import CompiledKernel
from gemmtune.space.family import Traits
from gemmtune.space.gpu import Gpu
from gemmtune.space.problem import Array, Problem
from gemmtune.space.settings import Cache as Cache
from gemmtune.space.settings import Regime as Regime


class Outcome(StrEnum):
    """How a trial ended."""

    CORRECT = "correct"
    PRUNED = "pruned"
    COMPILE = "compile"
    LAUNCH = "launch"
    TIMEOUT = "timeout"
    OUT_OF_MEMORY = "out_of_memory"
    WRONG = "wrong"
    UNSTABLE = "unstable"
    ABANDONED = "abandoned"
    INFRASTRUCTURE = "infrastructure"


@dataclass(frozen=True)
class Verification:
    """The proof: worst componentwise error over all checks, its bound, and what was checked.

    ``rel_error`` = max |d - ref| / scale and ``error_bound`` = the bound's ``relative``; ``excess`` = max of
    |d - ref| / (accumulation * scale + rounding * |ref|): right where <= 1. ``checks`` describes each run in words
    ("m=512: 8 of 16 blocks, schedule lowest-first"); ``coverage`` is the fraction of the output compared.
    """

    passed: bool
    rel_error: float
    error_bound: float
    excess: float
    checks: tuple[str, ...]
    coverage: float
    detail: str = ""


@dataclass(frozen=True)
class Measurement:
    """A time in microseconds with the 95 % interval of its median.

    ``estimated`` marks a model's answer (emulator): no baseline, no interval, no samples. ``ratio`` = baseline time /
    our time, from interleaved pairs. ``clock_mhz`` and ``throttle`` are read during the run where NVML is there.
    """

    us: float
    us_low: float
    us_high: float
    baseline_us: float | None = None
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    samples: tuple[float, ...] = ()
    baseline_samples: tuple[float, ...] = ()
    estimated: bool = False
    clock_mhz: float | None = None
    throttle: str = ""
    counters: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Excerpt:
    """What buffers held after a product was computed, for whoever wants to judge it elsewhere.

    ``rows`` and ``columns`` (int64, sorted) are places of the output. ``inputs`` are what those places depend on, as
    the problem stores it: whole rows or columns of A and B, the same places of C and bias, and the scalars.
    ``outputs`` are [rows, columns] by name: ``"kernel"``, the baseline's and the peers'. All are of storage types.
    """

    rows: Array
    columns: Array
    inputs: Mapping[str, Array]
    outputs: Mapping[str, Array]


Effort = Literal["trial", "final"]
"""How long a kernel is timed: as long as tells it from others of a study, or as long as a record is worth."""


@dataclass(frozen=True)
class Job:
    """One kernel to prove and time.

    ``best_us``, ``best_ratio``: the study's best so far, to abandon clear losers; ``thorough``: they are timed in full
    all the same, as the others. ``traits``: what an estimate goes by;
    the device fills them in, since its worker does not know families that the user's program registered.
    ``peers`` (names of :mod:`gemmtune.device.peers`) are timed beside it, and an :class:`Excerpt` of about ``excerpt``
    rows and columns is taken, by :meth:`Device.compare` alone and where the device has a GPU. ``overlap``: launches of
    the baseline and the peers overlap there as those of a programmatic kernel do.
    """

    problem: Problem
    kernel: CompiledKernel
    seed: int
    regime: Regime = "sustained"
    cache: Cache = "cold"
    best_us: float | None = None
    best_ratio: float | None = None
    verify: bool = True
    measure: bool = True
    effort: Effort = "trial"
    thorough: bool = False
    traits: Traits | None = None
    peers: tuple[str, ...] = ()
    excerpt: int = 0
    overlap: bool = False


Stage = Literal["load", "verify", "measure"]
"""The stages of a job, in order; an engine announces each as it begins."""


@dataclass(frozen=True)
class Limits:
    """Seconds that each stage of a job may take; the defaults suit a kernel of which nothing is known yet.

    ``start``: a worker comes up and its device is proven sane (only where a worker has to be replaced). ``load``: the
    kernel is loaded and what its problem needs is made. ``verify`` and ``measure``: it is proven right and timed.
    """

    start: float = 180.0
    load: float = 120.0
    verify: float = 60.0
    measure: float = 60.0

    @property
    def total(self) -> float:
        """Seconds that a job may take in all, the replacement of its worker included."""
        return self.start + self.job

    @property
    def job(self) -> float:
        """Seconds that the stages of a job may take together."""
        return self.load + self.verify + self.measure

    def of(self, stage: Stage) -> float:
        """Seconds that ``stage`` may take."""
        return {"load": self.load, "verify": self.verify, "measure": self.measure}[stage]


@dataclass(frozen=True)
class Report:
    """What became of a job. ``detail`` is one sentence where the outcome is not ``correct``; ``seconds`` by stage
    (load, verify, measure). ``killed``: this job cost its worker its life (a hang, a crash, a lost CUDA context).
    ``peers``: medians, in microseconds, of what else the job wanted timed in the same rounds; ``absent``: those that
    could not be, each with one sentence that says why.
    """

    outcome: Outcome
    detail: str = ""
    verification: Verification | None = None
    measurement: Measurement | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)
    killed: bool = False
    excerpt: Excerpt | None = None
    peers: Mapping[str, float] = field(default_factory=dict)
    absent: Mapping[str, str] = field(default_factory=dict)


class Device(Protocol):
    """A place where kernels run.

    ``kind`` is ``"cuda"``, ``"emulator"`` or ``"replay"``; numbers of different kinds never meet in one ranking.
    Implementations: :class:`gemmtune.device.cuda.CudaDevice`, :class:`gemmtune.device.emulator.EmulatorDevice`;
    :func:`gemmtune.device.open_device` chooses.
    """

    kind: str

    @property
    def name(self) -> str:
        """How the user named it: ``cuda:0`` or ``emulator:h200``."""
        ...

    @property
    def gpu(self) -> Gpu:
        """The GPU it is, or stands for."""
        ...

    @property
    def estimates(self) -> bool:
        """Whether its times are estimates."""
        ...

    def environment(self) -> dict[str, str]:
        """Versions that make numbers comparable: driver, cuda, nvrtc, python packages."""
        ...

    def start(self) -> None:
        """Get ready for the first :meth:`run`, which does so by itself; call it while there is other work to wait for.

        Raises:
            GemmtuneError: the device cannot be used; the message is its own.
        """
        ...

    def run(self, job: Job, limits: Limits) -> Report:
        """Prove and time one kernel; never raises for what the kernel does: a hang or crash is a report."""
        ...

    def compare(self, jobs: list[Job], timeout: float) -> list[Report]:
        """Re-measure finalists interleaved with each other and the baseline (on estimating devices: run them again).

        One that is clearly behind the best may come back as ``abandoned``, unless the first job is ``thorough``.
        """
        ...

    def close(self) -> None:
        """End the worker; safe to call twice."""
        ...
