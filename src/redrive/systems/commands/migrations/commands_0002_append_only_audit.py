"""The audit of commands can be neither changed nor deleted."""

from alembic import op

revision = "commands_0002"
down_revision = "commands_0001"
branch_labels = None


def upgrade() -> None:
    if op.get_context().dialect.name == "sqlite":
        for act in ("UPDATE", "DELETE"):
            op.execute(
                f"CREATE TRIGGER commandbus_audit_no_{act.lower()} BEFORE {act} ON commandbus_audit "
                "BEGIN SELECT RAISE(ABORT, 'commandbus_audit is append-only'); END"
            )
        return
    op.execute(
        "CREATE FUNCTION commandbus.audit_is_append_only() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'commandbus.audit is append-only'; END $$"
    )
    for act, each in (("UPDATE", "ROW"), ("DELETE", "ROW"), ("TRUNCATE", "STATEMENT")):
        op.execute(
            f"CREATE TRIGGER audit_no_{act.lower()} BEFORE {act} ON commandbus.audit "
            f"FOR EACH {each} EXECUTE FUNCTION commandbus.audit_is_append_only()"
        )


def downgrade() -> None:
    sqlite = op.get_context().dialect.name == "sqlite"
    for act in ("update", "delete", *([] if sqlite else ["truncate"])):
        op.execute(
            f"DROP TRIGGER commandbus_audit_no_{act}" if sqlite else f"DROP TRIGGER audit_no_{act} ON commandbus.audit"
        )
    if not sqlite:
        op.execute("DROP FUNCTION commandbus.audit_is_append_only()")
