"""Queries: filters, rankings that keep apart what must not be compared, failures by kind."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemmtune.db import History, TrialResult
from gemmtune.space.errors import DatabaseError, ProblemError, UnknownNameError
from gemmtune.space.gemm import Gemm

WIDE = Gemm(1024, 4096, 1024, dtype="fp32")
OTHER_DRIVER = {"driver": "590", "cuda": "13.0"}


def fill(history: History, make: SimpleNamespace) -> None:
    """Four studies: two problems on an H200, one on an A100, one estimated."""
    for spec, ratios in (
        (make.spec(), (0.5, 1.5, 1.0)),
        (make.spec(WIDE), (0.7, 0.9)),
        (make.spec(device="a100"), (2.0,)),
    ):
        study = history.open_study(spec)
        for i, ratio in enumerate(ratios):
            make.run(study, i, make.correct(i, ratio))
    emulated = history.open_study(make.spec(kind="emulator"))
    make.run(emulated, 0, TrialResult("correct", kernel=make.kernel(0), measurement=make.estimate(0.001)))


# ------------------------------------------------------------------------------------------------------------- filters


@pytest.mark.parametrize(
    ("wanted", "count"),
    [
        ({}, 7),
        ({"gpu": "h200"}, 6),
        ({"gpu": "H200"}, 6),
        ({"gpu": "NVIDIA H200"}, 6),
        ({"gpu": "9.0|NVIDIA H200|132|140|"}, 6),
        ({"gpu": "a100"}, 1),
        ({"gpu": "b200"}, 0),
        ({"shape": "512x512x512"}, 5),
        ({"shape": "1024X4096x1024"}, 2),
        ({"shape": "1x2x3"}, 0),
        ({"dtype": "fp32"}, 2),
        ({"dtype": "fp16"}, 0),
        ({"kind": "emulator"}, 1),
        ({"regime": "burst"}, 0),
        ({"cache": "warm"}, 0),
        ({"family": "mma"}, 7),
        ({"family": "simt"}, 0),
        ({"outcome": "correct", "gpu": "h200", "shape": "512x512x512", "kind": "cuda"}, 3),
        ({"outcome": "wrong"}, 0),
        ({"limit": 4}, 4),
    ],
)
def test_filters(history: History, make: SimpleNamespace, wanted: dict[str, object], count: int):
    fill(history, make)
    assert len(history.trials(**wanted)) == count


def test_the_trials_of_one_study(history: History, make: SimpleNamespace):
    fill(history, make)
    study = history.open_study(make.spec())
    assert [t.number for t in history.trials(study_id=study.id)] == [2, 1, 0]
    assert history.trials(study_id=99) == []


@pytest.mark.parametrize("shape", ["512", "512x512x512", "0x1x1", "512x", "ax2x3", "", "512 512 512"])
def test_a_malformed_shape_says_how_to_write_it(history: History, make: SimpleNamespace, shape: str):
    fill(history, make)
    if shape in ("512", "512x512x512"):  # a problem kind may have any number of axes
        history.trials(shape=shape)
    else:
        with pytest.raises(ProblemError, match="write it as MxNxK"):
            history.trials(shape=shape)


def test_unknown_names_are_told_with_the_known_ones(history: History, make: SimpleNamespace):
    with pytest.raises(UnknownNameError, match="Unknown GPU 'h20': the history has none yet"):
        history.best(gpu="h20")
    fill(history, make)
    with pytest.raises(UnknownNameError, match="Unknown GPU 'h20': the history has a100, h200"):
        history.best(gpu="h20")
    assert history.best_kernels("9.0|NVIDIA H300|140|200|") == []  # the key of a GPU that is new to the history
    with pytest.raises(UnknownNameError, match="Unknown dtype 'bf61'"):
        history.trials(dtype="bf61")


def test_an_empty_history_answers_every_query(history: History):
    assert history.best() == history.trials() == history.failures() == history.studies() == history.best_kernels() == []
    assert history.exports() == []
    assert history.trial(1) is None
    assert history.cubin("0" * 64) is None
    assert history.find("gemm 1x1x1 bf16 nt", configuration_key="x") == []


# ------------------------------------------------------------------------------------------------------------- ranking


def test_best_ranks_by_the_ratio_within_one_board(history: History, make: SimpleNamespace):
    fill(history, make)
    rows = history.best(gpu="h200", shape="512x512x512", kind="cuda")
    assert [(r.rank, r.timing.ratio) for r in rows] == [(1, 1.5), (2, 1.0), (3, 0.5)]
    assert len(history.best(gpu="h200", shape="512x512x512", kind="cuda", limit=2)) == 2


def test_boards_share_the_rows_and_never_mix(history: History, make: SimpleNamespace):
    fill(history, make)
    rows = history.best()
    assert sorted((r.kind, r.gpu.short, r.problem_key, r.rank) for r in rows) == [
        ("cuda", "a100", "gemm 512x512x512 bf16 nt", 1),
        ("cuda", "h200", "gemm 1024x4096x1024 fp32 nt", 1),
        ("cuda", "h200", "gemm 1024x4096x1024 fp32 nt", 2),
        ("cuda", "h200", "gemm 512x512x512 bf16 nt", 1),
        ("cuda", "h200", "gemm 512x512x512 bf16 nt", 2),
        ("cuda", "h200", "gemm 512x512x512 bf16 nt", 3),
        ("emulator", "h200", "gemm 512x512x512 bf16 nt", 1),
    ]
    assert [r.rank for r in history.best(limit=4)] == [1, 1, 1, 1]
    assert len(history.best(limit=2)) == 2
    assert [r.estimated for r in rows if r.kind == "emulator"] == [True]


def test_regimes_caches_and_environments_have_boards_of_their_own(history: History, make: SimpleNamespace):
    for change in ({}, {"regime": "burst"}, {"cache": "warm"}, {"environment": OTHER_DRIVER}):
        make.run(history.open_study(make.spec(**change)), 0, make.correct(0, 1.0))
    assert [r.rank for r in history.best()] == [1, 1, 1, 1]


def test_finalists_rank_by_their_times_among_each_other(history: History, make: SimpleNamespace):
    study = history.open_study(make.spec())
    lucky, steady = make.run(study, 0, make.correct(0, 1.9)), make.run(study, 1, make.correct(1, 1.5))
    study.add_measurement(lucky, make.measurement(1.2))
    study.add_measurement(steady, make.measurement(1.4))
    assert [(r.number, r.timing.ratio) for r in history.best()] == [(1, 1.4), (0, 1.2)]


@pytest.mark.parametrize("limit", [None, 9, 2, 1])
def test_finalists_go_before_those_they_were_chosen_from(history: History, make: SimpleNamespace, limit: int | None):
    study = history.open_study(make.spec())
    for i in range(4):
        make.run(study, i, make.correct(i, 1.5 + i / 10))
    study.add_measurement(history.best(limit=1)[0].id, make.measurement(1.2))  # was 1.8 by itself
    assert [r.number for r in history.best(limit=limit)] == [3, 2, 1, 0][:limit]
    assert [r.number for r in history.best_kernels()] == [3]
    assert [r.best.number for r in history.studies()] == [3]


def test_a_configuration_tried_in_several_studies_stands_once(history: History, make: SimpleNamespace):
    for seed, ratio in ((0, 1.0), (1, 1.3), (2, 1.1)):
        make.run(history.open_study(make.spec(seed=seed)), 0, make.correct(0, ratio))
    assert [(r.rank, r.timing.ratio) for r in history.best()] == [(1, 1.3)]


def test_only_correct_trials_rank(history: History, make: SimpleNamespace):
    study = history.open_study(make.spec())
    for i, outcome in enumerate(("wrong", "unstable", "abandoned", "correct")):
        make.run(study, i, replace(make.correct(i, 9.0 - i), outcome=outcome))
    make.run(study, 8, TrialResult("correct", kernel=make.kernel(8), verification=make.proof))  # never measured
    assert [r.number for r in history.best()] == [3]


def test_without_a_baseline_the_time_ranks_and_behind_those_with_one(history: History, make: SimpleNamespace):
    study = history.open_study(make.spec(kind="replay"))
    for i, us in enumerate((3.0, 1.0, 2.0)):
        make.run(study, i, TrialResult("correct", measurement=make.estimate(us)))
    make.run(study, 3, make.correct(3, 0.1))
    assert [r.number for r in history.best()] == [3, 1, 2, 0]


def test_best_by_family(history: History, make: SimpleNamespace):
    study = history.open_study(make.spec())
    for i in range(6):
        make.run(study, i, make.correct(i, 1 + i / 10), family="simt" if i % 2 else "mma")
    assert [r.number for r in history.best(family="mma")] == [4, 2, 0]
    assert [r.number for r in history.best(family="simt", limit=1)] == [5]


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(1, 99)), max_size=12), st.integers(1, 4))
def test_best_equals_sorting_everything(make: SimpleNamespace, tried: list[tuple[int, int, int]], limit: int):
    """Leaders of leaders are the leaders: against a plain model, over several studies of one board."""
    with History("sqlite://") as history:
        seen: dict[tuple[int, int], int] = {}
        for seed, config, score in tried:
            if (seed, config) not in seen:
                seen[seed, config] = score
                make.run(history.open_study(make.spec(seed=seed)), len(seen), make.correct(config, score / 10), config)
        leaders: dict[int, int] = {}
        for (_, config), score in seen.items():
            leaders[config] = max(score, leaders.get(config, 0))
        expected = sorted((score / 10 for score in leaders.values()), reverse=True)[:limit]
        assert [r.timing.ratio for r in history.best(limit=limit)] == expected


# --------------------------------------------------------------------------------------------------------- for a pack


def test_best_kernels_gives_one_for_each_device_regime_and_problem(history: History, make: SimpleNamespace):
    fill(history, make)
    rows = history.best_kernels()
    assert [(r.kind, r.gpu.short, r.problem_key, r.timing.us) for r in rows] == [
        ("cuda", "a100", "gemm 512x512x512 bf16 nt", 5.0),
        ("cuda", "h200", "gemm 1024x4096x1024 fp32 nt", 10 / 0.9),
        ("cuda", "h200", "gemm 512x512x512 bf16 nt", 10 / 1.5),
        ("emulator", "h200", "gemm 512x512x512 bf16 nt", 0.001),
    ]
    assert all(r.source and r.recipe and r.template_hash and r.cubin_sha256 for r in rows)
    assert len(history.best_kernels("h200")) == 3
    assert len(history.best_kernels("9.0|NVIDIA H200|132|140|", "cuda")) == 2
    assert history.best_kernels(regime="burst") == []


def test_best_kernels_takes_the_newest_environment(history: History, make: SimpleNamespace):
    make.run(history.open_study(make.spec()), 0, make.correct(0, 1.5))
    make.run(history.open_study(make.spec(environment=OTHER_DRIVER)), 0, make.correct(0, 1.2))
    (row,) = history.best_kernels()
    assert (row.environment, row.timing.ratio) == (OTHER_DRIVER, 1.2)


def test_an_unfinished_search_does_not_displace_a_finished_one(history: History, make: SimpleNamespace):
    finished = history.open_study(make.spec())
    finished.add_measurement(make.run(finished, 0, make.correct(0, 1.5)), make.measurement(1.4))
    newer = history.open_study(make.spec(environment=OTHER_DRIVER))
    trial = make.run(newer, 0, make.correct(0, 1.2))
    assert history.best_kernels()[0].timing.ratio == 1.4
    newer.add_measurement(trial, make.measurement(1.1))
    assert history.best_kernels()[0].timing.ratio == 1.1


# ----------------------------------------------------------------------------------------- failures, studies and others


def test_failures_are_grouped_by_outcome_and_kind_of_detail(history: History, make: SimpleNamespace):
    study = history.open_study(make.spec())
    for i in range(3):
        make.run(study, i, make.failed("compile", f"kernel_{i}a.cu(1{i}): error: 0x{i}f bytes\nmore of the log"))
    make.run(study, 3, make.failed("compile", "identifier is undefined"))
    make.run(study, 4, make.failed("wrong", "d[3, 4] = 1.5e-3, but 2.5 was expected"), family="simt")
    make.run(study, 5, make.correct(5))
    groups = history.failures()
    assert [(g.outcome, g.count) for g in groups] == [("compile", 3), ("compile", 1), ("wrong", 1)]
    assert [g.families for g in groups] == [{"mma": 3}, {"mma": 1}, {"simt": 1}]
    assert groups[0].example.number == 2
    assert "kernel_2a.cu(12)" in groups[0].example.detail
    assert [g.outcome for g in history.failures(outcome="wrong")] == ["wrong"]
    assert [g.outcome for g in history.failures(family="simt")] == ["wrong"]
    assert [g.count for g in history.failures(limit=1)] == [3]
    assert history.failures(gpu="a100") == []
    make.run(study, 6, make.failed("wrong", "d[5, 6] = 2.5e-3, but 3.5 was expected"), config=60)
    make.run(study, 7, make.failed("wrong", "d[5, 7] = 2.5e-3, but 3.5 was expected"), config=70)
    (mixed,) = history.failures(outcome="wrong")
    assert list(mixed.families.items()) == [("mma", 2), ("simt", 1)]
    assert history.failures(outcome="wrong", family="simt")[0].families == {"simt": 1}
    assert history.failures(outcome="wrong", shape="1x1x1") == []
    every = {"compile": 4, "wrong": 3, "correct": 1}
    assert list(history.outcomes().items()) == list(history.outcomes(gpu="h200").items()) == list(every.items())
    assert history.outcomes(family="simt") == history.outcomes(gpu="h200", family="simt") == {"wrong": 1}
    assert history.outcomes(gpu="a100") == history.outcomes(family="hopper") == {}


def test_studies_tell_their_progress_and_leader(history: History, make: SimpleNamespace):
    fill(history, make)
    study = history.open_study(make.spec())
    make.run(study, 3, make.failed("launch", "too many resources"))
    study.claim(4, make.configuration(4))
    (row,) = history.studies(gpu="h200", dtype="bf16", kind="cuda")
    assert (row.trials, row.correct, row.best.timing.ratio) == (4, 3, 1.5)
    assert (row.families, row.strategy, row.gpu) == (("mma",), "tpe", make.spec().gpu)
    assert len(history.studies(limit=2)) == 2


def test_find_gives_the_trials_of_one_configuration(history: History, make: SimpleNamespace):
    fill(history, make)
    key = make.configuration(1).key
    (row,) = history.find("gemm 512x512x512 bf16 nt", "h200", "sustained", key)
    assert (row.number, row.kind) == (1, "cuda")
    assert len(history.find("gemm 512x512x512 bf16 nt", configuration_key=make.configuration(0).key)) == 3
    assert history.find("gemm 512x512x512 bf16 nt", "h200", "burst", key) == []


def test_exports_keep_their_cubins(history: History):
    cubins = {hashlib.sha256(data).hexdigest(): data for data in (b"one", b"two")}
    history.record_export("h200", "1" * 64, list(cubins.items()))
    uuid = history.record_export("h200", "2" * 64, [next(iter(cubins.items()))])
    latest, first = history.exports()
    assert (latest.uuid, latest.name, latest.manifest_sha256) == (uuid, "h200", "2" * 64)
    assert first.cubins == tuple(sorted(cubins))
    assert {sha: history.cubin(sha) for sha in first.cubins} == cubins
    with pytest.raises(DatabaseError, match="has another hash"):
        history.record_export("bad", "3" * 64, [("0" * 64, b"three")])
    assert len(history.exports()) == 2
