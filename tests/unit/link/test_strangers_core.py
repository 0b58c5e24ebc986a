"""Connections that have not proven themselves: how many there may be, which of them go, and who is kept out."""

from __future__ import annotations

import ipaddress
import struct

from hypothesis import given
from hypothesis import strategies as st

from chaplain.link.zmq.accept_limiter import filter_of, source_of
from chaplain.link.zmq.strangers import RESERVED_PART, BlockedSources, Strangers

EVIL, HONEST, MEMBER = "10.0.0.66", "10.0.0.1", "10.0.0.2"


class World:
    """Addresses that connect as often as they can: whoever is blocked does not get in."""

    def __init__(self, places: int = 8) -> None:
        self.held = Strangers(places, frozenset({MEMBER}))
        self.last = 0

    def connect(self, source: str) -> bool:
        blocked = self.held.blocked()
        if blocked.others != (source in blocked.sources):
            return False
        self.last += 1
        self.held.add(self.last, self.last, source)
        return True


@given(st.lists(st.sampled_from([EVIL, HONEST, MEMBER, "leave"]), max_size=200))
def test_unauthenticated_connections_never_exceed_their_places(events: list[str]) -> None:
    world = World()
    for number, source in enumerate(events):
        if source == "leave":
            world.held.remove(number // 2)
        else:
            world.connect(source)
        assert len(world.held) <= 8 + 8 // RESERVED_PART
        assert len(world.held) < 8 or not world.connect(HONEST)


def test_flooding_address_is_shut_out_while_another_is_admitted() -> None:
    world = World()
    assert sum(world.connect(EVIL) for _ in range(100)) == 6
    assert world.connect(HONEST)
    assert not world.connect(EVIL)


def test_shut_out_address_is_admitted_when_half_of_the_places_are_free() -> None:
    world = World()
    for _ in range(100):
        world.connect(EVIL)
    tries = []
    for connection in range(1, 5):
        world.held.remove(connection)
        tries.append(world.connect(EVIL))
    assert tries == [False, False, True, True]


def test_flood_from_many_addresses_leaves_places_for_members() -> None:
    world = World(16)
    for number in range(200):
        world.connect(f"10.0.1.{number}")
    assert not world.connect(HONEST)
    assert world.connect(MEMBER)


def test_flooding_member_is_shut_out() -> None:
    world = World()
    assert sum(world.connect(MEMBER) for _ in range(100)) <= 8
    assert len(world.held) <= 8


def test_old_connections_do_not_count() -> None:
    held = Strangers(8)
    for number in range(6):
        held.add(number, number, EVIL)
    held.expire(4)
    assert len(held) == 2


def test_ipv4_source_is_an_address_and_ipv6_source_a_64_bit_network() -> None:
    assert source_of("10.1.2.3") == source_of("::ffff:10.1.2.3") == "10.1.2.3"
    assert source_of("2001:db8::1") == source_of("2001:db8::ffff%eth0") == "2001:db8::"
    assert source_of("2001:db8:0:1::1") != source_of("2001:db8::1")


def passes(program: list[bytes], source: str) -> bool:
    """Run the program as the kernel does, over the IP header of a packet from this address."""
    address = ipaddress.ip_address(source)
    header = bytearray(40)
    header[0] = address.version << 4
    at = 12 if address.version == 4 else 8
    header[at : at + len(address.packed)] = address.packed
    accumulator = place = 0
    while True:
        code, if_true, if_false, value = struct.unpack("HBBI", program[place])
        place += 1
        match code:
            case 0x30:
                accumulator = header[value - 0xFFF00000]
            case 0x20:
                accumulator = int.from_bytes(header[value - 0xFFF00000 :][:4], "big")
            case 0x74:
                accumulator >>= value
            case 0x15:
                place += if_true if accumulator == value else if_false
            case _:
                assert code == 0x06
                return value > 0


addresses = st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6)).map(lambda one: source_of(str(one)))


@given(st.sets(addresses, min_size=1, max_size=32), addresses, st.booleans())
def test_filter_drops_shut_out_sources_and_passes_others(sources: set[str], other: str, others: bool) -> None:
    program = filter_of(BlockedSources(frozenset(sources), others))
    assert {passes(program, source) for source in sources} == {others}
    assert passes(program, other) == (others if other in sources else not others)


def test_filter_of_very_many_sources_drops_all() -> None:
    assert not passes(filter_of(BlockedSources(frozenset(f"10.0.0.{number}" for number in range(33)))), HONEST)
