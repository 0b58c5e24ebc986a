"""Greetings, partings, replacements and numbers, one rule at a time."""

from __future__ import annotations

import pytest

from chaplain.core import Report
from chaplain.errors import ConfigError
from chaplain.link.events import CommandDropped, Forget, Meet, Met, Missed, Parted, Said, Say
from chaplain.mesh.events import Entered, Exited, Gapped, Joined, JoinPool, Left, Whisper, Whispered
from chaplain.mesh.settings import MeshSettings
from chaplain.wire.command import Alive, Hello, encode
from tests.unit.mesh.mesh_stage import OWN, SECOND, hello, make, make_with, only, peer, said, spoken

ANNA, BERT, CARL = peer(1), peer(2), peer(3)
TASK = peer(9, client="task")


def test_greeting_enters_a_peer_with_its_pools() -> None:
    core = make()
    effects = core.step(0, Met(ANNA, hello(("red", "blue", "red"), 7, rack="a")))
    assert effects == [Entered(ANNA, {"rack": "a"}), Joined(ANNA, "red"), Joined(ANNA, "blue")]
    assert core.peers() == {1: ANNA}
    assert core.members("blue") == (ANNA,)
    assert core.peer_views()[0].status == 7


def test_repeated_greeting_of_an_instance_reports_only_changes() -> None:
    core = make_with(ANNA, pools=("red", "blue"))
    assert core.step(5, Met(ANNA, hello(("blue", "green"), 4))) == [Left(ANNA, "red"), Joined(ANNA, "green")]
    assert core.known_pools() == ("blue", "green")


def test_repeated_greeting_restarts_both_numberings() -> None:
    core = make_with(ANNA)
    core.step(0, Whisper(ANNA.instance, b"x"))
    core.step(0, said(ANNA, Alive(2, b"x")))
    core.step(0, Met(ANNA, hello()))
    assert spoken(core.step(0, Whisper(ANNA.instance, b"y"))) == [(ANNA.instance, Alive(2, b"y"), False)]
    assert core.step(0, said(ANNA, Alive(2, b"y"))) == [Whispered(ANNA, b"y")]


def test_new_instance_replaces_the_old_one() -> None:
    core = make_with(ANNA, pools=("red",))
    reborn = peer(1, run=1)
    effects = core.step(9, Met(reborn, hello()))
    assert effects == [Exited(ANNA, "replaced"), Entered(reborn, {})]
    assert core.members("red") == ()
    assert core.peers() == {1: reborn}
    assert core.step(9, said(ANNA, Alive(2, b"ghost"))) == []
    assert core.step(9, Parted(ANNA, "hung up", 0)) == []


def test_new_instance_at_another_endpoint_ends_dialling_the_old_one() -> None:
    moved = peer(1, run=1)
    moved = type(moved)(moved.instance, 1, moved.key, "tcp://127.0.0.1:9999")
    assert Forget(ANNA.endpoint) in make_with(ANNA).step(9, Met(moved, hello()))
    wanted = make_with(ANNA)
    wanted.step(0, Meet(ANNA.endpoint))
    assert only(Forget, wanted.step(9, Met(moved, hello()))) == []


def test_identifier_in_use_is_refused_to_another_key() -> None:
    core = make_with(ANNA)
    thief = type(ANNA)(b"t" * 16, ANNA.identifier, b"other", "tcp://127.0.0.1:9999")
    assert core.step(0, Met(thief, hello(("red",)))) == [Report("identifier taken", "00000001")]
    assert core.step(0, said(thief, Alive(2, b"I am Anna"))) == []
    assert core.peers() == {1: ANNA}
    assert core.step(0, Met(type(thief)(b"t" * 16, OWN.identifier, b"other"), hello()))[0] == Report(
        "identifier is ours", f"{OWN.identifier:08x}"
    )


def test_same_instance_with_another_key_is_another_peer() -> None:
    core = make_with(ANNA)
    thief = type(ANNA)(ANNA.instance, 50, b"other", "tcp://127.0.0.1:9999")
    assert core.step(0, Met(thief, hello())) == [Exited(ANNA, "replaced"), Entered(thief, {})]
    assert core.step(0, said(thief, Alive(2, b"x"))) == [Whispered(thief, b"x")]


def test_instances_of_a_client_share_an_identifier() -> None:
    core = make_with(TASK)
    second = peer(9, run=1, client="task")
    assert core.step(0, Met(second, hello())) == [Entered(second, {})]
    assert core.step(0, said(TASK, Alive(2, b"x"))) == [Whispered(TASK, b"x")]
    assert core.peers() == {}


def test_peers_are_bounded() -> None:
    core = make_with(ANNA, TASK, nodes_max=1, clients_max=1)
    assert core.step(0, Met(BERT, hello())) == [Report("too many nodes", "00000002")]
    assert core.step(0, Met(peer(10, client="b"), hello())) == [Report("too many clients", "0000000a")]
    assert only(Entered, core.step(0, Met(peer(1, run=1), hello()))), "a replacement takes the place of the old"


def test_unconfirmed_commands_are_reported_before_the_exit() -> None:
    core = make_with(ANNA, pools=("red",))
    assert core.step(3, Parted(ANNA, "hung up", 4)) == [Gapped(ANNA, 4, outgoing=True), Exited(ANNA, "hung up")]
    assert core.members("red") == ()
    assert core.deadline() is None
    assert core.step(4, Parted(BERT, "never met", 0)) == []


def test_command_numbers_start_at_two_and_wrap_per_peer() -> None:
    core = make_with(ANNA, BERT)
    numbers = [spoken(core.step(0, Whisper(ANNA.instance, b"")))[0][1].sequence for _ in range(65_537)]
    assert numbers[:2] == [2, 3]
    assert numbers[65_533:] == [65_535, 0, 1, 2]
    assert spoken(core.step(0, Whisper(BERT.instance, b"")))[0][1].sequence == 2


def test_gap_is_reported_before_the_content_that_revealed_it() -> None:
    core = make_with(ANNA)
    effects = core.step(0, said(ANNA, Alive(5, b"x")))
    assert effects[:2] == [Gapped(ANNA, 3, outgoing=False), Whispered(ANNA, b"x")]
    assert core.counts["gapped_incoming"] == 3


@pytest.mark.parametrize(("missed", "sequence", "told"), [(3, 5, [3]), (1, 5, [1, 2]), (9, 5, [9]), (3, 2, [3])])
def test_commands_missed_by_the_link_are_reported_once(missed: int, sequence: int, told: list[int]) -> None:
    core = make_with(ANNA)
    effects = core.step(0, Missed(ANNA.instance, missed))
    effects += core.step(0, said(ANNA, Alive(sequence, b"x")))
    assert [each.count for each in effects if isinstance(each, Gapped)] == told
    assert only(Whispered, effects) == [Whispered(ANNA, b"x")]
    later = core.step(0, said(ANNA, Alive(sequence + 3, b"y")))
    assert only(Gapped, later) == [Gapped(ANNA, 2, outgoing=False)], "an old loss excuses no new one"


@pytest.mark.parametrize("sequence", [1, 2, 0, 65_000])
def test_old_command_number_is_reported_and_ignored(sequence: int) -> None:
    core = make_with(ANNA)
    core.step(0, said(ANNA, Alive(2, b"x")))
    effects = core.step(0, said(ANNA, Alive(sequence, b"again")))
    assert [each.event for each in effects if isinstance(each, Report)] == ["sequence went back"]
    assert only(Whispered, effects) == []
    assert only(Whispered, core.step(0, said(ANNA, Alive(3, b"next")))) == [Whispered(ANNA, b"next")]


def test_dropped_command_keeps_its_number_and_a_heartbeat_reveals_the_gap() -> None:
    core = make_with(ANNA)
    [say] = core.step(0, Whisper(ANNA.instance, b"x"))
    assert isinstance(say, Say)
    effects = core.step(0, CommandDropped(ANNA.instance, say.command, "budget"))
    assert effects[0] == Gapped(ANNA, 1, outgoing=True)
    assert [(what.sequence, urgent) for _, what, urgent in spoken(effects)] == [(3, True)]
    [say] = core.step(1, Whisper(ANNA.instance, b"y"))
    assert isinstance(say, Say)
    assert core.step(1, CommandDropped(ANNA.instance, say.command, "budget")) == [Gapped(ANNA, 1, outgoing=True)]
    [say] = core.step(SECOND, Whisper(ANNA.instance, b"z"))
    assert isinstance(say, Say)
    assert len(spoken(core.step(SECOND, CommandDropped(ANNA.instance, say.command, "budget")))) == 1


def test_send_to_an_unknown_peer_is_reported() -> None:
    core = make()
    assert [each.event for each in core.step(0, Whisper(b"?" * 16, b"xy"))] == ["whisper to nobody"]  # type: ignore[union-attr]
    gone = CommandDropped(ANNA.instance, encode(Alive(2, b"x")), "no session")
    assert [each.event for each in core.step(0, gone)] == ["dropped after parting"]  # type: ignore[union-attr]
    assert core.step(0, Missed(ANNA.instance, 3)) == []


def test_urgency_of_content_is_passed_to_the_link() -> None:
    core = make_with(ANNA)
    assert spoken(core.step(0, Whisper(ANNA.instance, b"x", urgent=True)))[0][2]


def test_content_above_the_bound_is_not_sent() -> None:
    core = make_with(ANNA, content_bytes_max=3)
    assert core.step(0, Whisper(ANNA.instance, b"four")) == [
        Report("content too large", "", {"size": 4, "size_max": 3})
    ]
    assert spoken(core.step(0, Whisper(ANNA.instance, b"3 3")))[0][1].sequence == 2


def test_commands_of_one_frame_are_delivered_in_order_despite_a_bad_one() -> None:
    core = make_with(ANNA)
    frame = tuple(encode(Alive(number, b"%d" % number)) for number in (2, 3, 5))
    effects = core.step(0, Said(ANNA.instance, (*frame[:2], b"nonsense", frame[2])))
    assert [effect for effect in effects if isinstance(effect, Whispered | Gapped)] == [
        Whispered(ANNA, b"2"),
        Whispered(ANNA, b"3"),
        Gapped(ANNA, 1, outgoing=False),
        Whispered(ANNA, b"5"),
    ]
    assert [effect.event for effect in effects if isinstance(effect, Report)] == ["malformed command"]


def test_malformed_commands_are_reported_and_counted_in_the_numbering() -> None:
    core = make_with(ANNA)
    for command in (
        b"",
        b"\xaa\xa1\x02\x00",
        b"\xaa\xa2\x02\x00\x02",
        b"\xaa\xa1\x08\x00\x02",
        b"\xaa\xa1\x06\x00\x03!",
    ):
        [report] = core.step(0, Said(ANNA.instance, (command,)))
        assert isinstance(report, Report)
        assert (report.event, report.peer) == ("malformed command", "00000001")
    assert core.step(0, said(ANNA, Alive(4, b"x"))) == [Whispered(ANNA, b"x")]


def test_greeting_inside_a_session_is_reported_as_unexpected() -> None:
    core = make_with(ANNA)
    [report] = core.step(0, said(ANNA, Hello(2, "127.0.0.1", 1, ("red",), 1, {})))
    assert isinstance(report, Report)
    assert report.event == "unexpected command"
    assert core.members("red") == ()


def test_wanted_endpoints_are_passed_to_the_link_within_a_bound() -> None:
    core = make(neighbours_max=1)
    assert core.step(0, Meet(ANNA.endpoint)) == [Meet(ANNA.endpoint)]
    assert core.step(0, Meet(OWN.endpoint)) == []
    assert [each.event for each in core.step(0, Meet(BERT.endpoint))] == ["too many neighbours"]  # type: ignore[union-attr]
    assert core.step(0, Forget(ANNA.endpoint)) == [Forget(ANNA.endpoint)]
    assert core.step(0, Meet(BERT.endpoint)) == [Meet(BERT.endpoint)]


def test_equal_inputs_give_equal_effects() -> None:
    def run() -> list[object]:
        core = make_with(CARL, ANNA, BERT, pools=("red",))
        return [core.step(1, JoinPool("x")), core.step(2, Parted(ANNA, "", 0)), core.step(3, JoinPool("y"))]

    assert run() == run()


@pytest.mark.parametrize(
    "wrong",
    [
        {"heartbeat_ns": 0},
        {"ping_after_ns": 31 * SECOND},
        {"pools_max": 256},
        {"nodes_max": 0},
        {"content_bytes_max": 0},
    ],
)
def test_settings_out_of_range_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="mesh"):
        MeshSettings(**wrong)  # type: ignore[arg-type]
