"""The tables of the first release."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create every table."""
    op.create_table(
        "cubin",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_cubin")),
        sa.UniqueConstraint("sha256", name=op.f("uq_cubin_sha256")),
    )
    op.create_table(
        "environment",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_environment")),
        sa.UniqueConstraint("digest", name=op.f("uq_environment_digest")),
    )
    op.create_table(
        "export",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("uuid", sa.String(length=32), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("manifest_sha256", sa.String(length=64), nullable=False),
        sa.Column("created", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_export")),
        sa.UniqueConstraint("uuid", name=op.f("uq_export_uuid")),
    )
    op.create_table(
        "gpu",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("key", sa.String(length=255), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("short", sa.String(length=64), nullable=False),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_gpu")),
        sa.UniqueConstraint("digest", name=op.f("uq_gpu_digest")),
    )
    op.create_index(op.f("ix_gpu_key"), "gpu", ["key"], unique=False)

    op.create_table(
        "problem",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("kind", sa.String(length=64), nullable=False),
        sa.Column("key", sa.String(length=255), nullable=False),
        sa.Column("shape", sa.String(length=255), nullable=False),
        sa.Column("dtype", sa.String(length=64), nullable=False),
        sa.Column("axes", sa.JSON(), nullable=False),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_problem")),
        sa.UniqueConstraint("digest", name=op.f("uq_problem_digest")),
    )
    op.create_index(op.f("ix_problem_key"), "problem", ["key"], unique=False)
    op.create_index(op.f("ix_problem_shape"), "problem", ["shape"], unique=False)

    op.create_table(
        "template",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("hash", sa.String(length=64), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_template")),
        sa.UniqueConstraint("hash", name=op.f("uq_template_hash")),
    )
    op.create_table(
        "export_cubin",
        sa.Column("export_id", sa.Integer(), nullable=False),
        sa.Column("cubin_id", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["cubin_id"], ["cubin.id"], name=op.f("fk_export_cubin_cubin_id")),
        sa.ForeignKeyConstraint(["export_id"], ["export.id"], name=op.f("fk_export_cubin_export_id")),
        sa.PrimaryKeyConstraint("export_id", "cubin_id", name=op.f("pk_export_cubin")),
    )
    op.create_table(
        "kernel",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("template_id", sa.Integer(), nullable=False),
        sa.Column("configuration", sa.Text(), nullable=False),
        sa.Column("cubin_sha256", sa.String(length=64), nullable=False),
        sa.Column("arch", sa.String(length=64), nullable=False),
        sa.Column("nvrtc", sa.String(length=64), nullable=False),
        sa.Column("source", sa.LargeBinary(), nullable=False),
        sa.Column("recipe", sa.JSON(), nullable=False),
        sa.Column("registers", sa.Integer(), nullable=True),
        sa.Column("spill_bytes", sa.Integer(), nullable=True),
        sa.Column("stack_bytes", sa.Integer(), nullable=True),
        sa.Column("shared_bytes", sa.Integer(), nullable=True),
        sa.ForeignKeyConstraint(["template_id"], ["template.id"], name=op.f("fk_kernel_template_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_kernel")),
        sa.UniqueConstraint("digest", name=op.f("uq_kernel_digest")),
    )
    op.create_index(op.f("ix_kernel_cubin_sha256"), "kernel", ["cubin_sha256"], unique=False)

    op.create_table(
        "study",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("uuid", sa.String(length=32), nullable=False),
        sa.Column("parent_uuid", sa.String(length=32), nullable=True),
        sa.Column("spec", sa.String(length=64), nullable=False),
        sa.Column("problem_id", sa.Integer(), nullable=False),
        sa.Column("gpu_id", sa.Integer(), nullable=False),
        sa.Column("environment_id", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(length=64), nullable=False),
        sa.Column("regime", sa.String(length=64), nullable=False),
        sa.Column("cache", sa.String(length=64), nullable=False),
        sa.Column("families", sa.JSON(), nullable=False),
        sa.Column("strategy", sa.String(length=64), nullable=False),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("created", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["environment_id"], ["environment.id"], name=op.f("fk_study_environment_id")),
        sa.ForeignKeyConstraint(["gpu_id"], ["gpu.id"], name=op.f("fk_study_gpu_id")),
        sa.ForeignKeyConstraint(["problem_id"], ["problem.id"], name=op.f("fk_study_problem_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_study")),
        sa.UniqueConstraint("uuid", name=op.f("uq_study_uuid")),
    )
    op.create_index(op.f("ix_study_gpu_id"), "study", ["gpu_id"], unique=False)
    op.create_index(op.f("ix_study_problem_id"), "study", ["problem_id"], unique=False)
    op.create_index(op.f("ix_study_spec_environment_id"), "study", ["spec", "environment_id"], unique=False)

    op.create_table(
        "trial",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("uuid", sa.String(length=32), nullable=False),
        sa.Column("study_id", sa.Integer(), nullable=False),
        sa.Column("kernel_id", sa.Integer(), nullable=True),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=64), nullable=False),
        sa.Column("family", sa.String(length=64), nullable=False),
        sa.Column("configuration", sa.Text(), nullable=False),
        sa.Column("configuration_key", sa.String(length=700), nullable=False),
        sa.Column("outcome", sa.String(length=64), nullable=True),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("pattern", sa.String(length=255), nullable=False),
        sa.Column("seconds", sa.JSON(), nullable=False),
        sa.Column("started", sa.Double(), nullable=False),
        sa.Column("finished", sa.Double(), nullable=True),
        sa.Column("score", sa.Double(), nullable=True),
        sa.Column("final", sa.Boolean(), nullable=False),
        sa.Column("owner_host", sa.String(length=255), nullable=True),
        sa.Column("owner_pid", sa.Integer(), nullable=True),
        sa.Column("owner_token", sa.String(length=255), nullable=True),
        sa.ForeignKeyConstraint(["kernel_id"], ["kernel.id"], name=op.f("fk_trial_kernel_id")),
        sa.ForeignKeyConstraint(["study_id"], ["study.id"], name=op.f("fk_trial_study_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_trial")),
        sa.UniqueConstraint("uuid", name=op.f("uq_trial_uuid")),
    )
    op.create_index(
        op.f("ix_trial_outcome_pattern_family_study_id"),
        "trial",
        ["outcome", "pattern", "family", "study_id"],
        unique=False,
    )
    op.create_index(
        op.f("ix_trial_study_id_configuration_key"), "trial", ["study_id", "configuration_key"], unique=False
    )
    op.create_index(
        op.f("ix_trial_study_id_number_state_family"), "trial", ["study_id", "number", "state", "family"], unique=False
    )
    op.create_index(op.f("ix_trial_study_id_outcome_number"), "trial", ["study_id", "outcome", "number"], unique=False)
    op.create_index(
        op.f("ix_trial_study_id_final_score_family"), "trial", ["study_id", "final", "score", "family"], unique=False
    )

    op.create_table(
        "measurement",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("uuid", sa.String(length=32), nullable=False),
        sa.Column("trial_id", sa.Integer(), nullable=False),
        sa.Column("final", sa.Boolean(), nullable=False),
        sa.Column("estimated", sa.Boolean(), nullable=False),
        sa.Column("us", sa.Double(), nullable=False),
        sa.Column("us_low", sa.Double(), nullable=False),
        sa.Column("us_high", sa.Double(), nullable=False),
        sa.Column("ratio", sa.Double(), nullable=True),
        sa.Column("ratio_low", sa.Double(), nullable=True),
        sa.Column("ratio_high", sa.Double(), nullable=True),
        sa.Column("clock_mhz", sa.Double(), nullable=True),
        sa.Column("throttle", sa.Text(), nullable=False),
        sa.Column("counters", sa.JSON(), nullable=False),
        sa.Column("samples", sa.LargeBinary(), nullable=False),
        sa.Column("measured", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["trial_id"], ["trial.id"], name=op.f("fk_measurement_trial_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_measurement")),
        sa.UniqueConstraint("uuid", name=op.f("uq_measurement_uuid")),
    )
    op.create_index(
        op.f("ix_measurement_trial_id_final_measured"), "measurement", ["trial_id", "final", "measured"], unique=False
    )

    op.create_table(
        "verification",
        sa.Column("trial_id", sa.Integer(), nullable=False),
        sa.Column("passed", sa.Boolean(), nullable=False),
        sa.Column("rel_error", sa.Double(), nullable=False),
        sa.Column("error_bound", sa.Double(), nullable=False),
        sa.Column("excess", sa.Double(), nullable=False),
        sa.Column("coverage", sa.Double(), nullable=False),
        sa.Column("checks", sa.JSON(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["trial_id"], ["trial.id"], name=op.f("fk_verification_trial_id")),
        sa.PrimaryKeyConstraint("trial_id", name=op.f("pk_verification")),
    )
    op.create_table(
        "baseline",
        sa.Column("measurement_id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("us", sa.Double(), nullable=False),
        sa.Column("samples", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["measurement_id"], ["measurement.id"], name=op.f("fk_baseline_measurement_id")),
        sa.PrimaryKeyConstraint("measurement_id", name=op.f("pk_baseline")),
    )
