"""What is advised can be done: K is split only where it can be, and no gain is beyond what a launch leaves."""

from __future__ import annotations

import pytest

from gemmtune.codegen.kernel import KernelSource
from gemmtune.codegen.render import render
from gemmtune.diagnose import model
from gemmtune.diagnose.facts import Facts, Subject
from gemmtune.diagnose.verdict import judge
from gemmtune.space.configuration import Configuration
from gemmtune.space.estimate import LAUNCH_US
from gemmtune.space.families import family
from gemmtune.space.gemm import Gemm
from gemmtune.space.gpu import gpu

H200 = gpu("h200")


MMA = Configuration.parse(
    "mma bm=64 bn=64 bk=32 wm=32 wn=32 stages=2 smem=xor ldmatrix=1 fragments=2 unroll=1 splits=1 group=1 store=direct "
    "blocks=1"
)


def facts(problem: Gemm, name: str, us: float | None = None, estimated: bool = True) -> Facts:
    """What is known of a kernel of a family that nothing ran."""
    point = MMA if name == "mma" else family(name).starting_points(problem, H200)[0]
    return Facts(Subject("it", problem, H200, render(problem, point), 64, 0, None, us, None, estimated))


def test_k_is_split_between_as_many_blocks_as_its_k_tiles_and_the_knob_allow() -> None:
    seen = facts(Gemm(64, 64, 8192), "mma", us=200.0)
    advice = judge(seen).advice
    assert "1 block leaves 131 of 132 SMs idle: use smaller tiles, or split K between about " in advice
    offered = int(advice.partition("between about ")[2].split()[0])
    configuration = seen.subject.source.configuration
    changed = Configuration.of("mma", {**configuration, "splits": offered})
    assert offered > 1
    assert not family("mma").why_invalid(seen.subject.problem, changed, H200)


@pytest.mark.parametrize(
    ("problem", "name"),
    [
        (Gemm(64, 64, 1), "mma"),  # one k tile
        (Gemm(64, 64, 64, dtype="fp32"), "simt"),  # no such knob
    ],
)
def test_k_is_not_split_where_it_cannot_be(problem: Gemm, name: str) -> None:
    for us, estimated in ((None, False), (20.0, True), (20.0, False)):
        assert "split K" not in judge(facts(problem, name, us, estimated)).advice


def test_no_smaller_tiles_are_advised_than_there_are() -> None:
    smallest = Configuration.of("mma", {**MMA, "bm": 16, "bn": 16, "wm": 16, "wn": 8})
    for k, ways in ((1, "too small for more, so do more in one launch."), (8192, "idle: split K between about ")):
        problem = Gemm(64, 64, k)
        subject = Subject("it", problem, H200, render(problem, smallest), 64, 0, None, 200.0, None, True)
        advice = judge(Facts(subject)).advice
        assert ways in advice
        assert "smaller tiles" not in advice


def test_of_an_unknown_family_k_alone_says_whether_it_can_be_split() -> None:
    def said(k: int) -> str:
        known = facts(Gemm(64, 64, k), "mma", us=200.0).subject
        source = known.source
        other = KernelSource(
            Configuration.of("mine", {}), source.entry, source.text, source.template_hash, source.recipe
        )
        return judge(Facts(Subject("it", known.problem, H200, other, 64, 0, None, 200.0))).advice

    assert "split K between about 8 blocks" in said(128)
    assert "split K" not in said(16)


@pytest.mark.parametrize(("us", "most"), [(4.0, 4.0 / LAUNCH_US), (2.5, 2.5 / LAUNCH_US), (1.5, 1.0)])
def test_no_gain_is_beyond_what_a_launch_leaves(us: float, most: float) -> None:
    verdict = judge(facts(Gemm(64, 64, 64, dtype="fp32"), "simt", us))
    assert model.costs(verdict.facts)[model.WAVES] > 10
    assert all(one.cost <= most for one in verdict.ailments)
    assert all(check.cost is None or check.cost <= most for check in verdict.checks)
    if most > model.NOTABLE:
        assert verdict.first == model.WAVES
        assert f"(about {most:.1f}x by the model)" in verdict.advice
    else:
        assert (verdict.first, verdict.bound_by) == ("none", "launch")
        assert "a launch alone takes about as long as this" in verdict.advice


def test_no_gain_is_beyond_the_floor() -> None:
    problem = Gemm(4096, 4096, 4096)
    floor = 1e6 * problem.flops / H200.peak["bf16"]
    verdict = judge(facts(problem, "mma", 1.01 * floor, estimated=False))
    assert all(one.cost < 1.2 for one in verdict.ailments)
    assert verdict.bound_by != "launch"
