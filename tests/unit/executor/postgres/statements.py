"""Statements that a client might send to make PostgreSQL executors differ, stall or tell too much.

`REFUSED`: nothing may happen, and in a query neither. `UNORDERED`: refused in a request, because servers meet rows in
different orders; a query may. `FINE`: may be done, but alike everywhere, which the test sees for itself. Each runs on
tables t(a integer primary key, b text, c double precision) of a hundred rows, u(x text, y integer, primary key (x,
y)), p(k text primary key), and one that has the name of a table of the catalogue.
"""

from __future__ import annotations

from hashlib import sha256

PREPARED = [
    "create table t(a integer primary key, b text, c double precision default 7)",
    "create table u(x text, y integer, primary key (x, y))",
    "create table p(k text primary key)",
    "create table tables(k integer primary key)",
    "insert into t(a, b) values " + ", ".join(f"({n}, '{n}')" for n in range(1, 101)),
    "insert into u values ('k', 1), ('l', 2)",
    "insert into p values ('one'), ('two')",
]

_CALLS = """
pg_read_file('/etc/passwd') pg_read_binary_file('/etc/passwd') pg_ls_dir('/') pg_stat_file('/etc/passwd')
lo_import('/x') lo_export(1,'/x') set_config('role','admin',false) current_setting('chaplain.seed') pg_sleep(10)
pg_sleep_for('1h') dblink('host=x','select') dblink_connect('x') pg_advisory_lock(1) pg_try_advisory_lock(1)
pg_advisory_unlock_all() pg_advisory_xact_lock(1) pg_notify('a','b') pg_terminate_backend(1) pg_cancel_backend(1)
pg_reload_conf() txid_current() pg_current_xact_id() pg_backend_pid() pg_postmaster_start_time() version()
inet_server_addr() current_database() current_schema() clock_timestamp() statement_timestamp()
transaction_timestamp() timeofday() pg_catalog.now() pg_catalog.random() pg_catalog.gen_random_uuid()
uuid_generate_v4() setseed(0.5) nextval('s') currval('s') setval('s',1) lastval()
query_to_xml('select',true,true,'') table_to_xml('t',true,true,'') database_to_xml(true,true,'') xpath('/a','b')
pg_column_size(a) pg_relation_size('t') pg_table_size('t') pg_total_relation_size('t') pg_database_size('x')
pg_relation_filepath('t') pg_get_viewdef('t') pg_get_userbyid(10) has_table_privilege('t','select') to_regclass('t')
pg_typeof(a) row_to_json(t) to_json(t) generate_series(1,1000000000) repeat('x',1000000000) lpad('x',1000000000)
rpad('x',1000000000) replace(b,'1','22') regexp_replace(b,'(a+)+$','x') regexp_matches(b,'x') array_agg(a)
json_agg(a) jsonb_agg(a) string_agg(b,',') xmlagg(b) sin(1) exp(1) ln(2) pow(2,0.5) power(2,3) tan(1) cbrt(2)
stddev(c) corr(c,c) to_char(a,'9') to_date('2020','YYYY') to_timestamp(1) age('2020') date_trunc('day',b)
make_date(1,2,3) date_part('day',b) format('%s',a) concat(a,b) quote_literal(b) convert_from('x','LATIN1')
convert_to(b,'LATIN1') pg_logical_emit_message(true, 'a', 'b') pg_switch_wal() pg_create_restore_point('x')
pg_export_snapshot() lo_create(1) lo_get(1) chaplain.note() chaplain_functions.next_chance() next_chance()
sum_more(1,2) ts_stat('select') currtid2('t','(0,1)') plpgsql_call_handler()
"""

_TABLES = """
pg_class pg_catalog.pg_class pg_authid pg_shadow pg_stat_activity pg_settings information_schema.tables
chaplain.state chaplain.results stream_other.t public.t pg_temp.t pg_roles pg_locks pg_proc pg_hba_file_rules absent
other.public.t generate_series(1,10) pg_ls_dir('/') unnest(array[1]) xmltable('/a' passing 'x' columns a int)
"""

_VALUES = """
current_user session_user user current_role current_catalog current_schema current_date current_time localtime
localtimestamp current_timestamp(3) ctid xmin xmax cmin cmax tableoid oid t.ctid t.xmin t.pg_column_size t.pg_typeof
(t).a (t.b).upper row(1,2) array[1,2] '{1}'::int[] b::regclass 'now'::timestamptz 'today'::date cast('now' as
timestamp) 'now'::time b::name '1'::oid b::"char" '(0,1)'::tid '{}'::json '{}'::jsonb '<a/>'::xml '1'::money
'1.1.1.1'::inet interval'1 day' date'today' timestamp'now' b'1' x'ff' b||a::bit(3) a::float4 a::real b~'(a+)+$'
b~*'x' b!~'x' a^2 |/a a! @a a&1 a|1 a#1 ~a a<<1 a>>1 b^@'1' b<%b a=any(array[1]) a<all('{1}') $1::timestamptz
extract(epoch from b) overlay(b placing'x'from 1) grouping(a) xmlelement(name x) array(select 1)
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


_GROWING = """with x as (select b || b c from t), y as (select c || c d from x), z as (select d || d e from y),
w as (select e || e f from z) select f || f || f || f from w"""
_LONG = "(values " + ",".join(["(1)"] * 5000) + ")"
_MANY = f"select count(*) from {_LONG} a, {_LONG} b, (values (1), (2), (3), (4), (5)) c"
_KEY = "".join(sha256(b"%d" % n).hexdigest() for n in range(200))
_BOTH = [
    *(f"select {piece} from t" for piece in _pieces(_VALUES)),
    "select count(*) from rows from (now())",
    'select b collate "de_DE" from t',
    *(f"select count(*) from {table}" for table in _pieces(_TABLES)),
    "select b similar to 'x' from t",
    "select b at time zone 'utc' from t",
    "select count(*) from (with pg_class as (select 1) select * from pg_class) x, pg_class",
    "with t as (select * from pg_authid) select * from t",
    "with x as (select 1) select * from y",
    "select 1; select 2",
    "select 1; drop table t",
    "",
    ";",
    "-- only a comment",
    "/* not closed",
    "/* /* nested */ select 1",
    "select /* hidden */ pg_sleep/**/(10)",
    "select --\npg_read_file\n('/etc/passwd')",
    'select "pg_sleep"(10)',
    'select U&"pg\\005Fsleep"(10)',
    "select $$x$$ || pg_sleep(1)",
    "(" * 5000,
    "select " + "1+" * 500 + "1",
    "select 1" + " union select 1" * 30,
    "select '" + "x" * 70_000 + "'",
    "select b" + "||b" * 40 + " from t",
    _GROWING,
    _MANY,
    "copy t to program 'id'",
    "copy t from '/etc/passwd'",
    "copy t to stdout",
    "copy (select 1) to '/tmp/x'",
    "do $$ begin perform pg_sleep(1); end $$",
    "do language plpython3u $$ import os $$",
    "call x()",
    "execute x",
    "prepare x as select 1",
    "deallocate all",
    "declare c cursor for select 1",
    "fetch all from c",
    "listen a",
    "notify a, 'b'",
    "unlisten *",
    "lock table t",
    "set role admin",
    "reset role",
    "set session authorization admin",
    "set search_path = pg_catalog",
    "set local timezone = 'Asia/Tokyo'",
    "set constraints all deferred",
    "show all",
    "discard all",
    "alter system set fsync = off",
    "alter database postgres set x.y = 1",
    "alter role chaplain superuser",
    "create role x superuser",
    "create user x",
    "drop role chaplain",
    "grant all on t to public",
    "revoke all on t from public",
    "grant chaplain to public",
    "begin",
    "commit",
    "rollback",
    'savepoint "x"',
    "savepoint x; commit",
    "rollback and chain",
    "release savepoint x",
    "prepare transaction 'x'",
    "explain select 1",
    "explain analyze delete from t",
    "vacuum t",
    "analyze t",
    "reindex table t",
    "cluster t",
    "checkpoint",
    "load 'x'",
    "truncate t",
    "comment on table t is 'x'",
    "security label on table t is 'x'",
    "merge into t using u on t.a = u.y when matched then delete",
    "select a into x from t",
    "select a from t for update",
    "select a from t for share skip locked",
    "select * from t tablesample system (10)",
    "create temp table x(a integer primary key)",
    "create unlogged table x(a integer primary key)",
    "create table x as select 1",
    "create table x(a integer primary key) partition by range (a)",
    "create table x(a integer primary key) inherits (t)",
    "create table x(like t including all)",
    "create table x(a integer primary key) with (autovacuum_enabled = off)",
    "create table x(a integer primary key) tablespace pg_default",
    "create table x(a integer primary key) using heap",
    "create table public.x(a integer primary key)",
    "create table chaplain_x(a integer primary key)",
    "create table pg_x(a integer primary key)",
    "create table text(a integer primary key)",
    "create table x(a serial primary key)",
    "create table x(a bigserial primary key)",
    "create table x(a integer generated always as identity primary key)",
    "create table x(a integer primary key, b integer generated always as (a + 1) stored)",
    "create table x(a integer primary key default (random()))",
    "create table x(a integer primary key, b text default gen_random_uuid())",
    "create table x(a integer primary key, b text default current_user)",
    "create table x(a integer primary key default nextval('s'))",
    "create table x(a timestamptz primary key)",
    "create table x(a date primary key)",
    "create table x(a numeric primary key)",
    "create table x(a real primary key)",
    "create table x(a json primary key)",
    "create table x(a text[] primary key)",
    "create table x(a t primary key)",
    "create table x(a integer)",
    'create table x(a integer primary key, b text collate "de_DE")',
    "create table x(a integer primary key, check (b > now()))",
    "create table x(a integer primary key check (pg_sleep(1) is null))",
    "create table x(a integer primary key references t on delete cascade)",
    "create table x(a integer primary key references t on update set null)",
    "create table x(a integer primary key references t deferrable initially deferred)",
    "create table x(a integer primary key references pg_class)",
    "create table x(a integer primary key references absent)",
    "create table x(a integer primary key, exclude using gist (a with =))",
    "create table x(a integer primary key, pg_column_size integer)",
    "create table t(a integer primary key)",
    "create index on t(b)",
    "create index i on t(lower(b))",
    "create index i on t(b) where a > 5",
    "create index i on t using hash (b)",
    "create index i on t(b text_pattern_ops)",
    "create index concurrently i on t(b)",
    "create index i on pg_class(relname)",
    "create view v as select 1",
    "create materialized view v as select 1",
    "create sequence s",
    "create schema s",
    "create database d",
    "create extension dblink",
    "create function f() returns int language sql as 'select 1'",
    "create function f() returns int language c as 'x'",
    "create procedure f() language sql as 'select 1'",
    "create aggregate g(int) (sfunc = int4pl, stype = int)",
    "create operator + (leftarg = int, rightarg = int, function = int4pl)",
    "create cast (int as text) with inout",
    "create type y as enum ('a')",
    "create domain y as integer",
    'create collation y from "C"',
    "create language plperlu",
    "create trigger tr after insert on t for each row execute function chaplain.note()",
    "create event trigger e on ddl_command_start execute function f()",
    "create rule r as on insert to t do instead nothing",
    "create policy y on t using (true)",
    "create publication y for all tables",
    "create subscription y connection 'x' publication y",
    "create server y foreign data wrapper postgres_fdw",
    "create foreign table y(a int) server z",
    "create tablespace y location '/tmp'",
    "create statistics y on a, b from t",
    "alter table t owner to admin",
    "alter table t disable trigger all",
    "alter table t drop constraint t_pkey",
    "alter table t drop column a",
    "alter table t alter column b type bytea using b::bytea",
    "alter table t add column d timestamptz default now()",
    "alter table t add column d double precision default random()",
    "alter table t add column d serial",
    "alter table t set (fillfactor = 50)",
    "alter table t set schema public",
    "alter table t enable row level security",
    "alter table t rename to pg_t",
    "alter table t rename column b to ctid",
    "alter table chaplain.state add column x integer",
    "alter index t_pkey rename to x",
    "drop table chaplain.state",
    "drop table t cascade",
    "drop table t, u",
    "drop index t_pkey",
    "drop trigger chaplain on t",
    "drop schema chaplain cascade",
    "drop function chaplain.note()",
    "drop owned by chaplain",
    "reassign owned by chaplain to admin",
    "insert into chaplain.state(stream) values ('x')",
    "update chaplain.state set idx = 0",
    "delete from chaplain.results",
    "insert into pg_authid(rolname) values ('x')",
    "insert into p select k || 'x' from p on conflict do nothing",
    "insert into p select random() from t",
    "insert into p values ((select random()))",
    "insert into p overriding system value values ('x')",
    "insert into p select rolname from pg_roles",
    "update t set b = random()",
    "update t set b = u.x from u",
    "update t set b = 'x' where current of c",
    "update t set (a, b) = row(1, 'x')",
    "delete from t using u where u.y = t.a",
    "with x as (delete from t returning a) select * from x",
    "with x as (insert into p values ('x') returning k) select * from x",
]
_QUERIES_MAY = ("string_agg(", "concat(", _MANY)
"""The last is bounded by time there."""
REFUSED: list[str] = [*_BOTH, *(f"select {call} from t" for call in _pieces(_CALLS))]
NO_QUERY: list[str] = [sql for sql in REFUSED if not any(word in sql for word in _QUERIES_MAY)]

UNORDERED = [
    "select a from t order by b",
    "select a from t limit 1",
    "select a from t offset 5",
    "select a from t fetch first 5 rows only",
    "select string_agg(b, ',' order by b) from t",
    "select row_number() over (order by a) from t",
    "select first_value(a) over w from t window w as (order by b)",
    "with recursive r(n) as (select 1 union all select n + 1 from r where n < 9) select count(*) from r",
]
NO_QUERY.append("with recursive r(s) as (select 'x' union all select s || s from r) select count(*) from r")


FINE = [
    "select " + "(" * 300 + "1" + ")" * 300,
    "update only t set b = b",
    "insert into p values ('x; drop table p') /* ; */ -- end",
    "insert into p values (E'it\\'s'), ($q$a?b$q$), ('?'), (':k')",
    "insert into p select 'n' || a from t where a % 10 = 0",
    "insert into p values ('one') on conflict (k) do nothing",
    "insert into p values ('two') on conflict (k) do update set k = excluded.k || '!'",
    "insert into t(a, c) values (201, random()), (202, random()) returning a, c",
    "insert into t values (301, gen_random_uuid(), default)",
    "insert into t(a, b) values (401, current_timestamp), (402, now())",
    "update t set c = a / 3.0 where a between 10 and 20 returning a, c",
    "update t set b = (select max(x) from u where u.y = t.a) where a < 5",
    "update t set b = case when a > 50 then 'big' else coalesce(b, 'none') end",
    "update t set a = -3 where a = 3",
    "delete from t where exists (select 1 from u where u.y = t.a)",
    "delete from t where a > 90 returning *",
    "select distinct b from t",
    "select count(*), sum(a), avg(a), min(b), max(b), sum(c), avg(c) from t",
    "select b, count(*) from t group by b having count(*) > 0",
    "select t.a, x.y from t join u x on x.y = t.a",
    "select a from t union select y from u except select 7",
    "with big as (select a from t where a > 95) select a from big",
    "select trim(b), substring(b from 1 for 1), position('1' in b), lower(b), length(b), md5(b) from t where a = 50",
    "select a::text, b::varchar(2), cast(a as double precision), a is null, b like '5%' from t where a = 50",
    "select sqrt(2.0::double precision), round(2.5), floor(-1.5), abs(-3), mod(7, 3), 7 / 2, 7 % 4, 1.5 * 2",
    "select greatest(1, 2), least(1, 2), nullif(1, 1), 1 is distinct from null, true and not false",
    "values (2, 'b'), (1, 'a')",
    "create table x(a bigint primary key, b smallint not null, c boolean default true, d uuid, e bytea)",
    "insert into x values (9007199254740993, -1, false, '00000000-0000-4000-8000-000000000000', '\\x00ff')",
    "create table y(a bigint primary key references x(a), b text unique check (length(b) < 9))",
    "insert into y values (9007199254740993, 'fits')",
    "create unique index i on x(b, c)",
    "alter table x add column f text default 'new'",
    "alter table x drop column e",
    "alter table x rename column f to g",
    "drop index i",
    "alter table y rename to z",
    "drop table z",
    'create table odd("a b" integer primary key, "Größe" text, "q""uote" text)',
    "insert into odd values (1, 'ü', 'x')",
    "delete from x",
    "drop table if exists nothing",
]
FINE_FAILS = [
    "select chr(0)",
    "select decode('zz', 'hex')",
    "select encode('x', 'nothing')",
    "select substr('x', 1, -1)",
    "select sqrt(-1.0)",
    "select div(1.0, 0)",
    "select chr(1114112)",
    "select (-9223372036854775808)::bigint / -1",
    f"insert into p values ('{_KEY}')",
    "create table wide(" + ", ".join(f"c{n} integer" for n in range(1700)) + ", primary key (c1))",
    "insert into x values (1, 40000)",
    "select (select y from u) from t",
    "insert into p values ('one'), ('one')",
    "update t set a = 500",
    "update t set a = -a where a in (1, 2)",
    "update t set c = 1 / (a - 50)",
    "select a + b from t",
    "insert into t values (1, 2, 3, 4)",
    "select nothing from t",
    "select 2147483647 + 1",
    "select '5 apples'::integer",
]
"""Allowed, and failing for everybody."""
