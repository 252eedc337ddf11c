"""The cost estimate against the recorded trials of an H200: it ranks them, and its best part holds their best."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from gemmtune.space.estimate import CALIBRATED


@pytest.fixture(scope="module")
def script(load_benchmark: Callable[[str], Any]) -> Any:
    return load_benchmark("search/estimate.py")


@pytest.fixture(scope="module")
def groups(script: ModuleType) -> dict[str, list[object]]:
    return script.by_problem(script.read(script.HISTORY))


def test_the_estimate_ranks_what_was_measured(script: ModuleType, groups: dict[str, list[object]]) -> None:
    figures = {key: script.judge(group, lambda t: t.estimate()) for key, group in groups.items()}
    over = script.summary(figures)
    assert over["problems"] == 20
    assert over["rank_correlation"]["mean"] > 0.85
    assert over["rank_correlation"]["least"] > 0.6
    assert over["best_within_top"]["mean"] < 0.16
    assert over["most_lost_when_keeping"]["50%"] < 0.01  # pruning by the estimate costs no more than 1 %
    assert over["pairs_across_families_in_order"] > 0.99
    assert all(0.7 < row["median_estimate_over_measured"] < 1.4 for row in figures.values())


def test_without_the_compilers_report_it_ranks_a_little_worse(
    script: ModuleType, groups: dict[str, list[object]]
) -> None:
    figures = {key: script.judge(group, lambda t: t.estimate(compiled=False)) for key, group in groups.items()}
    assert script.summary(figures)["rank_correlation"]["mean"] > 0.79


def test_fitting_does_not_leave_the_constants_for_a_worse_place(
    script: ModuleType, groups: dict[str, list[object]]
) -> None:
    some = groups["gemm 1024x1024x4096 bf16 nt"][::4]
    fitted = script.fit(some, turns=1)
    one = [some]
    assert script._error(one, fitted) <= script._error(one, CALIBRATED)


def test_rank_correlation_shares_ranks_among_ties(script: ModuleType) -> None:
    a = np.array([1.0, 2.0, 2.0, 4.0])
    assert script.spearman(a, a) == pytest.approx(1)
    assert script.spearman(a, -a) == pytest.approx(-1)
    assert script._ranks(a).tolist() == [1.0, 2.5, 2.5, 4.0]
