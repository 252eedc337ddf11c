"""Five kernels with one ailment each: it is named first, from compiler, emulator and machine code alone."""

import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from gemmtune.codegen.nvrtc import compile_kernel, nvrtc_version
from gemmtune.codegen.render import render
from gemmtune.codegen.sass import find_disassemblers
from gemmtune.device.emulator.toolchain import find_toolchain
from gemmtune.diagnose import model
from gemmtune.diagnose.facts import Facts, gather, of_kernel
from gemmtune.diagnose.verdict import judge
from gemmtune.space.errors import ToolchainError
from gemmtune.space.gpu import gpu

_FOLDER = Path(__file__).parent / "ailments"
ILLS = ("none", "registers", "uncoalesced", "conflicts", "waves", "integer")


@pytest.fixture(scope="module")
def ailments() -> ModuleType:
    """The family, imported by name as a user's own is."""
    sys.path.insert(0, str(_FOLDER))
    try:
        import ailments
    finally:
        sys.path.remove(str(_FOLDER))
    return ailments


@pytest.fixture(scope="module")
def known(ailments: ModuleType) -> dict[str, Facts]:
    """What can be said of each kernel without a GPU."""
    try:
        nvrtc_version()
        find_toolchain()
    except ToolchainError as error:
        pytest.skip(str(error))
    if not find_disassemblers():
        pytest.skip("nvdisasm is not installed: pip install 'gemmtune[sass]'")
    out = {}
    for ill in ILLS:
        problem, configuration = ailments.kernel_of(ill)
        h200 = gpu("h200")
        kernel = compile_kernel(render(problem, configuration, ailments.Ailments()), h200.arch)
        out[ill] = gather(of_kernel(kernel, problem, h200, ill), cubin=kernel.cubin)
    return out


def test_the_family_offers_all_that_are_tested(ailments: ModuleType) -> None:
    assert (ailments.SOUND, *ailments.AILMENTS) == ILLS
    assert set(ailments.EXPECTED.values()) <= set(model.AILMENTS)


@pytest.mark.parametrize("ill", ILLS[1:])
def test_the_ailment_is_named_first_and_alone(ill: str, known: dict[str, Facts], ailments: ModuleType) -> None:
    verdict = judge(known[ill])
    assert verdict.first == ailments.EXPECTED[ill], model.costs(known[ill])
    assert [a.name for a in verdict.ailments] == [verdict.first]


def test_a_sound_kernel_has_none_and_is_told_what_it_is_bound_by(known: dict[str, Facts]) -> None:
    verdict = judge(known["none"])
    assert verdict.first == "none"
    assert verdict.bound_by == "shared memory"
    assert "larger tile" in verdict.advice


def test_a_sound_kernel_that_mostly_waits_is_told_so_where_it_was_timed(known: dict[str, Facts]) -> None:
    facts = known["none"]
    problem, h200 = facts.subject.problem, facts.subject.gpu
    fewest = max(problem.flops / h200.peak["fp32"], problem.bytes / h200.bandwidth) * 1e6
    for us, estimated, bound in ((4 * fewest, False, "latency"), (3 * fewest, False, "shared memory"),
                                 (4 * fewest, True, "shared memory")):  # fmt: skip
        verdict = judge(replace(facts, subject=replace(facts.subject, us=us, estimated=estimated)))
        assert (verdict.first, verdict.bound_by) == ("none", bound)
    ill = known["conflicts"]
    assert judge(replace(ill, subject=replace(ill.subject, us=1e6))).first == "bank conflicts"  # which goes first


def test_the_sentence_says_the_figures_and_what_to_try(known: dict[str, Facts]) -> None:
    said = {ill: judge(known[ill]).advice for ill in ILLS}
    assert "at most 128 a thread would fit 2 blocks" in said["registers"]
    assert "32.0 sectors a request where 4.0 would do" in said["uncoalesced"]
    assert "pad each row" in said["conflicts"]
    assert "116 of 132 SMs idle" in said["waves"]
    assert "split K between about 8 blocks" in said["waves"]
    assert "out of the inner loop" in said["integer"]
    assert all(text.endswith(".") and text.count(". ") == 0 for text in said.values())


def test_without_machine_code_all_but_the_integer_work_is_still_found(
    known: dict[str, Facts], ailments: ModuleType
) -> None:
    for ill in ("registers", "uncoalesced", "conflicts", "waves"):
        facts = known[ill]
        blind = gather(facts.subject, cubin=b"", counters=_counters(facts))
        assert judge(blind).first == ailments.EXPECTED[ill], ill
        assert any(sentence.startswith("Instruction mix: ") for sentence in blind.missing)


def _counters(facts: Facts) -> dict[str, float]:
    return {
        f"{space.replace(' ', '_')}_{name}": value
        for space, t in facts.traffic.items()
        for name, value in (("requests", t.requests), ("transactions", t.transactions), ("ideal", t.ideal))
    }
