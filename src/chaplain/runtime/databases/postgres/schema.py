"""The objects that an executor creates in its PostgreSQL database: schemas, roles, its own tables and functions.

    chaplain             state and results of every stream; only the executor's own role may use it
    chaplain_functions   time, random values and sums for statements, replacing the server's functions
    stream_NAME          the tables of a stream

Each stream has three roles without login: an owner of its tables, a writer that may change rows, and a reader. Each
client that has executed a request has a role, too, which is a member of the writer role. Role names begin with the name
of the database, because all databases of a server share its roles.
"""

from __future__ import annotations

import re
from hashlib import sha256

import msgspec

OWN = "chaplain"
FUNCTIONS = "chaplain_functions"
CHANGED = "CHAP1"
"""SQLSTATE of the notices that report changed rows."""
_PLAIN = re.compile(r"[a-z0-9_]{1,40}\Z")


class Layout(msgspec.Struct, frozen=True):
    """Names of the objects, all of them safe in a statement."""

    database: str
    stream: str

    @property
    def schema(self) -> str:
        if _PLAIN.match(self.stream):
            return f"stream_{self.stream}"
        return "stream-" + sha256(self.stream.encode()).hexdigest()[:32]

    @property
    def path(self) -> str:
        """The search path: the executor's functions come before the server's."""
        return f'"{self.schema}", {FUNCTIONS}, pg_catalog'

    @property
    def label(self) -> str:
        """Application name of the connections."""
        return f"chaplain {self.schema}"[:63]

    def role(self, of: str) -> str:
        of_stream = sha256(self.stream.encode()).hexdigest()[:12]
        return quoted_name(f"{self.database}:{of_stream}:{of}")

    def client(self, acl: bytes) -> str:
        return self.role(sha256(acl).hexdigest()[:16])


def quoted_name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def literal(value: str | bytes | int) -> str:
    """A value as an SQL literal."""
    if isinstance(value, bytes):
        return f"'\\x{value.hex()}'::bytea"
    return str(value) if isinstance(value, int) else "'" + value.replace("'", "''") + "'"


TABLES = f"""
create schema if not exists {OWN};
create table if not exists {OWN}.state(
    stream text primary key, version bigint, idx bigint, requests bigint, whole boolean, tallies bytea,
    fingerprint bytea, changes bigint, shape bytea) with (fillfactor = 20);
create table if not exists {OWN}.results(
    number bigint generated always as identity primary key, stream text, acl bytea, client_id bigint,
    first_id bigint, last_id bigint, body bytea);
create index if not exists results_of on {OWN}.results(stream, acl, client_id, last_id);
create table if not exists {OWN}.read(
    number bigint generated always as identity, stream text, acl bytea, client_id bigint, last_id bigint,
    primary key (stream, acl, client_id));
create or replace function {OWN}.note() returns trigger language plpgsql as $note$
begin
    raise notice using errcode = '{CHANGED}', message = tg_table_name,
        detail = coalesce(pg_catalog.to_json(old)::pg_catalog.text, ''),
        hint = coalesce(pg_catalog.to_json(new)::pg_catalog.text, '');
    return null;
end $note$;
create schema if not exists {FUNCTIONS};
create or replace function {FUNCTIONS}.now() returns text language sql stable
    as $f$ select pg_catalog.current_setting('chaplain.now') $f$;
create or replace function {FUNCTIONS}.unixepoch() returns bigint language sql stable
    as $f$ select pg_catalog.current_setting('chaplain.seconds')::bigint $f$;
create or replace function {FUNCTIONS}.next_chance() returns text language plpgsql volatile
    set search_path = pg_catalog as $f$
declare turn bigint := current_setting('chaplain.turn')::bigint + 1;
begin
    perform set_config('chaplain.turn', turn::text, true);
    return encode(sha256(decode(current_setting('chaplain.seed'), 'hex') || int8send(turn)), 'hex');
end $f$;
create or replace function {FUNCTIONS}.random() returns double precision language sql volatile as $f$
    select ('x' || pg_catalog.substr({FUNCTIONS}.next_chance(), 1, 13))::bit(52)::bigint
        / 4503599627370496::double precision $f$;
create or replace function {FUNCTIONS}.gen_random_uuid() returns uuid language sql volatile as $f$
    select (pg_catalog.substr(h, 1, 12) || '4' || pg_catalog.substr(h, 14, 3) || 'a'
        || pg_catalog.substr(h, 18, 15))::uuid from (select {FUNCTIONS}.next_chance() as h) as one $f$;
create or replace function {FUNCTIONS}.sum_more(numeric, double precision) returns numeric language sql immutable
    as $f$ select case when $2 is null then $1 else coalesce($1, 0) + $2::numeric end $f$;
create or replace function {FUNCTIONS}.sum_end(numeric) returns double precision language sql immutable
    as $f$ select $1::double precision $f$;
create or replace aggregate {FUNCTIONS}.sum(double precision) (
    sfunc = {FUNCTIONS}.sum_more, stype = numeric, finalfunc = {FUNCTIONS}.sum_end);
create or replace function {FUNCTIONS}.avg_more(numeric[], double precision) returns numeric[] language sql immutable
    as $f$ select case when $2 is null then $1 else array[$1[1] + $2::numeric, $1[2] + 1] end $f$;
create or replace function {FUNCTIONS}.avg_end(numeric[]) returns double precision language sql immutable
    as $f$ select case when $1[2] > 0 then ($1[1] / $1[2])::double precision end $f$;
create or replace aggregate {FUNCTIONS}.avg(double precision) (
    sfunc = {FUNCTIONS}.avg_more, stype = numeric[], initcond = '{{0,0}}', finalfunc = {FUNCTIONS}.avg_end);
grant usage on schema {FUNCTIONS} to public
"""
"""Sums of floating-point numbers are computed exactly, so that they do not depend on the order of rows."""


def make_stream(layout: Layout) -> list[str]:
    """The statements that create a stream's schema and roles, in order; existing roles are kept."""
    owner, writer, reader = layout.role("owner"), layout.role("writer"), layout.role("reader")
    schema = quoted_name(layout.schema)
    return [
        *(text for role in (owner, writer, reader) for text in make_role(role)),
        f"create schema if not exists {schema}",
        f"grant usage, create on schema {schema} to {owner}",
        f"grant usage on schema {schema} to {writer}, {reader}",
    ]


def make_role(role: str) -> list[str]:
    plain = literal(role[1:-1].replace('""', '"'))
    make = f"create role {role} nologin nosuperuser nocreatedb nocreaterole noreplication"
    absent = f"not exists (select from pg_catalog.pg_roles where rolname = {plain})"
    return [
        f"do $make$ begin if {absent} then {make}; end if; end $make$",
        f"grant {role} to current_user",
    ]


def drop_stream(layout: Layout) -> list[str]:
    """The statements that delete a stream, except its roles and read positions."""
    stream = literal(layout.stream)
    return [
        f"drop schema if exists {quoted_name(layout.schema)} cascade",
        f"delete from {OWN}.state where stream = {stream}",
        f"delete from {OWN}.results where stream = {stream}",
    ]
