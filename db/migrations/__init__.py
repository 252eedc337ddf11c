"""Alembic migrations of the history.

A new revision is drafted by comparing the models with a database of the last one, then read and corrected by hand:

    from alembic import command
    from gemmtune.db.schema import config
    with engine.connect() as connection:
        command.revision(config(connection), "Add what", autogenerate=True, rev_id="0002")

Afterwards :data:`gemmtune.db.schema.HEAD` names it. Revisions go forward only: a newer schema is refused, never undone.
"""
