"""Statements that a client might send to make executors differ, stall or tell too much; and what must come of each.

`REFUSED`: nothing may happen. `FINE`: may be done, but alike everywhere, which the test sees for itself. Each runs on
tables t(a integer primary key, b, c) of a hundred rows, u(x primary key, y) without rowids, and p of two rows.
"""

from __future__ import annotations

PREPARED = [
    "create table t(a integer primary key, b, c default 7)",
    "create table u(x, y, primary key (x)) without rowid",
    "create table p(k text)",
    "insert into t(b) with recursive r(n) as (select 1 union all select n + 1 from r where n < 100) select n from r",
    "insert into u values ('k', 1), ('l', 2)",
    "insert into p values ('one'), ('two')",
]

_CALLS = """
load_extension('x') load_extension('x', 'y') sqlite_version() sqlite_source_id() sqlite_compileoption_get(1)
sqlite_compileoption_used('x') changes() total_changes() last_insert_rowid() sqlite_offset(a) sqlite_log(1, 'x')
fts3_tokenizer('x') fts5(1) rtreecheck('t') rtreenode(1, x'00') rtreedepth(x'00') geopoly_area('x') sin(1) cos(1)
tan(1) exp(1) ln(2) log(2) log10(2) log2(2) pow(2, 0.5) power(2, 3) acos(0.5) atan2(1, 2) pi() radians(1) soundex('x')
readfile('/etc/passwd') writefile('x', 'y') edit('x') eval('select 1') fsdir('/') getenv('HOME') pg_read_file('x')
set_config('a', 'b', false) pg_sleep(10) matchinfo(t) snippet(t) offsets(t) optimize(t) bm25(t) highlight(t, 1, 2, 3)
carray(1, 2) subtype(1) sqlite_rename_table(1,2,3,4,5,6,7) sqlite_rename_test(1,2,3,4,5,6,7) sqlite_drop_column(1,2,3)
sqlite_unsupported_offset_limit_optimization() dbstat() md5('x') sha3('x') uuid() nextval('s')
"""

_TABLES = """
pragma_table_info('t') pragma_database_list pragma_user_version pragma_compile_options pragma_module_list
pragma_function_list pragma_wal_checkpoint pragma_journal_mode dbstat sqlite_dbpage carray fts3tokenize('x') sqlite_stmt
bytecode('select 1') tables_used('select 1') chaplain_state chaplain_results main.chaplain_state generate_series(1,2)
sqlite_stat1 sqlite_stat4 temp.sqlite_master.x completion('s') csv('x') zipfile('x') fsdir('/') fts5vocab
"""


def _pieces(words: str) -> list[str]:
    """Calls, which may hold blanks in brackets."""
    found: list[str] = []
    for word in words.split():
        if found and found[-1].count("(") > found[-1].count(")"):
            found[-1] += " " + word
        elif word:
            found.append(word)
    return found


REFUSED: list[str] = [
    *(f"select {call} from t" for call in _pieces(_CALLS)),
    *(f"select * from {table}" for table in _pieces(_TABLES)),
    *(f"select count(*) from {table}" for table in _pieces(_TABLES)),
    "attach ':memory:' as m",
    "attach '/tmp/other.sqlite' as other",
    "detach main",
    "pragma user_version = 5",
    "pragma writable_schema = on",
    "pragma journal_mode = off",
    "/* hidden */ pragma synchronous = 0",
    "-- hidden\npragma case_sensitive_like = 1",
    "vacuum",
    "vacuum into '/tmp/copy.sqlite'",
    "analyze",
    "reindex",
    "begin",
    "commit",
    "rollback",
    "end",
    "savepoint request",
    "release request",
    "rollback to request",
    "begin immediate",
    "explain select 1",
    "explain query plan select * from t",
    "",
    ";",
    "-- only a comment",
    "/* not closed",
    " " * 60_000 + "(",
    "/**/" * 10_000 + "(",
    "/* * / */ -- x\n;" * 2_000 + ")",
    "/*" * 20_000,
    "-- \n" * 10_000 + "pragma user_version",
    "select 1; select 2",
    "insert into p values ('x'); delete from p",
    "select 1; pragma user_version = 7",
    "insert into p values ('x'); commit",
    "create temp table x(a)",
    "create temporary view x as select 1",
    "create temp trigger x after insert on t begin select 1; end",
    "create virtual table x using fts5(a)",
    "create virtual table x using rtree(a, b, c)",
    "create virtual table x using dbstat",
    "create virtual table x using fts3(a)",
    "create virtual table x using carray",
    "create table x as select load_extension('y')",
    "create table x(a default (load_extension('y')))",
    "create table x(a check (changes() > 0))",
    "create table x(a, b as (a + 1))",
    "create table x(a, b as (random()) stored)",
    "create table x(a, b generated always as (a || 'x') virtual)",
    "create index i on t(random())",
    "create index i on t(b) where random() > 0",
    "create table chaplain_x(a)",
    "create table Chaplain_State2(a)",
    "create index i on chaplain_results(acl)",
    "create trigger tr after insert on chaplain_results begin delete from t; end",
    "create trigger tr after update on chaplain_state begin delete from t; end",
    "drop table chaplain_state",
    "alter table chaplain_state rename to x",
    "alter table t rename to chaplain_t",
    "delete from chaplain_state",
    "update chaplain_state set idx = 0",
    "insert into chaplain_results(acl) values ('x')",
    "insert into sqlite_master values ('table', 'x', 'x', 1, 'create table x(a)')",
    "update sqlite_master set sql = 'x'",
    "delete from sqlite_master",
    "update sqlite_sequence set seq = 5",
    "drop table sqlite_master",
    "select rootpage from sqlite_master",
    "select * from sqlite_schema",
    "select * from temp.nothing",
    "select * from other.t",
    "select zeroblob(1000000000)",
    "select randomblob(1000000000)",
    "select length(replace(hex(zeroblob(200000)), '0', 'xxxxxxxxxx'))",
    "select printf('%1000000d', 1)",
    "select group_concat(hex(zeroblob(10000))) from t",
    "insert into p values (zeroblob(300000))",
    "with recursive r(n) as (select 1 union all select n + 1 from r) select count(*) from r",
    "insert into p with recursive r(n) as (select 1 union all select n + 1 from r) select n from r",
    "with recursive r(n) as (select 1 union all select n + 1 from r) delete from t where a in (select n from r)",
    "select count(*) from t a, t b, t c, t d, t e",
    "insert into p select a.b from t a, t b, t c",
    "update t set b = (select count(*) from t x, t y, t z, t w)",
    "select a.b from t a, t b",
    "insert into t(a) values (9223372036854775807)",
    "update t set a = 9223372036854775807 where a = 5",
    "insert into t(a) values (9223372036854775806), (null)",
    "insert into p values (cast(x'ff' as text))",
    "select cast(x'c328' as text)",
    "select datetime('now', 'localtime')",
    "select datetime('now', 'LocalTime')",
    "select strftime('%H', 'now', 'utc')",
    "select time('12:00', 'localtime')",
    "insert or rollback into t(a) values (500), (1)",
    "insert or fail into t(a) values (501), (1)",
    "insert or abort into t(a) values (502), (1)",
    "update or rollback t set a = 1",
    "update or fail t set a = 1 where a > 50",
    "select a from t where a match 'x'",
    "select 'x' regexp 'y'",
    "select (((((((((((" * 20,
    "select " + "+".join("1" for _ in range(5000)),
    "select " + " union select ".join(map(str, range(200))),
    "select * from t where " + " or ".join(f"a = {n}" for n in range(3000)),
    "copy t from program 'id'",
    "do $$ begin end $$",
    "set search_path = other",
    "grant all on t to public",
    "call something()",
    "truncate t",
    "show tables",
    "load data infile '/etc/passwd' into table t",
    "select pg_read_file('/etc/passwd')",
    "select ?",
    "select :missing",
    "select \x00 1",
]

FINE: list[str] = [
    "select current_timestamp, current_date, current_time",
    "select datetime('now'), date(), time('now', '+1 day'), julianday(), unixepoch('subsec'), strftime('%s', 'now')",
    "select timediff('now', '2020-01-01')",
    "select random(), random(), hex(randomblob(16))",
    "insert into p select random()",
    "insert into p values (current_timestamp)",
    "select a from t order by random() limit 5",
    "insert into p select b from t order by random() limit 3",
    "delete from t where abs(random()) % 2 = 0",
    "update t set b = random() where a < 10",
    "create table d(a default (random()), b default current_timestamp, c default (datetime('now')), e)",
    "insert into d(e) values (1), (2), (3)",
    "select count(*) from d where a is not null and typeof(a) = 'integer'",
    "create table ck(a check (a > 0), b unique on conflict rollback)",
    "insert into ck values (1, 1)",
    "create view v as select random() r, current_timestamp c from t",
    "select * from v limit 2",
    "create table log(n, at)",
    "create trigger tr after insert on p begin insert into log values (random(), current_timestamp); end",
    "insert into p values ('fires'), ('twice')",
    "select /* comment */ ran/**/dom from (select 1 random, 2 ran, 3 dom)",
    "select * from json_each('[1, 2, {\"a\": 3}]')",
    "select json_extract('{\"a\": [1, 2]}', '$.a[1]'), json_group_array(b) from t where a < 5",
    "select row_number() over (order by a desc), lag(b) over (order by a) from t limit 5",
    "select sum(b * 0.1), avg(b), total(b), group_concat(b) from t",
    "select sqrt(2), round(2.5), 1e308 * 10, 0.1 + 0.2, 9223372036854775807 + 1",
    "select type, name, tbl_name from sqlite_master where name not like 'chaplain%'",
    "insert into u values ('m', 3) on conflict (x) do update set y = y + 1 returning x, y",
    "replace into u values ('k', 9)",
    "update u set x = x || '!'",
    "insert or replace into t(a, b) values (1, 'new'), (2, 'newer')",
    "insert or ignore into t(a, b) values (1, 'ignored'), (200, 'kept')",
    "update or replace t set a = 3 where a = 4",
    "create table parent(id integer primary key)",
    "create table child(p references parent(id) on delete cascade deferrable initially deferred)",
    "insert into child values (99)",
    "insert into parent values (1), (2)",
    "insert into child values (1), (1), (2)",
    "delete from parent where id = 1",
    "drop table parent",
    "create table auto(a integer primary key autoincrement, b)",
    "insert into auto(b) values (1), (2)",
    "delete from auto",
    "insert into auto(b) values (3)",
    "alter table auto add column c default (1)",
    "alter table auto add column d default 'x'",
    "alter table auto rename column b to bb",
    "alter table auto rename to auto2",
    "alter table auto2 drop column c",
    "create table copied as select * from t where a < 20",
    "create index ix on copied(b desc)",
    "drop index ix",
    "drop table copied",
    "create table odd(rowid text, _rowid_ text)",
    "insert into odd values ('a', 'b')",
    "create table odder(rowid text, _rowid_ text, oid text)",
    'create table "a "" b; drop table t"(x)',
    'insert into "a "" b; drop table t" values (1)',
    "delete from t",
    "drop table t",
]
