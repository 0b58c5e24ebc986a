"""Bugs of the link: what its door, greeting, seal, sessions and calls must each be able to catch."""

from __future__ import annotations

from simulator.mutate import Bug

_LINK = "chaplain.link."


def _bug(name: str, module: str, old: str, new: str, *expected: str, mode: str = "safety") -> Bug:
    return Bug(name, _LINK + module, old, new, workload="greet", expected=expected, mode=mode)


BUGS = [
    _bug("skip the replay check", "sessions.session", "if counter <= self.heard:", "if counter < 0:", "speech"),
    _bug("reuse a counter", "sessions.session", "self.sent += count\n", "self.sent = self.sent or count\n", "seal"),
    _bug(
        "do not tell of missed",
        "sessions.session",
        "return commands, missed if missed > 0 else 0",
        "return commands, 0",
        "speech",
    ),
    _bug("count frames", "sessions.session", "self.sent += count\n", "self.sent += 1\n", "speech"),
    _bug("lose what waited", "sessions.session", "+ len(self.pending)", "", "speech"),
    _bug(
        "never drain",
        "core",
        "        waiting, self._waiting = self._waiting, []\n"
        "        return [self._seal(now_ns, session) for session in waiting if session.pending]",
        "        return []",
        "host",
    ),
    _bug(
        "believe all was heard",
        "sessions.session",
        "self.confirmed = confirmed if confirmed > self.confirmed else self.confirmed",
        "self.confirmed = self.sent",
        "speech",
    ),
    _bug(
        "accept a broken seal",
        "sessions.aead",
        "        except InvalidTag:\n            return None",
        "        except InvalidTag:\n            return frame[HEADER_BYTES:-GCM_TAG_BYTES]",
        "speech",
    ),
    _bug(
        "accept a broken MAC",
        "sessions.aead",
        'if hmac.compare_digest(hmac.digest(self._key, body, "sha256"), frame[-HMAC_TAG_BYTES:]):',
        "if len(body) >= HEADER_BYTES:",
        "speech",
    ),
    _bug(
        "accept HELLO without echo",
        "sessions.handshake",
        "outgoing = tables.offers.get(claim.echo) if claim.to == tables.instance else None",
        "outgoing = next(iter(tables.offers.values()), None)",
        "greeting",
    ),
    _bug(
        "send before greeting",
        "core",
        "        self._handshake.greet(now_ns, outgoing)\n\n    def _on_disconnected",
        '        self._tables.out.append(Send(outgoing.channel, b"!" * 60))\n\n    def _on_disconnected',
        "greeting",
    ),
    _bug(
        "accept any cluster",
        "sessions.hello_checks",
        "if claim.cluster != settings.cluster:",
        "if not claim.cluster:",
        "strangers",
    ),
    _bug(
        "accept any signature",
        "sessions.hello_checks",
        "if envelope.octet == GREETING_NODE and not codec.signature_holds(envelope, claim.key):",
        "if not codec.signature_holds(envelope, claim.key) and not claim.key:",
        "strangers",
    ),
    _bug(
        "forget to consume the nonce",
        "auth.connect_token",
        "if (owner, nonce) in self._seen:",
        "if (nonce, owner) in self._seen:",
        "door",
        "assert",
    ),
    _bug(
        "admit without the right proof",
        "auth.connect_token",
        "if not hmac.compare_digest(_mac(key, name), proof):",
        "if not hmac.compare_digest(_mac(key, name), _mac(key, name)):",
        "door",
    ),
    _bug(
        "one key for both ways",
        "auth.key_exchange",
        "for party in (sender, receiver):",
        "for party in (first, second):",
        "speech",
    ),
    _bug(
        "ignore the budget",
        "core",
        "if outgoing.queued_bytes + total_bytes > room:",
        "if size > room:",
        "budget",
    ),
    _bug(
        "never dial again",
        "sessions.handshake",
        "tables.set_timer(call, now_ns + call.backoff_ns(tables.settings, tables.rng))",
        "tables.set_timer(call, now_ns + 10**15 * call.backoff_ns(tables.settings, tables.rng))",
        "live",
        mode="liveness",
    ),
    _bug(
        "use an offer twice",
        "sessions.handshake",
        '        tables.drop_offer(outgoing)\n        outgoing.echo = outgoing.to = b""',
        '        outgoing.echo = outgoing.to = b""',
        "greeting",
        "assert",
        "seal",
    ),
    _bug(
        "hear a session that is over",
        "sessions.tables",
        "        del self.by_channel[session.incoming]\n",
        "        self.by_channel.get(session.incoming)\n",
        "speech",
        "assert",
        "crash",
    ),
]
