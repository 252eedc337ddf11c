"""A study with every kind of faulty kernel in it: each is recorded for what it is, and nothing else changes."""

import json
import re
import uuid
from collections import Counter
from contextlib import ExitStack

import pytest
from fault_family import FAULTS, VARIANTS, configuration, fault_of, registered
from fault_study import left_behind, mixed, near, try_list, zombies

from gemmtune.codegen.cache import KernelCache
from gemmtune.codegen.pool import CompilePool
from gemmtune.db import History
from gemmtune.device import open_device
from gemmtune.device.base import Limits
from gemmtune.search import limits
from gemmtune.space import families
from gemmtune.space.gemm import Gemm
from gemmtune.space.gpu import gpu
from gemmtune.space.space import Space

PROBLEM = Gemm(64, 48, 64, "bf16")
RIGHT, RIGHT_KINDS = 8, (None, "none")
COMPILE_SECONDS = 15.0
ENDLESS = Limits(start=180.0, load=60.0, verify=6.0, measure=60.0)
"""For the one kernel whose loop the emulator cannot count; every other fault it finds by itself."""


class Nowhere:
    """Stands for the device where nothing may be run."""

    def __init__(self, device):
        self._device = device

    def __getattr__(self, name):
        return getattr(self._device, name)

    def run(self, job, limits):
        raise AssertionError(f"{job.kernel.configuration} was tried again")


class Runs:
    """A faulty and a clean run of one list, and what they left."""


@pytest.fixture(scope="module")
def runs(toolchain, tmp_path_factory):
    found = Runs()
    folder = tmp_path_factory.mktemp("faults")
    marker = {"GEMMTUNE_FAULTS": uuid.uuid4().hex}
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        for name, value in marker.items():
            patch.setenv(name, value)
        patch.setattr(limits, "ESTIMATE_FLOOR", ENDLESS)
        faulty = stack.enter_context(registered())
        kinds = [families.family("simt"), faulty]
        space = Space(PROBLEM, gpu("h200"), kinds[:1])
        right = [*near(space, [space[len(space) // 2]], RIGHT, seed=1), configuration("none", 1)]
        kinds_of_fault = [fault for fault in FAULTS if fault != "none"]
        wrong = [configuration(fault, i % VARIANTS, (16, 8)[i % 2]) for i, fault in enumerate(kinds_of_fault)]
        found.listed, found.clean_list = mixed(right, wrong, seed=3)
        found.wrong = wrong
        kernels = KernelCache(folder / "kernels")
        found.finished, found.workers = {}, {}
        for name, listed in (("faulty", found.listed), ("clean", found.clean_list)):
            history = stack.enter_context(History(folder / f"{name}.db"))
            device = open_device("emulator:h200")
            with CompilePool(2, kernels, timeout=COMPILE_SECONDS) as pool:
                finished = try_list(listed, PROBLEM, device, kinds, history, pool, kernels)
                if name == "faulty":
                    again = try_list(listed, PROBLEM, Nowhere(device), kinds, history, pool, kernels)
                    found.resumed = again.course.resumed
            found.workers[name] = device._worker.started
            device.close()
            found.finished[name] = finished
        found.left, found.zombies = list(left_behind(marker)), zombies()
        yield found


def test_every_fault_is_recorded_with_its_outcome_and_its_reason(runs):
    records = {r.configuration: r for r in runs.finished["faulty"].records}
    for c in runs.wrong:
        record, fault = records[str(c)], FAULTS[c["fault"]]
        assert record.outcome == fault.emulator, (c, record.detail)
        assert re.search(fault.words, record.detail), (c, record.detail)


def test_every_configuration_is_tried_once_in_its_place(runs):
    records = runs.finished["faulty"].records
    assert [r.configuration for r in records] == [str(c) for c in runs.listed]
    assert [r.number for r in records] == list(range(len(runs.listed)))


def test_no_right_kernel_is_held_to_account_for_a_faulty_one(runs):
    times = {
        name: {
            r.configuration: (r.outcome, r.us) for r in finished.records if fault_of(r.configuration) in (None, "none")
        }
        for name, finished in runs.finished.items()
    }
    assert set(Counter(outcome for outcome, _ in times["faulty"].values())) == {"correct"}
    assert times["faulty"] == times["clean"]


def test_the_winner_is_that_of_the_clean_run(runs):
    won = {name: finished.ranked[0] for name, finished in runs.finished.items()}
    assert won["faulty"].configuration == won["clean"].configuration
    assert won["faulty"].us == won["clean"].us


def test_a_study_that_is_started_again_tries_no_fault_twice(runs):
    assert runs.resumed == len(runs.listed)


def test_only_the_kernel_that_never_ends_costs_a_worker(runs):
    assert runs.workers == {"faulty": 2, "clean": 1}


def test_no_process_is_left(runs):
    assert runs.left == []
    assert runs.zombies == []


def test_a_faulty_trial_keeps_what_is_needed_to_try_it_again(runs):
    for record in runs.finished["faulty"].records:
        if record.outcome not in ("compile", "pruned"):
            assert record.cubin_sha256
            assert json.loads(json.dumps(record.problem_json)) == PROBLEM.to_json()
