"""Run by Alembic: migrate the connection that :func:`gemmtune.db.schema.config` hands over, in its transaction."""

from alembic import context

from gemmtune.db.models import metadata
from gemmtune.db.schema import VERSION_TABLE

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=VERSION_TABLE,
    render_as_batch=True,  # SQLite alters a table by copying it
    compare_type=True,
    include_name=lambda name, kind, _parents: kind != "table" or name in metadata.tables,
)
with context.begin_transaction():
    context.run_migrations()
