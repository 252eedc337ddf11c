"""The whole street on the emulator: real space, compiler, emulated kernels and history; and the death of the parent."""

import subprocess
import sys

import pytest

from gemmtune.db import History
from gemmtune.device.emulator.toolchain import find_toolchain
from gemmtune.search.benchmark import benchmark
from gemmtune.search.study import tune
from gemmtune.space.errors import ToolchainError
from gemmtune.space.gemm import Gemm

TRIALS, KILLED_AT = 6, 3
PROBLEM = Gemm(64, 64, 64, "bf16")
PARENT = f"""
import sys, threading
from gemmtune.search.events import Silent
from gemmtune.search.study import tune
from gemmtune.space.gemm import Gemm

class Halting(Silent):
    def trial_finished(self, record, best, done, budget, counts):
        if done == {KILLED_AT}:
            print("now", flush=True)
            threading.Event().wait()

tune(Gemm(64, 64, 64, "bf16"), "emulator:h200", trials={TRIALS}, history=sys.argv[1], workers=2, observer=Halting())
"""


@pytest.fixture(scope="module")
def toolchain():
    from gemmtune.codegen.nvrtc import nvrtc_version

    try:
        nvrtc_version()
        find_toolchain()
    except ToolchainError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def undisturbed(toolchain, tmp_path_factory):
    """A study that nobody disturbs: its result, and where its history is."""
    path = tmp_path_factory.mktemp("calm") / "calm.db"
    (result,) = tune(PROBLEM, "emulator:h200", trials=TRIALS, history=path, workers=2)
    return result, path


def trials(path):
    with History(path) as history:
        found = history.trials(limit=None)
    return sorted((r.number, r.configuration, r.outcome, r.us, r.rel_error, r.cubin_sha256) for r in found)


def test_an_emulated_study_finds_right_kernels_and_marks_its_times(undisturbed):
    result, path = undisturbed
    assert result.trials == TRIALS
    assert result.estimated
    assert result.outcomes.get("correct", 0) >= TRIALS - 1
    assert result.best[0].us == min(r.us for r in result.best)
    assert all(r.estimated and r.rel_error <= r.error_bound for r in result.best)
    assert all(r.registers and r.cubin_sha256 for r in result.best)
    assert len(trials(path)) == TRIALS


def test_the_best_kernel_beats_the_naive_one(undisturbed):
    result, path = undisturbed
    (row,) = benchmark(PROBLEM, "emulator:h200", path)
    assert row.estimated
    assert row.config == result.best[0].configuration
    assert row.ratio("naive") > 1


def test_a_parent_killed_in_the_middle_loses_nothing_and_runs_nothing_twice(undisturbed, tmp_path):
    path = tmp_path / "killed.db"
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    with subprocess.Popen([sys.executable, script, path], stdout=subprocess.PIPE, text=True) as parent:
        said = parent.stdout.readline()
        parent.kill()
    assert said == "now\n"
    before = trials(path)
    assert len(before) == KILLED_AT
    (result,) = tune(PROBLEM, "emulator:h200", trials=TRIALS, history=path, workers=2)
    assert result.resumed == len(before)
    assert trials(path)[: len(before)] == before
    assert trials(path) == trials(undisturbed[1])
