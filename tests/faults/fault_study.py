"""A study of a fixed list of configurations, faulty ones among them, through the product's own course of trials."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gemmtune.codegen.cache import KernelCache
from gemmtune.codegen.nvrtc import nvrtc_version
from gemmtune.codegen.pool import CompilePool
from gemmtune.db import History, Study, StudySpec, TrialRecord
from gemmtune.db.standing import standing
from gemmtune.device.base import Device, Regime
from gemmtune.search.course import Course, Plan
from gemmtune.search.events import Observer, Silent
from gemmtune.search.finals import finalists, measure_finalists
from gemmtune.search.strategy import Strategy
from gemmtune.search.trial import Timing, TrialRunner
from gemmtune.space.configuration import Configuration
from gemmtune.space.family import Family
from gemmtune.space.problem import Problem
from gemmtune.space.space import Space


class FixedList(Strategy):
    """Proposes the configurations of a list in their order, whatever comes of them."""

    name = "list"

    def __init__(self, space: Space, listed: Sequence[Configuration]) -> None:
        super().__init__(space, seed=0)
        self._left = iter([space.index(configuration) for configuration in listed])

    def _next(self) -> int:
        return next(self._left)


class ListCourse(Course):
    """A course that tries a list instead of what a strategy would find."""

    listed: Sequence[Configuration] = ()

    def _strategy(self) -> Strategy:
        return FixedList(self.space, self.listed)


@dataclass(frozen=True)
class Finished:
    """A list that has been tried: the study's trials in order, and those that rank, the winner first."""

    course: ListCourse
    study: Study
    runner: TrialRunner

    @property
    def records(self) -> list[TrialRecord]:
        """Every trial, in order."""
        return self.study.trials()

    @property
    def ranked(self) -> list[TrialRecord]:
        """The correct and timed ones, the winner first."""
        return standing(self.records)


def try_list(
    listed: Sequence[Configuration],
    problem: Problem,
    device: Device,
    families: Sequence[Family],
    history: History,
    pool: CompilePool,
    kernels: KernelCache,
    observer: Observer | None = None,
    regime: Regime = "sustained",
) -> Finished:
    """Try each of ``listed`` once, in that order, and hold the finals where times are measured."""
    space = Space(problem, device.gpu, families)
    study = history.open_study(
        StudySpec(
            problem_json=problem.to_json(),
            problem_key=problem.key,
            kind=device.kind,
            gpu=device.gpu,
            environment={"nvrtc": nvrtc_version(), **device.environment()},
            regime=regime,
            cache="cold",
            families=tuple(family.name for family in families),
            strategy=FixedList.name,
            seed=0,
        )
    )
    runner = TrialRunner(problem, device, families, pool, Timing(regime, thorough=True), kernels)
    plan = Plan(strategy=FixedList.name, seed=0, budget=len(listed), horizon=len(listed))
    course = ListCourse(space, device, study, runner, plan, observer or Silent())
    course.listed = listed
    course.run()
    if course.interrupted:
        raise KeyboardInterrupt
    if not device.estimates:
        for record, time in measure_finalists(runner, finalists(course.records)):
            study.add_measurement(record.id, time, final=True)
    return Finished(course, study, runner)


def mixed(
    right: Sequence[Configuration], faulty: Sequence[Configuration], seed: int
) -> tuple[list[Configuration], list[Configuration]]:
    """Both in one seeded order, a right one first, so that limits are known; and the right ones alone in that order."""
    first, rest = right[0], [*right[1:], *faulty]
    random.Random(seed).shuffle(rest)
    whole = [first, *rest]
    bad = set(faulty)
    return whole, [configuration for configuration in whole if configuration not in bad]


def near(space: Space, start: Sequence[Configuration], count: int, seed: int) -> list[Configuration]:
    """``count`` valid configurations: those of ``start``, then their neighbours one knob away, then theirs, seeded."""
    rng = random.Random(seed)
    found = dict.fromkeys(space.index(configuration) for configuration in start)
    ring = list(found)
    while len(found) < count and ring:
        fresh = dict.fromkeys(n for i in ring for n in space.neighbours(i) if n not in found)
        ring = rng.sample(list(fresh), len(fresh))
        found |= dict.fromkeys(ring)
    return [space[i] for i in list(found)[:count]]


def left_behind(marker: Mapping[str, str]) -> Iterator[int]:
    """Processes, zombies excepted, that were started with these environment variables and are still there (Linux)."""
    wanted = {f"{name}={value}".encode() for name, value in marker.items()}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                found = set((entry / "environ").read_bytes().split(b"\0"))
            except OSError:  # gone meanwhile, or another user's
                continue
            if wanted <= found:
                yield int(entry.name)


def zombies() -> list[int]:
    """Children of this process that have ended and that nobody has waited for (Linux)."""
    out = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            except OSError:
                continue
            if state == "Z" and int(parent) == os.getpid():
                out.append(int(entry.name))
    return out
