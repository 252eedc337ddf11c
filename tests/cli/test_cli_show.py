"""``gemmtune show`` and ``query failures``: what a user sees of one kernel, and of what went wrong."""

import csv
import hashlib
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gemmtune.codegen.cache import KernelCache
from gemmtune.codegen.nvrtc import nvrtc_version
from gemmtune.db import History, TrialResult
from gemmtune.search import lookup
from gemmtune.search.lookup import cubin_of, find_kernel
from gemmtune.space.configuration import Configuration
from gemmtune.space.errors import ConfigurationError, ToolchainError

Cli = Callable[..., Any]
SHAPE = "48x40x32"


@pytest.fixture
def wide(cli: Cli, tuned: tuple[Path, str]) -> dict[str, Any]:
    """The best trial of the small study as data."""
    found: dict[str, Any] = json.loads(cli("query", "best", "--format", "json").out)[0]
    return found


def test_show_tells_everything_of_a_kernel(cli: Cli, wide: dict[str, Any]) -> None:
    done = cli("show", str(wide["id"]))
    assert done.code == 0, done
    assert done.err == ""
    lines = done.out.splitlines()
    assert lines[:2] == [f"Trial {wide['id']}: correct", wide["configuration"]]
    facts = {line[:13].strip(): line[13:] for line in lines if not line.startswith(" ")}
    assert facts["problem"] == wide["problem"]
    assert facts["where"] == "emulator h200, sustained, cold cache"
    assert wide["uuid"] in facts["trial"]
    assert "estimated" in facts["time"]
    assert facts["proof"].startswith("right: error ")
    assert f"{wide['registers']} registers a thread" in facts["resources"]
    assert facts["launch"].startswith("block ")
    assert facts["launch"].endswith((" block", " blocks"))
    assert wide["cubin_sha256"] in facts["kernel"]
    assert all(f"{name} {value}" in facts["environment"] for name, value in wide["environment"].items())
    assert "schedule" in done.out  # every check of the proof
    assert f"gemmtune rerun {wide['id']}" in done.out
    assert f"gemmtune diagnose {wide['id']}" in done.out


def test_every_name_of_a_kernel_shows_the_same(cli: Cli, wide: dict[str, Any]) -> None:
    numbered = f"{wide['study']}.{wide['trial']}"
    names = [str(wide["id"]), numbered, wide["uuid"], wide["uuid"][:12], wide["cubin_sha256"][:10]]
    shown = {cli("show", name).out for name in names} | {cli("show", SHAPE, "--dtype", "fp32", "--gpu", "h200").out}
    assert len(shown) == 1


def test_show_as_data(cli: Cli, wide: dict[str, Any]) -> None:
    (found,) = json.loads(cli("show", wide["uuid"], "--format", "json").out)
    assert {name: found[name] for name in wide if name != "rank"} == {k: v for k, v in wide.items() if k != "rank"}
    assert found["recipe"]["entry"]
    assert found["checks"]
    assert found["measurements"][0]["us"] == wide["us"]
    (row,) = csv.DictReader(io.StringIO(cli("show", wide["uuid"], "--format", "csv").out))
    assert row["configuration"] == wide["configuration"]


def test_source_and_recipe_need_neither_cache_nor_compiler(
    cli: Cli, wide: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GEMMTUNE_CACHE", str(tmp_path / "empty"))
    monkeypatch.setattr(lookup, "nvrtc_version", _no_nvrtc)
    source = cli("show", str(wide["id"]), "--source")
    recipe = json.loads(cli("show", str(wide["id"]), "--recipe").out)
    assert source.err == ""
    assert f"\n{recipe['entry']}(" in source.out
    assert source.out.startswith('#include "gemmtune/hw.cuh"')


def test_one_thing_alone_comes_in_the_format_that_was_asked_for(cli: Cli, wide: dict[str, Any]) -> None:
    name = str(wide["id"])
    text = cli("show", name, "--source").out
    (data,) = json.loads(cli("show", name, "--source", "--format", "json").out)
    assert (data["id"], data["configuration"], data["source"]) == (wide["id"], wide["configuration"], text)
    (row,) = csv.DictReader(io.StringIO(cli("show", name, "--source", "--format", "csv").out))
    assert row["source"] == text
    recipe = cli("show", name, "--recipe").out
    assert cli("show", name, "--recipe", "--format", "json").out == recipe
    (row,) = csv.DictReader(io.StringIO(cli("show", name, "--recipe", "--format", "csv").out))
    assert json.loads(row["recipe"]) == json.loads(recipe)


def _no_nvrtc() -> str:
    raise ToolchainError("NVRTC cannot be used: install it.")


def test_machine_code_names_the_kernel_and_where_its_cubin_was(cli: Cli, wide: dict[str, Any]) -> None:
    pytest.importorskip("gemmtune.codegen.sass").find_disassemblers() or pytest.skip("no nvdisasm here")
    done = cli("show", str(wide["id"]), "--sass")
    assert done.code == 0, done
    entry = json.loads(cli("show", str(wide["id"]), "--recipe").out)["entry"]
    assert f".text.{entry}" in done.out
    assert "EXIT" in done.out
    assert "from the kernel cache" in done.err


def test_the_cubin_comes_from_cache_or_compiler_or_export_and_is_always_the_recorded_one(
    cli: Cli, tuned: tuple[Path, str], wide: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "copy.db"  # what is exported below must not show in the history that tests share
    copy.write_bytes(tuned[0].read_bytes())
    with History(copy) as history:
        record = find_kernel(history, wide["uuid"])
        cached = cubin_of(history, record)
        assert hashlib.sha256(cached.data).hexdigest() == record.cubin_sha256
        assert cached.origin.startswith("from the kernel cache")

        empty = KernelCache(tmp_path / "empty")
        made = cubin_of(history, record, empty)
        assert made.data == cached.data
        assert "compiled again" in made.origin

        elsewhere = KernelCache(tmp_path / "elsewhere")
        monkeypatch.setattr(lookup, "nvrtc_version", lambda: "1.0")
        with pytest.raises(ToolchainError, match=rf"NVRTC {nvrtc_version()} made it, while NVRTC 1.0 is installed"):
            cubin_of(history, record, elsewhere)
        monkeypatch.setattr(lookup, "nvrtc_version", _no_nvrtc)
        with pytest.raises(ToolchainError, match="neither the cache nor an exported pack, and there is no compiler"):
            cubin_of(history, record, elsewhere)
        assert cubin_of(history, record, empty).data == cached.data  # the cache needs no compiler

        history.record_export("x.kpack", "0" * 64, [(record.cubin_sha256, cached.data)])
        kept = cubin_of(history, record, elsewhere)
        assert (kept.data, kept.origin) == (cached.data, "kept with an exported pack")


def test_a_damaged_cache_entry_is_not_taken_for_the_kernel(
    tuned: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "copy.db"
    copy.write_bytes(tuned[0].read_bytes())
    with History(copy) as history:
        record = history.trials(limit=1)[0]
        cache = KernelCache(tmp_path / "cache")
        source = lookup.source_of(record)
        cache.put(source, lookup.compile_options(record.arch, record.nvrtc), record.nvrtc, b"another cubin", "")
        monkeypatch.setattr(lookup, "nvrtc_version", _no_nvrtc)
        with pytest.raises(ToolchainError, match="neither the cache"):
            lookup.cubin_of(history, record, cache)


@pytest.fixture
def failing(tuned: tuple[Path, str], tmp_path: Path) -> Path:
    """A copy of the small study with seven failures, a compiler's long log among them."""
    path = tmp_path / "failing.db"
    with History(tuned[0]) as history:
        history.export(tmp_path / "all.gz")
    with History(path) as copy:
        copy.merge(tmp_path / "all.gz")
        study = copy.study(copy.trials(limit=1)[0].study_id)
        assert study is not None
        record = copy.trials(limit=1)[0]
        from gemmtune.db import StudySpec

        spec = StudySpec(
            record.problem_json, record.problem_key, record.kind, record.gpu, record.environment, record.regime,
            record.cache, study.families, study.strategy, study.seed,
        )  # fmt: skip
        opened = copy.open_study(spec)
        for i in range(7):
            outcome, detail, family = (
                ("wrong", f"With m={i}, {i} elements are wrong.", "simt" if i else "naive")
                if i < 5
                else ("compile", f"NVRTC refused it: {'an error in line 7 of it; ' * 60}", "simt")
            )
            opened.finish(opened.claim(100 + i, Configuration.of(family, {"bm": i})), TrialResult(outcome, detail))
    return path


def test_failures_are_told_by_reason_with_an_example_and_what_to_do(cli: Cli, failing: Path) -> None:
    done = cli("query", "failures", "--db", str(failing))
    assert done.code == 0, done
    assert done.out.startswith("7 of 10 trials failed (70 %): 5 wrong, 2 compile.\n")
    wrong, refused = done.out.split("\n\n")[1:]
    assert wrong.startswith("5 wrong (71 % of these; 4 simt, 1 naive)\n  With m=4, 4 elements are wrong.\n")
    assert f"gemm {SHAPE} fp32 nt on emulator h200: simt bm=4" in wrong
    example = json.loads(cli("query", "failures", "--db", str(failing), "--format", "json").out)
    assert f"next: gemmtune rerun {example[0]['id']} --sanitize --db {failing}" in wrong
    assert refused.startswith("2 compile (29 % of these; simt)\n")
    assert f"'gemmtune show {example[1]['id']}' prints all of it" in refused
    assert f"next: gemmtune show {example[1]['id']} --source" in refused
    assert max(map(len, refused.splitlines())) < 600
    assert [(e["count"], round(e["share"], 2), e["families"]) for e in example] == [
        (5, 0.71, {"simt": 4, "naive": 1}),
        (2, 0.29, {"simt": 2}),
    ]


def test_failures_narrowed_and_cut_short_say_so(cli: Cli, failing: Path) -> None:
    where = ("--db", str(failing))
    assert cli("query", "failures", "--outcome", "compile", *where).out.startswith("2 of 10 trials failed (20 %): 2 c")
    assert cli("query", "failures", "--family", "naive", *where).out.startswith("1 of 1 trial failed (100 %): 1 wrong")
    assert cli("query", "failures", "--limit", "1", *where).out.endswith(
        "\n2 more failed for other reasons: --limit N shows more of them.\n"
    )
    assert cli("query", "failures", "--outcome", "timeout", *where).out == "No failed trial fits.\n"
    assert "gemmtune tune" in cli("query", "failures", "--shape", "9x9x9", *where).out


def test_what_a_study_cut_short_is_counted_apart(cli: Cli, failing: Path, tuned: tuple[Path, str]) -> None:
    with History(failing) as history:
        from gemmtune.db import StudySpec

        record = history.trials(limit=1)[0]
        opened = history.open_study(
            StudySpec(
                record.problem_json, record.problem_key, record.kind, record.gpu, record.environment, record.regime,
                record.cache, ("simt",), "tpe", 0,
            )
        )  # fmt: skip
        for i, outcome in enumerate(("abandoned", "abandoned", "pruned")):
            opened.finish(opened.claim(200 + i, Configuration.of("simt", {"bm": i})), TrialResult(outcome, "Slow."))
    where = ("query", "failures", "--db", str(failing))
    told = cli(*where).out
    assert told.startswith(
        "7 of 13 trials failed (54 %): 5 wrong, 2 compile.\n"
        "Besides, 2 abandoned (clearly beaten) and 1 pruned (hopeless before it ran), which is no failure: "
        "--outcome shows them.\n"
    )
    assert "Slow." not in told
    data = json.loads(cli(*where, "--format", "json").out)
    assert {one["outcome"] for one in data} == {"wrong", "compile"}
    assert sum(one["share"] for one in data) == pytest.approx(1)
    assert "Besides" not in cli(*where, "--outcome", "wrong").out
    asked = cli(*where, "--outcome", "abandoned").out
    assert asked.startswith("2 of 13 trials were abandoned (15 %), as clearly beaten: none failed.\n")
    assert "2 abandoned (100 % of these; simt)\n  Slow." in asked
    alone = cli(*where, "--family", "simt", "--outcome", "pruned").out
    assert "1 of 12 trials was pruned" in alone


def test_a_failed_trial_shows_what_there_is_of_it(cli: Cli, failing: Path) -> None:
    with History(failing) as history:
        record = history.failures(outcome="compile")[0].example
    done = cli("show", str(record.id), "--db", str(failing))
    assert done.code == 0, done
    assert record.detail.strip() in done.out
    assert "none: it was never timed" in done.out
    assert "none: nothing was compiled" in done.out
    assert "diagnose" not in done.out
    for option, complaint in (("--recipe", "no launch recipe"), ("--sass", "no cubin")):
        refused = cli("show", str(record.id), option, "--db", str(failing))
        assert refused.code == 2
        assert complaint in refused.err
        assert refused.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["show", "99999"], "99999"),
        (["show", "zz"], "names no kernel"),
        (["show", "9x9x9"], "No kernel is known for gemm 9x9x9"),
        (["show", "9x9"], "MxNxK"),
        (["show", SHAPE, "--dtype", "fp7"], "fp7"),
        (["show", "1", "--source", "--sass"], "Only one of"),
        (["show", "1", "--format", "xml"], "table, json or csv"),
        (["show"], "KERNEL"),
        (["rerun", "99999"], "99999"),
        (["rerun", SHAPE], "names no kernel"),
        (["rerun", "1", "--tool", "memcheck"], "needs --sanitize"),
        (["rerun", "1", "--sanitize", "--tool", "hunch"], "memcheck"),
        (["rerun", "1", "--device", "tpu"], "cuda:0"),
    ],
)
def test_a_name_that_names_nothing_is_one_line_and_exit_2(
    cli: Cli, tuned: tuple[Path, str], arguments: list[str], complaint: str
) -> None:
    done = cli(*arguments)
    assert done.code == 2, done
    assert done.out == ""
    assert done.err.startswith("error: ")
    assert done.err.count("\n") == 1
    assert complaint in done.err


def test_why_makes_no_history_and_says_its_preamble_once(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GEMMTUNE_DB", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    where = ["--shape", "64x64x64", "--gpu", "h200"]
    assert cli("query", "why", "naive", *where).out == (
        "It is valid for gemm 64x64x64 bf16 nt on h200, and was never tried.\n"
    )
    configuration = (
        "simt bm=16 bn=16 bk=16 tm=3 tn=3 lanes_m=4 vec_a=9 vec_b=1 pad=0 unroll=1 buffers=1 min_blocks=1 group=1"
    )
    lines = cli("query", "why", configuration, *where).out.splitlines()
    assert lines[0] == f"It is not valid for gemm 64x64x64 bf16 nt on h200, for {len(lines) - 1} reasons:"
    assert len(lines) > 2
    assert all(line.startswith("- ") and "not valid for" not in line for line in lines[1:])
    assert list(tmp_path.iterdir()) == []
    typo = tmp_path / "histroy.db"
    refused = cli("query", "why", "naive", *where, "--db", str(typo))
    assert (refused.code, refused.out) == (1, "")
    assert "There is no history at" in refused.err
    assert not typo.exists()


def test_a_trial_without_a_cubin_says_why(failing: Path) -> None:
    with History(failing) as history:
        record = history.failures(outcome="wrong")[0].example
        with pytest.raises(ConfigurationError, match=rf"Trial {record.id} has no cubin \(wrong\): With m="):
            cubin_of(history, record)
