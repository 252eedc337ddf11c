"""Child processes: started from anything, gone with their parent, deaf to Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from gemmtune.codegen.child import Child, ChildDiedError, signal_name

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def script(text: str, tmp_path: Path) -> str:
    """What a plain script prints."""
    file = tmp_path / "plain.py"
    file.write_text("from gemmtune.codegen.child import Child\n" + text)
    done = subprocess.run([sys.executable, file], capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    return done.stdout


@LINUX
@pytest.mark.parametrize("busy", [False, True])
def test_a_child_dies_with_its_parent(busy: bool) -> None:
    text = (
        "import os, signal, sys\n"
        "from gemmtune.codegen.child import Child\n"
        "child = Child('time:sleep')\n"
        "child.call(0, timeout=60)\n"
        "print(child.process.pid, flush=True)\n"
        f"{busy} and child.connection.send((1000,))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    parent = subprocess.run([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True, timeout=60)
    assert parent.returncode == -signal.SIGKILL
    stat = Path(f"/proc/{int(parent.stdout)}/stat")
    while stat.exists() and stat.read_text().rsplit(")", 1)[1].split()[0] != "Z":
        pass


def test_a_child_outlives_the_thread_that_started_it() -> None:
    children: list[Child] = []
    thread = threading.Thread(target=lambda: children.append(Child("os:getpid")))
    thread.start()
    thread.join()
    (child,) = children
    assert child.call(timeout=60) == child.call(timeout=60) == child.process.pid
    child.kill()
    child.kill()


def test_ctrl_c_at_the_terminal_does_not_reach_it() -> None:
    child = Child("os:getpgrp")
    assert child.call(timeout=60) == child.process.pid != os.getpgrp()
    child.process.send_signal(signal.SIGINT)
    assert child.call(timeout=60) == child.process.pid
    child.kill()


def test_a_script_without_a_main_guard_may_use_children(tmp_path: Path) -> None:
    assert script("print(Child('operator:add').call(20, 22, timeout=60))\n", tmp_path) == "42\n"


def test_a_child_finds_what_its_parent_could_import(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "own.py").write_text("def f(x):\n    return x + 1\n")
    text = "import sys\nsys.path.insert(0, 'mine')\nprint(Child('own:f').call(1, timeout=60))\n"
    assert script(text, tmp_path) == "2\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_process_may_start_children(tmp_path: Path) -> None:
    text = (
        "import os\n"
        "Child('os:getpid').call(timeout=60)\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    os._exit(Child('operator:add').call(20, 22, timeout=60))\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n"
    )
    assert script(text, tmp_path) == "42\n"


def test_a_child_whose_function_does_not_exist_is_reported() -> None:
    child = Child("no_such_module:f")
    with pytest.raises(ChildDiedError, match="exit code 1"):
        child.call(timeout=60)
    child.kill()


def test_signals_by_name() -> None:
    assert signal_name(-11) == "SIGSEGV"
    assert signal_name(-99) == "signal 99"
