"""The process of a study dies at seeded moments of its run, and the same command goes on each time."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gemmtune.device.emulator.toolchain import find_toolchain
from gemmtune.search.results import read_result_file
from gemmtune.space.errors import ToolchainError

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "kills.py"
KILLS, TRIALS = 10, 16


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    """The result file of the benchmark, at the size of a test, and what it said."""
    from gemmtune.codegen.cache import default_root
    from gemmtune.codegen.nvrtc import nvrtc_version

    try:
        nvrtc_version()
        find_toolchain()
    except ToolchainError as error:
        pytest.skip(str(error))
    if not Path("/proc/self/environ").exists():
        pytest.skip("orphans are found through /proc, which this system does not have")
    output = tmp_path_factory.mktemp("kills") / "kills.json"
    # The emulator's core takes longest to build and is not what is killed here: share the cache that other tests fill.
    options = ["--kills", str(KILLS), "--trials", str(TRIALS), "--seed", "3", "--workers", "2", "--delay", "0.1"]
    command = [sys.executable, str(SCRIPT), str(output), *options, "--cache", str(default_root())]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert output.exists(), done.stderr[-2000:]
    return read_result_file(output).summary, done


def test_nothing_is_lost_doubled_damaged_or_left_behind(outcome):
    summary, done = outcome
    assert not any(summary["wrong"].values()), json.dumps(summary["wrong"], indent=1)
    assert done.returncode == 0
    assert summary["trials"] == TRIALS


def test_the_kills_came_at_many_moments_and_met_workers(outcome):
    summary, _ = outcome
    kills = summary["kills"]
    assert len(kills) == KILLS
    assert len({kill["trials"] for kill in kills}) >= 4
    assert any(0 < kill["trials"] < TRIALS and kill["processes"] > 2 for kill in kills)


def test_the_union_was_compared_with_an_undisturbed_run(outcome):
    summary, _ = outcome
    assert summary["estimated"]
    assert {"differing", "another best"} <= summary["wrong"].keys()
