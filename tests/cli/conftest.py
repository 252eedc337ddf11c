"""Running the command line in this process, and one small emulated study that many tests read."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gemmtune.cli.main import run


@dataclass(frozen=True)
class Finished:
    """What a command line did."""

    code: int
    out: str
    err: str


Cli = Callable[..., Finished]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    """Run ``gemmtune`` with these arguments."""

    def call(*arguments: str) -> Finished:
        capsys.readouterr()
        code = run(arguments)
        captured = capsys.readouterr()
        return Finished(code, captured.out, captured.err)

    return call


@pytest.fixture(scope="session")
def study() -> list[str]:
    """The arguments of the small study."""
    options = ["--device", "emulator:h200", "--trials", "3", "--workers", "1", "--family", "simt", "--dtype", "fp32"]
    return ["48x40x32", *options]


@pytest.fixture(scope="session")
def tuned(study: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """A history with one finished study of 48x40x32 fp32, and what the command printed."""
    import contextlib
    import io

    where = tmp_path_factory.mktemp("tuned")
    patch = pytest.MonkeyPatch()
    patch.setenv("GEMMTUNE_CACHE", str(where / "cache"))
    patch.setenv("GEMMTUNE_DB", str(where / "history.db"))
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert run(["tune", *study]) == 0, out.getvalue()
    yield where / "history.db", out.getvalue()
    patch.undo()
