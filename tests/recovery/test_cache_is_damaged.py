"""A study goes on over a kernel cache whose entries were cut off, altered or emptied meanwhile."""

from pathlib import Path

import pytest

from gemmtune.codegen.cache import default_root
from gemmtune.db import History
from gemmtune.device.emulator.toolchain import find_toolchain
from gemmtune.search.events import Silent
from gemmtune.search.study import tune
from gemmtune.space.errors import ToolchainError
from gemmtune.space.gemm import Gemm

TRIALS, STOPPED_AT = 6, 3
PROBLEM = Gemm(64, 64, 64, "bf16")

DAMAGES = (
    lambda data: b"",
    lambda data: data[:7],
    lambda data: data[: len(data) // 2],
    lambda data: data[:-1],
    lambda data: data[:-1] + bytes([data[-1] ^ 1]),
    lambda data: bytes(len(data)),  # as some file systems leave it after a power cut
    lambda data: data + b"\0",
)


class Stopping(Silent):
    """Ctrl-C after a few trials."""

    def trial_finished(self, record, best, done, budget, counts):
        if done == STOPPED_AT:
            raise KeyboardInterrupt


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A kernel cache of this test's own; the emulator's core, slow to build, is that of the other tests."""
    from gemmtune.codegen.nvrtc import nvrtc_version

    try:
        nvrtc_version()
        find_toolchain()
    except ToolchainError as error:
        pytest.skip(str(error))
    shared = default_root() / "emulator"
    shared.mkdir(parents=True, exist_ok=True)
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "emulator").symlink_to(shared)
    monkeypatch.setenv("GEMMTUNE_CACHE", str(tmp_path / "cache"))
    return tmp_path


def trials(path: Path):
    with History(path) as history:
        found = history.trials(limit=None)
    return sorted((r.number, r.configuration, r.outcome, r.us, r.rel_error, r.cubin_sha256) for r in found)


def entries(folder: Path) -> list[Path]:
    return sorted(path for path in (folder / "cache" / "kernels").rglob("*") if path.is_file())


def test_damaged_entries_are_compiled_again_and_change_nothing(folder):
    (stopped,) = tune(PROBLEM, "emulator:h200", trials=TRIALS, history=folder / "a.db", workers=2, observer=Stopping())
    assert stopped.interrupted
    before, whole = trials(folder / "a.db"), entries(folder)
    assert len(before) == STOPPED_AT
    assert len(whole) >= STOPPED_AT  # and what was compiled ahead
    contents = {path: path.read_bytes() for path in whole}
    damaged = {path: DAMAGES[i % len(DAMAGES)](contents[path]) for i, path in enumerate(whole)}
    for path, damage in damaged.items():
        path.write_bytes(damage)
    (resumed,) = tune(PROBLEM, "emulator:h200", trials=TRIALS, history=folder / "a.db", workers=2)
    assert (resumed.resumed, resumed.trials) == (STOPPED_AT, TRIALS)
    assert trials(folder / "a.db")[:STOPPED_AT] == before
    (calm,) = tune(PROBLEM, "emulator:h200", trials=TRIALS, history=folder / "b.db", workers=2)
    assert trials(folder / "a.db") == trials(folder / "b.db")
    assert resumed.best[0].configuration == calm.best[0].configuration
    assert all(path.read_bytes() != damage for path, damage in damaged.items())
