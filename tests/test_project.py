"""The project as a whole: folders, mapping, links and wheel agree; the documents tell the truth."""

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("space", "codegen", "device", "db", "search", "pack", "diagnose")
CODE = {".py"}
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    """pyproject.toml."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        return tomllib.load(file)


def tracked() -> list[Path]:
    """Files of the repository that are not ignored, relative to its root, links left out."""
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        pytest.skip("needs a git checkout")
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    paths = [Path(line) for line in listed.stdout.splitlines()]
    return [p for p in paths if (ROOT / p).is_file() and not (ROOT / p).is_symlink()]


def packages_on_disk() -> dict[str, str]:
    """Package name -> folder, for every folder with an ``__init__.py``."""
    found = {"gemmtune": "src/gemmtune"}
    found |= {f"gemmtune.{name}": f"src/gemmtune/{name}" for name in ("cli", "diagnose", "torch")}
    for room in ROOMS:
        for init in (ROOT / room).rglob("__init__.py"):
            folder = init.parent.relative_to(ROOT)
            found["gemmtune." + ".".join(folder.parts)] = folder.as_posix()
    return found


def test_every_folder_is_mapped_and_every_mapping_has_its_folder(project: dict[str, Any]) -> None:
    setup = project["tool"]["setuptools"]
    assert setup["package-dir"] == packages_on_disk()
    assert sorted(setup["packages"]) == sorted(packages_on_disk())
    assert setup["include-package-data"] is False


def test_every_room_has_its_link_and_its_tests() -> None:
    for room in ROOMS:
        link = ROOT / "src" / "gemmtune" / room
        assert link.is_symlink()
        assert link.readlink() == Path("../..") / room
        assert (ROOT / "tests" / room).is_dir()
    links = {p.name for p in (ROOT / "src" / "gemmtune").iterdir() if p.is_symlink()}
    assert links == set(ROOMS)


def test_the_wheel_holds_every_file_of_the_rooms_and_nothing_else(tmp_path: Path) -> None:
    source = tmp_path / "source"
    for path in tracked():
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, source / path)
    command = [sys.executable, "-m", "pip", "wheel", str(source), "--no-deps", "--no-build-isolation", "-q"]
    done = subprocess.run([*command, "-w", str(tmp_path / "wheel")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    (wheel,) = (tmp_path / "wheel").glob("gemmtune-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        inside = {name for name in archive.namelist() if ".dist-info/" not in name}
        metadata = next(name for name in archive.namelist() if name.endswith("entry_points.txt"))
        assert "gemmtune = gemmtune.cli.main:main" in archive.read(metadata).decode()
        assert any(name.endswith("licenses/LICENSE") for name in archive.namelist())
    expected = set()
    for path in tracked():
        if path.parts[0] in ROOMS:
            expected.add(f"gemmtune/{path.as_posix()}")
        elif path.parts[:2] == ("src", "gemmtune"):
            expected.add(path.relative_to("src").as_posix())
    assert inside == expected


def test_the_public_names_exist() -> None:
    import gemmtune

    for name in gemmtune.__all__:
        assert getattr(gemmtune, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        gemmtune.nonsense  # noqa: B018
    assert set(gemmtune.__all__) <= set(dir(gemmtune))


def test_importing_the_package_imports_nothing_else() -> None:
    code = "import sys; before = set(sys.modules); import gemmtune; print(sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "numpy" not in done.stdout
    assert "gemmtune.space" not in done.stdout


def test_version_is_the_projects(project: dict[str, Any]) -> None:
    import gemmtune

    assert gemmtune.__version__ == project["project"]["version"]


# -------------------------------------------------------------------------------------------------- documents


def shell_blocks() -> list[str]:
    """What the README asks to type into a shell: its code blocks without a language."""
    found = re.findall(r"^```(\w*)\n(.*?)\n```$", README, re.DOTALL | re.MULTILINE)
    return [text for language, text in found if not language]


def test_the_readme_has_the_two_commands_and_ci_runs_the_second() -> None:
    blocks = shell_blocks()
    assert blocks[0] == 'pip install -e ".[cuda13]" && gemmtune tune 512x512x512 --dtype bf16'
    assert blocks[1] == 'pip install -e ".[cuda13,dev]" && pytest -q'
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    (pattern,) = re.findall(r"grep -m1 -oE '(.*?)' README.md", ci)
    assert re.findall(pattern, README) == [blocks[1]]
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111, ".ci/run must be executable"


def test_the_readme_shows_commands_and_options_that_exist(capsys: pytest.CaptureFixture[str]) -> None:
    from gemmtune.cli.main import run

    lines = re.findall(r"^gemmtune ([^#\n]*)", "\n".join(shell_blocks()), re.MULTILINE)
    lines += re.findall(r"`gemmtune ([^`]*)`", README)
    assert len(lines) > 10
    for line in lines:
        words = line.split()
        command = words[:2] if words[0] in ("query", "db") else words[:1]
        assert run([*command, "--help"]) == 0, line
        text = capsys.readouterr().out
        for option in (w for w in words if w.startswith("--")):
            assert re.search(rf"{re.escape(option)}\b", text), f"gemmtune {line}: {option}"


def test_the_readme_table_is_the_result_files(load_benchmark: Callable[[str], Any]) -> None:
    assert load_benchmark("readme_table.py").rewritten(README) == README, "run: python benchmarks/readme_table.py"


def test_documents_name_files_that_exist() -> None:
    for name in ("README.md", "CONTRIBUTING.md"):
        text = (ROOT / name).read_text(encoding="utf-8")
        named = re.findall(r"\]\(([^)#:]+)\)", text) + re.findall(r"`((?:[\w.]+/)+[\w.]*)`", text)
        assert named
        for path in named:
            if (ROOT / Path(path).parts[0]).exists() and "h200" not in path:
                assert (ROOT / path).exists(), f"{name}: {path}"


FORBIDDEN = (
    "/wo" + "rk/", "/ro" + "ot/", "/tmp/" + "gt", "/ho" + "me/", r"issues?[ /#]+\d", r"\bTO" + r"DO\b",
    r"\bFIX" + r"ME\b", r"\bsub-?ag" + r"ents?\b", r"\bLL" + r"Ms?\b",
    "file" + "d by a", "pypi" + r"\.org", "python" + "hosted",
)  # fmt: skip


def test_the_text_tells_nothing_of_how_or_where_it_was_written() -> None:
    pattern = re.compile("|".join(FORBIDDEN))
    found = []
    for path in tracked():
        try:
            text = (ROOT / path).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        found += [
            f"{path}:{i}: {line.strip()[:100]}" for i, line in enumerate(text.splitlines(), 1) if pattern.search(line)
        ]
    assert not found, "\n".join(found)


def test_modules_stay_readable() -> None:
    long = {}
    for path in tracked():
        if path.suffix in CODE and path.parts[0] not in ("tests", "benchmarks"):
            lines = len((ROOT / path).read_text(encoding="utf-8").splitlines())
            if lines >= 400:
                long[str(path)] = lines
    assert not long
