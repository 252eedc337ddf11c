"""Packs of several GPUs as one: who has the word, and that the result serves like its parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gemmtune.pack.combine import combine, merge_packs
from gemmtune.pack.dispatch import Dispatch
from gemmtune.pack.format import PackData, read_pack
from gemmtune.space.errors import PackError
from gemmtune.space.gemm import Gemm
from gemmtune.space.gpu import Gpu, gpu

H200, A100 = gpu("h200"), gpu("a100")
PROBLEM = Gemm(64, 32, 16, "fp16")


def made(maker: Any, *rows: tuple[Gemm, float | None, dict[str, Any]]) -> PackData:
    """A pack of these rows."""
    fresh = type(maker)()
    for problem, ratio, options in rows:
        fresh.add(problem, ratio, **options)
    return fresh.data()  # type: ignore[no-any-return]


def serves(data: PackData, problem: Gemm, device: Gpu = H200) -> str:
    choice = Dispatch(data, device.key, device.arch, allow_estimates=True).choose(problem)
    return "baseline" if choice.kernel is None else choice.kernel.sha


def test_two_gpus_in_one_pack(maker: Any, write: Callable[..., Path], tmp_path: Path) -> None:
    one, other = made(maker, (PROBLEM, 1.2, {})), made(maker, (PROBLEM, 1.5, {"device": A100}))
    report = merge_packs(tmp_path / "both.zip", [write(one, "one.kpack"), write(other, "other.kpack")])
    both = read_pack(tmp_path / "both.zip")
    assert {t.name for t in both.tables} == {"NVIDIA H200", "NVIDIA A100-SXM4-80GB"}
    assert serves(both, PROBLEM) == serves(one, PROBLEM)
    assert serves(both, PROBLEM, A100) == serves(other, PROBLEM, A100)
    assert (report.rows, report.kernels, report.displaced) == (2, 2, ())
    assert "2 rows and 2 kernels for NVIDIA A100-SXM4-80GB, NVIDIA H200" in str(report)


def test_the_order_matters_only_where_packs_disagree(maker: Any) -> None:
    packs = [made(maker, (PROBLEM, 1.2, {})), made(maker, (PROBLEM, 1.5, {"device": A100}))]
    assert combine(packs) == combine(packs[::-1])
    assert combine([packs[0], packs[0]])[0].tables == packs[0].tables
    assert combine([packs[0], packs[0]])[1] == ()


def test_the_later_pack_has_the_word(maker: Any) -> None:
    old, new = made(maker, (PROBLEM, 1.5, {"tag": "old"})), made(maker, (PROBLEM, 1.1, {"tag": "new"}))
    both, displaced = combine([old, new])
    assert serves(both, PROBLEM) == serves(new, PROBLEM)
    assert set(both.kernels) == set(new.kernels)
    assert len(displaced) == 1
    assert "to a later pack" in displaced[0]


def test_another_drivers_rows_give_way_too(maker: Any) -> None:
    old, new = made(maker, (PROBLEM, 1.5, {"tag": "old"})), made(maker, (PROBLEM, 1.1, {"tag": "new"}))
    newer = replace(new, tables=tuple(replace(t, environment={"driver": "590"}) for t in new.tables))
    both, _ = combine([old, newer])
    assert [dict(t.environment) for t in both.tables] == [{"driver": "590"}]
    assert serves(both, PROBLEM) == serves(new, PROBLEM)


@pytest.mark.parametrize("measured_first", [True, False])
def test_a_measurement_stands_above_an_estimate(maker: Any, measured_first: bool) -> None:
    measured, estimate = made(maker, (PROBLEM, 1.1, {"tag": "m"})), made(maker, (PROBLEM, None, {"tag": "e"}))
    both, displaced = combine([measured, estimate] if measured_first else [estimate, measured])
    assert serves(both, PROBLEM) == serves(measured, PROBLEM)
    assert len(displaced) == 1


def test_ranges_give_way_where_they_overlap(maker: Any) -> None:
    old = made(
        maker,
        (PROBLEM, 1.2, {"span": (32, 96), "tag": "a"}),
        (Gemm(256, 32, 16, "fp16"), 1.2, {"span": (128, 512), "tag": "b"})
    )  # fmt: skip
    new = made(maker, (PROBLEM, 1.2, {"span": (64, 100), "tag": "c"}))
    both, displaced = combine([old, new])
    assert sorted(r.axes["m"] for t in both.tables for r in t.rows) == [(64, 100), (128, 512)]
    assert len(displaced) == 1


def test_a_loser_that_is_measured_again_loses_its_old_row(maker: Any) -> None:
    old, new = made(maker, (PROBLEM, 1.2, {})), made(maker, (PROBLEM, 0.9, {"won": False, "tag": "slow"}))
    both, _ = combine([old, new])
    assert serves(both, PROBLEM) == "baseline"
    assert list(both.kernels) == list(new.kernels)


def test_disagreement_about_a_cubin_is_refused(maker: Any) -> None:
    one = made(maker, (PROBLEM, 1.2, {}))
    kernels = {s: replace(k, recipe=replace(k.recipe, block=(64, 1, 1))) for s, k in one.kernels.items()}
    other = replace(one, kernels=kernels)
    with pytest.raises(PackError, match="in different ways"):
        combine([one, other])


def test_no_pack_and_no_such_pack(tmp_path: Path) -> None:
    with pytest.raises(PackError, match="No pack is named"):
        merge_packs(tmp_path / "x.kpack", [])
    with pytest.raises(PackError):
        merge_packs(tmp_path / "x.kpack", [tmp_path / "missing.kpack"])
    assert not (tmp_path / "x.kpack").exists()
