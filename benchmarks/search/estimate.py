"""How well the cost estimate ranks what was measured, also on shapes that its constants have not seen.

    python benchmarks/search/estimate.py OUT.json [--history FILE] [--as after] [--no-refit]
    python benchmarks/search/estimate.py OUT.json --history benchmarks/h200/bf16.trials.csv.gz --as hopper
    python benchmarks/search/estimate.py OUT.json --history .../spaces/hopper*.gz --as spaces --unseen-by hopper

Reads the recorded trials of exported histories or of recorded spaces, estimates each of them with the registers and
spills its compiler reported ("compiled") and without ("before compiling"), and writes for every problem: the rank
correlation (Spearman) with the measured times, where the truly best stands in the order of the estimate, and what is
lost by trying only the part of the trials that it likes best. The constants are then fitted again five times, each time
without the problems of one shape, which are judged by the fit that has not seen them; ``--unseen-by NAME`` judges by
the fits that entry NAME of OUT.json made without a problem's shape instead ("unseen"). OUT.json keeps entries of other
names, so that two versions of the estimate can be compared: ``--as before`` under the older one.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemmtune.db import History, TrialRecord
from gemmtune.search.result_file import blank_of, source_commit
from gemmtune.search.results import read_result_file, save
from gemmtune.space import families
from gemmtune.space.configuration import Configuration
from gemmtune.space.estimate import CALIBRATED, Constants, estimate_traits
from gemmtune.space.family import Traits
from gemmtune.space.gemm import Gemm
from gemmtune.space.gpu import Gpu, gpu
from gemmtune.space.problem import Problem, problem_from_json, shape_of
from gemmtune.space.recorded import Recording, read_recording

PROTOCOL = (
    "The cost estimate beside the recorded times of H200 trials (files under benchmarks/h200), problem by problem; "
    "cross_validated: constants fitted leaving one shape out."
)

ROOT = Path(__file__).resolve().parent.parent.parent
HISTORY = ROOT / "benchmarks" / "h200" / "main-job.history.gz"
FITTED = ("latency", "step", "half_tensor", "half_fma", "spill", "overlap", "fill")
"""The constants that simt and mma bear on. The others are given by the hardware, or by other kernels."""
AHEAD = ("latency_ahead", "overlap_ahead", "half_ahead", "handover", "arrival", "gather", "cluster")
"""Those that hopper and skinny bear on."""
FOLDS, FEWEST = 6, 15
"""Parts of many shapes that are left out in turn, and trials of a problem that can be ranked."""
KEPT = (0.1, 0.2, 0.3, 0.4, 0.5)
"""Parts of a problem's trials that are kept, best estimate first."""
GOOD = 1.01
"""A trial within 1 % of the best is as good as the best."""
_HUBER = 0.25
"""Logarithmic errors beyond it count linearly: a handful of kernels are slow for reasons no first-order term holds."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Timed:
    """A trial with what its estimate needs."""

    problem: Problem
    traits: Traits
    gpu: Gpu
    family: str
    registers: int | None
    spill_bytes: int
    us: float

    def estimate(self, constants: Constants = CALIBRATED, *, compiled: bool = True) -> float:
        """Estimated microseconds."""
        known: dict[str, Any] = {"registers": self.registers, "spill_bytes": self.spill_bytes} if compiled else {}
        return estimate_traits(self.problem, self.traits, self.gpu, constants=constants, **known).us


def read(path: Path) -> list[Timed]:
    """The timed trials of an exported history, a recorded space, or a table of trials (see the README beside this).

    Of those abandoned as slow, the time of their one launch counts.
    """
    if path.suffixes[-2:] == [".json", ".gz"]:
        return _of_space(read_recording(path))
    if path.suffixes[-2:] == [".csv", ".gz"]:
        with gzip.open(path, "rt", newline="", encoding="utf-8") as lines:
            return [_row(row) for row in csv.DictReader(lines)]
    with tempfile.TemporaryDirectory() as folder, History(Path(folder) / "history.db") as history:
        history.merge(path)
        records = history.trials(limit=None)
    return [_timed(r, r.us) for r in records if r.us is not None]


def _timed(record: TrialRecord, us: float) -> Timed:
    problem = problem_from_json(record.problem_json)
    traits = families.family(record.family).traits(problem, Configuration.parse(record.configuration), record.gpu)
    return Timed(problem, traits, record.gpu, record.family, record.registers, record.spill_bytes or 0, us)


def _of_space(space: Recording) -> list[Timed]:
    """The timed rows of a recording of gemmtune's own."""
    problem, here = space.problem, space.gpu
    if problem is None or here is None:
        raise SystemExit(f"The recording {space.name} has no problem that could be estimated: name one of gemmtune's.")
    out: list[Timed] = []
    for row in space.rows:
        name = row.configuration.family
        traits = families.family(name).traits(problem, row.configuration, here)
        if row.timed and row.us is not None:
            out.append(Timed(problem, traits, here, name, row.registers, 0, row.us))
    return out


def _row(row: Mapping[str, str]) -> Timed:
    """A line of a table of trials of packed bf16 GEMMs on an H200."""
    m, n, k = map(int, row["shape"].split("x"))
    problem, here = Gemm(m, n, k, "bf16"), gpu("h200")
    configuration = Configuration.parse(row["configuration"])
    traits = families.family(configuration.family).traits(problem, configuration, here)
    resources = int(row["registers"] or 0) or None, int(row["spill_bytes"] or 0)
    return Timed(problem, traits, here, configuration.family, *resources, float(row["us"]))


def by_problem(trials: Sequence[Timed]) -> dict[str, list[Timed]]:
    """Trials by the key of their problem, in order."""
    out: dict[str, list[Timed]] = {}
    for trial in trials:
        out.setdefault(trial.problem.key, []).append(trial)
    return {key: group for key, group in sorted(out.items()) if len(group) >= FEWEST}


def spearman(a: Floats, b: Floats) -> float:
    """Rank correlation, ties at their mean rank."""
    return float(np.corrcoef(_ranks(a), _ranks(b))[0, 1])


def _ranks(values: Floats) -> Floats:
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    ranks: Floats = (np.cumsum(count) - (count - 1) / 2)[place]
    return ranks


def judge(trials: Sequence[Timed], predict: Callable[[Timed], float]) -> dict[str, Any]:
    """The figures of one problem's trials."""
    us, guess = np.array([t.us for t in trials]), np.array([predict(t) for t in trials])
    order = np.argsort(guess, kind="stable")
    best = us.min()
    loss = {f"{part:.0%}": float(us[order[: math.ceil(part * len(us))]].min() / best - 1) for part in KEPT}
    enough = next(n for n in range(1, len(us) + 1) if us[order[:n]].min() <= GOOD * best)
    good = guess[us <= GOOD * best].min() / guess.min()
    across = [
        (a.us < b.us) == (x < y)
        for a, x in zip(trials, guess, strict=True)
        for b, y in zip(trials, guess, strict=True)
        if a.family < b.family
    ]
    return {
        "trials": len(us),
        "rank_correlation": spearman(us, guess),
        "best_within_top": float((guess <= guess[us.argmin()]).mean()),
        "keep_for_1_percent": enough / len(us),
        "factor_for_1_percent": float(good),
        "loss_when_keeping": loss,
        "pairs_across_families_in_order": float(np.mean(across)) if across else None,
        "median_estimate_over_measured": float(np.median(guess / us)),
    }


def summary(figures: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Means and worst cases over problems."""
    rows = list(figures.values())

    def column(name: str) -> list[float]:
        return [row[name] for row in rows if row[name] is not None]

    return {
        "problems": len(rows),
        "trials": sum(row["trials"] for row in rows),
        "rank_correlation": {"mean": _mean(column("rank_correlation")), "least": min(column("rank_correlation"))},
        "best_within_top": {"mean": _mean(column("best_within_top")), "most": max(column("best_within_top"))},
        "keep_for_1_percent": {"mean": _mean(column("keep_for_1_percent")), "most": max(column("keep_for_1_percent"))},
        "factor_for_1_percent": {"most": max(column("factor_for_1_percent"))},
        "most_lost_when_keeping": {
            f"{part:.0%}": max(row["loss_when_keeping"][f"{part:.0%}"] for row in rows) for part in KEPT
        },
        "pairs_across_families_in_order": _mean(column("pairs_across_families_in_order")),
    }


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def fit(trials: Sequence[Timed], start: Constants = CALIBRATED, turns: int = 12) -> Constants:
    """The constants of least error: each in turn is moved up or down by a factor that shrinks where neither helps."""
    groups = list(by_problem(trials).values())
    constants, least = start, _error(groups, start)
    names = FITTED if any(t.traits.synchronous for t in trials) else AHEAD
    factor = dict.fromkeys(names, 1.5)
    for _ in range(turns):
        for name in names:
            for moved in (getattr(constants, name) * factor[name], getattr(constants, name) / factor[name]):
                tried = replace(constants, **{name: moved})
                error = _error(groups, tried)
                if error < least:
                    constants, least = tried, error
                    break
            else:
                factor[name] = math.sqrt(factor[name])
    return constants


def _error(groups: Sequence[Sequence[Timed]], constants: Constants) -> float:
    """Mean over problems of the error of log(estimate / measured), the fast trials weighing more.

    Its spread within a problem decides about ranks; its median, which compares problems, weighs a tenth.
    """
    total = 0.0
    for group in groups:
        us = np.array([t.us for t in group])
        error = np.log(np.array([t.estimate(constants) for t in group]) / us)
        middle = float(np.median(error))
        away = np.abs(error - middle)
        weight = us.min() / us
        huber = np.where(away < _HUBER, away * away / 2, _HUBER * (away - _HUBER / 2))
        total += float((weight * huber).sum() / weight.sum()) + 0.1 * middle * middle / 2
    return total / len(groups)


def cross_validated(trials: Sequence[Timed]) -> dict[str, Any]:
    """Each shape's problems judged by constants fitted without them, and those constants."""
    figures: dict[str, Any] = {}
    constants: dict[str, Any] = {}
    shapes = list(dict.fromkeys(shape_of(t.problem.axes) for t in trials))
    count = FOLDS if len(shapes) > 2 * FOLDS else len(shapes)
    for left_out in (shapes[i::count] for i in range(count)):
        fitted = fit([t for t in trials if shape_of(t.problem.axes) not in left_out])
        constants[" ".join(left_out)] = asdict(fitted)
        unseen = by_problem([t for t in trials if shape_of(t.problem.axes) in left_out])
        figures |= {key: judge(group, lambda t, c=fitted: t.estimate(c)) for key, group in unseen.items()}  # type: ignore[misc]
    return {"summary": summary(figures), "problems": figures, "constants_without": constants}


def unseen(groups: Mapping[str, Sequence[Timed]], fits: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    """Problems judged by those of ``fits``, by the shapes they were made without, that have not seen their shape."""
    figures: dict[str, Any] = {}
    for key, group in groups.items():
        shape = shape_of(group[0].problem.axes)
        found = next((Constants(**fit) for left_out, fit in fits.items() if shape in left_out.split()), None)
        if found is not None:
            figures[key] = judge(group, lambda t, c=found: t.estimate(c))  # type: ignore[misc]
    if not figures:
        raise SystemExit(f"None of the fits was made without one of the shapes {', '.join(groups)}.")
    return {"summary": summary(figures), "problems": figures}


def main() -> None:
    """Write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--history", type=Path, nargs="+", default=[HISTORY], metavar="FILE")
    parser.add_argument("--as", dest="name", default="after")
    parser.add_argument("--no-refit", action="store_true", help="leave the cross-validation out")
    parser.add_argument("--unseen-by", metavar="NAME", help="the entry whose fits judge shapes that they have not seen")
    wanted = parser.parse_args()
    trials = [trial for path in wanted.history for trial in read(path)]
    groups = by_problem(trials)
    entry: dict[str, Any] = {"commit": source_commit(), "constants": asdict(CALIBRATED)}
    for name, compiled in (("compiled", True), ("before_compiling", False)):
        figures = {k: judge(g, lambda t, c=compiled: t.estimate(compiled=c)) for k, g in groups.items()}  # type: ignore[misc]
        entry[name] = {"summary": summary(figures), "problems": figures}
    kept = dict(read_result_file(wanted.out).summary) if wanted.out.exists() else {}
    if wanted.unseen_by is not None:
        entry["unseen"] = unseen(groups, kept[wanted.unseen_by]["cross_validated"]["constants_without"])
    elif not wanted.no_refit:
        entry["cross_validated"] = cross_validated(trials)
    data = {**kept, wanted.name: {"history": ", ".join(path.name for path in wanted.history), **entry}}
    save(
        wanted.out,
        blank_of(wanted.out.stem, trials[0].gpu.name, {}, PROTOCOL, data),
    )
    print(json.dumps({name: part["summary"] for name, part in entry.items() if "summary" in part}, indent=1))  # noqa: T201


if __name__ == "__main__":
    main()
