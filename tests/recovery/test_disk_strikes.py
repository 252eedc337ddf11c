"""Death and a full disk at changes all over the disk: of a history, of one being made, of the cache."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from gemmtune.device.emulator.toolchain import find_toolchain
from gemmtune.space.errors import ToolchainError

HERE = Path(__file__).parent
KILLED, FULL = 1, 2


@pytest.fixture(scope="module")
def shim(tmp_path_factory):
    if not sys.platform.startswith("linux"):
        pytest.skip("files are watched by preloading a library, as Linux does it")
    library = tmp_path_factory.mktemp("shim") / "disk.so"
    try:
        toolchain = find_toolchain()
        toolchain.compile(
            ["-std=c++20", "-O1", "-shared", "-fPIC", str(HERE / "disk.cpp"), "-o", str(library), "-ldl"], 60
        )
    except ToolchainError as error:
        pytest.skip(str(error))
    return library


def strike(shim, folder, task, kind, first, step):
    """How every attempt ended, and what was said to the user."""
    done = subprocess.run(
        [sys.executable, str(HERE / "on_disk.py"), task, str(kind), str(folder), str(first), str(step)],
        capture_output=True, text=True, check=False, timeout=300, env={**os.environ, "LD_PRELOAD": str(shim)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    ends = [tuple(json.loads(line)) for line in done.stdout.splitlines()]
    assert all(checked == "done" for _, checked in ends), (ends, done.stderr[-3000:])
    assert ends[-1] == ("done", "done")
    return Counter(ended for ended, _ in ends[:-1]), done.stderr


# A trial is some fifty changes of the history and its log, and making a history takes long: every few changes do here.
# The steps share no factor with the sizes of transactions, and step 1 passes too.
@pytest.mark.parametrize(("task", "first", "step", "least"), [("record", 1, 5, 15), ("create", 1, 31, 4)])
def test_a_process_that_dies_between_any_two_changes_loses_nothing(shim, tmp_path, task, first, step, least):
    ends, said = strike(shim, tmp_path, task, KILLED, first, step)
    assert set(ends) == {"SIGKILL"}, said
    assert ends["SIGKILL"] >= least


@pytest.mark.parametrize(("task", "first", "step", "least"), [("record", 1, 7, 8), ("create", 1, 31, 3)])
def test_a_disk_that_is_full_from_any_change_on_costs_nothing_that_was_recorded(
    shim, tmp_path, task, first, step, least
):
    ends, said = strike(shim, tmp_path, task, FULL, first, step)
    assert set(ends) <= {"refused", "survived"}, said
    assert ends["refused"] >= least
    assert all("is full: free some space" in line for line in said.splitlines() if line), said


def test_a_process_that_dies_while_it_writes_the_cache_leaves_no_half_entry(shim, tmp_path):
    ends, said = strike(shim, tmp_path, "cache", KILLED, 1, 1)
    assert set(ends) == {"SIGKILL"}, said
    assert ends["SIGKILL"] >= 4


def test_a_full_disk_costs_the_cache_alone(shim, tmp_path):
    ends, said = strike(shim, tmp_path, "cache", FULL, 1, 1)
    assert set(ends) == {"survived"}, said
    assert "cannot be written" in said
