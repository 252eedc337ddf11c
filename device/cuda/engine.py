"""The engine of a CUDA worker: proves and times one kernel after another in one process with one CUDA context."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import groupby

from gemmtune.device.base import Job, Measurement, Outcome, Report, Stage, Verification
from gemmtune.device.cuda.bench import Bench, estimate
from gemmtune.device.cuda.contest import Contest
from gemmtune.device.cuda.heats import heats
from gemmtune.device.cuda.helpers import load_helpers
from gemmtune.device.cuda.info import check_index, gpu_of, monitor
from gemmtune.device.cuda.sampling import sample
from gemmtune.device.cuda.sanity import Probe
from gemmtune.device.cuda.timing import (
    FAR,
    FAR_ROUNDS,
    FINAL,
    Replay,
    Series,
    Stopwatch,
    disturbance,
    interleave,
    launches_for,
    measurement,
    settle,
)
from gemmtune.device.launch import LoadedKernel
from gemmtune.device.probe import Health
from gemmtune.device.toolchain import require_cupy
from gemmtune.space.errors import LaunchError
from gemmtune.space.problem import Problem

STEADY_SECONDS = 0.5
"""Continuous work before the first sample of a problem, and after a long pause: clocks settle within it."""
REWARM_SECONDS = 0.01
IDLE_SECONDS = 2.0
"""A pause after which the card has cooled."""
SLOWEST = 3.0
"""First launches this many times slower than the best end a trial."""
_OUT_OF_MEMORY = 2  # cudaErrorMemoryAllocation and CUDA_ERROR_OUT_OF_MEMORY


class CudaEngine:
    """See :class:`gemmtune.device.child.Engine`.

    Args:
        index: the GPU, as CUDA numbers them.

    Raises:
        ToolchainError: CuPy, the driver or the GPU is missing.
    """

    probe_first = True
    """The first worker's time for the known kernel is what later ones are held to."""

    def __init__(self, index: int = 0) -> None:
        check_index(index)
        cupy = require_cupy()
        cupy.cuda.Device(index).use()
        self.gpu = gpu_of(index)
        self.spent = False
        self._cupy = cupy
        self._stream = cupy.cuda.Stream(non_blocking=True)
        self._monitor = monitor(index)
        self._bench: Bench | None = None
        self._busy_until = 0.0
        self.announce: Callable[[str], None] = lambda stage: None
        load_helpers()  # compiling them may take a second, which the first trial need not wait for

    def run(self, job: Job) -> Report:
        """Prove and time one kernel."""
        seconds: dict[str, float] = {}
        with self._stream:
            return replace(self._survive(lambda: self._run(job, seconds)), seconds=seconds)

    def compare(self, jobs: list[Job]) -> list[Report]:
        """Prove each, then time those that are right, with the baseline, in one round-robin for each problem."""
        reports: list[Report] = []
        with self._stream:
            for _, group in groupby(jobs, key=lambda job: (job.problem.key, job.regime, job.cache)):
                reports += self._compare(list(group))
        return reports

    def probe(self, reference: float | None) -> Health:
        """Run the known kernel, in its known time in microseconds where there is one."""
        return Probe(self._stream).check(reference)

    def close(self) -> None:
        """Give the memory back."""
        self._drop()

    # ------------------------------------------------------------------------------------------------ one kernel

    def _run(self, job: Job, seconds: dict[str, float]) -> Report:
        with self._stage(seconds, "load"):
            kernel = LoadedKernel(job.kernel.cubin, job.kernel.recipe)
            bench = self._at(job.problem)
        verification = None
        if job.verify:
            with self._stage(seconds, "verify"):
                verification = bench.prover.prove(kernel, job.seed)
            if not verification.passed:
                return Report(Outcome.WRONG, verification.detail, verification)
        if not job.measure:
            return Report(Outcome.CORRECT, verification=verification)
        with self._stage(seconds, "measure"):
            return self._measure(job, kernel, bench, verification)

    def _measure(self, job: Job, kernel: LoadedKernel, bench: Bench, verification: Verification | None) -> Report:
        watch = Stopwatch(self._stream, job.regime, self._monitor)
        calls = bench.calls(kernel, job.cache)
        calls[0](self._stream.ptr)
        first = watch.once(lambda: calls[0](self._stream.ptr))
        limit = float("inf") if job.best_us is None or job.thorough else SLOWEST * job.best_us + 20.0
        if first > limit:  # once more: that launch may have found the card asleep
            first = min(first, *(watch.once(lambda: calls[0](self._stream.ptr)) for _ in range(2)))
        if first > limit:
            detail = (
                f"Its quickest launch of three took {first:.1f} us, over {SLOWEST:g} times the best so far, "
                f"{job.best_us:.1f} us."
            )
            return Report(Outcome.ABANDONED, detail, verification, Measurement(first, first, first, samples=(first,)))
        baseline, baseline_us = self._baseline(bench, job, watch)
        us = estimate(calls, watch, 3 if first < 10_000 else 1)
        ours = Series(Replay("kernel", calls, launches_for(us, len(calls)), self._stream))
        self._warm(watch, bench, [ours.replay, baseline.replay], long=job.effort == "final")
        measured, reason = sample(job, bench, watch, (ours, us), (baseline, baseline_us))
        self._busy_until = time.perf_counter()
        if job.verify and (wrong := bench.prover.recheck()):
            detail = f"Right when launched alone, but not after launches back to back: {wrong}"
            return Report(Outcome.WRONG, detail, verification)
        if reason:
            return Report(Outcome.ABANDONED, reason, verification, measured)
        report = _judged(verification, measured)
        if report.outcome is Outcome.CORRECT:
            bench.settled.keep(measured)
        return report

    # -------------------------------------------------------------------------------------------- several kernels

    def _compare(self, jobs: list[Job]) -> list[Report]:
        reports: dict[int, Report] = {}
        ready: dict[int, tuple[LoadedKernel, Verification | None]] = {}
        for index, job in enumerate(jobs):
            if self.spent:
                reports[index] = Report(
                    Outcome.INFRASTRUCTURE, "An earlier kernel of the comparison broke the CUDA context."
                )
                continue

            def prepare(job: Job = job, index: int = index) -> Report:
                kernel, bench, verification = (
                    LoadedKernel(job.kernel.cubin, job.kernel.recipe),
                    self._at(job.problem),
                    None,
                )
                if job.verify:
                    verification = bench.prover.prove(kernel, job.seed)
                    if not verification.passed:
                        return Report(Outcome.WRONG, verification.detail, verification)
                ready[index] = kernel, verification
                return Report(Outcome.CORRECT, verification=verification)

            reports[index] = self._survive(prepare)
        timed = [index for index in ready if jobs[index].measure]
        if timed and not self.spent:

            def measure() -> Report:
                reports.update(self._race(jobs[timed[0]], {index: ready[index] for index in timed}))
                return Report(Outcome.CORRECT)

            failure = self._survive(measure)
            if failure.outcome is not Outcome.CORRECT:
                failure = replace(failure, killed=failure.killed and len(timed) == 1)  # which one it was nobody knows
                reports.update(dict.fromkeys(timed, failure))
        return [reports[index] for index in range(len(jobs))]

    def _race(self, job: Job, kernels: dict[int, tuple[LoadedKernel, Verification | None]]) -> dict[int, Report]:
        """Time kernels of one problem with the baseline; the first job says how, and is told of its peers."""
        bench, first = self._at(job.problem), next(iter(kernels))
        watch = Stopwatch(self._stream, job.regime, self._monitor)
        baseline, baseline_us = self._baseline(bench, job, watch)
        self._warm(watch, bench, [baseline.replay], long=True)
        contest = Contest(bench, job, self._stream, watch)
        series: dict[int, Series] = {}
        near: dict[Series, float] = {}
        for index, (kernel, _) in kernels.items():
            calls = bench.calls(kernel, job.cache)
            us = estimate(calls, watch, 1)
            us = estimate(calls, watch, 3 if us < 10_000 else 1)
            launches = launches_for(us, len(calls))
            series[index] = Series(Replay(f"kernel {index}", calls, launches, self._stream, overlap=job.overlap))
            if us <= FAR * baseline_us:
                near[series[index]] = us
        behind = heats(watch, near) if self._has_heats(job, bench) else {}
        near = {one: us for one, us in near.items() if one not in behind} | contest.us
        settle({**near, baseline: baseline_us}, capped=bench.capped)
        watch.warm([*(s.replay for s in near), baseline.replay], REWARM_SECONDS)
        interleave(watch, baseline, list(near), FINAL)
        for far in series.values():
            if far not in near and far not in behind:
                for _ in range(FAR_ROUNDS):
                    watch.round([far])
        self._busy_until = time.perf_counter()
        judged = {
            index: Report(Outcome.ABANDONED, behind[one], kernels[index][1])
            if one in behind
            else _judged(kernels[index][1], measurement(one, baseline, watch))
            for index, one in series.items()
        }
        return {**judged, first: contest.told(judged[first], series[first])}

    @staticmethod
    def _has_heats(job: Job, bench: Bench) -> bool:
        """Whether who is clearly behind may be left out: where the best is wanted, not every time."""
        return bench.capped and job.regime == "sustained" and not (job.thorough or job.peers)

    def _baseline(self, bench: Bench, job: Job, watch: Stopwatch) -> tuple[Series, float]:
        """The baseline's series, and about what a launch of it takes."""
        baseline = Series(bench.baseline(job.cache, watch, overlap=job.overlap))
        us = watch.once(lambda: baseline.replay.launch(self._stream)) / baseline.replay.launches
        return baseline, us

    # -------------------------------------------------------------------------------------------------- internals

    def _at(self, problem: Problem) -> Bench:
        if self._bench is None or self._bench.problem.key != problem.key:
            self._drop()
            self._bench = Bench(problem, self.gpu, self._stream)
        return self._bench

    def _drop(self) -> None:
        self._bench = None
        self._cupy.get_default_memory_pool().free_all_blocks()

    def _warm(self, watch: Stopwatch, bench: Bench, replays: list[Replay], *, long: bool) -> None:
        """Bring the card to its steady state, where it is not there yet, and see whether that is the power cap.

        Trials at the cap settle by themselves, and ask for none of it but the first time; ``long`` work does.
        """
        pause = time.perf_counter() - self._busy_until
        if watch.regime not in bench.warm or (pause > IDLE_SECONDS and (long or not bench.capped)):
            watch.warm(replays, STEADY_SECONDS)
            bench.capped |= watch.capped
        elif long or not bench.capped:
            watch.warm(replays, REWARM_SECONDS)
        bench.warm.add(watch.regime)

    @contextlib.contextmanager
    def _stage(self, seconds: dict[str, float], stage: Stage) -> Iterator[None]:
        """Announce a stage and take its time."""
        self.announce(stage)
        start = time.perf_counter()
        try:
            yield
        finally:
            seconds[stage] = time.perf_counter() - start

    def _survive(self, action: Callable[[], Report]) -> Report:
        """What ``action`` reports, or what its CUDA error means; a lost context marks this engine spent."""
        try:
            return action()
        except MemoryError as error:
            self._drop()
            return Report(Outcome.OUT_OF_MEMORY, f"The GPU has too little memory for this problem: {error}")
        except (LaunchError, RuntimeError) as error:
            cause = error.__cause__ if isinstance(error, LaunchError) else error
            status = getattr(cause, "status", None)
            if self._lost():
                self.spent = True
                return Report(Outcome.LAUNCH, f"The kernel died while it ran: {error}", killed=True)
            if status == _OUT_OF_MEMORY:
                self._drop()
                return Report(Outcome.OUT_OF_MEMORY, f"The GPU has too little memory for this problem: {error}")
            if isinstance(error, LaunchError) or status is not None:
                return Report(Outcome.LAUNCH, str(error))
            raise

    def _lost(self) -> bool:
        """Whether the context no longer answers."""
        try:
            self._stream.synchronize()
            self._cupy.cuda.runtime.deviceSynchronize()
        except RuntimeError:
            return True
        return False


def _judged(verification: Verification | None, measured: Measurement) -> Report:
    detail = disturbance(measured)
    return Report(Outcome.UNSTABLE if detail else Outcome.CORRECT, detail, verification, measured)
