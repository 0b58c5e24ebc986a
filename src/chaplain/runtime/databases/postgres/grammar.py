"""Allow-lists for PostgreSQL statements: nodes of the server's own grammar, their fields, functions and types.

There are only allow-lists: additions of a newer grammar are refused until they are named here. A *request* changes the
database of every node, so nothing in it may depend on the order in which a server finds rows: no LIMIT, no ORDER BY, no
window, no aggregate that concatenates rows. A *query* reads one node's copy and may use these.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

NODE: Final = "node"
"""A node with its kind, or a list of such nodes."""
ANY: Final = "any"
"""Not a node: a name, a number, a flag."""
Spec: TypeAlias = str | frozenset[Any]
"""`NODE`, `ANY`, the kind of a node that appears without its kind, or the set of allowed values."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _one(*values: object) -> frozenset[Any]:
    return frozenset(values)


_EXPRESSIONS: dict[str, dict[str, Spec]] = {
    "A_Const": {"ival": ANY, "fval": ANY, "sval": ANY, "boolval": ANY, "isnull": ANY},
    "ParamRef": {"number": ANY},
    "ColumnRef": {"fields": NODE},
    "A_Star": {},
    "String": {"sval": ANY},
    "Integer": {"ival": ANY},
    "List": {"items": NODE},
    "A_Expr": {
        "kind": _one(
            "AEXPR_OP",
            "AEXPR_DISTINCT",
            "AEXPR_NOT_DISTINCT",
            "AEXPR_NULLIF",
            "AEXPR_IN",
            "AEXPR_LIKE",
            "AEXPR_BETWEEN",
            "AEXPR_NOT_BETWEEN",
        ),
        "name": NODE,
        "lexpr": NODE,
        "rexpr": NODE,
    },
    "BoolExpr": {"boolop": ANY, "args": NODE},
    "NullTest": {"arg": NODE, "nulltesttype": ANY},
    "BooleanTest": {"arg": NODE, "booltesttype": ANY},
    "CaseExpr": {"arg": NODE, "args": NODE, "defresult": NODE},
    "CaseWhen": {"expr": NODE, "result": NODE},
    "CoalesceExpr": {"args": NODE},
    "MinMaxExpr": {"op": ANY, "args": NODE},
    "SubLink": {
        "subLinkType": _one("EXISTS_SUBLINK", "ANY_SUBLINK", "ALL_SUBLINK", "EXPR_SUBLINK"),
        "testexpr": NODE,
        "operName": NODE,
        "subselect": NODE,
    },
    "TypeCast": {"arg": NODE, "typeName": "TypeName"},
    "TypeName": {"names": NODE, "typmods": NODE, "typemod": _one(-1)},
    "FuncCall": {
        "funcname": NODE,
        "args": NODE,
        "agg_star": ANY,
        "agg_distinct": ANY,
        "agg_filter": NODE,
        "funcformat": ANY,
    },
}

_SELECTS: dict[str, dict[str, Spec]] = {
    "SelectStmt": {
        "distinctClause": NODE,
        "targetList": NODE,
        "fromClause": NODE,
        "whereClause": NODE,
        "groupClause": NODE,
        "havingClause": NODE,
        "valuesLists": NODE,
        "withClause": "WithClause",
        "limitOption": _one("LIMIT_OPTION_DEFAULT"),
        "op": ANY,
        "all": ANY,
        "larg": "SelectStmt",
        "rarg": "SelectStmt",
    },
    "ResTarget": {"name": ANY, "val": NODE},
    "RangeVar": {"relname": ANY, "inh": _one(True), "relpersistence": _one("p"), "alias": "Alias"},
    "Alias": {"aliasname": ANY, "colnames": NODE},
    "RangeSubselect": {"lateral": ANY, "subquery": NODE, "alias": "Alias"},
    "JoinExpr": {
        "jointype": ANY,
        "isNatural": ANY,
        "larg": NODE,
        "rarg": NODE,
        "usingClause": NODE,
        "quals": NODE,
        "alias": "Alias",
    },
    "WithClause": {"ctes": NODE},
    "CommonTableExpr": {"ctename": ANY, "aliascolnames": NODE, "ctematerialized": ANY, "ctequery": NODE},
}

_CHANGES: dict[str, dict[str, Spec]] = {
    "InsertStmt": {
        "relation": "RangeVar",
        "cols": NODE,
        "selectStmt": NODE,
        "onConflictClause": "OnConflictClause",
        "returningList": NODE,
        "withClause": "WithClause",
        "override": _one("OVERRIDING_NOT_SET"),
    },
    "UpdateStmt": {
        "relation": "RangeVar",
        "targetList": NODE,
        "whereClause": NODE,
        "returningList": NODE,
        "withClause": "WithClause",
    },
    "DeleteStmt": {"relation": "RangeVar", "whereClause": NODE, "returningList": NODE, "withClause": "WithClause"},
    "SetToDefault": {},
    "OnConflictClause": {"action": ANY, "infer": "InferClause", "targetList": NODE, "whereClause": NODE},
    "InferClause": {"indexElems": NODE, "conname": ANY},
    "IndexElem": {"name": ANY, "ordering": ANY, "nulls_ordering": ANY},
}

_SHAPES: dict[str, dict[str, Spec]] = {
    "CreateStmt": {
        "relation": "RangeVar",
        "tableElts": NODE,
        "oncommit": _one("ONCOMMIT_NOOP"),
        "if_not_exists": ANY,
    },
    "ColumnDef": {"colname": ANY, "typeName": "TypeName", "is_local": _one(True), "constraints": NODE},
    "Constraint": {
        "contype": _one(
            "CONSTR_NOTNULL",
            "CONSTR_NULL",
            "CONSTR_DEFAULT",
            "CONSTR_PRIMARY",
            "CONSTR_UNIQUE",
            "CONSTR_CHECK",
            "CONSTR_FOREIGN",
        ),
        "conname": ANY,
        "raw_expr": NODE,
        "keys": NODE,
        "pktable": "RangeVar",
        "fk_attrs": NODE,
        "pk_attrs": NODE,
        "fk_matchtype": _one("s"),
        "fk_upd_action": _one("a", "r"),
        "fk_del_action": _one("a", "r"),
        "initially_valid": _one(True),
        "is_enforced": _one(True),
    },
    "IndexStmt": {
        "idxname": ANY,
        "relation": "RangeVar",
        "accessMethod": _one("btree"),
        "indexParams": NODE,
        "unique": ANY,
        "if_not_exists": ANY,
    },
    "DropStmt": {
        "objects": NODE,
        "removeType": _one("OBJECT_TABLE", "OBJECT_INDEX"),
        "behavior": _one("DROP_RESTRICT"),
        "missing_ok": ANY,
    },
    "AlterTableStmt": {"relation": "RangeVar", "cmds": NODE, "objtype": _one("OBJECT_TABLE")},
    "AlterTableCmd": {
        "subtype": _one("AT_AddColumn", "AT_DropColumn", "AT_ColumnDefault", "AT_SetNotNull", "AT_DropNotNull"),
        "name": ANY,
        "def": NODE,
        "behavior": _one("DROP_RESTRICT"),
    },
    "RenameStmt": {
        "renameType": _one("OBJECT_TABLE", "OBJECT_COLUMN"),
        "relationType": _one("OBJECT_TABLE", "OBJECT_ACCESS_METHOD"),
        "relation": "RangeVar",
        "subname": ANY,
        "newname": ANY,
        "behavior": _one("DROP_RESTRICT"),
    },
}

_READS: dict[str, dict[str, Spec]] = {
    "SelectStmt": {
        **_SELECTS["SelectStmt"],
        "sortClause": NODE,
        "limitCount": NODE,
        "limitOffset": NODE,
        "limitOption": _one("LIMIT_OPTION_DEFAULT", "LIMIT_OPTION_COUNT"),
        "windowClause": NODE,
    },
    "WithClause": {"ctes": NODE, "recursive": ANY},
    "SortBy": {"node": NODE, "sortby_dir": ANY, "sortby_nulls": ANY},
    "FuncCall": {**_EXPRESSIONS["FuncCall"], "agg_order": NODE, "over": "WindowDef"},
    "WindowDef": {
        "name": ANY,
        "refname": ANY,
        "partitionClause": NODE,
        "orderClause": NODE,
        "frameOptions": ANY,
        "startOffset": NODE,
        "endOffset": NODE,
    },
}

REQUEST = {**_EXPRESSIONS, **_SELECTS, **_CHANGES, **_SHAPES}
QUERY = {**_EXPRESSIONS, **_SELECTS, **_READS}
STATEMENTS = {
    "SelectStmt": "select",
    "InsertStmt": "insert",
    "UpdateStmt": "update",
    "DeleteStmt": "delete",
    "CreateStmt": "create table",
    "IndexStmt": "create index",
    "DropStmt": "drop",
    "AlterTableStmt": "alter",
    "RenameStmt": "alter",
}

OPERATORS = _words("+ - * / % = <> < > <= >= || ~~ !~~")
FUNCTIONS = _words("""
    abs ascii avg bool_and bool_or btrim ceil ceiling char_length character_length chr count decode div encode every
    floor left length lower ltrim max md5 min mod now octet_length reverse right round rtrim sha256 sign sqrt
    starts_with strpos substr substring sum trunc unixepoch upper
""")
"""Functions that depend only on their arguments, not on the order of rows; `now` and `unixepoch` are the executor's
own.
"""
CHANCES = frozenset(("random", "gen_random_uuid"))
"""The executor's own random functions. Each row gets another value, so they are allowed only where the statement itself
identifies each row.
"""
QUERY_FUNCTIONS = _words("""
    concat concat_ws cume_dist dense_rank first_value lag last_value lead nth_value ntile percent_rank rank
    row_number string_agg split_part translate initcap
""")
SPOKEN = frozenset(("btrim", "ltrim", "rtrim", "substring", "position"))
"""Functions that the grammar qualifies with the catalogue's name, for TRIM, SUBSTRING and POSITION."""

TYPES = {
    "int2": 21,
    "int4": 23,
    "int8": 20,
    "float8": 701,
    "bool": 16,
    "text": 25,
    "varchar": 1043,
    "bytea": 17,
    "uuid": 2950,
    "numeric": 1700,
}
"""Types of values, with the server's names and OIDs. No column is `numeric`: 1.0 and 1.00 are equal but encoded
differently.
"""
COLUMN_TYPES = frozenset(TYPES) - {"numeric"}
SERIALS = frozenset(("serial", "bigserial", "smallserial", "serial2", "serial4", "serial8"))
SYSTEM_COLUMNS = frozenset(("ctid", "xmin", "xmax", "cmin", "cmax", "tableoid", "oid"))
ROWS_TO_VALUES = _words("""
    any_value array_agg json_agg jsonb_agg pg_collation_for pg_column_compression pg_column_size pg_typeof string_agg
""")
"""`t.f` calls f on a row of t if t has no column f. So no column may have the name of a function that reveals a row's
physical place.
"""
ADVICE = {
    "CONSTR_IDENTITY": "identity columns are not supported: use bigint, and max + 1 or a number of your own",
    "CONSTR_GENERATED": "generated columns are not supported: write the value",
    "CONSTR_ATTR_DEFERRABLE": "constraints are checked at once",
    "limitCount": "which rows come first differs between servers: choose them by a condition; in a query it is allowed",
    "sortClause": "rows of a request come in the order of their values; in a query ORDER BY is allowed",
    "fromClause": "if several rows fit, servers choose differently: use a subquery in SET",
    "usingClause": "use WHERE EXISTS with a subquery",
    "over": "windows depend on the order of rows; in a query they are allowed",
    "agg_order": "only in a query",
    "recursive": "WITH RECURSIVE has no bound in a request; in a query it is allowed",
    "schemaname": "tables have plain names, without a schema",
    "fk_del_action": "rows that refer to a row are deleted by a statement of their own, before it",
    "fk_upd_action": "rows that refer to a row are updated by a statement of their own",
    "SQLValueFunction": "use now() for the time; the current user is not available",
    "inhRelations": "tables stand alone",
    "CreateTableAsStmt": "create the table, then insert into it",
}
