"""Three roles with no more rights than they need: one migrates, one works, one only looks."""

import re

from redrive.errors import UsageError

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")


def grants(*, schema: str, owner: str, worker: str, viewer: str) -> str:
    """The SQL that makes the roles and gives them their rights, for an administrator to read and to run.

    Rights go by the owner: what it has made and what it will make, and no other table of the schema. So the same SQL may be
    run before the first migration, after it, and again.
    """
    for name in (schema, owner, worker, viewer):
        if not _NAME.fullmatch(name):
            raise UsageError(f"{name!r} cannot be a name here: use letters, digits and _ only")
    if len({owner, worker, viewer}) < 3:
        raise UsageError("the three roles need three names")
    roles = "".join(_role(name) for name in (owner, worker, viewer))
    return f"""\
-- {owner} owns redrive's tables and runs `redrive migrate`; {worker} is for `redrive serve` and `redrive worker`; {viewer} only reads.
-- Nobody can log in as them yet: ALTER ROLE {worker} LOGIN PASSWORD '…', or GRANT {worker} TO somebody.
{roles}
GRANT USAGE, CREATE ON SCHEMA {schema} TO {owner};
GRANT USAGE ON SCHEMA {schema} TO {worker}, {viewer};

-- what {owner} will make
ALTER DEFAULT PRIVILEGES FOR ROLE {owner} IN SCHEMA {schema} GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO {worker};
ALTER DEFAULT PRIVILEGES FOR ROLE {owner} IN SCHEMA {schema} GRANT USAGE ON SEQUENCES TO {worker};
ALTER DEFAULT PRIVILEGES FOR ROLE {owner} IN SCHEMA {schema} GRANT SELECT ON TABLES TO {viewer};

-- what {owner} has made already
DO $$
DECLARE made record;
BEGIN
    FOR made IN SELECT oid::regclass AS name, relkind FROM pg_class
        WHERE relowner = '{owner}'::regrole AND relnamespace = '{schema}'::regnamespace AND relkind IN ('r', 'p', 'S')
    LOOP
        IF made.relkind = 'S' THEN
            EXECUTE format('GRANT USAGE ON SEQUENCE %s TO {worker}', made.name);
        ELSE
            EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON TABLE %s TO {worker}', made.name);
            EXECUTE format('GRANT SELECT ON TABLE %s TO {viewer}', made.name);
        END IF;
    END LOOP;
END $$;
"""  # noqa: S608 - the names were checked


def _role(name: str) -> str:
    return f"DO $$ BEGIN IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '{name}') THEN CREATE ROLE {name}; END IF; END $$;\n"
