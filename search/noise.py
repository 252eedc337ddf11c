"""How often this machine sees a difference where there is none: one kernel timed against itself (A/A).

Copies of one kernel, each loaded and captured on its own, race as finalists do, interleaved with each other and the
baseline. Every two of them are a pair whose true ratio is 1; what the race says of them is noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

from gemmtune.codegen.cache import KernelCache
from gemmtune.codegen.kernel import CompiledKernel
from gemmtune.codegen.nvrtc import compile_kernel
from gemmtune.codegen.render import render
from gemmtune.db import Timing
from gemmtune.db.standing import is_equal
from gemmtune.device.base import Cache, Device, Job, Outcome, Regime, Report
from gemmtune.search.start import known_points
from gemmtune.space import families
from gemmtune.space.errors import LaunchError, UnsupportedError
from gemmtune.space.estimate import estimate
from gemmtune.space.gemm import Gemm
from gemmtune.space.problem import Problem
from gemmtune.space.settings import check_cache, check_count, check_regime, check_seed
from gemmtune.space.space import Space

KNOWN = 8
"""Kernels among which the one to time is chosen."""
COPIES = 11
"""Kernels of a race: 11 copies make 55 pairs."""
THRESHOLD = 0.005
"""Differences up to this are of no interest, real or not."""
RACE_LIMIT = 120.0
"""Seconds for one race: proofs of every copy, and its rounds."""
ATTEMPTS = 2
"""Times that a race is run: one that was disturbed is run once more, as a trial is."""


@dataclass(frozen=True)
class Copy:
    """One copy in one race: its median time in microseconds, and its ratio to the baseline with the 95 % interval."""

    us: float
    ratio: float
    ratio_low: float
    ratio_high: float


@dataclass(frozen=True)
class Noise:
    """What A/A came to.

    Attributes:
        pairs: pairs of copies compared, over ``races``.
        false_differences: pairs that the rules of the finals tell apart, by more than ``threshold``: the ratio of the
            quicker to the slower is above 1 + ``threshold``, and the 95 % intervals of their ratios to the baseline do
            not meet (:func:`gemmtune.db.standing.is_equal`).
        threshold: see there.
        spread: 95 % of the pairs differ by this or less (the logarithm of their ratio): 0.004 is 0.4 %.
        disturbed: copies whose time was no answer in two races running; no pair has them.
        problem, configuration: what was timed.
        races: the copies' times.
    """

    pairs: int
    false_differences: int
    threshold: float
    spread: float
    disturbed: int
    problem: str
    configuration: str
    races: tuple[tuple[Copy, ...], ...]

    @property
    def rate(self) -> float:
        """The false-difference rate, from 0 to 1."""
        return self.false_differences / self.pairs

    def to_json(self) -> dict[str, Any]:
        """As a result file's summary holds it."""
        return {**asdict(self), "rate": self.rate}


def measure_noise(
    device: Device,
    problem: Problem | None = None,
    pairs: int = 220,
    progress: Callable[[int, int], None] | None = None,
    *,
    kernel: CompiledKernel | None = None,
    regime: Regime = "sustained",
    cache: Cache = "cold",
    seed: int = 0,
) -> Noise:
    """Time one kernel against itself, ``pairs`` times, as finalists are timed.

    Args:
        device: a GPU.
        problem: by default bf16 4096 x 4096 x 4096.
        pairs: at least so many, in whole races.
        progress: is told pairs done and pairs in all after every race.
        kernel: by default the one that its family knows to do well.
        regime: ``sustained`` or ``burst``.
        cache: ``cold`` or ``warm``.
        seed: of the inputs.

    Raises:
        SettingError: ``pairs``, ``regime``, ``cache`` or ``seed`` out of range.
        UnsupportedError: the device's times are estimates.
        EmptySpaceError, CompileError: there is no kernel for the problem.
        LaunchError: the kernel is wrong or fails, or no two copies could be timed undisturbed.
        ToolchainError: the GPU, driver or NVRTC is missing.
    """
    check_count("pairs", pairs)
    check_regime(regime)
    check_cache(cache)
    check_seed(seed)
    if device.estimates:
        raise UnsupportedError(f"The times of {device.name} are estimates, which have no noise: name a GPU, cuda:0.")
    problem = problem or Gemm(4096, 4096, 4096, "bf16")
    kernel = kernel or good_kernel(problem, device)
    copies = next((n for n in range(2, COPIES) if math.comb(n, 2) >= pairs), COPIES)
    count = -(-pairs // math.comb(copies, 2))
    races: list[tuple[Copy, ...]] = []
    for number in range(count):
        job = Job(problem, kernel, seed, regime, cache, verify=number == 0, effort="final", thorough=True)
        races.append(_race(device, [job] * copies))
        if progress is not None:
            progress((number + 1) * math.comb(copies, 2), count * math.comb(copies, 2))
    return judged(races, copies, problem.key, str(kernel.configuration))


def good_kernel(problem: Problem, device: Device) -> CompiledKernel:
    """Of the kernels that a search for ``problem`` on ``device`` would try first, the quickest by its estimate.

    Raises:
        UnsupportedError, EmptySpaceError: there is none.
        CompileError: it does not compile.
        ToolchainError: NVRTC is missing.
    """
    space = Space(problem, device.gpu, families.families_for(problem, device.gpu))
    by_name = {family.name: family for family in space.families}

    def cost(index: int) -> float:
        configuration = space[index]
        return estimate(problem, configuration, by_name[configuration.family], device.gpu).us

    best = min(known_points(space, KNOWN) or [0], key=cost)
    return compile_kernel(render(problem, space[best]), device.gpu.arch, KernelCache())


def judged(races: Sequence[tuple[Copy, ...]], copies: int, problem: str, configuration: str) -> Noise:
    """The noise in ``races``, each of so many ``copies`` but for those that were disturbed.

    Raises:
        LaunchError: there is no pair at all.
    """
    pairs = [pair for race in races for pair in combinations(race, 2)]
    if not pairs:
        raise LaunchError(
            f"Not one pair of copies of {configuration} could be timed undisturbed in {len(races)} races: see what "
            f"else runs on this GPU, and how hot it is."
        )
    apart = [abs(math.log(a.ratio / b.ratio)) for a, b in pairs]
    return Noise(
        pairs=len(pairs),
        false_differences=sum(differs(a, b) for a, b in pairs),
        threshold=THRESHOLD,
        spread=sorted(apart)[math.ceil(0.95 * len(apart)) - 1],
        disturbed=sum(copies - len(race) for race in races),
        problem=problem,
        configuration=configuration,
        races=tuple(races),
    )


def differs(a: Copy, b: Copy) -> bool:
    """Whether the finals would tell ``a`` from ``b``, and by more than :data:`THRESHOLD`."""
    quicker, slower = (a, b) if a.ratio >= b.ratio else (b, a)
    return quicker.ratio / slower.ratio > 1 + THRESHOLD and not is_equal(_timing(slower), _timing(quicker))


def _timing(copy: Copy) -> Timing:
    return Timing(copy.us, copy.us, copy.us, None, copy.ratio, copy.ratio_low, copy.ratio_high, False, True)


def _race(device: Device, jobs: list[Job]) -> tuple[Copy, ...]:
    """The copies that were timed undisturbed, in the better of two attempts where the first was disturbed."""
    best: tuple[Copy, ...] = ()
    for _ in range(ATTEMPTS):
        reports = device.compare(jobs, RACE_LIMIT)
        for report in reports:
            if report.outcome not in (Outcome.CORRECT, Outcome.UNSTABLE, Outcome.INFRASTRUCTURE):
                raise LaunchError(
                    f"The kernel {jobs[0].kernel.configuration} ended as {report.outcome}: "
                    f"{report.detail or 'no reason given'}; time another one."
                )
        found = tuple(copy for report in reports if (copy := _copy(report)) is not None)
        best = max(best, found, key=len)
        if len(best) == len(jobs):
            break
    return best


def _copy(report: Report) -> Copy | None:
    time = report.measurement
    if report.outcome != Outcome.CORRECT or time is None:
        return None
    if time.ratio is None or time.ratio_low is None or time.ratio_high is None:
        return None
    return Copy(time.us, time.ratio, time.ratio_low, time.ratio_high)
