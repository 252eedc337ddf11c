"""Run under ``disk.cpp``: does a piece of work again and again, each time struck one change to the disk later.

``python on_disk.py TASK KIND FOLDER FIRST STEP``: TASK is one of the functions below, KIND 1 (killed) or 2 (no space
left). Each attempt runs in a forked process, then another one, undisturbed, goes on from what it left and checks it.
One line of JSON an attempt: ``[how it ended, what the check said]``; the last one was not struck at all.
"""

from __future__ import annotations

import ctypes
import json
import os
import runpy
import shutil
import signal
import sqlite3
import sys
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path

from gemmtune.codegen.cache import KernelCache
from gemmtune.codegen.kernel import KernelSource
from gemmtune.db import History
from gemmtune.space.configuration import Configuration
from gemmtune.space.errors import GemmtuneError
from gemmtune.space.recipe import LaunchRecipe, Tile

HERE = Path(__file__).parent
SHIM = ctypes.CDLL(None)
SHIM.disk_plan.argtypes = [ctypes.c_long, ctypes.c_int]
TRIALS = 2


class Task:
    """``prepare`` makes what is there before, ``work`` is struck, ``check`` goes on and asserts."""

    def prepare(self, folder: Path) -> None:
        """Nothing by default."""

    def work(self, folder: Path) -> None:
        raise NotImplementedError

    def check(self, folder: Path, told: int) -> None:
        """``told`` steps were done, as far as the struck process could tell."""
        raise NotImplementedError


class Record(Task):
    """Trials go into a history: one that is told to be recorded is there, whole, and the others can still be had."""

    make = runpy.run_path(str(HERE.parent / "db" / "conftest.py"))

    def prepare(self, folder: Path) -> None:
        with History(folder / "h.db") as history:
            history.open_study(self.make["spec"]())

    def work(self, folder: Path) -> None:
        with History(folder / "h.db") as history:
            study = history.open_study(self.make["spec"]())
            study.release_claims()
            known = {trial.number for trial in study.trials()}
            for number in sorted(set(range(TRIALS)) - known):
                self.make["run"](study, number, self.make["correct"](number))
                tell()

    def check(self, folder: Path, told: int) -> None:
        numbers = self.numbers(folder)
        assert numbers == list(range(len(numbers))), numbers
        assert told <= len(numbers) <= told + 1, (numbers, told)
        self.work(folder)
        assert self.numbers(folder) == list(range(TRIALS))
        with sqlite3.connect(folder / "h.db") as raw:
            assert raw.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            assert raw.execute("PRAGMA foreign_key_check").fetchall() == []
            assert raw.execute("SELECT count(*) FROM trial WHERE state <> 'done'").fetchone() == (0,)
            for table in ("kernel", "measurement", "baseline", "verification"):
                assert raw.execute(f"SELECT count(*) FROM {table}").fetchone() == (TRIALS,), table

    def numbers(self, folder: Path) -> list[int]:
        with History(folder / "h.db") as history:
            trials = history.open_study(self.make["spec"]()).trials()
        for trial in trials:
            assert (trial.ratio, trial.rel_error, trial.source) == (1.0, 1e-7, f"// kernel {trial.number}\n")
        return [trial.number for trial in trials]


class Create(Record):
    """The same where the history is not there yet."""

    def prepare(self, folder: Path) -> None:
        pass


class Cache(Task):
    """Kernels are put into the cache: an entry is whole or a miss, never an error."""

    def work(self, folder: Path) -> None:
        cache = KernelCache(folder / "cache")
        for number in range(TRIALS):
            cache.put(*self.key(number), b"%d" % number * 20000, "log")
            tell()

    def check(self, folder: Path, told: int) -> None:
        cache = KernelCache(folder / "cache")
        for number in range(TRIALS):
            found = cache.get(*self.key(number))
            assert found is None or found.cubin == b"%d" % number * 20000
        self.work(folder)
        assert all(cache.get(*self.key(number)) for number in range(TRIALS))

    @staticmethod
    def key(number: int) -> tuple[KernelSource, tuple[str, ...], str]:
        recipe = LaunchRecipe("k", (32, 1, 1), ("1", "1", "1"), (), Tile(1, 1, "0", "0"))
        configuration = Configuration.of("simt", {"bm": number})
        return KernelSource(configuration, "k", f"// {number}", "t", recipe), ("-O3",), "13.0"


TASKS: dict[str, Callable[[], Task]] = {"record": Record, "create": Create, "cache": Cache}
ENDS = ("done", "survived", "refused", "crashed")
"""How an attempt ends: not struck at all, struck without noticing, with a sentence for the user, with anything else."""
reading, writing = os.pipe()


def tell() -> None:
    """One more step is done; told at once, as death comes without notice."""
    os.write(writing, b".")


def forked(act: Callable[[], object]) -> tuple[str, int]:
    """Run ``act`` in a process of its own; how it ended (the signal, where one killed it), and the steps it told."""
    pid = os.fork()
    if pid == 0:
        end = "crashed"
        try:
            act()
            end = "survived" if SHIM.disk_happened() else "done"
        except GemmtuneError as error:
            SHIM.disk_plan(-1, 0)
            sys.stderr.write(f"{error}\n")
            end = "refused"
        except BaseException:
            SHIM.disk_plan(-1, 0)
            traceback.print_exc()
        finally:
            os._exit(ENDS.index(end))
    status = os.waitpid(pid, 0)[1]
    os.write(writing, b"!")
    told = len(os.read(reading, 1000)) - 1
    if os.WIFSIGNALED(status):
        return signal.Signals(os.WTERMSIG(status)).name, told
    return ENDS[os.WEXITSTATUS(status)], told


def main(task_name: str, kind: int, root: Path, first: int, step: int) -> None:
    """Strike the task at change ``first``, and every ``step`` changes later, until it is done before."""
    task = TASKS[task_name]()
    base = root / "base"
    base.mkdir()
    forked(lambda: task.prepare(base))
    rehearsal = root / "rehearsal"  # whatever Python sets up at its first use is ready before the forks
    shutil.copytree(base, rehearsal)
    task.work(rehearsal)
    os.write(writing, b"!")
    os.read(reading, 1000)
    changes, ended = first, ""
    while ended != "done":
        folder = root / str(changes)
        shutil.copytree(base, folder)

        def struck(folder: Path = folder, changes: int = changes) -> None:
            SHIM.disk_plan(changes, kind)
            task.work(folder)

        ended, told = forked(struck)
        checked, _ = forked(partial(task.check, folder, told))
        sys.stdout.write(json.dumps([ended, checked]) + "\n")
        sys.stdout.flush()
        shutil.rmtree(folder)
        changes += step


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]))
