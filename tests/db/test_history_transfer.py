"""Export and merge: a union of sets, whole files only, and bad files change nothing."""

from __future__ import annotations

import errno
import gzip
import hashlib
import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import select

from gemmtune.db import History, MergeReport, TrialResult
from gemmtune.space.errors import DatabaseError
from gemmtune.space.gemm import Gemm

NOTHING = MergeReport()
CUBIN = b"\x7fELF cubin"
CUBIN_HASH = hashlib.sha256(CUBIN).hexdigest()


def fill(history: History, make: SimpleNamespace) -> None:
    """Something in every table."""
    study = history.open_study(make.spec())
    best = make.run(study, 0, make.correct(0, 1.5))
    make.run(study, 1, make.failed("compile", "error in line 3"))
    make.run(
        study, 2, replace(make.correct(2), outcome="wrong", verification=replace(make.proof, rel_error=float("inf")))
    )
    study.add_measurement(best, make.measurement(1.4))
    study.claim(3, make.configuration(3))
    other = history.open_study(make.spec(environment={"driver": "590"}))
    make.run(other, 0, make.correct(0, 1.1))
    emulated = history.open_study(make.spec(Gemm(64, 64, 64), kind="emulator"))
    make.run(emulated, 0, TrialResult("correct", measurement=make.estimate(3.0)))
    history.record_export("pack", "a" * 64, [(CUBIN_HASH, CUBIN)])


@pytest.fixture
def exported(history: History, make: SimpleNamespace, tmp_path: Path) -> Path:
    fill(history, make)
    path = tmp_path / "h.jsonl.gz"
    history.export(path)
    return path


# ---------------------------------------------------------------------------------------------------------- round trip


def test_merged_into_an_empty_history_it_is_the_same(history: History, exported: Path, make: SimpleNamespace):
    with History("sqlite://") as copy:
        assert copy.merge(exported) == MergeReport(studies=3, trials=5, measurements=5, exports=1, cubins=1)
        assert make.contents(copy) == make.contents(history)
        assert copy.cubin(CUBIN_HASH) == CUBIN
        assert [s.parent_uuid for s in copy.studies()] == [s.parent_uuid for s in history.studies()]
        mine, theirs = history.best(), copy.best()
        assert [replace(r, id=0, study_id=0) for r in mine] == [replace(r, id=0, study_id=0) for r in theirs]
        assert copy.merge(exported) == NOTHING


def test_equal_histories_give_equal_files(history: History, exported: Path, tmp_path: Path):
    history.export(tmp_path / "again.gz")
    assert (tmp_path / "again.gz").read_bytes() == exported.read_bytes()


def test_merging_what_one_exported_oneself_adds_nothing(history: History, exported: Path, make: SimpleNamespace):
    before = make.contents(history)
    report = history.merge(exported)
    assert report == NOTHING
    assert not report.changed
    assert make.contents(history) == before


def test_a_study_goes_on_where_it_was_carried_to(
    history: History, exported: Path, make: SimpleNamespace, tmp_path: Path
):
    """Tune here, carry it to another machine, go on there, and bring it back."""
    with History(tmp_path / "there.db") as there:
        there.merge(exported)
        study = there.open_study(make.spec())
        assert study.resumed
        assert [t.number for t in study.trials()] == [0, 1, 2]
        make.run(study, 3, make.correct(3, 1.7))
        study.add_measurement(study.trials()[0].id, make.measurement(1.3))
        there.export(tmp_path / "back.gz")
    study = history.open_study(make.spec())
    study.release_claims()
    assert history.merge(tmp_path / "back.gz") == MergeReport(trials=1, measurements=2)
    assert [t.number for t in study.trials()] == [0, 1, 2, 3]
    rows = history.best(shape="512x512x512")
    assert [r.timing.ratio for r in rows if r.environment["driver"] == "580"] == [1.3, 1.7]  # a finalist goes first


def test_copies_of_a_study_that_went_on_apart_keep_all_their_trials(
    history: History, exported: Path, make: SimpleNamespace, tmp_path: Path
):
    here = history.open_study(make.spec())
    here.release_claims()
    with History(tmp_path / "there.db") as there:
        there.merge(exported)
        make.run(there.open_study(make.spec()), 3, make.correct(3, 1.6))
        make.run(here, 3, make.correct(3, 1.7))
        there.export(tmp_path / "back.gz")
    history.merge(tmp_path / "back.gz")
    assert [t.number for t in here.trials()] == [0, 1, 2, 3]
    assert here.trials()[3].ratio == 1.6  # it finished first
    assert len([t for t in history.trials() if t.study_id == here.id]) == 5
    with pytest.raises(DatabaseError, match="already recorded"):
        here.claim(3, make.configuration(3))


def test_of_several_studies_with_one_spec_the_longest_resumes(history: History, make: SimpleNamespace, tmp_path: Path):
    make.run(history.open_study(make.spec()), 0, make.correct(0))
    with History("sqlite://") as there:
        longer = there.open_study(make.spec())
        for i in range(2):
            make.run(longer, i, make.correct(i))
        there.export(tmp_path / "h.gz")
    history.merge(tmp_path / "h.gz")
    assert history.open_study(make.spec()).uuid == longer.uuid


def test_a_text_of_a_template_is_filled_in(make: SimpleNamespace, tmp_path: Path):
    texts = ("", "the text")
    for first in (0, 1):
        with History("sqlite://") as one, History("sqlite://") as two:
            for history, text in ((one, texts[first]), (two, texts[1 - first])):
                kernel = replace(make.kernel(0), template_text=text)
                make.run(history.open_study(make.spec()), 0, TrialResult("correct", kernel=kernel))
            two.export(tmp_path / "two.gz")
            one.merge(tmp_path / "two.gz")
            assert any("the text" in row for row in make.contents(one) if row.startswith("('template'"))


# ----------------------------------------------------------------------------------------------------------------- laws

_TRIALS = st.lists(
    st.tuples(
        st.integers(0, 1), st.integers(0, 5), st.sampled_from(["correct", "wrong", "compile"]), st.integers(0, 2)
    ),
    max_size=5,
)


def build(make: SimpleNamespace, trials: list[tuple[int, int, str, int]], base: Path | None = None) -> History:
    """A history of ``trials`` (seed, number, outcome, final measurements), on top of the one exported to ``base``."""
    history = History("sqlite://")
    if base is not None:
        history.merge(base)
    for seed, number, outcome, finals in trials:
        study = history.open_study(make.spec(seed=seed))
        there = {t.number: t.id for t in study.trials()}
        if number not in there:
            measured = make.correct(number, 1 + number / 8) if outcome != "compile" else make.failed(outcome, "x")
            there[number] = make.run(study, number, replace(measured, outcome=outcome))
        for i in range(finals):
            study.add_measurement(there[number], make.measurement(1 + i / 4))
    return history


@settings(max_examples=8, deadline=None)
@given(shared=_TRIALS, left=_TRIALS, right=_TRIALS)
def test_merging_is_a_union_of_sets(make: SimpleNamespace, shared: list[Any], left: list[Any], right: list[Any]):
    """Idempotent, commutative up to the order of rows, absorbing; and an empty history becomes the original."""
    with tempfile.TemporaryDirectory() as folder:
        base, a_file, b_file, ab_file = (Path(folder, name) for name in ("base", "a", "b", "ab"))
        with build(make, shared) as origin:
            origin.export(base)
        with build(make, left, base) as a, build(make, right, base) as b, History("sqlite://") as empty:
            before = make.contents(a)
            a.export(a_file)
            b.export(b_file)
            empty.merge(a_file)
            assert make.contents(empty) == before
            assert scores(empty) == scores(a)
            a.merge(b_file)
            b.merge(a_file)
            assert make.contents(a) == make.contents(b)
            assert scores(a) == scores(b)
            assert a.merge(b_file) == b.merge(a_file) == NOTHING
            a.export(ab_file)
            empty.merge(ab_file)
            assert make.contents(empty) == make.contents(a)
            assert scores(empty) == scores(a)


def scores(history: History) -> dict[str, Any]:
    """What follows from the measurements, by trial."""
    from gemmtune.db import models as m

    with history.reading() as connection:
        return {t.uuid: (t.score, t.final) for t in connection.execute(select(m.trial))}


# ------------------------------------------------------------------------------------------------------------ bad files


def lines_of(path: Path) -> list[Any]:
    with gzip.open(path, "rt") as lines:
        return [json.loads(line) for line in lines]


def rewrite(path: Path, change: Callable[[list[Any]], None]) -> None:
    """Alter an export's lines and seal it again, as its own writer would have."""
    data = lines_of(path)
    change(data)
    body = b"".join(json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in data[:-1])
    end = {"rows": len(data) - 2, "sha256": hashlib.sha256(body).hexdigest()}
    path.write_bytes(gzip.compress(body + json.dumps(end).encode() + b"\n"))


def row(data: list[Any], table: str) -> dict[str, Any]:
    return next(line[1] for line in data[1:-1] if line[0] == table)


def drop(table: str) -> Callable[[list[Any]], None]:
    def change(data: list[Any]) -> None:
        data[:] = [line for line in data if not (isinstance(line, list) and line[0] == table)]

    return change


def assert_refused(path: Path, words: str) -> None:
    with History("sqlite://") as history:
        with pytest.raises(DatabaseError, match=words) as error:
            history.merge(path)
        message = str(error.value)
        assert str(path) in message
        assert "\n" not in message
        assert history.studies() == []
        assert history.exports() == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d[0].update(schema=2), "has schema 2, newer than the 1 of this gemmtune: upgrade"),
        (lambda d: d[0].update(format="other"), "no exported history"),
        (lambda d: d[0].pop("schema"), "no exported history"),
        (lambda d: d.insert(0, ["gpu", {}]), "no exported history"),
        (lambda d: d.insert(1, "text"), "not a row"),
        (lambda d: d.insert(1, ["nosuch", {}]), "table 'nosuch' is not expected here"),
        (lambda d: d.append(d[1]), "no row is expected here"),
        (lambda d: d.insert(-1, d[1]), "table 'gpu' is not expected here"),
        (lambda d: row(d, "trial").pop("number"), "number"),
        (lambda d: row(d, "trial").update(more=1), "more"),
        (lambda d: row(d, "trial").update(number="1"), "number is '1'"),
        (lambda d: row(d, "trial").update(number=True), "number is 'True'"),
        (lambda d: row(d, "trial").update(number=2**70), "number is"),
        (lambda d: row(d, "trial").update(outcome=None), "not finished"),
        (lambda d: row(d, "trial").update(study="f" * 32), "f{32}"),
        (lambda d: row(d, "trial").update(study=[]), "unhashable"),
        (lambda d: row(d, "trial").update(uuid="u" * 33), "uuid is"),
        (lambda d: row(d, "trial").update(started=float("nan")), "started is 'nan'"),
        (lambda d: row(d, "study").update(families="mma"), "families is"),
        (lambda d: row(d, "measurement").update(final=0), "final is '0'"),
        (lambda d: row(d, "measurement").update(samples="?"), "malformed"),
        (lambda d: row(d, "kernel").update(source="// other"), "digest differs"),
        (lambda d: row(d, "gpu").update(name="other"), "digest differs"),
        (lambda d: row(d, "cubin").update(data="AAAA"), "hash differs"),
        (drop("study"), "malformed"),
        (drop("template"), "malformed"),
    ],
)
def test_an_altered_file_changes_nothing(exported: Path, change: Callable[[list[Any]], None], words: str):
    rewrite(exported, change)
    assert_refused(exported, words)


def test_a_file_altered_without_sealing_it_again(exported: Path):
    data = gzip.decompress(exported.read_bytes())
    exported.write_bytes(gzip.compress(data.replace(b'"seed":0', b'"seed":1')))
    assert_refused(exported, "checksum differs")


@pytest.mark.parametrize("part", [0.0, 0.1, 0.5, 0.9])
def test_a_cut_file(exported: Path, part: float):
    data = exported.read_bytes()
    exported.write_bytes(data[: int(len(data) * part)])
    assert_refused(exported, "cut off|no exported history")


@pytest.mark.parametrize("last", [1, 2, 5])
def test_a_file_cut_between_lines(exported: Path, last: int):
    lines = gzip.decompress(exported.read_bytes()).splitlines(keepends=True)
    exported.write_bytes(gzip.compress(b"".join(lines[:-last])))
    assert_refused(exported, "cut off")


def test_a_file_that_is_no_export(tmp_path: Path, history: History):
    (tmp_path / "notes").write_text("notes")
    assert_refused(tmp_path / "notes", "no exported history")
    (tmp_path / "notes.gz").write_bytes(gzip.compress(b"notes\n"))
    assert_refused(tmp_path / "notes.gz", "no exported history")
    assert_refused(Path(history.location), "no exported history")
    assert_refused(tmp_path / "missing", "cannot be used")
    assert_refused(tmp_path, "cannot be used")


# -------------------------------------------------------------------------------------------------------------- writing


def test_an_export_that_fails_leaves_the_old_file_and_no_other(
    history: History, exported: Path, make: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
):
    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before, files = exported.read_bytes(), sorted(exported.parent.iterdir())
    make.run(history.open_study(make.spec()), 9, make.correct(9))
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DatabaseError, match=r"The disk of .*h\.jsonl\.gz is full"):
        history.export(exported)
    assert exported.read_bytes() == before
    assert sorted(exported.parent.iterdir()) == files


def test_an_export_never_replaces_the_history_itself(history: History):
    with pytest.raises(DatabaseError, match="is the history itself"):
        history.export(history.location)
    assert history.trials() == []


def test_an_export_into_a_missing_directory(history: History, tmp_path: Path):
    with pytest.raises(DatabaseError, match="cannot be used"):
        history.export(tmp_path / "missing" / "h.gz")
