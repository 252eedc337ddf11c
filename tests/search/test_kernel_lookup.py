"""What names a recorded kernel, and what does not: ids, numbers in studies, starts of uuids and of cubin hashes."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gemmtune.db import History, KernelData, MeasurementData, StudySpec, TrialResult, VerificationData
from gemmtune.search.lookup import SHORTEST, best_kernel, find_kernel
from gemmtune.space.configuration import Configuration
from gemmtune.space.errors import UnknownNameError
from gemmtune.space.gemm import Gemm
from gemmtune.space.gpu import gpu

PROBLEM = Gemm(512, 512, 512)
SHARED, ALONE = "ab" * 32, "ac" + "01" * 31


def spec(problem: Gemm = PROBLEM, **changes: object) -> StudySpec:
    fields = {
        "problem_json": problem.to_json(), "problem_key": problem.key, "kind": "cuda", "gpu": gpu("h200"),
        "environment": {"driver": "580"}, "regime": "sustained", "cache": "cold", "families": ("mma",),
        "strategy": "tpe", "seed": 7,
    }  # fmt: skip
    return StudySpec(**{**fields, **changes})


def correct(cubin: str, us: float) -> TrialResult:
    kernel = KernelData("t" * 64, "// source", cubin, "sm_90a", "13.0", {"entry": "k"}, "template")
    proof = VerificationData(True, 1e-7, 1e-6, 0.1, ("m=512: all", "m=1: all"), 1.0)
    time = MeasurementData(us, us, us, 10.0, 10 / us, 10 / us, 10 / us, baseline_name="cublas")
    return TrialResult("correct", "", kernel, proof, time)


@pytest.fixture(scope="module")
def history(tmp_path_factory):
    """Study 1: 0 and 1 share a cubin, 1 is the quicker; 2 has its own; 3 failed; 4 is being run. Study 2 has one."""
    with History(tmp_path_factory.mktemp("lookup") / "history.db") as opened:
        study = opened.open_study(spec())
        results = [correct(SHARED, 9.0), correct(SHARED, 8.0), correct(ALONE, 7.0), TrialResult("wrong", "No.")]
        for number, result in enumerate(results):
            study.finish(study.claim(number, Configuration.of("mma", {"bm": number})), result)
        study.claim(4, Configuration.of("mma", {"bm": 4}))
        other = opened.open_study(spec(Gemm(8, 8, 8)))
        other.finish(other.claim(0, Configuration.of("mma", {"bm": 0})), correct("ff" * 32, 1.0))
        yield opened


def test_an_id_and_a_number_in_a_study(history):
    by_number = {r.number: r for r in history.trials(study_id=1)}
    for number, record in by_number.items():
        assert find_kernel(history, str(record.id)) == find_kernel(history, f" 1.{number} ") == record
    assert find_kernel(history, "2.0").problem_key == Gemm(8, 8, 8).key


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=40)
@given(st.data())
def test_any_start_of_a_uuid_that_no_other_shares_names_its_trial(history, data):
    records = history.trials(limit=None)
    record = data.draw(st.sampled_from(records))
    start = record.uuid[: data.draw(st.integers(SHORTEST, 32))]
    if start.isdigit() and len(start) < 6:  # so few digits may be an id
        return
    names = [name for r in records for name in (r.uuid, r.cubin_sha256) if name.startswith(start)]
    if len(names) == 1:
        assert find_kernel(history, start.upper()) == record
    else:
        with pytest.raises(UnknownNameError, match="several"):
            find_kernel(history, start)


def test_a_cubin_that_trials_share_is_one_kernel_and_the_best_of_them_answers(history):
    found = find_kernel(history, SHARED[:12])
    assert (found.number, found.us) == (1, 8.0)
    assert find_kernel(history, ALONE).number == 2


def test_a_failed_trial_is_found_and_one_that_still_runs_is_not(history):
    assert find_kernel(history, "1.3").outcome == "wrong"
    running = max(r.id for r in history.trials(study_id=1)) + 1
    assert history.trial(running).state == "claimed"
    for text in (str(running), "1.4"):
        with pytest.raises(UnknownNameError, match="finished trial"):
            find_kernel(history, text)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("999", "has the id 999"),
        ("9.9", "called 9.9"),
        ("abc", "at least 4 hex digits"),
        ("", "names no kernel"),
        ("mma bm=1", "names no kernel"),
        ("4096x4096", "names no kernel"),
        ("dddddddddd", "called dddddddddd"),
        ("0" * 65, "names no kernel"),
        ("9" * 40, "called 9999"),
        ("%%%%", "names no kernel"),
    ],
)
def test_what_names_nothing_is_refused_in_one_sentence(history, text, complaint):
    with pytest.raises(UnknownNameError, match=complaint) as refused:
        find_kernel(history, text)
    assert "\n" not in str(refused.value)


def test_a_start_that_several_kernels_share_lists_them(tmp_path):
    with History(tmp_path / "history.db") as history:
        study = history.open_study(spec())
        for number in range(9):
            cubin = f"abcd{number}" + "0" * 59
            study.finish(study.claim(number, Configuration.of("mma", {"bm": number})), correct(cubin, 9.0))
        with pytest.raises(UnknownNameError, match=r"abcd names several: give more digits.* and 4 more"):
            find_kernel(history, "abcd")
        assert find_kernel(history, "abcd3").number == 3


def test_the_best_kernel_for_a_shape_and_none_where_several_devices_have_one(history, tmp_path):
    assert best_kernel(history, PROBLEM).number == 2
    with pytest.raises(UnknownNameError, match=r"No kernel is known for gemm 9x9x9 bf16 nt \(sustained\): run"):
        best_kernel(history, Gemm(9, 9, 9), regime="sustained")
    with History(tmp_path / "several.db") as several:
        for regime in ("sustained", "burst"):
            study = several.open_study(spec(regime=regime))
            study.finish(study.claim(0, Configuration.of("mma", {"bm": 1})), correct(ALONE, 7.0))
        with pytest.raises(UnknownNameError, match="in several ways: name one by its trial"):
            best_kernel(several, PROBLEM)
        assert best_kernel(several, PROBLEM, regime="burst").regime == "burst"


def test_what_a_history_tells_of_studies_proofs_and_outcomes(history):
    assert history.study(1).seed == 7
    assert history.study(99) is None
    assert history.verification(find_kernel(history, "1.0").id).checks == ("m=512: all", "m=1: all")
    assert history.verification(find_kernel(history, "1.3").id) is None
    assert history.outcomes() == {"correct": 4, "wrong": 1}
    assert history.outcomes(shape="8x8x8") == {"correct": 1}
    assert history.outcomes(family="simt") == {}
