"""Named consumers beside NATS pull consumers with explicit acknowledgements, and the cost of an idle group.

Both systems have three nodes and sync before an acknowledgement of a write. One worker consumes a prepared stream in
rounds that take turns. nats-py fetches batches and acknowledges each message. chaplain counts a round's messages when
`commit` has returned: the position is on disk at a quorum.

The idle group has 8 workers of a keyed consumer on a stream that nothing is written to. Its cost is the processor time
of the nodes with the group, less that without.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from chaplain import Client
from journal import machine
from support.journal_clusters import Absent, ChaplainCluster, Cluster, NatsCluster
from support.journal_programs import cpu_of

STREAM = "bench"
KEYS = 1000
SIZE = 100
BATCH = 1000
IDLE_WORKERS = 8
MODES = ("single", "keyed", "queue")
_IDLE_WORKER = """
import sys, chaplain
with chaplain.Client.connect(sys.argv[1]) as client:
    with client.journal("idle").consume("idle", mode="keyed", timeout=3600) as consumer:
        print("ready", flush=True)
        for message in consumer:
            message.ack()
"""


def fill(address: str, messages: int) -> None:
    with Client.connect(address, timeout=60) as client, client.journal(STREAM).writer() as writer:
        for number in range(messages):
            writer.write(bytes(SIZE), key=b"key %d" % (number % KEYS))


def consume(address: str, mode: str, name: str, seconds: float) -> float:
    """Messages per second that one worker processes and acknowledges."""
    with (
        Client.connect(address, timeout=60) as client,
        client.journal(STREAM).consume(name, mode=mode, prefetch=BATCH, timeout=30) as consumer,
    ):
        count, began_s = 0, time.monotonic()
        for message in consumer:
            message.ack()
            count += 1
            if not count % BATCH and time.monotonic() - began_s > seconds:
                break
        else:
            raise SystemExit(f"{count} messages are too few: give more --messages")
        consumer.commit()
        return count / (time.monotonic() - began_s)


async def fill_nats(ports: list[str], messages: int) -> None:
    import nats  # noqa: PLC0415

    client = await nats.connect([f"nats://127.0.0.1:{port}" for port in ports])
    stream = client.jetstream()
    await stream.add_stream(name=STREAM, subjects=[STREAM], num_replicas=3)
    for _ in range(0, messages, BATCH):
        await asyncio.gather(*(stream.publish(STREAM, bytes(SIZE), timeout=60) for _ in range(BATCH)))
    await client.close()


async def consume_nats(ports: list[str], name: str, seconds: float) -> float:
    """As `consume`: `ack` sends an acknowledgement and does not wait for its effect."""
    import nats  # noqa: PLC0415

    client = await nats.connect([f"nats://127.0.0.1:{port}" for port in ports])
    puller = await client.jetstream().pull_subscribe(STREAM, durable=name)
    count, began_s = 0, time.monotonic()
    while time.monotonic() - began_s < seconds:
        for message in await puller.fetch(BATCH, timeout=30):
            await message.ack()
            count += 1
    await client.flush()
    rate = count / (time.monotonic() - began_s)
    await client.close()
    return rate


def idle_cost(cluster: ChaplainCluster, seconds: float) -> tuple[float, float]:
    """Share of a core that the nodes use without and with an idle group of `IDLE_WORKERS`."""
    with Client.connect(cluster.address, timeout=60) as client:
        client.journal("idle").write(b"first", key=b"k")
    before = _share(cluster.pids, seconds)
    workers = [
        subprocess.Popen([sys.executable, "-c", _IDLE_WORKER, cluster.address], stdout=subprocess.PIPE)
        for _ in range(IDLE_WORKERS)
    ]
    try:
        for worker in workers:
            assert worker.stdout is not None
            worker.stdout.readline()
        time.sleep(15)  # until the slots are divided
        return before, _share(cluster.pids, seconds)
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()


def _share(pids: list[int], seconds: float) -> float:
    used_s = sum(map(cpu_of, pids))
    time.sleep(seconds)
    return (sum(map(cpu_of, pids)) - used_s) / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--messages", type=int, default=400_000, help="in the stream of chaplain; more than a round consumes"
    )
    parser.add_argument("--messages-nats", type=int, default=60_000, help="in the stream of NATS")
    parser.add_argument("--seconds", type=float, default=1.5, help="of each round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--idle", type=float, default=30.0, help="seconds for the cost of an idle group; 0 for none")
    options = parser.parse_args()
    print(__doc__)
    rates: dict[str, list[float]] = {}
    results: dict[str, Any] = {"machine": machine()}
    with tempfile.TemporaryDirectory(prefix="chaplain-bench-") as directory:
        ours, theirs = ChaplainCluster(Path(directory) / "chaplain"), NatsCluster(Path(directory) / "nats")
        started: list[Cluster] = []
        try:
            ours.start()
            started.append(ours)
            fill(ours.address, options.messages)
            try:
                theirs.start()
                started.append(theirs)
                asyncio.run(fill_nats(theirs.address.split(","), options.messages_nats))
            except Absent as absent:
                print(f"without NATS: {absent}")
            for number in range(options.rounds):
                for mode in MODES:
                    rate = consume(ours.address, mode, f"{mode}-{number}", options.seconds)
                    rates.setdefault(f"chaplain {mode}", []).append(rate)
                if theirs in started:
                    rate = asyncio.run(consume_nats(theirs.address.split(","), f"n{number}", options.seconds))
                    rates.setdefault("nats-py pull", []).append(rate)
            if options.idle:
                without, with_group = idle_cost(ours, options.idle)
                results["idle"] = {"without": round(without, 4), "with": round(with_group, 4)}
        finally:
            for cluster in started:
                cluster.stop()
    for name, each in rates.items():
        results[name] = round(statistics.median(each))
        print(f"{name:<18} {results[name]:>10,} messages/s   {' '.join(f'{rate:.0f}' for rate in each)}")
    if "nats-py pull" in results:
        for mode in MODES:
            results[f"{mode} / nats-py"] = round(results[f"chaplain {mode}"] / results["nats-py pull"], 2)
            print(f"{mode} / nats-py {results[f'{mode} / nats-py']}")
    if "idle" in results:
        print(f"idle group of {IDLE_WORKERS}: {results['idle']} of a core")
    print(json.dumps(results))


if __name__ == "__main__":
    main()
