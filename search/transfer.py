"""What a study borrows from others: configurations that won under other circumstances, for it to start from.

First come the best of the same study in an older environment, then those of other studies of the same problem on this
GPU (another seed, say), then those of the same problem in a type of the same width (fp16 for bf16), then the winners
of other problems on it, then those of other GPUs, the nearest problems first. Of a winner that is not valid here, its
valid neighbour is taken that the estimate likes best. A configuration that differs from those before it in fewer than
three knobs is left out: near-duplicates teach less than a cold start would.

Only what was known when the study began is borrowed, as far as the history tells: a study that is resumed starts from
the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gemmtune.db import History, Study, TrialRecord
from gemmtune.device.base import Device, Outcome
from gemmtune.search.ranking import best_first
from gemmtune.search.start import WARM, diverse
from gemmtune.space.configuration import Configuration
from gemmtune.space.errors import ConfigurationError
from gemmtune.space.estimate import estimate
from gemmtune.space.problem import Problem, problem_from_json, shape_of
from gemmtune.space.space import Space

ELDERS = 50
"""The best trials in an older environment, or in other studies of the problem, that a study may start from."""
TWINS = {"bf16": "fp16", "fp16": "bf16"}
"""Types whose kernels are the same but for the instruction: what is best for one is good for the other."""


@dataclass(frozen=True)
class Loan:
    """One configuration to start from: its number in the space, and the trial that it comes from.

    ``changed``: it was not valid here as it was. ``source`` is for people.
    """

    index: int
    trial: TrialRecord
    changed: bool
    source: str


def borrowed(history: History, study: Study, space: Space, device: Device) -> tuple[Loan, ...]:
    """At most five loans, the most trustworthy first."""
    loans: dict[int, Loan] = {}
    for record, source in _sources(history, study, space.problem, device):
        found = _here(space, record)
        if found is not None:
            index, changed = found
            loans.setdefault(index, Loan(index, record, changed, source))
    return tuple(loans[index] for index in diverse(space, list(loans), WARM))


def _sources(history: History, study: Study, problem: Problem, device: Device) -> Iterator[tuple[TrialRecord, str]]:
    """Trials to borrow from, the first choice first."""
    if study.parent_id is not None:
        correct = history.trials(study_id=study.parent_id, outcome=Outcome.CORRECT, limit=None)
        yield from ((record, "this study in an older environment") for record in best_first(correct)[:ELDERS])
    spec, dtype = study.spec, str(problem.environment().get("dtype", ""))
    found = history.study(study.id)
    began = math.inf if found is None else found.created

    def others(dtype: str, json: Mapping[str, object]) -> list[TrialRecord]:
        """The best of other studies, in the order to try: times of several environments meet, which rank nothing."""
        leaders = history.best(
            gpu=device.gpu.key, shape=shape_of(problem.axes), dtype=dtype, kind=spec.kind, regime=spec.regime,
            cache=spec.cache, limit=ELDERS,
        )  # fmt: skip
        return best_first(r for r in leaders if r.problem_json == json and _was_there(r, began))

    yield from ((record, "other studies of this problem") for record in others(dtype, problem.to_json()))
    if dtype in TWINS:
        json = {name: TWINS[dtype] if value == dtype else value for name, value in problem.to_json().items()}
        yield from ((record, f"{record.problem_key} on this GPU") for record in others(TWINS[dtype], json))
    winners = history.best_kernels(device_kind=spec.kind, regime=spec.regime, cache=spec.cache, dtype=dtype)
    here, there = [], []
    for record in winners:
        if not _was_there(record, began):
            continue
        other = problem_from_json(record.problem_json)
        if other.kind != problem.kind:
            continue
        apart = _apart(problem.axes, other.axes), record.problem_key, record.gpu.key, record
        if record.gpu.key != device.gpu.key:
            there.append(apart)
        elif record.problem_key != problem.key:
            here.append(apart)
    for *_, record in sorted(here, key=lambda entry: entry[:3]):
        yield record, f"{record.problem_key} on this GPU"
    for *_, record in sorted(there, key=lambda entry: entry[:3]):
        yield record, f"{record.problem_key} on {record.gpu.name}"


def _was_there(record: TrialRecord, began: float) -> bool:
    return record.finished is not None and record.finished <= began


def _apart(a: Mapping[str, int], b: Mapping[str, int]) -> float:
    """How far two problems of a kind lie apart: doublings of their sizes, summed."""
    return sum(abs(math.log2(max(a[axis], 1) / max(b.get(axis, 1), 1))) for axis in a)


def _here(space: Space, record: TrialRecord) -> tuple[int, bool] | None:
    """The configuration's number in the space, or that of a neighbour and True; None where there is neither."""
    configuration = Configuration.parse(record.configuration)
    try:
        return space.index(configuration), False
    except ConfigurationError:
        pass
    try:
        near = space.around(configuration)
    except ConfigurationError:  # a family or a value that is not searched here
        return None
    return (_cheapest(space, near), True) if near else None


def _cheapest(space: Space, indices: Sequence[int]) -> int:
    """The one with the least estimated time; the first where nothing is estimated."""
    family = next(f for f in space.families if f.name == space[indices[0]].family)
    if not family.estimable:
        return indices[0]
    return min(indices, key=lambda index: (estimate(space.problem, space[index], family, space.gpu).us, index))


def told(loans: Sequence[Loan]) -> list[str]:
    """What was borrowed from where, a line for each source."""
    counts: dict[str, list[Loan]] = {}
    for loan in loans:
        counts.setdefault(loan.source, []).append(loan)
    lines = []
    for source, of_it in counts.items():
        changed = sum(loan.changed for loan in of_it)
        fitted = f", {changed} of them changed in one knob" if changed else ""
        lines.append(f"{len(of_it)} from {source}{fitted}")
    return lines
