"""Which recorded kernel a user means, and its cubin: what ``show``, ``rerun`` and ``diagnose`` begin with."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from gemmtune.codegen.cache import KernelCache
from gemmtune.codegen.kernel import KernelSource
from gemmtune.codegen.nvrtc import compile_kernel, compile_options, nvrtc_version
from gemmtune.codegen.render import render
from gemmtune.db import History, TrialRecord
from gemmtune.db.standing import standing
from gemmtune.space.configuration import Configuration
from gemmtune.space.errors import ConfigurationError, ToolchainError, UnknownNameError, UnsupportedError
from gemmtune.space.families import FAMILIES
from gemmtune.space.gpu import Gpu
from gemmtune.space.problem import Problem, problem_from_json
from gemmtune.space.recipe import LaunchRecipe

SHORTEST = 4
"""Hex digits that name a trial or a kernel at least."""
EMPTY_SHA256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
"""The hash of no bytes: kernels that an emulator without NVRTC runs have no cubin."""
_NAMED_AT_MOST = 5
"""Candidates that a message lists."""


def find_kernel(history: History, text: str) -> TrialRecord:
    """The one finished trial that ``text`` names.

    It may be a trial's id as tables print it (``17``), its number within a study (``3.12`` is trial 12 of study 3), or
    the start of a trial's uuid or of a kernel's cubin hash. A cubin that several trials share is one kernel: the trial
    that stands best among them answers for it. The trial may have failed; then its kernel's fields may be empty.

    Raises:
        UnknownNameError: the text has none of these forms, names nothing, or names several kernels or trials.
    """
    asked = text.strip().lower()
    if found := re.fullmatch(r"([0-9]{1,18})\.([0-9]{1,18})", asked):
        return _one(asked, history.numbered(int(found[1]), int(found[2])))
    if re.fullmatch(r"[0-9]{1,18}", asked):
        record = history.trial(int(asked))
        if record is not None and record.state == "done":
            return record
        if len(asked) < SHORTEST:
            raise UnknownNameError(
                f"No finished trial has the id {asked}: 'gemmtune query trials' lists those there are."
            )
    if not re.fullmatch(rf"[0-9a-f]{{{SHORTEST},64}}", asked):
        raise UnknownNameError(
            f"{text!r} names no kernel: give a trial's id (17), its number in a study (3.12), or at least {SHORTEST} "
            f"hex digits that its uuid or its cubin's hash starts with."
        )
    return _one(asked, history.named(asked))


def best_kernel(
    history: History,
    problem: Problem,
    *,
    gpu_key: str | None = None,
    kind: str | None = None,
    regime: str | None = None,
    cache: str | None = None,
) -> TrialRecord:
    """The best kernel known for a problem, as packs and benchmarks choose it.

    Raises:
        UnknownNameError: none is known, or they are of several devices or timed in several ways, which do not compare.
    """
    found = [
        record
        for record in history.best_kernels(gpu_key, kind, regime, cache=cache)
        if record.problem_key == problem.key
    ]
    if len(found) == 1:
        return found[0]
    if not found:
        raise UnknownNameError(
            f"No kernel is known for {problem.key}{_narrowed(gpu_key, kind, regime, cache)}: run 'gemmtune tune' for "
            f"it first, or widen the query."
        )
    each = "; ".join(f"{r.id} on {r.kind} {r.gpu.short or r.gpu.name}, {r.regime}, {r.cache} cache" for r in found)
    raise UnknownNameError(
        f"The best kernels for {problem.key} were timed on several devices or in several ways: name one by its trial "
        f"({each})."
    )


def _narrowed(*parts: str | None) -> str:
    given = [part for part in parts if part is not None]
    return f" ({', '.join(given)})" if given else ""


def _one(asked: str, found: Sequence[TrialRecord]) -> TrialRecord:
    if not found:
        raise UnknownNameError(
            f"No finished trial or kernel is called {asked}: 'gemmtune query trials' lists those there are."
        )
    cubins = {record.cubin_sha256 for record in found}
    if len(found) == 1 or (len(cubins) == 1 and all(c.startswith(asked) for c in cubins)):
        return _answering(found)
    names = [f"{r.id} ({r.uuid[:12]}, cubin {r.cubin_sha256[:12] or 'none'})" for r in found]
    more = f" and {len(names) - _NAMED_AT_MOST} more" if len(names) > _NAMED_AT_MOST else ""
    raise UnknownNameError(
        f"{asked} names several: give more digits, or one trial's id of {', '.join(names[:_NAMED_AT_MOST])}{more}."
    )


def _answering(found: Sequence[TrialRecord]) -> TrialRecord:
    """The trial that speaks for a kernel: of the latest trial's circumstances the one that stands best, else that."""
    latest = _circumstances(found[0])
    return next(iter(standing(r for r in found if _circumstances(r) == latest)), found[0])


def _circumstances(record: TrialRecord) -> tuple[object, ...]:
    """What must agree for two trials' times to compare."""
    environment = tuple(sorted(record.environment.items()))
    return record.problem_key, record.kind, record.gpu.key, environment, record.regime, record.cache


# ------------------------------------------------------------------------------------------- the kernel of a trial


def problem_of(record: TrialRecord) -> Problem:
    """What the trial computed.

    Raises:
        UnknownNameError, ProblemError: this version does not know such a problem.
    """
    return problem_from_json(record.problem_json)


def check_runs_on(record: TrialRecord, gpu: Gpu) -> None:
    """Whether the trial's kernel can run on ``gpu`` at all; the GPU that it was recorded on is not asked again.

    Raises:
        UnsupportedError: its family needs what that GPU lacks.
        UnknownNameError, ProblemError: this version does not know such a problem.
    """
    family = FAMILIES.get(record.family)
    if family is None or gpu.key == record.gpu.key:
        return
    if (reason := family.unsupported(problem_of(record), gpu)) is not None:
        raise UnsupportedError(f"Trial {record.id} cannot run on {gpu.name}: {reason.rstrip('.')}.")


def source_of(record: TrialRecord) -> KernelSource:
    """The source as it was recorded; where the trial kept none (it did not compile), as it is rendered today.

    Raises:
        ConfigurationError: nothing was recorded, and it cannot be rendered any more.
        UnknownNameError: nothing was recorded, and its family is not registered here.
        PackError: the recorded recipe is malformed.
    """
    configuration = Configuration.parse(record.configuration)
    if not record.source or record.recipe is None:
        return render(problem_of(record), configuration)
    recipe = LaunchRecipe.from_json(record.recipe)
    return KernelSource(configuration, recipe.entry, record.source, record.template_hash, recipe)


@dataclass(frozen=True)
class FoundCubin:
    """A trial's cubin and where it came from, in words: the cache, an exported pack, or a compiler of today."""

    data: bytes
    origin: str


def cubin_of(history: History, record: TrialRecord, kernels: KernelCache | None = None) -> FoundCubin:
    """The very cubin that the trial ran: from the cache, from an export, or compiled again by the same NVRTC.

    Raises:
        ConfigurationError: the trial has no cubin, since it did not compile or ran from its source.
        ToolchainError: it is neither kept nor can it be made again here; the message says why.
        CompileError: the same NVRTC refuses it now.
    """
    wanted = record.cubin_sha256
    if not record.source or not wanted or wanted == EMPTY_SHA256:
        why = record.detail or "it never got so far"
        raise ConfigurationError(f"Trial {record.id} has no cubin ({record.outcome.replace('_', ' ')}): {why}")
    exported = history.cubin(wanted)
    if exported is not None:
        return FoundCubin(exported, "kept with an exported pack")
    source, cache = source_of(record), kernels or KernelCache()
    cached = cache.get(source, compile_options(record.arch, record.nvrtc), record.nvrtc)
    if cached is not None and hashlib.sha256(cached.cubin).hexdigest() == wanted:
        return FoundCubin(cached.cubin, f"from the kernel cache in {cache.root}")
    kept = f"The cubin of trial {record.id} is in neither the cache nor an exported pack"
    try:
        here = nvrtc_version()
    except ToolchainError as error:
        raise ToolchainError(f"{kept}, and there is no compiler to make it again: {error}") from None
    if here != record.nvrtc:
        raise ToolchainError(
            f"{kept}, and NVRTC {record.nvrtc} made it, while NVRTC {here} is installed here: install that version, or "
            f"'gemmtune rerun {record.id}' compiles its source anew."
        )
    made = compile_kernel(source, record.arch, cache)
    if made.cubin_sha256 != wanted:
        raise ToolchainError(
            f"NVRTC {here} makes another cubin of trial {record.id} today ({made.cubin_sha256[:12]} instead of "
            f"{wanted[:12]}), since gemmtune's intrinsics have changed: go back to the version that made it."
        )
    return FoundCubin(made.cubin, f"compiled again by NVRTC {here}, bit for bit the recorded one")
