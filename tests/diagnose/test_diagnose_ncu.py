"""Nsight Compute's output read, and what follows from it; ncu itself is a script that says what the real one says."""

import sys
from pathlib import Path

import pytest

from gemmtune.codegen.render import render
from gemmtune.diagnose import ncu
from gemmtune.diagnose.facts import Facts, Subject, Traffic
from gemmtune.diagnose.verdict import judge
from gemmtune.space.errors import ToolchainError
from gemmtune.space.families import family
from gemmtune.space.gemm import Gemm
from gemmtune.space.gpu import gpu

LOADS = {
    "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum": 3.2e6,
    "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum": 102.4e6,
}


@pytest.fixture(scope="module")
def facts() -> Facts:
    """Of a kernel that nobody has counted."""
    problem = Gemm(4096, 2112, 64, dtype="fp32")
    configuration = family("simt").starting_points(problem, gpu("h200"))[-3]
    return Facts(Subject("k", problem, gpu("h200"), render(problem, configuration), registers=64, spill_bytes=0))


def _long(metrics: dict[str, str]) -> str:
    rows = [f'"0","1","python","host","k","{name}","unit","{value}"' for name, value in metrics.items()]
    header = '"ID","Process ID","Process Name","Host Name","Kernel Name","Metric Name","Metric Unit","Metric Value"'
    return "\n".join(["==PROF== Connected to process 1", "m=512: launched", header, *rows, "==PROF== Disconnected"])


def _wide(metrics: dict[str, str]) -> str:
    names, units, values = (
        ",".join(f'"{v}"' for v in row) for row in (metrics, ["unit"] * len(metrics), metrics.values())
    )
    return f'==PROF== x\n"ID","Kernel Name",{names}\n"","",{units}\n"0","k",{values}\n"1","other",{values}'


@pytest.mark.parametrize("form", [_long, _wide])
def test_both_forms_of_the_csv_are_read_with_their_separators_and_gaps(form) -> None:  # type: ignore[no-untyped-def]
    text = form({"gpu__time_duration.sum": "1,234,560", ncu.OCCUPANCY: "12.48", ncu.TENSOR: "n/a"})
    assert ncu.parse(text) == {"gpu__time_duration.sum": 1_234_560.0, ncu.OCCUPANCY: 12.48}


@pytest.mark.parametrize("text", ["", "==ERROR== nothing", '"ID","Kernel Name"\n'])
def test_output_without_metrics_has_none(text: str) -> None:
    assert ncu.parse(text) == {}


def test_measured_sectors_take_the_place_of_counted_ones_and_keep_their_ideal(facts: Facts) -> None:
    counted = Traffic(requests=100, transactions=400, ideal=400)
    blocks = facts.blocks
    measured = ncu.with_profile(
        Facts(facts.subject, {"global read": counted}, missing=("Sectors and bank conflicts: x",)), LOADS
    )
    read = measured.traffic["global read"]
    assert read.requests == pytest.approx(3.2e6 / blocks)
    assert (read.per_request, read.factor) == (pytest.approx(32), pytest.approx(8))
    assert not measured.missing
    assert judge(measured).first == "global memory"
    assert ncu.sectors_per_request(LOADS) == 32


def test_without_the_emulator_the_ideal_follows_from_the_bytes_used(facts: Facts) -> None:
    read = ncu.with_profile(facts, {**LOADS, ncu.BYTES_PER_SECTOR: 12.5}).traffic["global read"]
    assert read.factor == pytest.approx(8)


def test_conflicts_and_limits_are_told(facts: Facts) -> None:
    metrics = {
        "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum": 900.0,
        "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum": 800.0,
        "launch__occupancy_limit_registers": 2.0, "launch__occupancy_limit_warps": 8.0,
    }  # fmt: skip
    assert ncu.conflict_factor(metrics) == 9
    assert ncu.limiter(metrics) == "registers"
    assert ncu.with_profile(facts, metrics).traffic["shared read"].factor == 9
    assert ncu.limiter({}) == ""
    assert ncu.conflict_factor({}) is None


def _program(folder: Path, body: str) -> Path:
    script = folder / "ncu"
    head = f"#!{sys.executable}\nimport sys\n"
    script.write_text(f"{head}metrics = sys.argv[sys.argv.index('--metrics') + 1].split(',')\n{body}\n")
    script.chmod(0o755)
    return script


def test_a_metric_that_this_ncu_does_not_know_is_left_out(facts: Facts, tmp_path: Path) -> None:
    program = _program(
        tmp_path,
        f"""
if {ncu.TENSOR!r} in metrics:
    print("==ERROR== Failed to find metric {ncu.TENSOR}"); sys.exit(1)
assert sys.argv[sys.argv.index("--clock-control") + 1] == "none"
assert sys.argv[sys.argv.index("--kernel-name") + 1] == {facts.subject.source.entry!r}
print('"Metric Name","Metric Unit","Metric Value"')
for metric in metrics: print(f'"{{metric}}","x","2"')
""",
    )
    found = ncu.profile(facts, b"cubin", program=program)
    assert set(found) == set(ncu.METRICS) - {ncu.TENSOR}


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ("print('==ERROR== ERR_NVGPUCTRPERM - The user does not have permission'); sys.exit(1)", "run as root"),
        ("print('==ERROR== LibraryNotLoaded'); sys.exit(9)", "ncu read no metrics of the kernel: LibraryNotLoaded"),
        ("sys.exit(7)", "exit code 7"),
    ],
)
def test_what_ncu_cannot_do_is_told_with_its_cure(facts: Facts, tmp_path: Path, body: str, sentence: str) -> None:
    with pytest.raises(ToolchainError, match=sentence):
        ncu.profile(facts, b"cubin", program=_program(tmp_path, body))


def test_an_ncu_that_hangs_is_ended(facts: Facts, tmp_path: Path) -> None:
    program = _program(tmp_path, "import signal; signal.pause()")
    with pytest.raises(ToolchainError, match=r"did not end within 0\.5 s"):
        ncu.profile(facts, b"cubin", program=program, timeout=0.5)


def test_no_ncu_is_told_with_its_cure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(ncu.shutil, "which", lambda name, path: None)
    with pytest.raises(ToolchainError, match="was not found: install Nsight Compute"):
        ncu.find_ncu()
