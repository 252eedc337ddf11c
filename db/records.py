"""What goes into a history and what comes out: frozen dataclasses of plain data, free of SQLAlchemy.

Times are microseconds, moments are seconds since the epoch (UTC), sizes are bytes. A ratio is baseline time / our time:
above 1 is faster than what a user would run otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gemmtune.space.gpu import Gpu

CORRECT = "correct"
STOPPED = ("abandoned", "pruned")
"""Outcomes of trials that a study cut short, as clearly beaten or hopeless: nothing failed."""
"""The one outcome that ranks; every other is a failure of some kind."""


@dataclass(frozen=True)
class StudySpec:
    """What identifies a study: the problem, where and how it is timed, and how it is searched.

    Two specs are of the same study where everything agrees; where only ``environment`` differs, the newer study is
    linked to the older one. The environment is compared whole and as given: put in what can change a number (driver,
    CUDA, NVRTC, the baseline's library, gemmtune's templates), leave out what cannot (a progress bar's version).
    """

    problem_json: Mapping[str, Any]
    problem_key: str
    kind: str
    """The device kind: ``cuda``, ``emulator``, ``replay``."""
    gpu: Gpu
    environment: Mapping[str, str]
    regime: str
    cache: str
    families: tuple[str, ...]
    strategy: str
    seed: int


Described = tuple[str, Mapping[str, Any]]
"""The digest of a row's content, and its columns."""


@dataclass(frozen=True)
class KernelData:
    """A compiled kernel as the history keeps it: everything needed to build it again, and the hash of its cubin.

    ``template_text`` may be empty where the hash is known already. ``shared_bytes`` is what a block asks for in all.
    """

    template_hash: str
    source: str
    cubin_sha256: str
    arch: str
    nvrtc: str
    recipe: Mapping[str, Any]
    template_text: str = ""
    registers: int | None = None
    spill_bytes: int | None = None
    stack_bytes: int | None = None
    shared_bytes: int | None = None
    described: dict[str, Described] = field(default_factory=dict, init=False, repr=False, compare=False)
    """What :func:`gemmtune.db.describe` found already, by configuration."""


@dataclass(frozen=True)
class VerificationData:
    """The proof of a kernel; the fields of a device's verification. A NaN error is stored as infinity."""

    passed: bool
    rel_error: float
    error_bound: float
    excess: float
    checks: tuple[str, ...]
    coverage: float
    detail: str = ""


@dataclass(frozen=True)
class MeasurementData:
    """A time in microseconds with its 95 % interval; the fields of a device's measurement, and the baseline's name.

    Samples are stored as float32.
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
    baseline_name: str = ""


@dataclass(frozen=True)
class TrialResult:
    """How a trial ended. ``seconds`` is the time spent, by stage (compile, verify, measure)."""

    outcome: str
    detail: str = ""
    kernel: KernelData | None = None
    verification: VerificationData | None = None
    measurement: MeasurementData | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)


def score(us: float, ratio: float | None) -> float:
    """See :attr:`Timing.score`."""
    return us if ratio is None else -ratio


@dataclass(frozen=True)
class Timing:
    """The time that counts for a trial. ``final`` says whether it is a finalist's, measured among its rivals."""

    us: float
    us_low: float
    us_high: float
    baseline_us: float | None
    ratio: float | None
    ratio_low: float | None
    ratio_high: float | None
    estimated: bool
    final: bool

    @property
    def score(self) -> float:
        """What ranks, the smaller the better: the negated ratio to the baseline where one was timed, else the time.

        One column, ascending, that puts rated kernels first and the best of them in front.
        """
        return score(self.us, self.ratio)

    @property
    def score_bound(self) -> float:
        """The worst score that its 95 % interval cannot tell from its own."""
        if self.ratio is None:
            return self.us_high
        return -(self.ratio if self.ratio_low is None else self.ratio_low)

    @property
    def score_reach(self) -> float:
        """The best score that its 95 % interval cannot tell from its own."""
        if self.ratio is None:
            return self.us_low
        return -(self.ratio if self.ratio_high is None else self.ratio_high)


@dataclass(frozen=True)
class TrialRecord:
    """One trial with its study's circumstances, its kernel, proof and times; None where there is none.

    ``us`` .. ``ratio_high`` are the trial's own (latest) measurement, ``final`` its latest among the finalists, and
    :attr:`timing` the one of them that counts. ``rank`` is given by rankings, 1 the best.
    """

    id: int
    uuid: str
    number: int
    study_id: int
    state: str
    configuration: str
    configuration_key: str
    family: str
    outcome: str
    detail: str
    kind: str
    gpu: Gpu
    environment: Mapping[str, str]
    regime: str
    cache: str
    problem_key: str
    problem_json: Mapping[str, Any]
    us: float | None = None
    us_low: float | None = None
    us_high: float | None = None
    baseline_us: float | None = None
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    estimated: bool = False
    baseline: str = ""
    """The baseline's name, of the time that counts."""
    final: Timing | None = None
    rel_error: float | None = None
    error_bound: float | None = None
    excess: float | None = None
    coverage: float | None = None
    registers: int | None = None
    spill_bytes: int | None = None
    stack_bytes: int | None = None
    shared_bytes: int | None = None
    template_hash: str = ""
    cubin_sha256: str = ""
    arch: str = ""
    nvrtc: str = ""
    source: str = field(default="", repr=False)
    recipe: Mapping[str, Any] | None = field(default=None, repr=False)
    seconds: Mapping[str, float] = field(default_factory=dict)
    started: float = 0.0
    finished: float | None = None
    rank: int | None = None

    @property
    def final_us(self) -> float | None:
        """Median time among the finalists."""
        return self.final.us if self.final else None

    @property
    def final_ratio(self) -> float | None:
        """Ratio to the baseline among the finalists."""
        return self.final.ratio if self.final else None

    @property
    def timing(self) -> Timing | None:
        """The finalist's time where there is one, else the trial's own, else None."""
        if self.final or self.us is None or self.us_low is None or self.us_high is None:
            return self.final
        return Timing(
            self.us, self.us_low, self.us_high, self.baseline_us, self.ratio, self.ratio_low, self.ratio_high,
            self.estimated, final=False,
        )  # fmt: skip


@dataclass(frozen=True)
class MeasurementRecord:
    """One measurement as stored, samples included (float32 precision)."""

    uuid: str
    final: bool
    measured: float
    data: MeasurementData


@dataclass(frozen=True)
class StudyRecord:
    """One study with its progress. ``parent_uuid`` is the study it continues after a change of environment."""

    id: int
    uuid: str
    parent_uuid: str | None
    problem_key: str
    kind: str
    gpu: Gpu
    environment: Mapping[str, str]
    regime: str
    cache: str
    families: tuple[str, ...]
    strategy: str
    seed: int
    created: float
    trials: int
    correct: int
    best: TrialRecord | None


@dataclass(frozen=True)
class FailureGroup:
    """Trials that failed in the same way: the detail with its numbers blanked, how many, the latest of them, and how
    many there are of each family.
    """

    outcome: str
    pattern: str
    count: int
    example: TrialRecord
    families: Mapping[str, int]


@dataclass(frozen=True)
class ExportRecord:
    """A pack that was exported: its name, the hash of its manifest, and of the files kept for it (``cubins``)."""

    uuid: str
    name: str
    manifest_sha256: str
    created: float
    cubins: tuple[str, ...]


@dataclass(frozen=True)
class MergeReport:
    """How many rows a merge added; what was there already is not counted."""

    studies: int = 0
    trials: int = 0
    measurements: int = 0
    exports: int = 0
    cubins: int = 0

    @property
    def changed(self) -> bool:
        """Whether anything was added."""
        return any((self.studies, self.trials, self.measurements, self.exports, self.cubins))
