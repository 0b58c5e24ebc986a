"""The persistence module for the package `eventsourcing`, by that package's own tests of recorders and factories."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
from eventsourcing.application import Application
from eventsourcing.domain import Aggregate
from eventsourcing.domain import event as domain_event
from eventsourcing.persistence import IntegrityError, StoredEvent, Tracking
from eventsourcing.tests import persistence as suite
from eventsourcing.utils import Environment

from chaplain import eventsourcing as module
from chaplain.testing import Cluster

ORIGINATOR = UUID(int=7)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Of its own: each test has a database, and a node has at most 64."""
    with Cluster() as made:
        yield made


@pytest.fixture(autouse=True)
def recorded(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[None]:
    with cluster.connect() as client:
        if request.cls is not None:
            request.cls.datastore = module.ChaplainDatastore(client, cluster.unique("es"))
            request.cls.env = Environment(
                env={
                    "PERSISTENCE_MODULE": "chaplain.eventsourcing",
                    "CHAPLAIN_URL": cluster.url,
                    "CHAPLAIN_STREAM": "factory",
                }
            )
        yield


class _Made:
    datastore: module.ChaplainDatastore
    kind: type[Any]

    def create_recorder(self) -> Any:
        recorder = self.kind(self.datastore)
        recorder.create_table()
        return recorder


class TestAggregateRecorder(_Made, suite.AggregateRecorderTestCase):
    kind = module.ChaplainAggregateRecorder


class TestApplicationRecorder(_Made, suite.ApplicationRecorderTestCase[Any]):
    kind = module.ChaplainApplicationRecorder


class TestTrackingRecorder(_Made, suite.TrackingRecorderTestCase):
    kind = module.ChaplainTrackingRecorder


class TestProcessRecorder(_Made, suite.ProcessRecorderTestCase):
    kind = module.ChaplainProcessRecorder


class TestNonInterleaving(_Made, suite.NonInterleavingNotificationIDsBaseCase):
    kind = module.ChaplainApplicationRecorder


class _Tracking(module.ChaplainTrackingRecorder):
    pass


class TestFactory(suite.InfrastructureFactoryTestCase[module.ChaplainFactory]):
    def expected_factory_class(self) -> type[module.ChaplainFactory]:
        return module.ChaplainFactory

    def expected_aggregate_recorder_class(self) -> type[Any]:
        return module.ChaplainAggregateRecorder

    def expected_application_recorder_class(self) -> type[Any]:
        return module.ChaplainApplicationRecorder

    def expected_tracking_recorder_class(self) -> type[Any]:
        return module.ChaplainTrackingRecorder

    def tracking_recorder_subclass(self) -> type[Any]:
        return _Tracking

    def expected_process_recorder_class(self) -> type[Any]:
        return module.ChaplainProcessRecorder


def event(version: int, state: bytes = b"state", topic: str = "topic") -> StoredEvent:
    return StoredEvent(ORIGINATOR, version, topic, state)


@pytest.fixture
def recorder(cluster: Cluster) -> Iterator[module.ChaplainProcessRecorder]:
    with cluster.connect() as client:
        made = module.ChaplainProcessRecorder(module.ChaplainDatastore(client, cluster.unique("es")))
        made.create_table()
        yield made


def test_more_than_an_answer_can_hold_is_read_in_parts(recorder: module.ChaplainProcessRecorder) -> None:
    states = [bytes([number]) * 200_000 for number in range(40)]
    for number, state in enumerate(states):
        recorder.insert_events([event(number, state)])
    assert [one.state for one in recorder.select_events(ORIGINATOR)] == states
    assert [one.state for one in recorder.select_events(ORIGINATOR, desc=True, gt=2, limit=25)] == states[:14:-1]
    assert [one.id for one in recorder.select_notifications(3, 30, 35)] == list(range(3, 33))


def test_events_of_several_statements_are_stored_with_the_tracking_or_not_at_all(
    recorder: module.ChaplainProcessRecorder,
) -> None:
    assert recorder.insert_events([], tracking=Tracking("up", 5)) == []
    with pytest.raises(IntegrityError):
        recorder.insert_events([event(number) for number in range(450)], tracking=Tracking("up", 5))
    assert recorder.max_notification_id() is None
    ids = recorder.insert_events([event(number) for number in range(450)], tracking=Tracking("up", 6))
    assert ids == list(range(1, 451))
    assert recorder.max_tracking_id("up") == 6


def test_subscription_yields_what_is_recorded_later_until_it_is_stopped(
    recorder: module.ChaplainProcessRecorder,
) -> None:
    recorder.insert_events([event(1), event(2, topic="other")])
    with recorder.subscribe(gt=0, topics=["topic"]) as subscription:
        assert next(subscription).originator_version == 1
        recorder.insert_events([event(3)])
        assert next(subscription).originator_version == 3
        subscription.stop()
        assert list(subscription) == []


def test_results_of_requests_are_deleted_now_and_then(
    recorder: module.ChaplainProcessRecorder, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RESULTS_KEPT", 10)
    sql = recorder.datastore.client.sql(recorder.datastore.stream)
    with cluster.connect() as other:
        kept = other.sql(recorder.datastore.stream).execute("create table other (a)")
        for number in range(25):
            recorder.insert_events([event(number)])
        found = sql.results(delete=False)
    assert len(found) <= 12
    assert kept.id in [one.id for one in found], "a result of another connection is not deleted"


def test_application_of_the_package_stores_its_events(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    class Account(Aggregate):
        def __init__(self) -> None:
            self.balance = 0

        @domain_event("Deposited")
        def deposit(self, amount: int) -> None:
            self.balance += amount

    env = {"PERSISTENCE_MODULE": "chaplain.eventsourcing", "CHAPLAIN_STREAM": cluster.unique("bank")}
    monkeypatch.setenv("CHAPLAIN_URL", cluster.url)
    bank: Application[Any] = Application(env=env)
    account = Account()
    account.deposit(5)
    bank.save(account)
    again: Application[Any] = Application(env=env)
    assert again.repository.get(account.id).balance == 5
    bank.close()
    again.close()
