"""Every fault once on a real GPU, in one study: the outcome on record, and nothing left of the workers it cost."""

import re

import pytest
from fault_family import FAULTS, VARIANTS, configuration, registered
from fault_study import near, try_list

from gemmtune.codegen.cache import KernelCache
from gemmtune.codegen.pool import CompilePool
from gemmtune.db import History
from gemmtune.device import open_device
from gemmtune.device.cuda.info import monitor
from gemmtune.device.cuda.sanity import SLACK_BYTES
from gemmtune.space import families
from gemmtune.space.errors import ToolchainError
from gemmtune.space.gemm import Gemm
from gemmtune.space.space import Space

pytestmark = pytest.mark.gpu
PROBLEM = Gemm(512, 512, 512, "bf16")


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    try:
        device = open_device("cuda:0")
    except ToolchainError as error:
        pytest.skip(f"needs a CUDA GPU: {error}")
    folder = tmp_path_factory.mktemp("faults")
    watch = monitor(0)
    before = watch.memory_used(), watch.processes()
    with registered() as faulty, History(folder / "h.db") as history:
        kinds = [families.family("mma"), faulty]
        space = Space(PROBLEM, device.gpu, kinds[:1])
        right = near(space, [space[len(space) // 2]], 6, seed=1)
        wrong = [configuration(fault, i % VARIANTS) for i, fault in enumerate(FAULTS) if fault != "none"]
        kernels = KernelCache(folder / "kernels")
        with CompilePool(None, kernels, timeout=15.0) as pool:
            finished = try_list([*right[:3], *wrong, *right[3:]], PROBLEM, device, kinds, history, pool, kernels)
        device.close()
        yield finished, right, wrong, before, (watch.memory_used(), watch.processes())


def test_every_fault_ends_as_it_must_on_a_gpu(study):
    finished, _, wrong, _, _ = study
    records = {r.configuration: r for r in finished.records}
    ended = {str(c): (records[str(c)].outcome, records[str(c)].detail) for c in wrong}
    mistaken = {
        c: found
        for c, found in ended.items()
        if found[0] != (fault := FAULTS[c.split("fault=")[1].split()[0]]).cuda or not re.search(fault.words, found[1])
    }
    assert not mistaken


def test_right_kernels_after_the_faulty_ones_are_not_held_to_account(study):
    finished, right, _, _, _ = study
    outcomes = {r.configuration: r.outcome for r in finished.records}
    assert {outcomes[str(c)] for c in right} <= {"correct", "abandoned", "unstable"}
    assert finished.ranked[0].family == "mma"


def test_dead_workers_are_gone_from_the_gpu_and_memory_is_back(study):
    _, _, _, (used, processes), (used_after, processes_after) = study
    assert processes_after <= processes
    assert used_after <= used + SLACK_BYTES
