"""``gemmtune diagnose`` as users meet it: a recorded trial without a GPU, for people and for programs."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]


def test_a_recorded_trial_is_diagnosed_in_the_engineers_order(cli: Cli, tuned: tuple[Path, str]) -> None:
    done = cli("diagnose", "1", "--db", str(tuned[0]))
    assert done.code == 0, done.err
    order = ["occupancy", "global memory", "shared memory", "compute pipe", "instruction mix", "waves", "Try: "]
    places = [done.out.index(f"\n{word}") for word in order]
    assert places == sorted(places)
    assert "Held back by waves" in done.out  # 48x40x32 is nothing for 132 SMs
    assert "SMs idle" in done.out
    assert "Missing: Achieved bandwidth" in done.out


def test_the_same_for_programs(cli: Cli, tuned: tuple[Path, str]) -> None:
    done = cli("diagnose", "48x40x32", "--dtype", "fp32", "--db", str(tuned[0]), "--format", "json")
    assert done.code == 0, done.err
    (said,) = json.loads(done.out)
    assert said["first"] == "waves"
    assert said["checks"][0]["name"] == "occupancy"
    assert said["traffic"]["global read"]["requests"] > 0
    assert said["estimated"] is True


def test_it_can_be_judged_on_another_gpu(cli: Cli, tuned: tuple[Path, str]) -> None:
    done = cli("diagnose", "1", "--db", str(tuned[0]), "--device", "emulator:l4")
    assert done.code == 0, done.err
    assert "on NVIDIA L4, not timed there" in done.out


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (("999",), 2, "No finished trial"),
        (("1", "--format", "csv"), 2, "choose table or json"),
        (("1", "--ncu", "--device", "emulator:h200"), 2, "profiles real GPUs alone"),
    ],
)
def test_what_cannot_be_diagnosed_is_one_sentence(
    cli: Cli, tuned: tuple[Path, str], arguments: tuple[str, ...], code: int, sentence: str
) -> None:
    done = cli("diagnose", *arguments, "--db", str(tuned[0]))
    assert done.code == code
    assert done.err.startswith("error: ")
    assert sentence in done.err
    assert not done.out


def test_nsight_compute_that_is_missing_is_told(
    cli: Cli, tuned: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from gemmtune.diagnose import ncu

    monkeypatch.setattr(ncu.shutil, "which", lambda name, path: None)
    done = cli("diagnose", "1", "--ncu", "--db", str(tuned[0]))
    assert done.code == 1
    assert "ncu was not found" in done.err
