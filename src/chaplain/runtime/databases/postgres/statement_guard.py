"""The statement guard for PostgreSQL: decides from the parse tree alone, before the server sees the statement.

The tree is that of the server's own grammar (`pglast`). Each of its nodes, fields, functions, operators and types must
be on an allow-list of `grammar`. Tables have plain names: no other schema, no catalogue. The result lists what the
runner must check at execution: which tables must exist, and how the work grows with their rows.

Invariant: a result follows from the text alone, so it is the same on every executor.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, TypeAlias

import msgspec
from pglast.parser import ParseError, parse_sql_json

from chaplain.runtime.databases.postgres.grammar import (
    ADVICE,
    ANY,
    CHANCES,
    COLUMN_TYPES,
    FUNCTIONS,
    NODE,
    OPERATORS,
    QUERY,
    QUERY_FUNCTIONS,
    REQUEST,
    ROWS_TO_VALUES,
    SERIALS,
    SPOKEN,
    STATEMENTS,
    SYSTEM_COLUMNS,
    TYPES,
    Spec,
)
from chaplain.runtime.databases.postgres.guard_result import Denied, GuardResult, Weight

SQL_BYTES_MAX = 64 * 1024
DEPTH_MAX = 100
SELECTS_MAX = 16
JOINTS_MAX = 6
"""How often a statement may concatenate texts that may be long: each concatenation may double the longest text."""
_REMEMBERED_MAX = 1024
_PLACES = frozenset(("location", "list_start", "list_end", "rexpr_list_start", "rexpr_list_end"))
Tree: TypeAlias = Any
Env: TypeAlias = Mapping[str, "Weight"]


def judge(text: str, *, reads: bool = False) -> GuardResult:
    """Judge a statement with translated parameters. Raises `Denied`."""
    found = _remembered(text, reads) if len(text) <= _REMEMBERED_MAX else _judge(text, reads)
    if isinstance(found, str):
        raise Denied(found)
    return found


def _judge(text: str, reads: bool) -> GuardResult | str:
    """The result, or the reason of the denial; both are cached."""
    try:
        if len(text.encode()) > SQL_BYTES_MAX:
            raise Denied(f"a statement has at most {SQL_BYTES_MAX} octets")
        statements = _parse(text)
        if len(statements) != 1:
            raise Denied("one statement at a time" if statements else "there is no statement")
        ((kind, fields),) = statements[0]["stmt"].items()
        if kind not in STATEMENTS or (reads and kind != "SelectStmt"):
            allowed = "SELECT" if reads else "SELECT, INSERT, UPDATE, DELETE, CREATE TABLE or INDEX, ALTER TABLE, DROP"
            raise Denied(f"{_said(kind)} is not allowed, only {allowed}{_advice(kind)}")
        return _Reading(reads).statement(kind, fields)
    except Denied as denied:
        return str(denied)
    except (RecursionError, UnicodeEncodeError):
        return "the statement is nested too deeply, or is not text"


_remembered = lru_cache(maxsize=_REMEMBERED_MAX)(_judge)


def _parse(text: str) -> list[Tree]:
    try:
        tree = msgspec.json.decode(parse_sql_json(text))
    except ParseError as error:
        raise Denied(f"not understood: {str(error.args[0])[:200]}") from None
    except (msgspec.MsgspecError, ValueError):
        raise Denied("the statement cannot be read") from None
    statements: list[Tree] = tree.get("stmts", [])
    return statements


class _Reading:
    """Walks the tree of one statement."""

    def __init__(self, reads: bool) -> None:
        self._rules = QUERY if reads else REQUEST
        self._functions = FUNCTIONS | QUERY_FUNCTIONS if reads else FUNCTIONS
        self._reads = reads
        self._depth = self._selects = self._joints = self._parts = 0
        self._recursive = self._draws = False
        self._factor = 1
        self._tables: Counter[str] = Counter()
        self._refers: set[str] = set()
        self._chance = reads
        """True where random values are allowed, because the statement itself defines the order of rows."""
        self._constant = False

    def statement(self, kind: str, fields: dict[str, Tree]) -> GuardResult:
        values = kind == "InsertStmt" and "valuesLists" in fields.get("selectStmt", {}).get("SelectStmt", {})
        if kind == "InsertStmt" and "onConflictClause" in fields and not values:
            raise Denied("ON CONFLICT with a SELECT: which row comes first differs between servers")
        self._chance = self._reads or (values and "onConflictClause" not in fields)
        self._node(kind, fields, {})
        if self._recursive and self._joints:
            raise Denied("WITH RECURSIVE puts no texts together: they would grow without bound")
        target = _named(fields.get("relation", {}).get("relname", ""))
        if kind in ("UpdateStmt", "DeleteStmt"):
            self._tables[target] += 1
        if kind == "DropStmt":
            target = self._dropped(fields)
        word = STATEMENTS[kind]
        if kind == "DropStmt" and fields["removeType"] == "OBJECT_INDEX":
            word = "drop index"
        return GuardResult(
            word,
            target,
            Weight(self._factor, tuple(sorted(self._tables.items()))),
            self._parts,
            ordered=values or (self._reads and "sortClause" in fields),
            gives_rows=kind == "SelectStmt" or "returningList" in fields,
            name=self._new_name(kind, fields),
            if_exists=bool(fields.get("if_not_exists") or fields.get("missing_ok")),
            refers=frozenset(self._refers),
            uses_random=self._draws,
            computed=_computed(fields["targetList"]) if kind == "UpdateStmt" else frozenset(),
        )

    def _dropped(self, fields: dict[str, Tree]) -> str:
        (found, *more) = fields["objects"]
        parts = [part["String"]["sval"] for part in found["List"]["items"]]
        if more or len(parts) != 1:
            raise Denied("one table or index at a time, by its plain name")
        return str(parts[0])

    def _new_name(self, kind: str, fields: dict[str, Tree]) -> str:
        if kind == "IndexStmt":
            if not fields.get("idxname"):
                raise Denied("an index needs a name")
            return _named(fields["idxname"])
        if kind == "RenameStmt" and fields["renameType"] == "OBJECT_TABLE":
            return _named(fields["newname"])
        return ""

    # Nodes.

    def _node(self, kind: str, fields: dict[str, Tree], env: Env) -> None:
        rules = self._rules.get(kind)
        if rules is None:
            raise Denied(f"{_said(kind)} is not allowed{_advice(kind)}")
        self._depth += 1
        self._parts += 1
        if self._depth > DEPTH_MAX:
            raise Denied(f"nested more than {DEPTH_MAX} deep")
        if kind in _CHECKS:
            _CHECKS[kind](self, fields)
        if kind == "RangeVar":
            self._table(fields, env)
        inner = self._with(fields, env) if "withClause" in fields else env
        for name, value in fields.items():
            if name not in _PLACES and name != "withClause":
                self._field(kind, name, value, rules.get(name), inner)
        self._depth -= 1

    def _field(self, kind: str, name: str, value: Tree, spec: Spec | None, env: Env) -> None:
        if spec is None:
            raise Denied(f"{_said(kind)}: {_said(name)} is not allowed{_advice(name)}")
        if isinstance(spec, frozenset):
            if value not in spec:
                raise Denied(f"{_said(kind)}: {_said(str(value))} is not allowed{_advice(str(value)) or _advice(name)}")
        elif spec == NODE:
            self._nodes(value, env)
        elif spec != ANY:
            if spec == "RangeVar" and kind != "JoinExpr":
                self._plain(value)
            else:
                self._node(spec, value, env)

    def _nodes(self, value: Tree, env: Env) -> None:
        for one in value if isinstance(value, list) else [value]:
            for kind, fields in one.items():
                self._node(kind, fields, env)

    # Tables.

    def _plain(self, fields: dict[str, Tree]) -> None:
        """The table that a statement is about, which is never one that WITH names."""
        rules = self._rules["RangeVar"]
        for name, value in fields.items():
            if name not in _PLACES:
                self._field("RangeVar", name, value, rules.get(name), {})
        _named(fields.get("relname", ""))

    def _table(self, fields: dict[str, Tree], env: Env) -> None:
        name = fields.get("relname", "")
        if name in env and "schemaname" not in fields:
            weight = env[name]
            self._factor *= weight.factor
            self._tables.update(dict(weight.tables))
        else:
            self._tables[name] += 1
        self._bound()

    def _bound(self) -> None:
        if self._factor > 1 << 40 or self._tables.total() > 64:
            raise Denied("the statement names more tables and rows than a statement may")

    def _with(self, fields: dict[str, Tree], env: Env) -> Env:
        """Add the tables that WITH defines to those that the statement may name, each with a bound of its rows. A table
        of WITH sees those before it.
        """
        clause = fields["withClause"]
        recursive = bool(clause.get("recursive"))
        known = dict(env)
        if recursive:
            self._recursive = True
            self._field("WithClause", "recursive", True, self._rules["WithClause"].get("recursive"), env)
            known.update({one["CommonTableExpr"]["ctename"]: Weight() for one in clause["ctes"]})
        for one in clause["ctes"]:
            (kind,) = one
            outer = (self._factor, self._tables)
            self._factor, self._tables = 1, Counter()
            if "SelectStmt" not in one[kind].get("ctequery", {}):
                raise Denied("WITH holds SELECT only: a change is a statement of its own")
            self._node(kind, one[kind], known)
            known[one[kind]["ctename"]] = Weight(self._factor, tuple(sorted(self._tables.items())))
            self._factor, self._tables = outer
        return known

    # What is more than its fields.

    def _select(self, fields: dict[str, Tree]) -> None:
        self._selects += 1
        if self._selects > SELECTS_MAX:
            raise Denied(f"more than {SELECTS_MAX} times SELECT in one statement")
        if "valuesLists" in fields:
            self._factor *= len(fields["valuesLists"])
            self._bound()
        distinct = fields.get("distinctClause")
        if distinct == [{}]:
            del fields["distinctClause"]
        elif distinct:
            raise Denied("DISTINCT ON: which row is first differs between servers")

    def _function(self, fields: dict[str, Tree]) -> None:
        name = _dotted(fields["funcname"])
        parts = name.split(".")
        spoken = parts[0] == "pg_catalog" and len(parts) == 2 and parts[1] in SPOKEN
        if name in CHANCES:
            self._draws = True
            if not self._chance or self._selects > 1:
                raise Denied(f"{name}() is allowed in INSERT … VALUES: elsewhere servers meet rows in different orders")
        elif not spoken and name not in self._functions:
            raise Denied(f"function {name} is not allowed")
        if self._constant and name in ("now", "unixepoch"):
            raise Denied(f"{name}() in CHECK: a row that was right must stay so")
        if name in ("concat", "concat_ws", "string_agg"):
            self._joint()

    def _operator(self, fields: dict[str, Tree]) -> None:
        name = _dotted(fields["name"])
        if fields["kind"] in ("AEXPR_OP", "AEXPR_LIKE") and name not in OPERATORS:
            raise Denied(f"operator {name} is not allowed")
        if name == "||" and not any("A_Const" in fields.get(side, {}) for side in ("lexpr", "rexpr")):
            self._joint()

    def _joint(self) -> None:
        self._joints += 1
        if self._joints > JOINTS_MAX:
            raise Denied(f"texts that are not constant are put together more than {JOINTS_MAX} times")

    def _sublink(self, fields: dict[str, Tree]) -> None:
        if "operName" in fields and _dotted(fields["operName"]) not in OPERATORS:
            raise Denied(f"operator {_dotted(fields['operName'])} is not allowed")

    def _type(self, fields: dict[str, Tree]) -> None:
        name = _type_name(fields)
        if name in SERIALS:
            raise Denied(f"{name}: {ADVICE['CONSTR_IDENTITY']}")
        if name not in TYPES:
            raise Denied(f"type {name} is not allowed: there are {', '.join(sorted(TYPES))}")

    def _column(self, fields: dict[str, Tree]) -> None:
        if _type_name(fields["typeName"]) not in COLUMN_TYPES:
            self._type(fields["typeName"])
            raise Denied(f"a column has one of the types {', '.join(sorted(COLUMN_TYPES))}")
        _column_name(fields["colname"])

    def _reference(self, fields: dict[str, Tree]) -> None:
        names = [part["String"]["sval"] for part in fields["fields"] if "String" in part]
        if len(names) > 2 or any(name in SYSTEM_COLUMNS for name in names):
            raise Denied(f"{'.'.join(names)} is not allowed")
        if len(names) == 2:
            _column_name(names[1])

    def _constraint(self, fields: dict[str, Tree]) -> None:
        if fields.get("deferrable"):
            raise Denied(ADVICE["CONSTR_ATTR_DEFERRABLE"])
        self._constant = fields["contype"] == "CONSTR_CHECK"
        if "pktable" in fields:
            self._refers.add(_named(fields["pktable"].get("relname", "")))

    def _alter(self, fields: dict[str, Tree]) -> None:
        if len(fields["cmds"]) > 1:
            raise Denied("one change of a table at a time")

    def _conflict(self, fields: dict[str, Tree]) -> None:
        if fields.get("action") == "ONCONFLICT_UPDATE" and "infer" not in fields:
            raise Denied("ON CONFLICT DO UPDATE names its columns")

    def _rename(self, fields: dict[str, Tree]) -> None:
        if fields["renameType"] == "OBJECT_COLUMN":
            _column_name(fields["newname"])


_CHECKS: dict[str, Any] = {
    "SelectStmt": _Reading._select,
    "FuncCall": _Reading._function,
    "A_Expr": _Reading._operator,
    "SubLink": _Reading._sublink,
    "TypeName": _Reading._type,
    "ColumnDef": _Reading._column,
    "ColumnRef": _Reading._reference,
    "Constraint": _Reading._constraint,
    "AlterTableStmt": _Reading._alter,
    "OnConflictClause": _Reading._conflict,
    "RenameStmt": _Reading._rename,
}


def _computed(targets: list[Tree]) -> frozenset[str]:
    found = (one["ResTarget"] for one in targets)
    return frozenset(one["name"] for one in found if not _is_fixed(one["val"]))


def _is_fixed(value: Tree) -> bool:
    """True if the value is the same for every row: a constant, a parameter or the default."""
    while "TypeCast" in value:
        value = value["TypeCast"]["arg"]
    return bool(value.keys() & {"A_Const", "ParamRef", "SetToDefault"})


def _dotted(names: list[Tree]) -> str:
    return ".".join(part["String"]["sval"] for part in names)


def _type_name(fields: dict[str, Tree]) -> str:
    return _dotted(fields.get("names", [])).removeprefix("pg_catalog.")


def _named(name: str) -> str:
    """Check a table's or index's name. A table also defines a type of its name, which must not shadow a server type."""
    if name in TYPES or name.startswith(("pg_", "chaplain")):
        raise Denied(f"{name} is not a name for a table or an index")
    return name


def _column_name(name: str) -> str:
    if name in SYSTEM_COLUMNS or name in ROWS_TO_VALUES:
        raise Denied(f"{name} is not a name for a column")
    return name


_HUMPS = re.compile(r"(?<=[a-z])(?=[A-Z])")


def _said(name: str) -> str:
    """A name of the grammar as shown in messages."""
    plain = name.removesuffix("Stmt").removesuffix("Expr").replace("_", " ")
    return _HUMPS.sub(" ", plain).upper()[:60]


def _advice(name: str) -> str:
    return f": {ADVICE[name]}" if name in ADVICE else ""
