"""The machine's checks: compilers, cache, history, and a card of any state, without a card."""

import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gemmtune.codegen.cache import KernelCache
from gemmtune.codegen.kernel import KernelSource
from gemmtune.db import History
from gemmtune.device.cuda.card import Card, read_card
from gemmtune.device.cuda.nvml import Monitor
from gemmtune.diagnose import machine
from gemmtune.diagnose.check import Status, guarded
from gemmtune.space.errors import DatabaseError

COOL = Card(1980, 1980, 3201, 3201, 35, 90, 80.0, 700.0, 700.0, True, "default", "", 600 * 2**20, 0)


@pytest.mark.parametrize(
    ("look", "state", "status", "words"),
    [
        (machine.clocks, {}, Status.OK, "1980 of 1980 MHz"),
        (machine.clocks, {"throttle": "power cap"}, Status.OK, "power cap"),
        (machine.clocks, {"throttle": "application clocks", "clock_mhz": 1200}, Status.WARNING, "nvidia-smi -rac"),
        (machine.clocks, {"throttle": "power cap, thermal (software)"}, Status.PROBLEM, "airflow"),
        (machine.clocks, {"clock_mhz": None}, Status.WARNING, "libnvidia-ml"),
        (machine.power, {}, Status.OK, "cap 700 W"),
        (machine.power, {"power_limit": 350.0}, Status.WARNING, "nvidia-smi -pl 700"),
        (machine.power, {"power_limit": None}, Status.SKIPPED, "does not tell"),
        (machine.temperature, {}, Status.OK, "slows down at 90 C"),
        (machine.temperature, {"temperature": 87}, Status.WARNING, "airflow"),
        (machine.temperature, {"temperature": None}, Status.SKIPPED, "does not tell"),
        (machine.settings, {}, Status.OK, "persistence on"),
        (machine.settings, {"persistence": False}, Status.WARNING, "nvidia-smi -pm 1"),
        (machine.settings, {"compute_mode": "prohibited"}, Status.PROBLEM, "nvidia-smi -c 0"),
        (machine.settings, {"persistence": None, "compute_mode": None}, Status.SKIPPED, "does not tell"),
        (machine.neighbours, {}, Status.OK, "600.0 MiB"),
        (machine.neighbours, {"processes": 2}, Status.WARNING, "2 other programs hold"),
    ],
)
def test_a_card_of_any_state(look: Any, state: dict[str, Any], status: Status, words: str) -> None:
    found = look(replace(COOL, **state))
    assert found.status is status
    assert words in f"{found.value} {found.cure}"
    assert (found.cure != "") is (status in (Status.WARNING, Status.PROBLEM))


def test_a_card_that_nvml_does_not_know_is_all_unknown() -> None:
    card = read_card(Monitor("FFFF:FF:FF.0"))
    assert card == Card(*[None] * 11, throttle="", memory_used=None, processes=0)
    for look in (machine.power, machine.temperature, machine.settings):
        assert look(card).status is Status.SKIPPED


# ------------------------------------------------------------------------------------------------------------ compilers


def test_compilers_are_named_with_their_versions() -> None:
    assert machine.nvrtc().data["architectures"]
    assert machine.compiler(needed=True).status is Status.OK


@pytest.mark.parametrize(("needed", "status"), [(True, Status.PROBLEM), (False, Status.SKIPPED)])
def test_a_compiler_that_is_missing_matters_to_the_emulator_alone(
    monkeypatch: pytest.MonkeyPatch, needed: bool, status: Status
) -> None:
    monkeypatch.setenv("CXX", "/nowhere/g++")
    found = machine.compiler(needed)
    assert found.status is status
    assert "/nowhere/g++" in found.value


# ---------------------------------------------------------------------------------------------------------- cache, disk


def test_the_cache_is_counted_and_not_made(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, source: KernelSource
) -> None:
    monkeypatch.setenv("GEMMTUNE_CACHE", str(tmp_path / "cache"))
    found = machine.cache()
    assert found.status is Status.OK
    assert found.data["entries"] == 0
    assert not (tmp_path / "cache").exists()
    KernelCache().put(source, (), "13.0", b"cubin", "log")
    found = machine.cache()
    assert found.data["entries"] == 1
    assert "1 kernel of NVRTC, " in found.value
    assert "'gemmtune cache list' counts what the emulator built, too" in found.value


def test_a_cache_that_is_a_file_is_a_warning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("GEMMTUNE_CACHE", str(tmp_path / "file"))
    found = machine.cache()
    assert found.status is Status.WARNING
    assert "GEMMTUNE_CACHE" in found.cure


def test_a_disk_that_is_nearly_full_is_a_warning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "h.db"
    History(path).close()
    monkeypatch.setattr(machine, "_free", lambda _: 2**20)
    assert machine.cache().status is Status.WARNING
    found = machine.database(str(path))
    assert found.status is Status.WARNING
    assert "1.0 MiB left" in found.value


# -------------------------------------------------------------------------------------------------------------- history


def test_a_history_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    path = tmp_path / "new" / "h.db"
    found = machine.database(str(path))
    assert found.status is Status.OK
    assert str(path) in found.value
    assert not path.parent.exists()


def test_a_whole_history_is_well_and_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "h.db"
    History(path).close()
    before = path.read_bytes()
    found = machine.database(str(path))
    assert found.status is Status.OK
    assert found.data["trials"] == 0
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("version", "status", "words"),
    [("9999", Status.PROBLEM, "pip install -U gemmtune"), ("0000", Status.WARNING, "brings it up to date")],
)
def test_a_schema_of_another_version(tmp_path: Path, version: str, status: Status, words: str) -> None:
    path = tmp_path / "h.db"
    History(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE gemmtune_version SET version_num = ?", (version,))
    found = machine.database(str(path))
    assert found.status is status
    assert words in found.cure


def test_a_database_of_someone_else_is_no_history(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE songs (title TEXT)")
    found = machine.database(str(path))
    assert found.status is Status.WARNING
    assert "no history" in found.value


def test_damage_is_found(tmp_path: Path) -> None:
    path = tmp_path / "h.db"
    History(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.execute("PRAGMA foreign_keys = OFF")
        columns = [row[1] for row in connection.execute("PRAGMA table_info(trial)")]
        connection.execute("PRAGMA ignore_check_constraints = ON")
        names = ", ".join(columns)
        values = ", ".join("77" for _ in columns)
        connection.execute(f"INSERT INTO trial ({names}) VALUES ({values})")
    found = machine.database(str(path))
    assert found.status is Status.PROBLEM
    assert found.data["faults"]
    text = tmp_path / "text.db"
    text.write_text("no database at all, but longer than a header of SQLite is" * 4)
    assert guarded(lambda: machine.database(str(text))).status is Status.PROBLEM
    with pytest.raises(DatabaseError, match="not a database"):
        machine.database(str(text))


def test_a_lock_that_is_never_released_is_a_warning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from gemmtune.db import health

    path = tmp_path / "h.db"
    History(path).close()
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    impatient = health.examine_history
    monkeypatch.setattr(health, "examine_history", lambda url: impatient(url, timeout=0.01))
    found = machine.database(str(path))
    writer.close()
    assert found.status is Status.WARNING
    assert "locked" in found.value


def test_a_network_file_system_is_a_warning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "h.db"
    History(path).close()
    monkeypatch.setattr(machine, "_file_system", lambda _: "nfs4")
    assert "nfs4" in machine.database(str(path)).value
    assert machine.database(str(path)).status is Status.WARNING
