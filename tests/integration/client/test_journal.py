"""The journal through both faces, against a real cluster of three nodes."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random

import pytest

from chaplain import AsyncClient, Client
from chaplain.client.api.journal_calls import WRITER_BYTES_MAX
from chaplain.client.protocol.journal.batch_builder import CHUNK_BYTES
from chaplain.client.protocol.journal.reader import WINDOW_BYTES
from chaplain.errors import Closed, Forbidden, Missing, Refused, Unknown
from chaplain.link.auth.identity import Identity
from chaplain.runtime.cluster.local import pid_of
from tests.support.command_line import chaplain, eventually, pids

pytestmark = pytest.mark.timeout(180)


def test_written_messages_are_read_back(directory: Path) -> None:
    with Client.connect(directory) as client:
        journal = client.journal("plain")
        first = journal.write(b"one", key=b"k", headers={"b": b"2", "a": b"1"})
        both = journal.write_many([b"two", (b"three", b"k3"), (b"four", None, {"h": b""})])
        assert (first.stream, first.offset, first.regime > 0, len(first.hash)) == ("plain", 0, True, 32)
        assert [receipt.offset for receipt in both] == [1, 2, 3]
        assert {receipt.client_message_id for receipt in both} == {2}
        messages = list(journal.read())
        assert [(m.offset, m.value, m.key, m.headers) for m in messages] == [
            (0, b"one", b"k", {"a": b"1", "b": b"2"}),
            (1, b"two", None, {}),
            (2, b"three", b"k3", {}),
            (3, b"four", None, {"h": b""}),
        ]
        assert messages[0].timestamp == first.timestamp
        assert [m.message_no for m in messages] == [0, 0, 1, 2]
        assert [m.value for m in journal.read(1, 3)] == [b"two", b"three"]
        assert list(journal.read(None)) == list(journal.read(4)) == []
        assert client.resolve(first.id) == first
        assert {"plain": 4}.items() <= {stream.stream: stream.next_offset for stream in client.streams()}.items()
        with pytest.raises(Missing, match="ends before offset 4"):
            next(journal.read(5))
        with pytest.raises(Missing, match="there is no stream"):
            next(client.journal("nothing").read())
        with pytest.raises(ValueError, match="offsets count from 0"):
            journal.read(-1)


def test_writer_packs_messages_and_waits_for_all_receipts_at_its_end(directory: Path) -> None:
    with Client.connect(directory) as client:
        with client.journal("fast").writer(receipts=True) as writer:
            for number in range(20_000):
                writer.write(b"%d" % number, key=b"even" if number % 2 == 0 else None)
            writer.flush()
            assert writer.count == 20_000
            writer.write(b"last")
        assert writer.last is not None
        assert (writer.count, writer.last.offset) == (20_001, 20_000)
        assert [receipt.offset for receipt in writer.take_receipts()] == list(range(20_001))
        found = [int(m.value) for m in client.journal("fast").read(stop=20_000)]
        assert found == list(range(20_000))
        with pytest.raises(Closed, match="this writer is closed"):
            writer.write(b"late")


def test_messages_have_types_by_which_readers_select(directory: Path) -> None:
    with Client.connect(directory) as client:
        typed = client.journal("typed")
        typed.write(b"plain")
        typed.write(b"two", type=2)
        typed.write_many([b"three", b"three again"], type=3)
        with typed.writer(type=2) as writer:
            for number in range(100):
                writer.write(b"%d" % number)
        assert [(m.value, m.type) for m in typed.read(types=[0, 3])] == [
            (b"plain", 0),
            (b"three", 3),
            (b"three again", 3),
        ]
        assert [m.offset for m in typed.read(types={2})] == [1, *range(4, 104)]
        assert list(typed.read(types=(7,))) == []
        assert [m.type for m in typed.read(follow=True, types=[3], timeout=1)] == [3, 3]


def test_writer_waits_for_receipts_beyond_its_window(directory: Path) -> None:
    with Client.connect(directory) as client, client.journal("large").writer() as writer:
        for _ in range(40):
            writer.write(bytes(1_000_000))
            assert writer._unanswered_bytes <= WRITER_BYTES_MAX + 1_000_000
        writer.flush()
        assert writer.count == 40
        sizes = [len(m.value) for m in client.journal("large").read()]
        assert sizes == [1_000_000] * 40


def test_writer_interrupted_by_signals_at_any_moment_loses_nothing(directory: Path) -> None:
    """As Ctrl-C does, for a program that goes on: what is told as written is, and nothing waits for ever."""
    signals = _Interrupter()
    before = signal.signal(signal.SIGUSR1, signals)
    over = threading.Event()
    chance = Random(1)

    def disturb() -> None:
        while not over.wait(chance.random() * 0.004):
            os.kill(os.getpid(), signal.SIGUSR1)

    written: set[int] = set()
    unsure: set[int] = set()
    disturber = threading.Thread(target=disturb)
    try:
        with Client.connect(directory, timeout=30) as client:
            disturber.start()
            number = 0
            while len(unsure) < 8:
                writer = client.journal("disturbed").writer()
                mine = range(number, number + 300)
                for number in mine:
                    if signals.interrupts(partial(writer.write, b"%d" % number)):
                        unsure.add(number)
                while signals.interrupts(writer.flush):
                    pass
                written |= set(mine)
                number += 1
            over.set()
            disturber.join()
            found = [int(message.value) for message in client.journal("disturbed").read()]
    finally:
        over.set()
        signal.signal(signal.SIGUSR1, before)
    assert len(found) == len(set(found))
    assert written - unsure <= set(found)


class _Interruption(Exception):
    pass


class _Interrupter:
    """A handler of signals that raises, once, while something is being done."""

    def __init__(self) -> None:
        self._armed = False

    def __call__(self, *_: object) -> None:
        if self._armed:
            self._armed = False
            raise _Interruption

    def interrupts(self, act: Callable[[], object]) -> bool:
        try:
            self._armed = True
            act()
            self._armed = False
        except _Interruption:
            return True
        return False


def test_client_with_read_right_only_cannot_write_any_kind_of_stream(directory: Path) -> None:
    """One name, one right, whatever the kind of stream."""
    key = Identity(b"r" * 32)
    with Client.connect(directory, timeout=60) as admin:
        admin.add_client("reader", key.key, write=["own-*"], read=["news", "own-*"])
        for stream in ("news", "hidden"):
            admin.journal(stream).write(b"journal")
            admin.graph(stream).append(b"graph")
            admin.sequence(stream).publish(b"sequence")
        eventually(lambda: _lets_in(directory, key))
        with Client.connect(directory, identity=key, timeout=60) as reader:
            assert [message.value for message in reader.journal("news").read()] == [b"journal"]
            eventually(lambda: [event.value for event in reader.graph("news").read()] == [b"graph"])
            eventually(lambda: [event.value for event in reader.sequence("news").read()] == [b"sequence"])
            reader.pool("news").join()
            writes: list[Callable[[str], object]] = [
                lambda stream: reader.journal(stream).write(b"no"),
                lambda stream: reader.graph(stream).append(b"no"),
                lambda stream: reader.sequence(stream).publish(b"no"),
                lambda stream: reader.pool(stream).broadcast(b"no"),
            ]
            for write in writes:
                with pytest.raises(Forbidden, match=r"may not write .*stream.*: ask an admin"):
                    write("news")
                write("own-notes")
            reads: list[Callable[[], object]] = [
                lambda: list(reader.journal("hidden").read()),
                lambda: list(reader.graph("hidden").read()),
                lambda: list(reader.sequence("hidden").read()),
                lambda: reader.pool("hidden").join(),
            ]
            for read in reads:
                with pytest.raises(Forbidden, match="may not read stream 'hidden': ask an admin"):
                    read()
        assert [event.value for event in admin.graph("news").read()] == [b"graph"]
        assert [event.value for event in admin.sequence("news").read()] == [b"sequence"]
        admin.remove_client("reader")


def _lets_in(directory: Path, key: Identity) -> bool:
    """Every node has heard of the client."""
    try:
        for one in _nodes(directory):
            Client.connect(directory, endpoints=[one.endpoint], identity=key, timeout=60).close()
    except Refused:
        return False
    return True


def test_writer_raises_the_refusal(directory: Path) -> None:
    with Client.connect(directory) as client:
        key = Identity(b"w" * 32)
        client.add_client("writer", key.key, write=["mine*"], read=["mine*"])
        node_keys = [one.key for one in _nodes(directory)]
        endpoints = [one.endpoint for one in _nodes(directory)]
        name = _name(directory)

        def connected() -> Client:
            return Client.connect(endpoints=endpoints, identity=key, node_keys=node_keys, name=name)

        with connected() as other:
            writer = other.journal("theirs").writer()
            writer.write(b"x")
            with pytest.raises(Forbidden, match="may not write"):
                writer.flush()
            with pytest.raises(Refused, match="may not write"):
                writer.write(b"y")
            assert other.journal("mine-1").write(b"z").offset == 0
            with pytest.raises(Forbidden, match="may not read"):
                next(other.journal("theirs").read())
            with pytest.raises(Forbidden, match="only an admin"):
                other.clients()
        [record] = [one for one in client.clients() if one.name == "writer"]
        assert (record.status, record.writes, record.admin) == ("active", ("mine*",), False)
        client.remove_client("writer")
        with pytest.raises(Missing, match="there is no client 'writer'"):
            client.remove_client("writer")
        assert _is_refused_soon(connected), "who was removed is let in for good"


def _is_refused_soon(connected: Callable[[], Client]) -> bool:
    """Nodes let one who was removed linger for a moment, to hear why; then the door is shut."""
    end_s = time.monotonic() + 20
    while time.monotonic() < end_s:
        try:
            connected().close()
        except Refused:
            return True
    return False


def _nodes(directory: Path):
    from chaplain.config import load_cluster

    return load_cluster(directory).nodes


def _name(directory: Path) -> str:
    from chaplain.config import load_cluster

    return load_cluster(directory).cluster


def test_identity_file_and_endpoints_are_sufficient(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    endpoints = [one.endpoint for one in _nodes(directory)]
    with Client.connect(endpoints=endpoints, identity=directory / "client.identity") as client:
        client.journal("files").write(b"a")
    monkeypatch.setenv("CHAPLAIN_IDENTITY", str(directory / "client.identity"))
    with Client.connect(endpoints=endpoints) as client:
        assert [m.value for m in client.journal("files").read()] == [b"a"]


def test_follower_receives_later_messages_and_ends_after_its_timeout(directory: Path) -> None:
    with Client.connect(directory) as client:
        reader = client.journal("follow").read(follow=True, timeout=60)
        client.journal("follow").write(b"a")
        assert next(reader).value == b"a"
        client.journal("follow").write(b"b")
        assert next(reader).value == b"b"
        reader.close()
        with pytest.raises(Closed):
            next(reader)
        again = client.journal("follow").read(follow=True, timeout=60)
        assert [next(again).value for _ in range(2)] == [b"a", b"b"]
        again.close()
        assert list(client.journal("follow").read(2, follow=True, timeout=0.2)) == []


def test_reader_that_takes_nothing_buffers_little(directory: Path) -> None:
    with Client.connect(directory) as client:
        with client.journal("slow").writer() as writer:
            for _ in range(24):
                writer.write(bytes(500_000))
        reader = client.journal("slow").read()
        eventually(lambda: sum(len(portion.packs) for portion in reader._sink.chunks) >= WINDOW_BYTES - 500_000)
        assert sum(len(portion.packs) for portion in reader._sink.chunks) <= WINDOW_BYTES + 4_000_000
        assert sum(1 for _ in reader) == 24


def test_thousands_of_tasks_write_concurrently(directory: Path) -> None:
    async def work() -> None:
        async with AsyncClient.connect(directory) as client:
            journal = client.journal("tasks")
            receipts = await asyncio.gather(*(journal.write(b"%d" % number) for number in range(3000)))
            assert [receipt.offset for receipt in receipts] == list(range(3000))
            assert len({receipt.index for receipt in receipts}) < 300, "they were packed"
            found = [int(m.value) async for m in journal.read()]
            assert found == list(range(3000))
            many = await journal.write_many([b"x", b"y"])
            assert await client.resolve(many[0].id) is not None
            async with journal.writer(receipts=True) as writer:
                for number in range(1000):
                    await writer.write(b"%d" % number)
            assert (writer.count, len(writer.take_receipts())) == (1000, 1000)
            assert [m.value async for m in journal.read(3000, 3002)] == [b"x", b"y"]
            assert (await anext(journal.read(4001, follow=True, timeout=60))).value == b"999"
            assert [m async for m in journal.read(4002, follow=True, timeout=0.2)] == []
            with pytest.raises(Missing):
                async for _ in client.journal("none").read():
                    pass

    asyncio.run(work())


def test_program_that_never_yields_to_its_loop_writes_and_reads(directory: Path) -> None:
    """Awaiting what need not wait does not go back to the loop; the client has its turns nevertheless."""
    value = bytes(CHUNK_BYTES + 1)

    async def work() -> None:
        async with AsyncClient.connect(directory) as client:
            await client.journal("busy").write(b"first")
            others = asyncio.create_task(asyncio.sleep(0))
            async with client.journal("busy").writer() as writer:
                for _ in range(WRITER_BYTES_MAX // len(value) // 2):
                    await writer.write(value)
                    if writer.count:
                        break
                    time.sleep(0.1)  # it computes
                assert writer.count, "receipts were taken in"
                assert not others.done(), "the loop never had its turn"
            async with client.journal("busy").read(follow=True) as reader:
                assert [(await anext(reader)).value, (await anext(reader)).value] == [b"first", value]

    asyncio.run(work())


def test_kill_of_the_serving_node_loses_and_doubles_nothing(directory: Path) -> None:
    with Client.connect(directory) as client:
        journal = client.journal("kill")
        receipts = [journal.write(b"%d" % number) for number in range(20)]
        victim = client.status()["id"]
        seen: list[bytes] = []
        reader = journal.read(follow=True)
        follower = threading.Thread(target=lambda: _follow(reader, seen))
        follower.start()
        pid = pid_of(directory / f"node-{victim}")
        assert pid is not None
        with journal.writer() as writer:
            for number in range(20, 30_000):
                writer.write(b"%d" % number)
                if number == 10_000:
                    os.kill(pid, signal.SIGKILL)
        assert writer.last is not None
        assert [receipt.offset for receipt in receipts] == list(range(20))
        assert writer.last.offset == 29_999
        assert [int(m.value) for m in journal.read()] == list(range(30_000))
        eventually(lambda: len(seen) == 30_000)
        assert [int(value) for value in seen] == list(range(30_000))
        reader.close()
        follower.join(60)
        assert not follower.is_alive()
    chaplain("cluster", "up", "--dir", directory)
    eventually(lambda: len(pids(directory)) == 3)


def _follow(reader: Iterator, seen: list[bytes]) -> None:
    with suppress(Closed):
        seen.extend(m.value for m in reader)


def test_unknown_write_is_resolved_and_never_written_twice(directory: Path) -> None:
    with Client.connect(directory, timeout=6) as client:
        journal = client.journal("unknown")
        journal.write(b"before")
        serving = pid_of(directory / f"node-{client.status()['id']}")
        others = [pid for pid in pids(directory) if pid != serving]
        for pid in others:
            os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(Unknown, match="may or may not be written") as raised:
                journal.write(b"perhaps")
        finally:
            for pid in others:
                os.kill(pid, signal.SIGCONT)
        assert raised.value.id is not None
        eventually(lambda: _resolves(client, raised.value.id))
        receipt = journal.write(b"perhaps", id=raised.value.id)
        assert receipt.offset == 1
        assert [m.value for m in journal.read()] == [b"before", b"perhaps"]


def _resolves(client: Client, request: tuple[int, int] | None) -> bool:
    assert request is not None
    with suppress(Exception):
        client.resolve(request)
        return True
    return False


def test_closed_clients_leave_no_lanes(directory: Path) -> None:
    for _ in range(5):
        with Client.connect(directory) as client:
            client.journal("lanes").write(b"x")
    with Client.connect(directory) as client:
        eventually(lambda: client.clients()[0].lanes <= 2)
