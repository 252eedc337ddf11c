"""What changed between two packs, and when a difference is one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gemmtune.pack.changes import Change, pack_changes
from gemmtune.pack.format import PackData
from gemmtune.space.gemm import Gemm
from gemmtune.space.gpu import gpu

PROBLEM, OTHER = Gemm(64, 32, 16, "fp16"), Gemm(128, 32, 16, "fp16")
A100 = gpu("a100")


def pack(maker: Any, *rows: tuple[Gemm, float | None, dict[str, Any]]) -> PackData:
    fresh = type(maker)()
    for problem, ratio, options in rows:
        fresh.add(problem, ratio, **options)
    return fresh.data()  # type: ignore[no-any-return]


def only(old: PackData, new: PackData) -> Change:
    (change,) = pack_changes(old, new)
    return change


def test_nothing_changed(maker: Any) -> None:
    data = pack(maker, (PROBLEM, 1.2, {}), (OTHER, 0.9, {"won": False}))
    assert [c.what for c in pack_changes(data, data)] == ["same", "same"]


@pytest.mark.parametrize(("us", "what"), [(8.0, "faster"), (12.5, "slower"), (10.1, "same"), (9.9, "same")])
def test_a_difference_must_exceed_both_intervals(maker: Any, us: float, what: str) -> None:
    change = only(pack(maker, (PROBLEM, 1.2, {"us": 10.0})), pack(maker, (PROBLEM, 1.2, {"us": us})))
    assert change.what == what
    assert change.speedup == pytest.approx(10 / us)
    assert change.low == pytest.approx(9.9 / (us * 1.01))
    assert change.high == pytest.approx(10.1 / (us * 0.99))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.floats(1, 1000), st.floats(1, 1000))
def test_turning_packs_round_turns_the_change_round(maker: Any, old_us: float, new_us: float) -> None:
    old, new = (pack(maker, (PROBLEM, 1.2, {"us": us})) for us in (old_us, new_us))
    there, back = only(old, new), only(new, old)
    assert {there.what, back.what} in ({"faster", "slower"}, {"same"})
    assert there.speedup is not None
    assert back.speedup is not None
    assert there.speedup * back.speedup == pytest.approx(1)


def test_rows_come_and_go(maker: Any) -> None:
    found = pack_changes(
        pack(maker, (PROBLEM, 1.2, {})), pack(maker, (OTHER, 1.3, {}), (PROBLEM, 1.2, {"device": A100}))
    )
    assert [(c.what, c.problem, c.gpu) for c in found] == [
        ("lost", PROBLEM.key, "NVIDIA H200"), ("added", OTHER.key, "NVIDIA H200"),
        ("added", PROBLEM.key, "NVIDIA A100-SXM4-80GB"),
    ]  # fmt: skip
    assert found[0].old_us == 10.0
    assert found[0].new is None


def test_a_row_that_falls_back_to_the_baseline_is_slower(maker: Any) -> None:
    change = only(pack(maker, (PROBLEM, 1.5, {})), pack(maker, (PROBLEM, 0.8, {"won": False, "us": 18.75})))
    assert (change.what, change.new, change.new_us) == ("slower", "baseline", 15.0)
    assert change.speedup == pytest.approx(10 / 15)


def test_a_range_is_judged_at_its_worst_point(maker: Any) -> None:
    old = pack(maker, (PROBLEM, 1.2, {"span": (32, 96)}))
    (table,) = old.tables
    (row,) = table.rows
    points = (row.points[0], replace(row.points[1], us=20.0, us_low=19.0, us_high=21.0), row.points[2])
    new = replace(old, tables=(replace(table, rows=(replace(row, points=points),)),))
    change = only(old, new)
    assert (change.what, change.speedup) == ("slower", 0.5)
    assert "m=32-96" in change.problem


def test_other_versions_and_estimates_are_noted(maker: Any) -> None:
    old = pack(maker, (PROBLEM, 1.2, {}))
    new = replace(old, tables=tuple(replace(t, environment={"driver": "590", "cublas": "13"}) for t in old.tables))
    assert only(old, new).note == "cublas none became 13; driver 580 became 590"
    assert only(old, pack(maker, (PROBLEM, None, {}))).note == "an estimate is among them"


def test_what_is_worse_comes_first(maker: Any) -> None:
    third, fourth = Gemm(8, 32, 16, "fp16"), Gemm(16, 32, 16, "fp16")
    old = pack(maker, (PROBLEM, 1.2, {}), (OTHER, 1.2, {}), (third, 1.2, {}))
    new = pack(maker, (fourth, 1.2, {}), (OTHER, 1.2, {"us": 5.0}), (third, 1.2, {"us": 15.0}))
    assert [c.what for c in pack_changes(old, new)] == ["lost", "slower", "faster", "added"]
