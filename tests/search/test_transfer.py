from dataclasses import replace

import pytest

from gemmtune.db import History
from gemmtune.search.events import Silent
from gemmtune.search.start import APART
from gemmtune.search.study import tune
from gemmtune.space.gemm import Gemm
from gemmtune.space.gpu import gpu
from gemmtune.space.problem import shape_of


class Ear(Silent):
    def __init__(self):
        self.heard = []

    def borrowed(self, sources):
        self.heard += sources


@pytest.fixture
def history(toys, tmp_path):
    with History(tmp_path / "history.sqlite") as history:
        yield history


def first_trials(history, result, n):
    return [record.configuration for record in history.trials(study_id=result.study_id, limit=None)[:n]]


def test_nothing_is_borrowed_from_an_empty_history(history, problem, fake_device):
    ear = Ear()
    tune(problem, fake_device(), trials=4, history=history, observer=ear)
    assert ear.heard == []


def test_a_new_shape_starts_from_the_winner_of_the_nearest_one(history, fake_device):
    far, near, new = (Gemm(size, 512, 512, "bf16") for size in (4096, 512, 1024))
    tune([far, near], fake_device(), trials=12, history=history)
    winner = history.best_kernels(shape="512x512x512")[0].configuration
    ear = Ear()
    result = tune(new, fake_device(), trials=12, history=history, observer=ear)[0]
    assert winner in first_trials(history, result, 12)
    assert ear.heard[0] == f"1 from {near.key} on this GPU"


def test_another_study_of_the_same_problem_lends_its_best_first(history, problem, fake_device):
    tune(Gemm(1024, 512, 512, "bf16"), fake_device(), trials=6, history=history)
    tune(problem, fake_device(), trials=12, history=history, seed=0)
    winner = history.best(shape=shape_of(problem.axes))[0].configuration
    ear = Ear()
    result = tune(problem, fake_device(), trials=6, history=history, seed=1, observer=ear)[0]
    assert any(told.endswith("from other studies of this problem") for told in ear.heard)
    assert winner in first_trials(history, result, 6)


def test_the_other_16_bit_type_lends_what_it_found_for_the_shape(history, fake_device):
    tune(Gemm(512, 512, 512, "bf16", layout="nn"), fake_device(), trials=6, history=history)
    tune(Gemm(512, 512, 512, "bf16"), fake_device(), trials=12, history=history)
    winner = history.best_kernels(dtype="bf16")[0].configuration
    ear = Ear()
    result = tune(Gemm(512, 512, 512, "fp16"), fake_device(), trials=6, history=history, observer=ear)[0]
    assert [told.partition(" from ")[2] for told in ear.heard] == ["gemm 512x512x512 bf16 nt on this GPU"]
    assert winner in first_trials(history, result, 6)


def test_this_gpu_comes_before_another_and_the_other_is_named(history, fake_device):
    class Other(fake_device):
        @property
        def gpu(self):
            return replace(gpu("h200"), name="Another GPU", short="other")

    old = Gemm(512, 512, 512, "bf16")
    tune(old, Other(), trials=8, history=history)
    ear = Ear()
    tune(old, fake_device(), trials=8, history=history, observer=ear)
    assert ear.heard == [f"1 from {old.key} on Another GPU"]


def test_another_dtype_or_regime_lends_nothing(history, problem, fake_device):
    tune(Gemm(1024, 512, 512, "bf16"), fake_device(), trials=4, history=history, regime="burst")
    ear = Ear()
    tune(problem, fake_device(), trials=4, history=history, observer=ear)
    assert ear.heard == []


def test_a_random_search_borrows_nothing(history, problem, fake_device):
    tune(Gemm(1024, 512, 512, "bf16"), fake_device(), trials=4, history=history)
    ear = Ear()
    tune(problem, fake_device(), trials=4, history=history, observer=ear, strategy="random")
    assert ear.heard == []


def test_a_resumed_study_starts_from_the_same_although_the_history_has_grown(history, problem, fake_device):
    tune(Gemm(1024, 512, 512, "bf16"), fake_device(), trials=6, history=history)
    first = tune(problem, fake_device(), trials=8, history=history)[0]
    before = first_trials(history, first, 8)
    tune(Gemm(640, 512, 512, "bf16"), fake_device(), trials=6, history=history)
    again = tune(problem, fake_device(), trials=16, history=history)[0]
    assert again.resumed == 8
    assert set(before) <= set(first_trials(history, again, 16))
    assert len(set(first_trials(history, again, 16))) == 16


def test_what_is_borrowed_lies_three_knobs_apart(history, fake_device):
    from gemmtune.search.transfer import borrowed

    olds = [Gemm(64 * i, 512, 512, "bf16") for i in range(1, 9)]
    tune(olds, fake_device(), trials=6, history=history)
    seen = []

    def spy(history, study, space, device):
        seen.extend(space[loan.index] for loan in borrowed(history, study, space, device))
        return borrowed(history, study, space, device)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gemmtune.search.study.borrowed", spy)
        tune(Gemm(2048, 512, 512, "bf16"), fake_device(), trials=4, history=history)
    for i, one in enumerate(seen):
        assert all(sum(one[k] != other[k] for k in one) >= APART for other in seen[:i])
