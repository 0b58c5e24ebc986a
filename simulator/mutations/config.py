"""One-line mutations of how serializer sets change; the `config` workload must catch each."""

from __future__ import annotations

from simulator.mutate import Bug

_BY = ("config", "assert")


def _bug(name: str, module: str, old: str, new: str, seeds: int = 200, *, mode: str = "safety") -> Bug:
    return Bug(name, f"chaplain.journal.{module}", old, new, "config", _BY, seeds, mode)


BUGS = [
    _bug(
        "a majority of either set is enough",
        "model.quorum",
        "            if found <= len(members) // 2:\n                return False\n        return True",
        "            if found > len(members) // 2:\n                return True\n        return False",
    ),
    _bug(
        "a majority of all together is enough",
        "model.cluster_config",
        "            return Quorum((self.serializers, change.nodes))",
        "            return Quorum((tuple(sorted({*self.serializers, *change.nodes})),))",
    ),
    _bug(
        "the new set counts alone from implement on",
        "model.cluster_config",
        "            return Quorum((self.serializers, change.nodes))",
        "            return Quorum((change.nodes,))",
    ),
    _bug(
        "the old set counts alone until confirm",
        "model.cluster_config",
        "            return Quorum((self.serializers, change.nodes))",
        "            return Quorum((self.serializers,))",
    ),
    _bug(
        "the old set counts after confirm",
        "model.cluster_config",
        "        return msgspec.structs.replace(config, serializers=step.nodes)",
        "        return config",
    ),
    _bug(
        "half of a set is enough",
        "model.quorum",
        "            if found <= len(members) // 2:",
        "            if found < len(members) // 2:",
    ),
    _bug(
        "elected by the old set alone",
        "consensus.election",
        "        self._votes = AckTally(quorum)",
        "        self._votes = AckTally(Quorum(quorum.sets[:1]))",
    ),
    _bug(
        "elected by the new set alone",
        "consensus.election",
        "        self._votes = AckTally(quorum)",
        "        self._votes = AckTally(Quorum(quorum.sets[-1:]))",
    ),
    _bug(
        "agreed by the new set alone",
        "consensus.master",
        "ProposalInFlight(self._regime, message.index, message.hash, context.quorum)",
        "ProposalInFlight(self._regime, message.index, message.hash, type(context.quorum)(context.quorum.sets[-1:]))",
    ),
    _bug(
        "two changes at once",
        "model.cluster_config",
        "        return config.new_set is not None\n",
        "        return False\n",
    ),
    _bug(
        "stages before anything of the regime is agreed",
        "consensus.master",
        "        if context.log.tail is not None:\n            self._repropose_tail()\n        else:\n",
        "        if context.log.tail is not None:\n            self._repropose_tail()\n"
        "        elif (step := self.reconfiguration.next_step(now_ns)) is not None:\n"
        "            self._propose_stage(now_ns, step)\n        else:\n",
    ),
    _bug(
        "confirm without implement",
        "consensus.reconfiguration",
        "        return _step(change, Stage.IMPLEMENT) if ready else None",
        "        return _step(change, Stage.CONFIRM) if ready else None",
    ),
    _bug(
        "the old master goes on after implement",
        "consensus.master",
        "        self._propose(now_ns, (entry,), final=passes or leaves)",
        "        self._propose(now_ns, (entry,), final=leaves)",
    ),
    _bug(
        "the same set is implemented",
        "consensus.reconfiguration",
        "        if sorted(change.nodes) == sorted(self._context.log.cluster_config.serializers):",
        "        if change.nodes == self._context.log.cluster_config.serializers:",
    ),
    _bug(
        "the old master stays when its work is done",
        "consensus.master",
        "            if self._final_proposed or self._context.settings.node not in self._context.quorum.voters:",
        "            if self._context.settings.node not in self._context.quorum.voters:",
        mode="liveness",
    ),
    _bug(
        "a silent node is waited for, for ever",
        "consensus.reconfiguration",
        "            if self._is_late(now_ns, change, node):",
        "            if self._is_late(0, change, node):",
        mode="liveness",
    ),
    _bug(
        "a refused set goes on",
        "model.cluster_config",
        "_OPEN = (Stage.CATCHUP, Stage.BLOCK, Stage.NOMINATE)",
        "_OPEN = (Stage.CATCHUP, Stage.BLOCK, Stage.NOMINATE, Stage.REFUSE)",
    ),
    _bug(
        "a master hands over to itself",
        "consensus.master",
        "        passes = new_set and step.stage is Stage.IMPLEMENT and step.nodes[0] != node",
        "        passes = new_set and step.stage is Stage.IMPLEMENT",
    ),
    _bug(
        "whoever has no vote stands",
        "consensus.election",
        "        return able and context.settings.node in context.quorum.voters",
        "        return able",
    ),
]
