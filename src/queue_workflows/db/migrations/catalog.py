"""What a schema holds, read from the catalogs as text, so that two schemas can be compared line by line.

Sees what autogenerate does not: storage settings, checks, predicates, defaults, sequences, functions and
triggers. Column order is left out: a column added later stands last, and nothing of ours depends on the
order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import sqlalchemy as sa

Catalog = Mapping[tuple[str, str], str]

# relations: tables and views without what an extension brought, and without parts of a table, which come and
# go; each branch below is one kind of thing.
# The sequence of an identity has the name that it is made with: nothing asks for it by another.
# not-null constraints (type n, PostgreSQL 18) are left out: the column line says it on every version.
CATALOG: Final = sa.text("""
WITH relations AS (
  SELECT c.* FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
  WHERE n.nspname = CAST(:schema AS name) AND NOT c.relispartition AND NOT EXISTS (
    SELECT FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'e')
), schema AS (SELECT oid FROM pg_namespace WHERE nspname = CAST(:schema AS name))
SELECT 'table' AS kind, relname::text AS name, concat_ws(' ', relpersistence,
  (SELECT string_agg(option, ', ' ORDER BY option) FROM unnest(reloptions) option)) AS definition
FROM relations WHERE relkind IN ('r', 'p')
UNION ALL
SELECT 'view', relname, pg_get_viewdef(oid, true) FROM relations WHERE relkind IN ('v', 'm')
UNION ALL
SELECT 'column', r.relname || '.' || a.attname,
  concat_ws(' ', format_type(a.atttypid, a.atttypmod), CASE WHEN a.attnotnull THEN 'not null' END,
    'default ' || pg_get_expr(d.adbin, d.adrelid), 'identity ' || nullif(a.attidentity::text, ''),
    'generated ' || nullif(a.attgenerated::text, ''))
FROM relations r JOIN pg_attribute a ON a.attrelid = r.oid AND a.attnum > 0 AND NOT a.attisdropped
LEFT JOIN pg_attrdef d ON d.adrelid = r.oid AND d.adnum = a.attnum
WHERE r.relkind IN ('r', 'p')
UNION ALL
SELECT 'constraint', r.relname || '.' || c.conname, pg_get_constraintdef(c.oid, true)
FROM relations r JOIN pg_constraint c ON c.conrelid = r.oid WHERE c.contype IN ('c', 'f', 'p', 'u', 'x')
UNION ALL
SELECT 'index', t.relname || '.' || r.relname,
  concat_ws(' ', pg_get_indexdef(r.oid, 0, true), r.reloptions::text,
    CASE WHEN NOT i.indisvalid THEN 'invalid' END)
FROM relations r JOIN pg_index i ON i.indexrelid = r.oid JOIN pg_class t ON t.oid = i.indrelid
UNION ALL
SELECT 'sequence', COALESCE(t.relname || '_' || a.attname || '_seq', r.relname),
  concat_ws(' ', format_type(s.seqtypid, NULL), s.seqstart, s.seqincrement, s.seqmin, s.seqmax, s.seqcache,
    s.seqcycle)
FROM relations r JOIN pg_sequence s ON s.seqrelid = r.oid
LEFT JOIN (pg_depend o JOIN pg_class t ON t.oid = o.refobjid JOIN pg_attribute a ON a.attrelid = o.refobjid
  AND a.attnum = o.refobjsubid) ON o.classid = 'pg_class'::regclass AND o.objid = r.oid AND o.deptype = 'i'
UNION ALL
SELECT 'trigger', r.relname || '.' || t.tgname, concat_ws(' ', pg_get_triggerdef(t.oid, true), t.tgenabled)
FROM relations r JOIN pg_trigger t ON t.tgrelid = r.oid AND NOT t.tgisinternal
UNION ALL
SELECT 'function', p.proname || '(' || pg_get_function_identity_arguments(p.oid) || ')',
  concat_ws(' ', pg_get_function_result(p.oid), l.lanname, p.provolatile, p.proparallel, p.proisstrict,
    p.prosecdef, replace(p.proconfig::text, quote_ident(CAST(:schema AS text)), '<schema>'), p.prosrc,
    pg_get_function_sqlbody(p.oid))
FROM pg_proc p JOIN schema ON schema.oid = p.pronamespace JOIN pg_language l ON l.oid = p.prolang
WHERE p.prokind <> 'a' AND NOT EXISTS (
  SELECT FROM pg_depend d WHERE d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e')
UNION ALL
SELECT 'type', t.typname, concat_ws(' ', t.typtype, format_type(nullif(t.typbasetype, 0), t.typtypmod),
  (SELECT string_agg(e.enumlabel, ', ' ORDER BY e.enumsortorder) FROM pg_enum e WHERE e.enumtypid = t.oid))
FROM pg_type t JOIN schema ON schema.oid = t.typnamespace
WHERE t.typtype IN ('e', 'd', 'r') OR (t.typtype = 'c' AND EXISTS (
  SELECT FROM pg_class c WHERE c.oid = t.typrelid AND c.relkind = 'c'))
""")
FUNCTIONS: Final = sa.text("""
SELECT p.proname || '(' || pg_get_function_identity_arguments(p.oid) || ')' AS name,
  pg_get_functiondef(p.oid) AS source
FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
WHERE n.nspname = CAST(:schema AS name) AND p.prokind <> 'a'
""")
CURRENT_PATH: Final = sa.text("SELECT current_setting('search_path')")
SET_PATH: Final = sa.text("SELECT set_config('search_path', :path, true)")
QUOTED: Final = sa.text("SELECT quote_ident(CAST(:schema AS text))")


def read_catalog(connection: sa.Connection, schema: str) -> dict[tuple[str, str], str]:
    """Every thing of a schema as (kind, name) and its definition; works inside the caller's transaction."""
    before = connection.execute(CURRENT_PATH).scalar_one()
    # Names print unqualified only where search_path finds them, and only so do two schemas read alike.
    path = connection.execute(QUOTED, {"schema": schema}).scalar_one()
    connection.execute(SET_PATH, {"path": path})
    rows = connection.execute(CATALOG, {"schema": schema}).all()
    connection.execute(SET_PATH, {"path": before})
    return {(row.kind, row.name): " ".join(row.definition.split()) for row in rows}


def read_functions(connection: sa.Connection, schema: str) -> dict[str, str]:
    """The statement that makes each function of a schema anew, in whichever schema comes first then."""
    prefix = connection.execute(QUOTED, {"schema": schema}).scalar_one() + "."
    rows = connection.execute(FUNCTIONS, {"schema": schema}).all()
    return {row.name: row.source.replace(f" FUNCTION {prefix}", " FUNCTION ", 1) for row in rows}


def compare_catalogs(expected: Catalog, found: Catalog) -> list[str]:
    """What `found` lacks or has otherwise, and what it has too much on the tables that `expected` knows."""
    lines = []
    for (kind, name), definition in sorted(expected.items()):
        actual = found.get((kind, name))
        if actual is None:
            lines.append(f"{kind} {name} is missing")
        elif actual != definition:
            lines.append(f"{kind} {name} is `{actual}`, expected `{definition}`")
    tables = {name for kind, name in expected if kind == "table"}
    for (kind, name), definition in sorted(found.items()):
        table = name.partition(".")[0]
        # An index more does no harm; a column, check or trigger more can break a write.
        if kind in ("column", "constraint", "trigger") and table in tables and (kind, name) not in expected:
            lines.append(f"{kind} {name} (`{definition}`) is not expected")
    return lines
