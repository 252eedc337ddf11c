"""The benchmark: the best known kernel, the baseline and peers, timed in one interleaved run, every result checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from gemmtune.codegen.cache import KernelCache
from gemmtune.codegen.nvrtc import compile_kernel
from gemmtune.codegen.render import render
from gemmtune.db import History
from gemmtune.device.base import Cache, Device, Job, Measurement, Outcome, Regime, Report
from gemmtune.device.cuda.timing import levels
from gemmtune.device.peers import check_peers
from gemmtune.search.known import Known, KnownKernels
from gemmtune.search.oracle import KERNEL, Judgement, judge
from gemmtune.search.recording import baseline_name
from gemmtune.search.results import BenchRow
from gemmtune.search.study import opened, problems_of
from gemmtune.space.configuration import Configuration
from gemmtune.space.errors import GemmtuneError, LaunchError
from gemmtune.space.estimate import floor_us
from gemmtune.space.problem import Problem
from gemmtune.space.settings import check_cache, check_regime, check_seed

TIMEOUT = 600.0
"""Seconds for one problem: proofs against float64, peers that compile themselves, and the times of all."""
NAIVE = "naive"
"""Our own naive kernel: a peer that is always there."""
EXCERPT = 96
"""About how many rows and columns of every result are compared with float64 on the CPU."""
ATTEMPTS = 2
"""A problem whose time comes out unstable is timed once more; one that has two levels again is told with both."""


def benchmark(
    problems: Problem | Sequence[Problem],
    device: Device | str | None = None,
    history: History | str | Path | None = None,
    pack: str | Path | None = None,
    *,
    regime: Regime = "sustained",
    cache: Cache = "cold",
    seed: int = 0,
    peers: Sequence[str] = (NAIVE,),
    candidate: bool = False,
    programmatic: bool | None = None,
    finished: Callable[[BenchRow], None] | None = None,
    failed: Callable[[Problem, GemmtuneError], None] | None = None,
    noted: Callable[[str], None] | None = None,
) -> list[BenchRow]:
    """Time the best known kernel of each problem beside the baseline and ``peers``.

    Every result, the peers' too, is compared with float64 computed on the CPU at sampled rows and columns and every
    edge; a peer whose result is wrong is not timed. Peers are never required. On a device whose times are estimates
    there is no baseline and none of the library's peers, and rows are marked (:attr:`BenchRow.estimated`).

    Args:
        problems: one or several.
        device: a device, or how one is called; by default the GPU, else the emulator.
        history: where the best kernels, and what finding them cost, are looked up; by default the user's own.
        pack: take the kernels of this pack instead.
        regime: ``sustained`` or ``burst``.
        cache: ``cold`` or ``warm``.
        seed: of the inputs.
        peers: ``naive`` and names of :func:`gemmtune.device.peers.known_peers`.
        candidate: time our own kernel too where the pack dispatches to the baseline.
        programmatic: only kernels that overlap their launches, or only such that do not; by default whatever is best.
        finished: is told every row as it is there.
        failed: is told a problem whose kernel is unknown or fails, and the others go on; without it, that is raised.
        noted: is told what is not as asked for, a sentence each: a peer that is not there, or whose result is wrong.

    Raises:
        ProblemError: there is no problem.
        SettingError: ``regime``, ``cache`` or ``seed`` out of range.
        UnknownNameError: a device or peer that does not exist, or no kernel is known for a problem.
        LaunchError: a kernel is wrong now, or fails.
        PackError: the pack cannot be read.
        ToolchainError, DatabaseError: as for :func:`gemmtune.search.tune`.
    """
    wanted = problems_of(problems)
    check_regime(regime)
    check_cache(cache)
    check_seed(seed)
    check_bench_peers(peers)
    rows = []
    with ExitStack() as stack:
        where = opened(device, stack, running=True)
        if isinstance(history, History):
            kept = history
        else:  # of a pack's kernels it only tells the trials
            kept = stack.enter_context(History(history, create=pack is not None))
        known = KnownKernels(where, kept, pack, regime, cache, candidate=candidate, programmatic=programmatic)
        run = _Run(where, regime, cache, seed, tuple(dict.fromkeys(peers)), noted or (lambda sentence: None))
        for problem in wanted:
            try:
                row = run.row(problem, known.best(problem))
            except GemmtuneError as error:
                if failed is None:
                    raise
                failed(problem, error)
                continue
            rows.append(row)
            if finished is not None:
                finished(row)
    return rows


def check_bench_peers(peers: Sequence[str]) -> None:
    """Raise UnknownNameError where a peer does not exist."""
    check_peers(peers, (NAIVE,))


class _Run:
    """What one benchmark does with each problem."""

    def __init__(
        self,
        device: Device,
        regime: Regime,
        cache: Cache,
        seed: int,
        peers: tuple[str, ...],
        noted: Callable[[str], None],
    ) -> None:
        self._device = device
        self._regime: Regime = regime
        self._cache: Cache = cache
        self._seed = seed
        self._naive = NAIVE in peers
        self._peers = tuple(peer for peer in peers if peer != NAIVE)
        self._noted = noted

    def row(self, problem: Problem, known: Known) -> BenchRow:
        """Time one problem."""
        programmatic = known.kernel.recipe.programmatic
        for attempt in range(ATTEMPTS):
            ours, naive = self._timed(problem, known, overlap=programmatic)
            if ours.outcome != Outcome.UNSTABLE or attempt == ATTEMPTS - 1:
                break
            self._noted(f"{problem.key} was timed once more: {ours.detail}")
        time, unstable = ours.measurement, ""
        if ours.outcome == Outcome.UNSTABLE and time is not None and (apart := levels(time)):
            time, unstable = _between(time, *apart), ours.detail
        elif ours.outcome != Outcome.CORRECT:
            time = None
        if time is None or ours.verification is None:
            raise LaunchError(
                f"The best known kernel of {problem.key} ({known.kernel.configuration}) ended as {ours.outcome}: "
                f"{ours.detail or 'no reason given'}; tune again."
            )
        for sentence in ours.absent.values():
            self._noted(f"{problem.key}: {sentence}")
        judged = self._judged(problem, ours, estimated=time.estimated)
        errors = [ours.verification.rel_error, *([judged[KERNEL].rel_error] if judged else [])]
        data = problem.to_json()
        return BenchRow(
            **{name: data[name] for name in ("m", "n", "k", "dtype", "out_dtype", "layout", "epilogue")},
            scaling="none",
            regime=self._regime,
            cache=self._cache,
            family=known.kernel.configuration.family,
            config=str(known.kernel.configuration),
            trials=known.trials,
            wall_s=known.wall_s,
            us=time.us,
            us_low=time.us_low,
            us_high=time.us_high,
            floor_us=floor_us(problem, self._device.gpu),
            peers=self._times(problem, ours, naive, judged),
            rel_error=max(errors),
            error_bound=ours.verification.error_bound,
            estimated=time.estimated,
            programmatic=programmatic,
            unstable=unstable,
        )

    def _timed(self, problem: Problem, known: Known, *, overlap: bool) -> tuple[Report, Report | None]:
        """Our kernel's report, and the naive kernel's where it takes part."""
        common = {"regime": self._regime, "cache": self._cache, "effort": "final", "overlap": overlap}
        jobs = [Job(problem, known.kernel, self._seed, peers=self._peers, excerpt=EXCERPT, **common)]  # type: ignore[arg-type]
        if self._naive:
            source = render(problem, Configuration.of(NAIVE, {}))
            kernel = compile_kernel(source, self._device.gpu.arch, KernelCache())
            jobs.append(Job(problem, kernel, self._seed, **common))  # type: ignore[arg-type]
        ours, *others = self._device.compare(jobs, TIMEOUT)
        return ours, others[0] if others else None

    def _judged(self, problem: Problem, ours: Report, *, estimated: bool) -> dict[str, Judgement]:
        """What the oracle says of every result; nothing on an emulator, which proves on the CPU in float64 itself.

        Raises:
            LaunchError: our kernel's result is wrong, or did not come back.
        """
        if ours.excerpt is None:
            if estimated:
                return {}
            raise LaunchError(
                f"The result of {problem.key} did not come back to be checked on the CPU, so its time does not count."
            )
        judged = judge(problem, ours.excerpt)
        if not judged[KERNEL].right:
            raise LaunchError(
                f"The best known kernel of {problem.key} is wrong against float64 on the CPU: {judged[KERNEL].detail}."
            )
        for name, verdict in judged.items():
            if not verdict.right:
                self._noted(f"{problem.key}: the result of {name} is wrong against float64: {verdict.detail}.")
        return judged

    def _times(
        self, problem: Problem, ours: Report, naive: Report | None, judged: dict[str, Judgement]
    ) -> dict[str, float]:
        """Median times of the baseline, where there is one, and of every peer whose result is right."""
        times: dict[str, float] = {}
        if ours.measurement is not None:
            if ours.measurement.baseline_us is not None:
                times[baseline_name(problem)] = ours.measurement.baseline_us
            times |= {n: us for n, us in ours.peers.items() if n in judged and judged[n].right}
        if naive is not None and naive.outcome == Outcome.CORRECT and naive.measurement is not None:
            times[NAIVE] = naive.measurement.us
        return times


def _between(time: Measurement, low: float, high: float) -> Measurement:
    """The measurement with an interval that reaches to both levels of its ratio to the baseline."""
    assert time.ratio is not None  # noqa: S101 - what has levels has a ratio
    beside = time.ratio * time.us  # the baseline's time
    return replace(time, us_low=min(time.us_low, beside / high), us_high=max(time.us_high, beside / low))
