"""``tune``: one study for each problem, opened or resumed, run to its budget, and its winner found."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from gemmtune.codegen.cache import KernelCache
from gemmtune.codegen.nvrtc import nvrtc_version
from gemmtune.codegen.pool import TIMEOUT, CompilePool
from gemmtune.codegen.render import template_hash
from gemmtune.db import History, StudySpec, TrialRecord
from gemmtune.db.standing import standing
from gemmtune.device import open_device
from gemmtune.device.base import Cache, Device, Regime
from gemmtune.device.replay import ReplayDevice
from gemmtune.search.course import Course, Plan
from gemmtune.search.events import Observer, Silent
from gemmtune.search.finals import measure_finalists, still_to_meet
from gemmtune.search.strategy import UNTAUGHT, check_confidence, check_strategy
from gemmtune.search.transfer import borrowed
from gemmtune.search.trial import Timing, TrialRunner
from gemmtune.space import families as registry
from gemmtune.space.errors import ProblemError
from gemmtune.space.family import Family
from gemmtune.space.problem import Problem
from gemmtune.space.settings import check_cache, check_count, check_regime, check_seconds, check_seed
from gemmtune.space.space import Space

TRIALS, ESTIMATED_TRIALS = 200, 40
"""Trials of a study by default: on a GPU, and where times are estimates."""


@dataclass(frozen=True)
class StudyResult:
    """How a study ended.

    Attributes:
        problem: what was searched for.
        study_id: its number in the history.
        best: the correct trials, the winner first (:func:`gemmtune.db.standing.standing`).
        outcomes: trials by outcome, earlier runs' included.
        trials: trials in the history, of which ``resumed`` were there when this run began.
        interrupted: Ctrl-C ended it; the same command goes on.
        seconds: wall time of this run.
        valid, raw: configurations in the space, and before its rules.
        estimated: times are estimates.
        database_seconds: wall time of this run in which trials were claimed and recorded.
    """

    problem: Problem
    study_id: int
    best: list[TrialRecord]
    outcomes: dict[str, int]
    trials: int
    resumed: int
    interrupted: bool
    seconds: float
    valid: int
    raw: int
    estimated: bool
    database_seconds: float = 0.0


@dataclass(frozen=True)
class _Request:
    """The arguments of :func:`tune` that hold for every study of the call."""

    trials: int | None
    seed: int
    families: Sequence[str] | None
    strategy: str
    confidence: float | None
    regime: Regime
    cache: Cache


def tune(
    problems: Problem | Sequence[Problem],
    device: Device | str | None = None,
    *,
    trials: int | None = None,
    time_limit: float | None = None,
    seed: int = 0,
    families: Sequence[str] | None = None,
    strategy: str = "auto",
    confidence: float | None = None,
    history: History | str | Path | None = None,
    regime: Regime = "sustained",
    cache: Cache = "cold",
    workers: int | None = None,
    compile_timeout: float = TIMEOUT,
    observer: Observer | None = None,
) -> list[StudyResult]:
    """Search for the fastest kernel of each problem, one study after another.

    A study is found again by all of these arguments but ``trials``, ``time_limit``, ``workers``, ``compile_timeout``
    and the observer: the same call resumes it, and one with more trials carries it on. Ctrl-C ends the call early, with
    everything recorded that had finished (see :attr:`StudyResult.interrupted`).

    Args:
        problems: one problem or several.
        device: a device, or how one is called (``cuda:0``, ``emulator:h200``, ``replay:FILE``); by default the
            GPU, else the emulator.
        trials: of each study, those of earlier runs included; by default 200, or 40 where times are estimates; with a
            time limit and no number, as many as fit.
        time_limit: seconds for the whole call; each study may take an equal share of what is left.
        seed: of everything random.
        families: names of the families to search; by default all that can serve.
        strategy: ``auto``, ``gp``, ``tpe``, ``random`` or ``exhaustive``.
        confidence: end a study before its trials are used up, once the strategy ``gp`` gives this probability to no
            configuration it knows of being over 1 % faster than the best; 0.5 or more, below 1.
        history: the history or where it is; by default the user's own.
        regime: ``sustained`` or ``burst``.
        cache: ``cold`` or ``warm``.
        workers: compile processes; by default one a CPU (of eight or more, all but two).
        compile_timeout: seconds that one kernel may take to compile.
        observer: is told how it goes.

    Raises:
        ProblemError: there is no problem.
        SettingError: ``trials``, ``time_limit``, ``seed``, ``workers``, ``compile_timeout``, ``regime`` or ``cache``
            out of range.
        UnknownNameError: a device, family or strategy that does not exist.
        UnsupportedError: no family can serve one of the problems on this GPU.
        EmptySpaceError: no configuration is valid for one of them.
        ToolchainError: the GPU, driver, NVRTC or a compiler is missing, or fails again and again.
        DatabaseError: the history cannot be opened or written.
    """
    wanted = problems_of(problems)
    if trials is not None:
        check_count("trials", trials)
    if time_limit is not None:
        check_seconds("time limit", time_limit)
    if workers is not None:
        check_count("workers", workers)
    check_seconds("compile timeout", compile_timeout)
    check_seed(seed)
    check_regime(regime)
    check_cache(cache)
    check_strategy(strategy)
    check_confidence(confidence, strategy)
    request = _Request(trials, seed, families, strategy, confidence, regime, cache)
    end = None if time_limit is None else time.monotonic() + time_limit
    results: list[StudyResult] = []
    with ExitStack() as stack:
        where = opened(device, stack)
        for problem in wanted:  # say no before any of them has taken an hour
            registry.families_for(problem, where.gpu, families)
        kept = history if isinstance(history, History) else stack.enter_context(History(history))
        kernels = KernelCache()
        pool = stack.enter_context(CompilePool(workers, kernels, compile_timeout))
        for position, problem in enumerate(wanted):
            left = len(wanted) - position
            share = None if end is None else max(0.0, end - time.monotonic()) / left
            result = _study(problem, where, kept, pool, kernels, request, share, observer or Silent())
            results.append(result)
            if result.interrupted:
                break
    return results


def opened(device: Device | str | None, stack: ExitStack, *, running: bool = False) -> Device:
    """The device itself, or the one of that name, which ``stack`` then closes; ``running``: no record."""
    if device is not None and not isinstance(device, str):
        return device
    found = open_device(device, running=running)
    stack.callback(found.close)
    return found


def _study(
    problem: Problem,
    device: Device,
    history: History,
    pool: CompilePool,
    kernels: KernelCache,
    request: _Request,
    seconds: float | None,
    observer: Observer,
) -> StudyResult:
    began = time.monotonic()
    serving = registry.families_for(problem, device.gpu, request.families)
    space = _space(problem, device, serving)
    horizon = request.trials or (ESTIMATED_TRIALS if device.estimates else TRIALS)
    limit = len(space) if request.trials is None and seconds is not None else min(horizon, len(space))
    study = history.open_study(_spec(problem, device, serving, request))
    loans = () if request.strategy in UNTAUGHT else borrowed(history, study, space, device)
    plan = Plan(
        strategy=request.strategy,
        seed=request.seed,
        budget=limit,
        horizon=horizon,
        loans=loans,
        confidence=request.confidence,
        deadline=None if seconds is None else began + seconds,
    )
    timing = Timing(request.regime, request.cache, request.seed)
    runner = TrialRunner(problem, device, serving, pool, timing, kernels)
    course = Course(space, device, study, runner, plan, observer)
    course.run()
    interrupted = course.interrupted
    if not interrupted and not device.estimates:
        interrupted = _finals(course, observer)
    records = study.trials()
    result = StudyResult(
        problem=problem,
        study_id=study.id,
        best=standing(records),
        outcomes=dict(course.counts),
        trials=len(records),
        resumed=course.resumed,
        interrupted=interrupted,
        seconds=time.monotonic() - began,
        database_seconds=course.database_seconds,
        valid=len(space),
        raw=space.raw_size,
        estimated=device.estimates,
    )
    observer.study_finished(result)
    return result


def _space(problem: Problem, device: Device, serving: Sequence[Family]) -> Space:
    """What is searched: all that is valid, or all that was recorded where a record stands in for the device."""
    if isinstance(device, ReplayDevice):
        return device.space(problem, [family.name for family in serving])
    return Space(problem, device.gpu, serving)


def _finals(course: Course, observer: Observer) -> bool:
    """Run the finals unless these finalists have met already; True where Ctrl-C ended them."""
    candidates = still_to_meet(course.study.trials(), course.study.history)
    if not candidates:
        return False
    observer.finals_started(course.space.problem, len(candidates))
    try:
        times = measure_finalists(course.runner, candidates)
    except KeyboardInterrupt:
        return True
    for record, data in times:
        with course.writing():
            course.study.add_measurement(record.id, data, final=True)
    return False


def _spec(problem: Problem, device: Device, families: Sequence[Family], request: _Request) -> StudySpec:
    """What the study is found by. Another compiler and other templates make other kernels.

    The templates are those of every family, searched or not: a search of one family must stand in the same rankings as
    one of all, or the newer of the two would displace the better.
    """
    known = {family.name: family for family in (*registry.FAMILIES.values(), *families)}
    hashes = "".join(template_hash(known[name]) for name in sorted(known))
    templates = hashlib.sha256(hashes.encode()).hexdigest()
    return StudySpec(
        problem_json=problem.to_json(),
        problem_key=problem.key,
        kind=device.kind,
        gpu=device.gpu,
        environment={"nvrtc": nvrtc_version(), **device.environment(), "templates": templates[:16]},
        regime=request.regime,
        cache=request.cache,
        families=tuple(family.name for family in families),
        strategy=request.strategy,
        seed=request.seed,
    )


def problems_of(problems: Problem | Sequence[Problem]) -> list[Problem]:
    """One problem or several as a list, each once, in their order; raises ProblemError where there is none."""
    listed = [problems] if isinstance(problems, Problem) else list(problems)
    if not listed:
        raise ProblemError("There is no problem: give at least one shape, e.g. 512x512x512.")
    return list({problem.key: problem for problem in listed}.values())
