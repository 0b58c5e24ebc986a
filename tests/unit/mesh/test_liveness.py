"""Signs of life: heartbeats, pings, answers, and giving up; each deadline exact."""

from __future__ import annotations

from chaplain.core import Woken
from chaplain.link.events import Dismiss, Forget, Meet, Met, Parted
from chaplain.mesh import control_messages
from chaplain.mesh.core import MeshCore
from chaplain.mesh.events import Answered, Entered, Exited, Gapped, MeshEffect, Shout, Whisper, Whispered
from chaplain.wire import parcel
from chaplain.wire.command import Alive, DecenAck, Ping
from tests.unit.mesh.mesh_stage import OWN, SECOND, hello, make, make_with, only, peer, said, spoken

ANNA, BERT = peer(1), peer(2)
TASK = peer(9, client="task")
BEAT = control_messages.encode(OWN.identifier, control_messages.Heartbeat())


def wakes(core: MeshCore, until_ns: int) -> list[tuple[int, list[MeshEffect]]]:
    """Wake the core at each deadline; every wake must do something."""
    log = []
    while (due := core.deadline()) is not None and due <= until_ns:
        effects = core.step(due, Woken())
        assert effects, "a wake-up that does nothing is one too many"
        log.append((due, effects))
    return log


def test_mesh_without_peers_has_no_deadline() -> None:
    assert make().deadline() is None


def test_heartbeat_is_sent_to_a_node_that_was_sent_nothing() -> None:
    core = make_with(ANNA)
    assert core.deadline() == SECOND
    core.step(SECOND // 2, Whisper(ANNA.instance, b"x"))
    assert not core.step(core.deadline(), Woken()), "the command has postponed the heartbeat"
    assert core.deadline() == SECOND * 3 // 2
    [(due, effects)] = wakes(core, 2 * SECOND)
    assert due == SECOND * 3 // 2
    assert spoken(effects) == [(ANNA.instance, Alive(3, BEAT), True)]


def test_broadcast_replaces_a_heartbeat() -> None:
    core = make_with(ANNA, BERT, pools=("red",))
    core.step(SECOND // 2, Shout("red", b"x"))
    assert core.deadline() == SECOND * 3 // 2


def test_early_wake_up_has_no_effect() -> None:
    core = make_with(ANNA)
    assert core.step(SECOND - 1, Woken()) == []


def test_heartbeat_is_consumed_and_counts_as_a_sign_of_life() -> None:
    core = make_with(ANNA)
    for second in range(1, 60):
        beat = said(ANNA, Alive(second + 1, control_messages.encode(1, control_messages.Heartbeat())))
        assert core.step(second * SECOND, beat) == []
        assert only(Exited, core.step(second * SECOND, Woken())) == []
    assert core.counts["pings"] == 0


def test_other_content_is_delivered_as_whispered() -> None:
    core = make_with(ANNA)
    gossip = parcel.encode(parcel.Parcel(1, parcel.Layer.GOSSIP, b"body"))
    for number, content in enumerate((gossip, b"", b"short", BEAT[:7])):
        assert core.step(0, said(ANNA, Alive(2 + number, content))) == [Whispered(ANNA, content)]


def test_unknown_control_message_is_reported_and_not_delivered() -> None:
    core = make_with(ANNA)
    mesh = parcel.Layer.MESH
    strange = [parcel.Parcel(1, mesh, body) for body in (b"\x03", b"\x01extra", b"\x02\x00\x02\x01a")]
    strange += [parcel.Parcel(2, mesh, b"\x01"), parcel.Parcel(1, mesh, b"\x01", version=2)]
    for number, each in enumerate(strange):
        content = parcel.encode(each)
        [report] = core.step(0, said(ANNA, Alive(2 + number, content)))
        assert report.event == "malformed command"  # type: ignore[union-attr]


def test_silent_peer_is_pinged_every_five_seconds_and_gone_after_thirty() -> None:
    core = make_with(ANNA)
    log = wakes(core, 60 * SECOND)
    pings = [
        due // SECOND for due, effects in log for _, what, urgent in spoken(effects) if what == Ping(what.sequence)
    ]
    assert pings == [5, 10, 15, 20, 25]
    assert log[-1] == (30 * SECOND, [Exited(ANNA, "silent"), Forget(ANNA.endpoint)])
    assert core.peers() == {}
    assert core.deadline() is None


def test_wanted_neighbour_that_went_silent_is_dialled_again() -> None:
    core = make_with(ANNA)
    core.step(0, Meet(ANNA.endpoint))
    assert wakes(core, 30 * SECOND)[-1][1] == [Exited(ANNA, "silent"), Forget(ANNA.endpoint), Meet(ANNA.endpoint)]
    assert core.step(31 * SECOND, Parted(ANNA, "forgotten", 9)) == [Gapped(ANNA, 9, outgoing=True)]
    assert core.step(32 * SECOND, Met(ANNA, hello())) == [Entered(ANNA, {})]


def test_any_traffic_is_a_sign_of_life() -> None:
    core = make_with(ANNA)
    wakes(core, 29 * SECOND)
    core.step(29 * SECOND, said(ANNA, Alive(2, b"x")))
    pings = [due for due, effects in wakes(core, 40 * SECOND) for _, what, _ in spoken(effects) if type(what) is Ping]
    assert pings == [34 * SECOND, 39 * SECOND]


def test_silence_is_measured_for_each_peer() -> None:
    core = make_with(ANNA, BERT)
    core.step(SECOND, said(ANNA, Alive(2, b"x")))
    log = wakes(core, 60 * SECOND)
    pings = [(due, to) for due, effects in log for to, what, _ in spoken(effects) if type(what) is Ping]
    assert pings[:3] == [(5 * SECOND, BERT.instance), (6 * SECOND, ANNA.instance), (10 * SECOND, BERT.instance)]
    exits = [(due, effects[0]) for due, effects in log if only(Exited, effects)]
    assert exits == [(30 * SECOND, Exited(BERT, "silent")), (31 * SECOND, Exited(ANNA, "silent"))]


def test_peer_is_given_up_only_after_an_unanswered_ping() -> None:
    """After a pause of our own everybody seems to have been silent."""
    core = make_with(ANNA, BERT)
    effects = core.step(100 * SECOND, Woken())
    assert only(Exited, effects) == []
    assert [type(what) for _, what, _ in spoken(effects)] == [Ping, Ping]
    core.step(101 * SECOND, said(BERT, DecenAck(2)))
    exits = [(due, effects[0]) for due, effects in wakes(core, 105 * SECOND) if only(Exited, effects)]
    assert exits == [(105 * SECOND, Exited(ANNA, "silent"))]


def test_ping_is_answered_at_once_also_for_a_client() -> None:
    core = make_with(ANNA, TASK)
    for who in (ANNA, TASK):
        assert spoken(core.step(0, said(who, Ping(2)))) == [(who.instance, DecenAck(2), True)]


def test_round_trip_of_a_ping_is_reported() -> None:
    core = make_with(TASK)
    assert [type(what) for _, what, _ in spoken(core.step(5 * SECOND, Woken()))] == [Ping]
    core.step(6 * SECOND, said(TASK, Alive(2, b"x")))
    assert core.step(7 * SECOND, said(TASK, DecenAck(3))) == [Answered(TASK, 2 * SECOND)]
    assert core.step(8 * SECOND, said(TASK, DecenAck(4))) == []
    assert core.counts["answers_unrequested"] == 1


def test_client_receives_no_heartbeat_but_is_pinged_and_given_up() -> None:
    core = make_with(TASK)
    log = wakes(core, 60 * SECOND)
    assert {type(what) for _, effects in log for _, what, _ in spoken(effects)} == {Ping}
    assert log[-1] == (30 * SECOND, [Exited(TASK, "silent"), Dismiss(TASK.instance)])
    assert core.deadline() is None
    assert core.step(60 * SECOND, Parted(TASK, "dismissed", 0)) == [], "it was told as exited already"
    assert core.peer_views() == ()


def test_client_that_was_given_up_enters_after_a_new_greeting() -> None:
    core = make_with(TASK)
    wakes(core, 60 * SECOND)
    assert core.step(61 * SECOND, said(TASK, Alive(2, b"hi"))) == [], "nobody remembers what it had asked for"
    assert core.step(61 * SECOND, Met(TASK, hello())) == [Entered(TASK, {})]
    assert core.step(61 * SECOND, said(TASK, Alive(2, b"hi"))) == [Whispered(TASK, b"hi")]


def test_hundreds_of_peers_wake_the_node_only_when_due() -> None:
    core = make()
    for number in range(250):
        run, low = divmod(number, 100)
        who = type(ANNA)(b"%c%c" % (low, run) * 8, 1000 + number, b"k%d" % number, f"tcp://127.0.0.1:{8000 + number}")
        core.step(number * SECOND // 1000, Met(who, hello()))
    log = wakes(core, 4 * SECOND)
    assert len(log) <= 4 * 250
    assert sum(len(effects) for _, effects in log) == sum(
        1 for number in range(250) for second in range(1, 5) if second * SECOND + number * SECOND // 1000 <= 4 * SECOND
    )
