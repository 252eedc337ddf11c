"""Laws of the ranges an export claims, over kernels that win and lose at any sizes."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from losing_gpu import Gpu, kernel

from gemmtune.pack.ranges import RangeMeter, beats_baseline, claims, spans
from gemmtune.pack.regret import Tuned, leave_one_out
from gemmtune.space.gemm import Gemm

SIZES = st.lists(st.integers(1, 5000), min_size=2, max_size=6, unique=True)
LOSING = st.sets(st.integers(1, 10_000), max_size=60)


def meter(gpu: Gpu) -> RangeMeter:
    return RangeMeter(gpu)  # type: ignore[arg-type]


@given(SIZES, LOSING, st.data())
def test_a_claim_lies_in_its_span_and_was_won_at_both_ends_and_in_the_middle(
    sizes: list[int], losing: set[int], data: st.DataObject
) -> None:
    tuned = data.draw(st.sampled_from(sizes))
    span, gpu = spans(sizes)[tuned], Gpu(losing)
    points = meter(gpu).claim(kernel(), Gemm(tuned, 8, 8), span, "sustained", "cold")
    claimed = [p.axes["m"] for p in points]
    assert all(beats_baseline(p.ratio, p.ratio_low) for p in points)
    if claimed:
        low, high = claimed[0], claimed[-1]
        assert span[0] <= low <= tuned <= high <= span[1]
        assert low < high
        assert set(claimed) == {low, (low + high) // 2, high}
    elif span[0] < span[1] and not losing:
        raise AssertionError("nothing was lost, yet nothing claimed")
    assert len(gpu.measured) == len(set(gpu.measured)) <= 12  # each size once


@given(SIZES, LOSING, st.data())
def test_a_kernel_that_was_wrong_anywhere_claims_nothing(
    sizes: list[int], losing: set[int], data: st.DataObject
) -> None:
    tuned = data.draw(st.sampled_from(sizes))
    span = spans(sizes)[tuned]
    gpu = Gpu(losing, wrong={data.draw(st.integers(*span))})
    judge = meter(gpu)
    points = judge.claim(kernel(), Gemm(tuned, 8, 8), span, "sustained", "cold")
    if {m for m, _ in gpu.measured} & gpu.wrong:
        assert points == ()
        assert set(judge.wrong) == {"k"}
        assert judge.claim(kernel(), Gemm(1, 8, 8), (1, 3), "sustained", "cold") == ()


@given(SIZES, LOSING, st.data())
def test_claims_of_a_group_never_overlap_and_what_is_offered_again_takes_nothing_away(
    sizes: list[int], losing: set[int], data: st.DataObject
) -> None:
    serving = data.draw(st.lists(st.sampled_from(sizes), unique=True))
    card = Gpu(losing)
    judge = meter(card)
    offers = {m: (kernel(str(m)), Gemm(m, 8, 8)) for m in serving}
    found = claims(judge, sizes, offers, "sustained", "cold")
    assert found.keys() <= set(serving)
    ends = {m: (points[0].axes["m"], points[-1].axes["m"]) for m, points in found.items()}
    for m, (low, high) in ends.items():
        assert low <= m <= high
        assert {p.axes["m"] for p in found[m]} == {low, (low + high) // 2, high}
        assert all(beats_baseline(p.ratio, p.ratio_low) for p in found[m])
        assert all(other == m or not low <= other <= high for other in sizes)  # no other tuned size
        seen = {size for name, size in card.runs if name == str(m)}
        assert not any(low <= size <= high for size in seen & losing)  # nor a known loss
    ordered = sorted(ends.values())
    assert all(high < low for (_, high), (low, _) in pairwise(ordered))
    for m in serving:
        alone = judge.claim(*offers[m], spans(sizes)[m], "sustained", "cold")
        if alone:
            assert ends[m][0] <= alone[0].axes["m"]
            assert alone[-1].axes["m"] <= ends[m][1]


def test_what_the_smaller_kernel_cannot_serve_is_offered_to_the_larger() -> None:
    offers = {m: (kernel(str(m)), Gemm(m, 8, 8)) for m in (1, 8, 64)}
    found = claims(meter(Gpu(set(), most={"1": 1, "8": 8})), (1, 8, 64), offers, "sustained", "cold")
    assert {m: (ps[0].axes["m"], ps[-1].axes["m"]) for m, ps in found.items()} == {8: (2, 8), 64: (9, 128)}
    # ... unless it loses in the middle of what is offered, 2 to 7: its own share, 3 to 16, may not hold that either
    found = claims(meter(Gpu({2, 4}, most={"1": 1})), (1, 8), {m: offers[m] for m in (1, 8)}, "sustained", "cold")
    assert {m: (ps[0].axes["m"], ps[-1].axes["m"]) for m, ps in found.items()} == {8: (8, 16)}
    # ... and what lies above a size that the baseline serves, to the smaller
    found = claims(meter(Gpu(set())), (8, 64), {8: offers[8]}, "sustained", "cold")
    assert {m: (ps[0].axes["m"], ps[-1].axes["m"]) for m, ps in found.items()} == {8: (4, 63)}


@given(SIZES, LOSING, st.data())
def test_a_size_held_out_is_answered_as_by_a_pack_that_never_knew_of_it(
    sizes: list[int], losing: set[int], data: st.DataObject
) -> None:
    group = [Tuned(Gemm(m, 8, 8), kernel(str(m)), 1.5) for m in sizes]
    out = data.draw(st.sampled_from(sizes))
    others = [m for m in sizes if m != out]
    offers = {m: (kernel(str(m)), Gemm(m, 8, 8)) for m in others}
    found = claims(meter(Gpu(losing)), others, offers, "sustained", "cold")
    ranges = {m: (points[0].axes["m"], points[-1].axes["m"]) for m, points in found.items()}
    judge = meter(Gpu(losing))
    claims(judge, sizes, {m: (kernel(str(m)), Gemm(m, 8, 8)) for m in sizes}, "sustained", "cold")  # knows a lot
    held = {one.problem.axes["m"]: one for one in leave_one_out(judge, group, "sustained", "cold")}
    assert held[out].tuned_at == next((m for m, (low, high) in ranges.items() if low <= out <= high), None)


@given(SIZES, LOSING)
def test_every_size_held_out_is_answered_and_a_range_answer_is_measured_anew(
    sizes: list[int], losing: set[int]
) -> None:
    gpu = Gpu(losing)
    group = [Tuned(Gemm(m, 8, 8), kernel(str(m)), 1.5) for m in sizes]
    held = leave_one_out(meter(gpu), group, "sustained", "cold")
    assert [h.problem.axes["m"] for h in held] == sorted(sizes)
    for one in held:
        m = one.problem.axes["m"]
        assert one.regret >= 0
        assert one.ratio == (1.0 if one.how == "baseline" else 0.9 if m in losing else 1.3)
        assert ((m, 1) in gpu.measured) == (one.how == "range")
        assert one.tuned_at != m
