"""Alembic migrations of the history."""
