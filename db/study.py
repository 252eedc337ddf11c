"""A study in the history, as its one owner writes it: claim a configuration, finish it, never touch it again."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import delete, or_, select, update
from sqlalchemy.orm import Session

from gemmtune.db import models as m
from gemmtune.db import queries, store
from gemmtune.db.owner import Owner, this_process
from gemmtune.db.queries import CLAIMED, DONE
from gemmtune.db.records import MeasurementData, StudySpec, TrialRecord, TrialResult
from gemmtune.space.configuration import Configuration
from gemmtune.space.errors import DatabaseError

if TYPE_CHECKING:
    from gemmtune.db.history import History


@dataclass(frozen=True)
class Study:
    """Handle of one study. Made by :meth:`gemmtune.db.History.open_study`.

    ``resumed`` says whether it was there before; ``parent_id`` is the study it continues in another environment.
    Every method raises :class:`DatabaseError` where the database fails.
    """

    history: History
    spec: StudySpec
    id: int
    uuid: str
    parent_id: int | None
    resumed: bool

    def trials(self) -> list[TrialRecord]:
        """The finished trials in order of their number, each number and each configuration once.

        Copies of a study that went on apart may meet in a merge; the trial that finished first then stands for its
        number here. :meth:`gemmtune.db.History.trials` gives them all.
        """
        with self.history.reading() as session:
            found = queries.records(
                session,
                m.Trial.study_id == self.id,
                m.Trial.state == DONE,
                order=(m.Trial.number, m.Trial.finished, m.Trial.uuid),
            )
        numbers: set[int] = set()
        keys: set[str] = set()
        out: list[TrialRecord] = []
        for trial in found:
            if trial.number not in numbers and trial.configuration_key not in keys:
                out.append(trial)
                numbers.add(trial.number)
                keys.add(trial.configuration_key)
        return out

    def claim(self, number: int, configuration: Configuration) -> int:
        """Reserve ``number`` and ``configuration`` for this process; the trial's id.

        Raises:
            DatabaseError: the number or the configuration is taken, by a finished trial or by a living owner.
        """
        owner = this_process()
        with self.history.writing() as session:
            # Where writers are not one after another anyway, the study's row orders the claims of a study.
            session.execute(select(m.Study.id).where(m.Study.id == self.id).with_for_update())
            taken = self._taken(session, number, configuration)
            if any(trial.state == CLAIMED for trial in taken) and _release(session, self.id, own=False):
                taken = self._taken(session, number, configuration)
            if taken:
                raise DatabaseError(self._conflict(taken[0], number))
            trial = m.Trial(
                uuid=store.new_uuid(),
                study_id=self.id,
                kernel_id=None,
                number=number,
                state=CLAIMED,
                family=configuration.family,
                configuration=str(configuration),
                configuration_key=configuration.key,
                outcome=None,
                detail="",
                pattern="",
                seconds={},
                started=time.time(),
                finished=None,
                score=None,
                final=False,
                owner_host=owner.host,
                owner_pid=owner.pid,
                owner_token=owner.token,
            )
            session.add(trial)
            session.flush()
            return trial.id

    def _taken(self, session: Session, number: int, configuration: Configuration) -> list[m.Trial]:
        same = or_(m.Trial.number == number, m.Trial.configuration_key == configuration.key)
        return list(session.scalars(select(m.Trial).where(m.Trial.study_id == self.id, same)))

    def _conflict(self, trial: m.Trial, number: int) -> str:
        what = (
            f"Trial {number} of study {self.id}" if trial.number == number else f"Configuration {trial.configuration}"
        )
        if trial.state == DONE:
            return f"{what} is already recorded as trial {trial.number}: read the study's trials before going on."
        owner = Owner(trial.owner_host or "", trial.owner_pid or 0, trial.owner_token or "")
        cure = "wait for that one or stop it"
        if owner.host != this_process().host:
            cure += "; if it is gone, run again in an hour or call release_claims(force=True)"
        return f"{what} is being tried by {owner}, and one process owns a study: {cure}."

    def finish(self, trial_id: int, result: TrialResult) -> None:
        """Record how a claimed trial ended, with kernel, proof and measurement, in one transaction.

        Raises:
            DatabaseError: the trial is not claimed (any more).
        """
        now = time.time()
        with self.history.writing() as session:
            configuration = session.scalar(
                select(m.Trial.configuration).where(
                    m.Trial.id == trial_id, m.Trial.study_id == self.id, m.Trial.state == CLAIMED
                )
            )
            if configuration is None:
                raise DatabaseError(
                    f"Trial {trial_id} of study {self.id} is not claimed: it is finished, or another process released "
                    f"the claim; let one process own a study."
                )
            kernel_id = store.add_kernel(session, result.kernel, configuration) if result.kernel else None
            session.execute(
                update(m.Trial)
                .where(m.Trial.id == trial_id)
                .values(
                    state=DONE,
                    kernel_id=kernel_id,
                    outcome=str(result.outcome),
                    detail=result.detail,
                    pattern=store.failure_pattern(result.detail),
                    seconds=store.plain(result.seconds),
                    finished=now,
                    owner_host=None,
                    owner_pid=None,
                    owner_token=None,
                )
            )
            if result.verification:
                store.add_verification(session, trial_id, result.verification)
            if result.measurement:
                self._check_kind(result.measurement)
                store.add_measurement(session, trial_id, result.measurement, final=False, now=now)
                store.refresh_scores(session, [trial_id])

    def add_measurement(self, trial_id: int, measurement: MeasurementData, *, final: bool = True) -> None:
        """Append a measurement to a finished trial; the latest final one counts from now on.

        Raises:
            DatabaseError: the study has no such finished trial.
        """
        self._check_kind(measurement)
        with self.history.writing() as session:
            found = select(m.Trial.id).where(m.Trial.id == trial_id, m.Trial.study_id == self.id, m.Trial.state == DONE)
            if session.scalar(found) is None:
                raise DatabaseError(
                    f"Study {self.id} has no finished trial {trial_id}: finish it before measuring again."
                )
            store.add_measurement(session, trial_id, measurement, final=final, now=time.time())
            store.refresh_scores(session, [trial_id])

    def _check_kind(self, measurement: MeasurementData) -> None:
        """Keep estimates and measurements apart: a study's device gives the one or the other."""
        if measurement.estimated != {"emulator": True, "cuda": False}.get(self.spec.kind, measurement.estimated):
            word = "An estimated" if measurement.estimated else "A measured"
            raise DatabaseError(
                f"{word} time cannot go into study {self.id}, whose device kind is {self.spec.kind}: "
                f"open a study for the device that gave it."
            )

    def release_claims(self, *, force: bool = False) -> int:
        """Drop the claims of dead owners and those this process left open; how many there were.

        Claims from another host count as left behind after an hour. ``force`` drops every claim: for when you know
        that no other process works on the study.
        """
        with self.history.writing() as session:
            return _release(session, self.id, own=True, force=force)


def _release(session: Session, study_id: int, *, own: bool, force: bool = False) -> int:
    now, me = time.time(), this_process()
    gone: list[int] = []
    for trial in session.scalars(select(m.Trial).where(m.Trial.study_id == study_id, m.Trial.state == CLAIMED)):
        owner = Owner(trial.owner_host or "", trial.owner_pid or 0, trial.owner_token or "")
        if force or (own and owner == me) or owner.left_behind(trial.started, now):
            gone.append(trial.id)
    if gone:
        session.execute(delete(m.Trial).where(m.Trial.id.in_(gone)))
    return len(gone)
