"""One-line mutations of rules that no workload shows, because nobody breaks them there; a step test must catch each."""

from __future__ import annotations

from simulator.mutate import Bug


def _bug(name: str, module: str, old: str, new: str, tests: str) -> Bug:
    return Bug(name, f"chaplain.{module}", old, new, "", (), tests=(f"tests/{tests}",))


BUGS = [
    _bug(
        "configuration requests of any epoch are accepted",
        "journal.execution.config",
        "        if epoch is None:\n            return _refused(Reason.EXPIRED)\n",
        "        if epoch is None:\n            epoch = Epoch(request.epoch, draft.position.index)\n",
        "journal/test_epochs.py",
    ),
    _bug(
        "decided configuration requests are not remembered",
        "journal.model.epochs",
        "            self.decisions[name] = decision\n",
        "",
        "journal/test_epochs.py",
    ),
    _bug(
        "a replayed lease gives a new lane",
        "journal.execution.config",
        "                return _refused(Reason.UNKNOWN_LANE)\n            return ConfigVerdict(",
        "                return None\n            return ConfigVerdict(",
        "journal/test_epochs.py",
    ),
    _bug(
        "a lease that is signed again after its decision was forgotten gives a second lane",
        "journal.execution.config",
        "    lane = draft.leased(signer.acl, request.nonce)\n",
        "    lane = draft.lane(0)\n",
        "journal/test_epochs.py",
    ),
    _bug(
        "decisions are forgotten before their epoch",
        "journal.model.epochs",
        "if one.epoch < first]:",
        "if one.epoch <= first]:",
        "journal/test_epochs.py",
    ),
    _bug(
        "a forged request is remembered",
        "journal.execution.config",
        "            return _refused(Reason.SIGNATURE)\n",
        "            draft.epochs.remember(Decision(config.request_name(request), 0, Reason.SIGNATURE))\n"
        "            return _refused(Reason.SIGNATURE)\n",
        "journal/test_epochs.py",
    ),
    _bug(
        "epochs are not in a snapshot",
        "journal.execution.state",
        "    state.epochs.load(exported.epochs)\n    if state.export() != data:",
        "    if False:",
        "journal/test_epochs.py",
    ),
    _bug(
        "sign a change of nodes again that may have been granted",
        "client.protocol.journal.config_requests",
        "if isinstance(petition.message, REPEATABLE) or petition.sends == 1:",
        "if petition.sends:",
        "client/test_petitioning.py",
    ),
    _bug(
        "a verdict that a peer supplies is not checked",
        "journal.execution.state_machine",
        "        verdict_chain.check(given, expected)\n",
        "",
        "journal/test_verdict_chain.py",
    ),
    _bug(
        "verdicts are not linked",
        "journal.execution.state_machine",
        "tuple(streams_of(draft)), self.state.verdict)",
        "tuple(streams_of(draft)))",
        "journal/test_verdict_chain.py",
    ),
    _bug(
        "petitions are passed on unchecked",
        "journal.clients.config_requests",
        "        self._checking.add(digest, (check,))\n",
        "        self._checking.add(digest, (check,))\n        self._send(now_ns, self._waiting[digest])\n",
        "journal/test_petitions.py",
    ),
    _bug(
        "one client may fill a node with petitions",
        "journal.clients.config_requests",
        "        if self._charges[client] >= self._settings.petitions_per_client_max:",
        "        if self._charges[client] >= self._settings.petitions_max:",
        "journal/test_petitions.py",
    ),
    _bug(
        "a client that leaves is forgotten, its petitions are not",
        "journal.clients.config_requests",
        "            waiting.askers.pop(instance, None)\n",
        "            if waiting.askers.pop(instance, None):\n"
        "                self._charges.subtract(waiting.charged)\n"
        "                waiting.charged.clear()\n",
        "journal/test_petitions.py",
    ),
    _bug(
        "fingerprints of members that do not execute are counted",
        "executor.divergence",
        "for node, fingerprint in heard.items() if node in executors}",
        "for node, fingerprint in heard.items() if executors}",
        "executor/test_executor_core.py",
    ),
    _bug(
        "fingerprints of members that do not execute are remembered",
        "executor.divergence",
        "        if node not in self._executors():\n            return None\n",
        "",
        "executor/test_executor_core.py",
    ),
    _bug(
        "committed packs are paid without a look at their signature",
        "journal.execution.state_machine",
        "        return client is not None and same and self._signature_holds(client, entry, valid)",
        "        return client is not None and same",
        "journal/test_transaction.py",
    ),
    _bug(
        "implement before the new nodes hold the nomination",
        "journal.consensus.reconfiguration",
        "        return lately and watch.reach(node) >= change.since",
        "        return lately",
        "journal/test_stages.py",
    ),
    _bug(
        "a proof needs one vote",
        "journal.consensus.election_proof",
        "    if not quorum.reached(voters):",
        "    if not voters:",
        "journal/test_election_proof.py",
    ),
    _bug(
        "a vote counts in every regime",
        "journal.consensus.election_proof",
        "        return self.genesis + put_number(self.regime, 4) + put_number(self.candidate, 1)",
        "        return self.genesis + put_number(self.candidate, 1)",
        "journal/test_election_proof.py",
    ),
    _bug(
        "a vote counts in every cluster",
        "journal.consensus.election_proof",
        "        return self.genesis + put_number(self.regime, 4) + put_number(self.candidate, 1)",
        "        return put_number(self.regime, 4) + put_number(self.candidate, 1)",
        "journal/test_election_proof.py",
    ),
    _bug(
        "a majority of all members proves an election",
        "journal.consensus.election",
        "        for quorum in bench.electorates if bench.may_be_master(node) else ():",
        "        for quorum in (*bench.electorates, Quorum((bench.log.cluster_config.members,))):",
        "journal/test_election_proof.py",
    ),
    _bug(
        "a master steps down for a member without a vote",
        "journal.consensus.master",
        "            if node in self._bench.voters and message.regime - self._regime <= LEAP_MAX:",
        "            if message.regime - self._regime <= LEAP_MAX:",
        "journal/test_election_proof.py",
    ),
    _bug(
        "one serializer confirms a supply",
        "journal.consensus.unconfirmed",
        "VOUCHERS = 2\n",
        "VOUCHERS = 1\n",
        "journal/test_election_proof.py",
    ),
]
