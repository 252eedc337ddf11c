"""Rendering: what a source depends on, what it is named after, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from gemmtune.codegen.render import render, template_hash, template_text
from gemmtune.space.configuration import Configuration
from gemmtune.space.errors import ConfigurationError, UnknownNameError
from gemmtune.space.families import FAMILIES
from gemmtune.space.families.naive import Naive
from gemmtune.space.gemm import Gemm
from gemmtune.space.problem import Problem
from gemmtune.space.recipe import LaunchRecipe

NAIVE = Configuration.of("naive", {})
PROBLEM = Gemm(64, 96, 128)


def test_problems_that_differ_in_m_alone_share_the_source() -> None:
    first, second = render(PROBLEM, NAIVE), render(PROBLEM.with_axes(m=1000), NAIVE)
    assert first.text == second.text
    assert first.entry == second.entry


@pytest.mark.parametrize(
    "other",
    [
        replace(PROBLEM, n=97),
        replace(PROBLEM, k=129),
        replace(PROBLEM, layout="nn"),
        replace(PROBLEM, dtype="fp16", b_dtype="fp16"),
        replace(PROBLEM, out_dtype="fp32"),
        replace(PROBLEM, epilogue="bias"),
    ],
    ids=lambda p: p.key,
)
def test_every_other_field_makes_another_entry(other: Gemm) -> None:
    assert render(PROBLEM, NAIVE).entry != render(other, NAIVE).entry


def test_the_recipe_launches_the_entry_of_the_source() -> None:
    source = render(PROBLEM, NAIVE)
    assert source.recipe.entry == source.entry
    assert f"\n{source.entry}(" in source.text
    assert LaunchRecipe.from_json(source.recipe.to_json()) == source.recipe


@pytest.mark.parametrize("family", FAMILIES.values(), ids=list(FAMILIES))
def test_a_template_hash_covers_includes_and_intrinsics(family: Any) -> None:
    text = template_text(family)
    for part in (f"==== {family.name}/kernel.cu.j2", "==== common/gemm.cuh.j2", "==== gemmtune/hw.cuh"):
        assert part in text
    assert template_hash(family) == template_hash(family)
    assert len({template_hash(f) for f in FAMILIES.values()}) == len(FAMILIES)


def test_an_unknown_family_lists_those_there_are() -> None:
    with pytest.raises(UnknownNameError, match=f"Unknown family 'nosuch': choose one of {', '.join(FAMILIES)}"):
        render(PROBLEM, Configuration.of("nosuch", {}))


class Own(Naive):
    """A user's own family with templates of its own."""

    name = "own"
    given: ClassVar[dict[str, Any]] = {}

    def context(self, problem: Problem, configuration: Configuration) -> dict[str, Any]:
        return self.given


def own(folder: Path, text: str, given: dict[str, Any]) -> Own:
    (folder / "own").mkdir()
    (folder / "own" / "kernel.cu.j2").write_text(text)
    family = Own()
    family.template_dirs = (folder,)  # type: ignore[attr-defined]
    family.given = given  # type: ignore[misc]
    return family


def test_a_users_own_family_brings_its_templates(tmp_path: Path) -> None:
    family = own(tmp_path, "{{ entry }} {{ n }} {{ knob }} {{ more }}", {"more": "m"})
    source = render(PROBLEM, Configuration.of("own", {"knob": 7}), family)
    assert source.text == f"{source.entry} 96 7 m"


def test_a_name_that_nobody_gave_is_an_error(tmp_path: Path) -> None:
    family = own(tmp_path, "{{ nothing }}", {})
    with pytest.raises(ConfigurationError, match="family 'own' does not render: 'nothing' is undefined"):
        render(PROBLEM, Configuration.of("own", {}), family)


def test_a_family_without_a_template_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match=r"Family 'own' has no template own/kernel\.cu\.j2"):
        render(PROBLEM, Configuration.of("own", {}), Own())
