"""What each measure of a node means, in one line: Prometheus' HELP, and the page docs/reference/metrics.md.

Names are those that layers count under, behind the layer's name. What layers count by the name of a report, or by a
reason, has one line for all that begin alike.
"""

from __future__ import annotations

from collections.abc import Mapping

GAUGES: Mapping[str, str] = {
    "members_present": "Members on this node's list that have not left, itself included.",
    "peers": "Nodes and clients that this node has a session with.",
    "send_queue_bytes": "Octets that wait to be sent, to all peers together.",
    "storage_queue_bytes": "Octets that wait to be written to disk.",
    "clock_error_seconds": "How far the machine's clock is ahead of the node's: it was set, and is followed slowly.",
    "journal_master": "1 while this node orders writes.",
    "journal_regime": "The regime that this node follows; each new master begins another.",
    "journal_agreed_index": "The last cluster message that this node knows to be agreed.",
    "journal_executed_messages": "Messages in all streams of the journal, as far as this node has executed them.",
    "journal_streams": "Streams of the journal.",
    "journal_sound": "0 while this node's disk cannot prove its past: it does not vote then.",
    "sequence_working": "1 while this node takes part in the sequence (WRK).",
    "sequence_work_set": "Members of the sequence's work set.",
    "sequence_decided": "Entries of the sequence that are decided.",
    "sequence_events": "Events of the sequence that have their numbers.",
    "sequence_pending_bytes": "Octets published here that have no number yet.",
    "graph_streams": "Streams of the graph.",
    "graph_events": "Events of the graph on this node's disk.",
    "graph_unread_events": "Events of the graph that too few members are known to have.",
    "graph_leaves": "Events of the graph that none was written behind yet.",
    "graph_waiting_orphans": "Events of the graph that wait here for their parents.",
    "graph_events_ahead": "Events of the graph that are not taken yet because they are ahead of this node's clock.",
}

COUNTERS: Mapping[str, str] = {
    "host_wakeups": "Times that the node's loop had something to do.",
    "host_inputs": "Inputs that the loop gave to the cores.",
    "host_busy_microseconds": "Time that the loop was busy.",
    "labour_pieces": "Pieces of work that were done beside the loop: checks of signatures, reads of the log, SQL.",
    "labour_waits_for_descriptors": "Times that such a piece waited because this process may open no more files.",
    "storage_groups": "Syncs of the disk; each serves all that waited.",
    "storage_tickets": "Writes that were synced.",
    "storage_busy_microseconds": "Time that syncs took.",
    "storage_failures": "Failed writes and syncs; the first one stops the node.",
    "storage_waits_for_room": "Times that a write waited because the disk was full.",
    "beacon_cast": "Beacons that left this machine.",
    "beacon_cast_failed": "Beacons that the network did not take.",
    "beacon_heard": "Datagrams that came to the beacon's port.",
    "beacon_receive_failed": "Failed reads of the beacon's port.",
    "beacon_too_long": "Datagrams that were too long for a beacon.",
    "link_accepted": "Connections that were accepted, before anybody said who they are.",
    "link_door_shut": "Times that no more connections were accepted because too many had said nothing yet.",
    "link_admitted": "Knocks that ZeroMQ was told to admit.",
    "link_refused": "Knocks that ZeroMQ was told to refuse.",
    "link_knocks_crowded_out": "Knocks that were refused unread because too many waited.",
    "link_knocks_admitted": "Knocks whose proof holds.",
    "link_knocks_refused": "Knocks of strangers, or with a proof that does not hold.",
    "link_greetings_sent": "Greetings that this node sent.",
    "link_greetings_refused": "Greetings that do not hold; the log says why.",
    "link_greetings_unanswered": "Greetings that no session came of in time.",
    "link_half_greeted_hung_up": "Clients that were hung up because too many had not proven themselves yet.",
    "link_meetings_refused": "Endpoints that were not dialled because too many are.",
    "link_sessions_begun": "Sessions that began.",
    "link_sessions_ended": "Sessions that ended.",
    "link_dropped": "Commands that were dropped: their peer was gone, its queue full, or they larger than a frame.",
    "link_missed": "Frames of peers that never came.",
    "link_frames_rejected": "Frames whose seal or number does not hold.",
    "link_replays_rejected": "Knocks, greetings and frames that came a second time.",
    "link_multipart_discarded": "ZeroMQ messages of several parts, which no peer of ours sends.",
    "link_unfinished_ended": "Connections that were ended because they sent parts of a message and never its last one.",
    "link_pieces_stray": "Pieces of long frames without a beginning.",
    "link_frames_too_long": "Frames in pieces that were longer than a frame may be.",
    "link_frames_crowded_out": "Frames in pieces that were dropped because too much of others waited.",
    "mesh_entered": "Peers that entered.",
    "mesh_exited": "Peers that left, or were lost.",
    "mesh_given_up": "Peers that were given up because they were silent.",
    "mesh_greetings_refused": "Peers whose greeting holds but who may not be here.",
    "mesh_gapped_incoming": "Commands of peers that never came.",
    "mesh_gapped_outgoing": "Commands to peers that were lost, or that nobody confirmed before the session ended.",
    "mesh_said_by_nobody": "Frames of sessions that the mesh does not know.",
    "mesh_whispers": "Messages to one peer.",
    "mesh_whispers_to_nobody": "Messages to a peer that was gone.",
    "mesh_dropped_after_parting": "Dropped commands to a peer that was gone.",
    "mesh_shouts": "Messages to a pool.",
    "mesh_broadcasts_outside": "Messages to pools that this node has not joined.",
    "mesh_pings": "PINGs to silent peers.",
    "mesh_answers_unasked": "Answers to PINGs that were never sent.",
    "mesh_heartbeats": "Signs of life to peers that had nothing else to hear.",
    "mesh_content_too_large": "Messages that were not sent because they are too large.",
    "mesh_beacons_cast": "Beacons that this node made.",
    "mesh_beacons_heard": "Beacons of other nodes of the cluster.",
    "mesh_beacons_replayed": "Beacons that came a second time, or late.",
    "mesh_beacons_over_rate": "Beacons unread because too many came in a second.",
    "mesh_beacons_over_bound": "Beacons of more nodes than are remembered.",
    "mesh_beacons_malformed": "Beacons that are none, or that no key of ours signed.",
    "mesh_beacons_foreign_or_old": "Beacons of other clusters, or of another time.",
    "mesh_malformed_command": "Commands of peers that do not follow their format.",
    "mesh_sequence_went_back": "Commands whose number had been heard before.",
    "mesh_unexpected_command": "Commands that have no place within a session.",
    "mesh_status_out_of_step": "Peers whose status shows that a change of their pools was missed.",
    "mesh_too_many_pools": "Pools that a peer joined beyond the bound.",
    "gossip_fired": "Messages that this node began.",
    "gossip_whispers": "Gossip that was told to a peer.",
    "gossip_bytes": "Octets of gossip that were told to peers.",
    "gossip_over_budget": "Gossip that was not told because the rate is bounded.",
    "gossip_duplicates": "Messages that came again, as they are meant to.",
    "gossip_repaired": "Messages that a peer had missed and was given.",
    "gossip_hops_exceeded": "Messages that came by more peers than allowed.",
    "gossip_expelled_refused": "Messages of nodes that were removed.",
    "gossip_strays": "Gossip that came over another session than the peer's, or while this node was absent.",
    "gossip_types_unknown": "Gossip of a type that this version does not know.",
    "gossip_versions_refused": "Gossip of another protocol version.",
    "gossip_answers_unwanted": "Answers of clients that were too large, or to questions that were not open any more.",
    "gossip_compares_refused": "Comparisons of lists that were refused because too many members fall under them.",
    "gossip_healing": "Nodes that are held for gone and were dialled to see whether they are back.",
    "gossip_key_steps_held": "Steps of replacing the cluster key that wait for a member's confirmation.",
    "gossip_claims_ignored": "Claims about this node that no card of its own bears out.",
    "gossip_leaves_refused": "Words that a member left that were not believed.",
    "desk_requests": "Requests of clients.",
    "desk_requests_malformed": "Requests of clients that do not follow their format.",
    "desk_requests_late": "Requests of clients that came too late to be carried out.",
    "desk_requests_forbidden": "Requests of clients without the right to make them.",
    "recorder_kept": "Messages of pools and events that are written down.",
    "recorder_left_out": "Messages of pools and events that were not written down because the disk is behind.",
    "recorder_malformed": "Messages of pools that do not follow their format.",
    "executor_messages": "Cluster messages that databases have executed.",
    "executor_requests": "Requests that databases have executed.",
    "executor_failures": "Executed requests that failed, and changed nothing.",
    "executor_damaged": "Times that a database was found to hold other rows than its statements left.",
    "executor_rehearsals_passed": "Statements that were tried out and would not fail.",
    "executor_rehearsals_refused": "Statements that were tried out, would fail, and were refused.",
    "executor_rehearsals_passed_over": "Statements that were ordered without having been tried out.",
    "sequence_locks_asked": "Times that this node asked for the lock.",
    "sequence_locks_taken": "Times that this node got the lock.",
    "sequence_locks_failed": "Times that this node asked for the lock and did not get it.",
    "sequence_entries_written": "Entries that this node wrote under its lock.",
    "sequence_entries_decided": "Entries that are decided.",
    "sequence_events": "Events that have their numbers.",
    "sequence_histories_begun": "Histories that this node began.",
    "sequence_seats_left": "Times that this node began anew because what it remembered was of no use any more.",
    "sequence_publishes_refused": "Calls to publish that this node refused.",
    "sequence_parcels_malformed": "Words of the sequence that do not follow their format.",
    "sequence_work_set_changes": "Changes of the work set.",
    "graph_appends": "Events of clients that are on this node's disk.",
    "graph_events_added": "Events that came to be here, from clients and nodes.",
    "graph_events_read": "Events that enough members are known to have.",
    "graph_events_served": "Events that other nodes fetched here.",
    "graph_events_resent": "Leaves that were sent again because nobody confirmed them.",
    "graph_events_unreadable": "Events that the disk gave otherwise than they were written.",
    "graph_children_sent": "Events that were sent to nodes that lack them.",
    "graph_forks": "Events whose author had gone on from the same event another way.",
    "graph_orphans": "Events that came before their parents.",
    "graph_orphans_dropped": "Events without parents that were dropped because too many waited.",
    "graph_confirmations": "Confirmations of other members.",
    "graph_getdata_sent": "Events that were asked for by their id.",
    "graph_fetches": "Times that this node began to fetch what it lacks.",
    "graph_fetches_timed_out": "Fetches that were given up.",
    "graph_pages_fetched": "Pages of events that were fetched.",
    "graph_pages_unasked": "Pages of events that nobody here asked for.",
    "graph_answers_delayed": "Pages that a node must wait for because it has asked for so much.",
    "graph_peers_banned": "Nodes that are not listened to for a while.",
    "graph_unheard": "Words of nodes that are not listened to.",
    "graph_floors_raised": "Times that old events were let go.",
    "graph_floors_taken_over": "Times that this node had been away for longer than events are kept.",
}

ALIKE: Mapping[str, str] = {
    "gossip_members_": "Times that a member came to be in this state.",
    "graph_refused_": "Events, confirmations and requests of nodes that were refused for this reason.",
    "gossip_": "Times that the log said so.",
}
"""By how they begin; the first that fits."""
_UNKNOWN = "Counted since the start."


def help_of(name: str) -> str:
    """The line of a counter. Not all that is counted has a name that is known before."""
    if name in COUNTERS:
        return COUNTERS[name]
    return next((line for start, line in ALIKE.items() if name.startswith(start)), _UNKNOWN)


def page() -> str:
    """The tables of docs/reference/metrics.md."""
    return "\n".join(
        [
            *_table("gauge", {f"chaplain_{name}": line for name, line in GAUGES.items()}),
            "",
            *_table("counter", {f"chaplain_{name}_total": line for name, line in COUNTERS.items()}),
            *(f"| `chaplain_{start}…_total` | {line} |" for start, line in ALIKE.items()),
            "",
        ]
    )


def _table(kind: str, lines: Mapping[str, str]) -> list[str]:
    return [f"| {kind} | what it tells |", "|---|---|", *(f"| `{name}` | {line} |" for name, line in lines.items())]
