"""A configuration becomes CUDA source: Jinja2 templates with the problem, the knobs and the family's own values.

The context is, from weakest to strongest: the problem's names (:mod:`gemmtune.codegen.gemm` for a GEMM), every knob
of the configuration by its name, what ``family.context`` returns, and ``entry``. A name a template asks for and nobody
gave is an error, never an empty string.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import jinja2
import jinja2.meta

from gemmtune.codegen.gemm import gemm_context
from gemmtune.codegen.kernel import KernelSource
from gemmtune.space.configuration import Configuration
from gemmtune.space.errors import ConfigurationError
from gemmtune.space.families import family as family_named
from gemmtune.space.family import Family
from gemmtune.space.gemm import Gemm
from gemmtune.space.problem import Problem

_HERE = Path(__file__).parent
TEMPLATES = _HERE / "templates"
INTRINSICS = _HERE / "intrinsics" / "hw.cuh"
HEADER_NAME = "gemmtune/hw.cuh"
"""The name under which kernels include the intrinsics; NVRTC gets the text from memory, the emulator its own twin.
Every other ``codegen/intrinsics/X.cuh`` is ``gemmtune/X.cuh`` to those kernels that include it."""
_INCLUDE = re.compile(r'^[ \t]*#include[ \t]+"(gemmtune/\w+\.cuh)"', re.MULTILINE)

_PROBLEM_CONTEXTS: dict[str, Callable[[Any], dict[str, Any]]] = {Gemm.kind: gemm_context}


@lru_cache(maxsize=1)
def intrinsics() -> str:
    """The text of the intrinsics layer for NVRTC."""
    return _header(HEADER_NAME)


@lru_cache(maxsize=16)
def _header(name: str) -> str:
    return (INTRINSICS.parent / Path(name).name).read_text()


def further_headers(text: str) -> dict[str, str]:
    """The intrinsics headers, besides the one that every kernel has, that ``text`` or one of them includes, by name.

    Only these are part of what a kernel is made from: a new header leaves the hashes of older kernels as they are.

    Raises:
        ConfigurationError: it includes an intrinsics header that does not exist.
    """
    found: dict[str, str] = {}
    pending = _INCLUDE.findall(text)
    while pending:
        name = pending.pop(0)
        if name == HEADER_NAME or name in found:
            continue
        try:
            found[name] = _header(name)
        except OSError:
            raise ConfigurationError(f"There is no intrinsics header {name}: correct the #include.") from None
        pending += _INCLUDE.findall(found[name])
    return dict(sorted(found.items()))


@lru_cache(maxsize=32)
def _environment(directories: tuple[Path, ...]) -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader([*directories, TEMPLATES]),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701 - the output is CUDA source, never HTML
    )


def _template_dirs(family: Family) -> tuple[Path, ...]:
    """A user's own family may bring folders of templates, searched before ours."""
    return tuple(Path(p) for p in cast("tuple[Path, ...]", getattr(family, "template_dirs", ())))


def _template_name(family: Family) -> str:
    return f"{family.name}/kernel.cu.j2"


@lru_cache(maxsize=64)
def _template_text(directories: tuple[Path, ...], name: str) -> str:
    environment = _environment(directories)
    loader = jinja2.FileSystemLoader([*directories, TEMPLATES])
    parts: list[str] = []
    seen: set[str] = set()
    pending = [name]
    while pending:
        current = pending.pop(0)
        if current in seen:
            continue
        seen.add(current)
        text = loader.get_source(environment, current)[0]
        parts.append(f"{{# ==== {current} ==== #}}\n{text}")
        pending += [r for r in jinja2.meta.find_referenced_templates(environment.parse(text)) if r is not None]
    headers = {HEADER_NAME: intrinsics(), **further_headers("\n".join(parts))}
    parts += [f"{{# ==== {header} ==== #}}\n{text}" for header, text in headers.items()]
    return "\n".join(parts)


def template_text(family: Family) -> str:
    """All text that a kernel of ``family`` is made from: its template, everything that includes, the intrinsics.

    Raises:
        ConfigurationError: the family has no template.
    """
    try:
        return _template_text(_template_dirs(family), _template_name(family))
    except jinja2.TemplateNotFound as error:
        raise ConfigurationError(
            f"Family {family.name!r} has no template {error.name}: put it into codegen/templates/, or name its "
            f"folder in the family's template_dirs."
        ) from None


def template_hash(family: Family) -> str:
    """SHA-256 of :func:`template_text`: one change in a template, an include or an intrinsic changes it."""
    return hashlib.sha256(template_text(family).encode()).hexdigest()


def render(problem: Problem, configuration: Configuration, family: Family | None = None) -> KernelSource:
    """The CUDA source and launch recipe of ``configuration`` for ``problem``.

    The entry is named after what the source is made from, so that two problems with the same source (they differ in M)
    share the entry, the cubin and its place in the cache.

    Args:
        problem: what the kernel computes.
        configuration: one value for each knob; not checked against the space's rules here.
        family: the configuration's family; by default the registered one of its name.

    Raises:
        UnknownNameError: the family is not registered.
        ConfigurationError: the family has no template, or the template asks for a name that nobody gave.
    """
    family = family or family_named(configuration.family)
    digest = template_hash(family)
    problem_context = _PROBLEM_CONTEXTS.get(problem.kind, lambda _: {})
    context = {**problem_context(problem), **configuration, **family.context(problem, configuration)}
    made_from = json.dumps([digest, context], sort_keys=True, default=str)
    entry = f"{family.name}_{hashlib.sha256(made_from.encode()).hexdigest()[:12]}"
    try:
        template = _environment(_template_dirs(family)).get_template(_template_name(family))
        text = template.render(**context, entry=entry)
    except jinja2.UndefinedError as error:
        raise ConfigurationError(f"The template of family {family.name!r} does not render: {error}.") from None
    recipe = replace(family.plan(problem, configuration), entry=entry)
    return KernelSource(configuration=configuration, entry=entry, text=text, template_hash=digest, recipe=recipe)
