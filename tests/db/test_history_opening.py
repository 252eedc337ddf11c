"""Opening a history: where it is, its schema, and every way it can fail."""

from __future__ import annotations

import itertools
import sqlite3
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine, text

from gemmtune.db import History, Study, schema
from gemmtune.db.models import metadata
from gemmtune.space.errors import DatabaseError, SettingError


def sentence(error: pytest.ExceptionInfo[DatabaseError]) -> str:
    message = str(error.value)
    assert "\n" not in message
    assert message.endswith(".")
    return message


def test_a_path_a_url_and_the_environment_variable_name_the_same_file(path: Path, monkeypatch, make: SimpleNamespace):
    with History(str(path)) as by_path:
        study = by_path.open_study(make.spec())
    with History(f"sqlite:///{path}") as by_url:
        assert by_url.open_study(make.spec()).uuid == study.uuid
        assert by_url.location == str(path)
    monkeypatch.setenv("GEMMTUNE_DB", str(path))
    with History() as by_environment:
        assert by_environment.open_study(make.spec()).resumed


def test_by_default_it_lies_in_the_users_data_directory(tmp_path: Path, monkeypatch):
    monkeypatch.delenv("GEMMTUNE_DB", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    with History() as history:
        assert Path(history.location) == tmp_path / "gemmtune" / "history.db"


def test_missing_directories_are_made(tmp_path: Path):
    with History(tmp_path / "a" / "b" / "h.db"):
        assert (tmp_path / "a" / "b" / "h.db").exists()


def test_a_history_in_memory(make: SimpleNamespace):
    with History("sqlite://") as history:
        make.run(history.open_study(make.spec()), 0, make.correct(0))
        assert len(history.trials()) == 1


def test_readers_do_not_wait_for_a_writer(history: History, path: Path, make: SimpleNamespace):
    make.run(history.open_study(make.spec()), 0, make.correct(0))
    with history.writing(), History(path, timeout=0.0) as other:
        assert len(other.trials()) == 1


def test_the_orm_is_never_imported(history: History, path: Path, make: SimpleNamespace):
    """Its import alone costs more than most queries."""
    make.run(history.open_study(make.spec()), 0, make.correct(0))
    history.record_export("pack", "0" * 64, [])
    history.export(path.with_suffix(".gz"))
    code = (
        "import sys; from gemmtune.db import History\n"
        f"with History({str(path.with_name('other.db'))!r}) as other:\n"
        f"    assert other.merge({str(path.with_suffix('.gz'))!r}).trials == 1\n"
        "    assert other.exports() and other.best() and other.studies() and other.failures() == []\n"
        "assert 'sqlalchemy' in sys.modules and 'sqlalchemy.orm' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# -------------------------------------------------------------------------------------------------------------- schema


def test_migrations_build_exactly_the_models(path: Path):
    engine = create_engine(f"sqlite:///{path}")
    schema.prepare(engine, 1.0)
    with engine.connect() as connection:
        options = {"compare_type": True, "version_table": schema.VERSION_TABLE}
        assert compare_metadata(MigrationContext.configure(connection, opts=options), metadata) == []
    engine.dispose()


def test_head_is_the_newest_revision():
    assert ScriptDirectory.from_config(schema.config()).get_current_head() == schema.HEAD


def test_a_current_history_opens_without_alembic(history: History, path: Path):
    code = "import sys; from gemmtune.db import History; History(sys.argv[1]).close(); print('alembic' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_newer_schema_is_refused(path: Path):
    History(path).close()
    with sqlite3.connect(path) as raw:
        raw.execute("UPDATE gemmtune_version SET version_num = '9999'")
    with pytest.raises(DatabaseError) as error:
        History(path)
    assert "9999" in sentence(error)
    assert "upgrade gemmtune" in sentence(error)


def test_a_migration_that_fails_leaves_the_file_as_it_was(path: Path, monkeypatch: pytest.MonkeyPatch):
    upgrade = command.upgrade

    def fail(*arguments: object) -> None:
        upgrade(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "upgrade", fail)
    with pytest.raises(KeyboardInterrupt):
        History(path)
    with sqlite3.connect(path) as raw:
        assert raw.execute("SELECT name FROM sqlite_master").fetchall() == []
    monkeypatch.undo()
    with History(path) as history:
        assert history.trials() == []


def test_other_users_of_the_database_keep_their_tables(path: Path):
    with sqlite3.connect(path) as raw:
        raw.execute("CREATE TABLE alembic_version (version_num VARCHAR(32))")
        raw.execute("INSERT INTO alembic_version VALUES ('v3.0.0.d')")
    History(path).close()
    with sqlite3.connect(path) as raw:
        assert raw.execute("SELECT version_num FROM alembic_version").fetchall() == [("v3.0.0.d",)]


def test_a_database_with_tables_of_our_names_is_not_taken_over(path: Path):
    with sqlite3.connect(path) as raw:
        raw.execute("CREATE TABLE trial (x)")
    with pytest.raises(DatabaseError, match=r"not a gemmtune history.*trial") as error:
        History(path)
    sentence(error)
    with sqlite3.connect(path) as raw:
        assert raw.execute("SELECT name FROM sqlite_master").fetchall() == [("trial",)]


def test_processes_that_create_the_same_history_at_once_all_succeed(path: Path):
    code = (
        "import sys; from gemmtune.db import History; print('ready', flush=True); sys.stdin.readline()\n"
        "with History(sys.argv[1]) as h: print(len(h.trials()))"
    )
    command = [sys.executable, "-c", code, str(path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    children = [subprocess.Popen(command, **pipes) for _ in range(4)]
    for child in children:
        assert child.stdout.readline() == "ready\n"
    for child in children:
        child.stdin.write("go\n")
        child.stdin.flush()
    for child in children:
        out, err = child.communicate(timeout=60)
        assert (out, child.returncode) == ("0\n", 0), err


# ------------------------------------------------------------------------------------------------------------ failures


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("sqlite//x://", "malformed"),
        ("nosuchdb://host/x", "driver"),
        ("postgresql+nosuchdriver://host/x", "driver"),
        ("postgresql://nowhere.invalid/x", "install it with pip|check that it is reachable"),
    ],
)
def test_a_bad_url(url: str, words: str):
    with pytest.raises(DatabaseError, match=words) as error:
        History(url)
    sentence(error)


def test_a_password_is_not_told():
    with pytest.raises(DatabaseError) as error:
        History("nosuchdb://me:secret@host/x")
    assert "secret" not in sentence(error)


def test_a_file_that_is_no_database(path: Path):
    path.write_bytes(b"some notes, and no database at all" * 100)
    with pytest.raises(DatabaseError, match="is not a database") as error:
        History(path)
    assert str(path) in sentence(error)


def test_a_directory(tmp_path: Path):
    with pytest.raises(DatabaseError, match="is a directory") as error:
        History(tmp_path)
    sentence(error)


def test_a_directory_that_cannot_be_made(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DatabaseError, match="cannot be created") as error:
        History(tmp_path / "file" / "h.db")
    sentence(error)


def test_a_locked_history(history: History, path: Path, make: SimpleNamespace):
    with History(path, timeout=0.01) as other, history.writing():
        with pytest.raises(DatabaseError, match=r"locked by another process for 0\.01 s") as error:
            other.open_study(make.spec())
        assert str(path) in sentence(error)


def test_a_lock_held_while_the_history_is_created(path: Path):
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    with pytest.raises(DatabaseError, match="locked") as error:
        History(path, timeout=0.01)
    sentence(error)
    holder.execute("ROLLBACK")
    holder.close()
    History(path).close()


def test_a_read_only_history_can_be_read_and_says_so_when_written(path: Path, make: SimpleNamespace):
    with History(path) as history:
        make.run(history.open_study(make.spec()), 0, make.correct(0))
    with History(f"sqlite:///file:{path}?mode=ro&uri=true") as history:
        assert len(history.trials()) == 1
        with pytest.raises(DatabaseError, match="is read-only") as error:
            history.open_study(make.spec(seed=1))
        sentence(error)


def test_a_missing_read_only_history(path: Path):
    with pytest.raises(DatabaseError, match="cannot be opened") as error:
        History(f"sqlite:///file:{path}?mode=ro&uri=true")
    sentence(error)


def record_for_ever(study: Study, make: SimpleNamespace) -> None:
    for number in itertools.count():
        make.run(study, number, make.correct(number))


def test_a_full_disk_loses_nothing_that_was_recorded(path: Path, make: SimpleNamespace):
    with History(path) as history:
        study = history.open_study(make.spec())
        with history.writing() as connection:
            pages = connection.scalar(text("PRAGMA page_count"))
            connection.execute(text(f"PRAGMA max_page_count = {pages + 20}"))
        with pytest.raises(DatabaseError, match=r"The disk of .* is full") as error:
            record_for_ever(study, make)
        sentence(error)
        recorded = len(study.trials())
        assert recorded > 5
    with History(path) as history:
        study = history.open_study(make.spec())
        study.release_claims()
        assert [t.number for t in study.trials()] == list(range(recorded))
        make.run(study, recorded, make.correct(recorded))


def test_a_damaged_history(path: Path, make: SimpleNamespace):
    with History(path) as history:
        study = history.open_study(make.spec())
        for i in range(50):
            make.run(study, i, make.correct(i))
    data = bytearray(path.read_bytes())
    for page in range(8192, len(data), 4096):
        data[page : page + 512] = b"\xff" * 512
    path.write_bytes(data)
    with pytest.raises(DatabaseError, match="damaged") as error, History(path) as history:
        history.trials()
    sentence(error)


@pytest.mark.parametrize("create", [True, False])
def test_another_programs_database_stays_as_it_is(path: Path, create: bool):
    with sqlite3.connect(path) as raw:
        raw.execute("CREATE TABLE moz_places (url)")
    raw.close()
    before = path.read_bytes()
    with pytest.raises(DatabaseError, match=r"not a gemmtune history.*moz_places") as error:
        History(path, create=create)
    sentence(error)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_who_only_reads_makes_no_history_beside_the_tables_of_another(path: Path):
    with sqlite3.connect(path) as raw:
        raw.execute("CREATE TABLE alembic_version (version_num VARCHAR(32))")
    with pytest.raises(DatabaseError, match="not a gemmtune history"):
        History(path, create=False)
    History(path).close()
    History(path, create=False).close()


def test_an_empty_file_becomes_a_history(path: Path):
    path.touch()
    with History(path, create=False) as history:
        assert history.studies() == []


def test_numbers_that_no_database_holds(history: History):
    assert history.study(2**63) is None
    assert history.trial(10**30) is None
    with pytest.raises(SettingError, match="at most 9223372036854775807"):
        history.trials(limit=2**63)
