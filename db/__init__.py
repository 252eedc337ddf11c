"""The history: models, migrations, queries, export and merge."""
