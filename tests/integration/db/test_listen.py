"""The LISTEN connection: delivered, found again after every kind of loss, never the only reason to look."""

import logging
import os
import select
import signal
import threading
import time

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from support.processes.workers import until
from support.servers.cluster import Cluster
from support.servers.tcp_proxy import TcpProxy

from queue_workflows.config import reset_config
from queue_workflows.db.connections.bounded_wire import Note, Wire
from queue_workflows.db.connections.engine import Database
from queue_workflows.db.listen.listener import ADVERTISE, NEXT_TRANSACTION, Listener, Pace, Wake
from queue_workflows.db.migrations import bootstrap
from queue_workflows.errors import DatabaseError, EmbeddedServerError, SchemaError

CHANNEL = "ingest_job_ready"
BRISK = Pace(canary_every=0.1, answer_within=0.4, retry_first=0.02, retry_most=0.1)
CALM = Pace(retry_first=0.02, retry_most=0.1)
PROBE = """
SELECT CASE WHEN pg_try_advisory_lock(qwf_wake_class(), qwf_wake_key(%(queue)s))
            THEN NOT pg_advisory_unlock(qwf_wake_class(), qwf_wake_key(%(queue)s)) ELSE true END
"""


@pytest.fixture(scope="module")
def cluster():
    try:
        cluster = Cluster.primary()
    except EmbeddedServerError as missing:
        pytest.skip(f"no Postgres binaries for a server of the test's own: {missing}")
    with cluster:
        bootstrap(cluster.dsn())
        yield cluster


@pytest.fixture
def admin(cluster):
    with cluster.connect() as connection:
        yield connection


@pytest.fixture
def open_listener(cluster):
    """A function that gives a listener which has joined and told so."""
    held = []

    def open_listener(pace=CALM, port=None, **more):
        dsn = cluster.dsn(**({"port": str(port)} if port else {}))
        connect = more.pop("connect", lambda: psycopg.connect(dsn, autocommit=True, connect_timeout=2))
        listener = Listener(connect, [CHANNEL, 'odd "name'], pace=pace, **more)
        held.append(listener)
        assert listener.wait(150) == Wake("listening")
        return listener

    yield open_listener
    for listener in held:
        listener.close()


def notify(admin, payload, channel=CHANNEL):
    admin.execute("SELECT pg_notify(%s, %s)", (channel, payload))


def listening_pids(admin):
    """The backends that hold a session of a listener."""
    rows = admin.execute(
        "SELECT pid FROM pg_stat_activity WHERE usename = 'app' AND backend_type LIKE 'client%' ORDER BY 1"
    )
    return [pid for (pid,) in rows]


def somebody_waits(admin, queue):
    """What the triggers ask before they notify."""
    return admin.execute(PROBE, {"queue": queue}).fetchone()[0]


def wait_until(listener, condition):
    """Run the loop that a role would run, until the condition holds."""
    until = time.monotonic() + 150
    while not condition():
        assert time.monotonic() < until
        listener.wait(0.02)


def test_a_notification_ends_the_wait(open_listener, admin):
    """What another session commits arrives with channel and payload, odd channel names included."""
    listener = open_listener()
    assert listener.wait(0) is None
    notify(admin, "fetch")
    assert listener.wait(150) == Wake("notified", frozenset({Note(CHANNEL, "fetch")}))
    notify(admin, "x", 'odd "name')
    assert listener.wait(150) == Wake("notified", frozenset({Note('odd "name', "x")}))
    assert listener.wait(0) is None


def test_a_notification_that_came_while_nobody_waited_is_not_lost(open_listener, admin):
    """A loop that works between its waits still gets the hint."""
    listener = open_listener()
    listener.advertise("fetch")
    notify(admin, "fetch")
    listener.must_look_again()
    assert listener.wait(0) == Wake("notified", frozenset({Note(CHANNEL, "fetch")}))


def test_what_is_being_taken_back_is_not_found_advertised(open_listener):
    """A loop that comes meanwhile would go idle unadvertised."""
    listener = open_listener()
    listener.advertise("fetch")
    is_asked, may_answer, found = threading.Event(), threading.Event(), []

    def is_busy():
        is_asked.set()
        return may_answer.wait(150)

    taking_back = threading.Thread(target=lambda: listener.absorb(withdraw=is_busy))
    coming = threading.Thread(target=lambda: found.append(listener.is_wanted("fetch")))
    taking_back.start()
    assert is_asked.wait(150)
    coming.start()
    coming.join(0.1)
    may_answer.set()
    for thread in (taking_back, coming):
        thread.join(150)
    assert found == [False]


def test_many_notifications_are_one_wake(open_listener, admin):
    """A burst wakes once, each queue named once."""
    listener = open_listener()
    with admin.transaction():
        for number in range(500):
            notify(admin, f"q{number % 3}")
    for _ in range(3):
        notify(admin, "q1")
    notify(admin, "last")
    wakes = []
    while not any(note.payload == "last" for wake in wakes for note in wake.notes):
        wakes.append(listener.wait(150))
    assert len(wakes) <= 5  # one for each commit at the most
    assert sum(wake.number for wake in wakes) == 3 + 3 + 1
    assert {note.payload for wake in wakes for note in wake.notes} == {"q0", "q1", "q2", "last"}
    assert listener.wait(0) is None


def test_what_has_piled_up_is_one_wake(open_listener, admin):
    """Hints that arrived while the loop was busy cost it one look, not one each."""
    listener = open_listener()
    for _ in range(50):
        notify(admin, "q1")
    notify(admin, "last")
    wakes = [listener.wait(150)]
    while Note(CHANNEL, "last") not in wakes[-1].notes:
        wakes.append(listener.wait(150))
    assert len(wakes) < 50
    assert listener.wait(0) is None


def test_only_the_payloads_asked_for_wake(open_listener, admin):
    """A worker of one queue sleeps through the other queues' hints."""
    listener = open_listener(payloads=["fetch"])
    notify(admin, "load")
    notify(admin, "fetch")
    assert listener.wait(150) == Wake("notified", frozenset({Note(CHANNEL, "fetch")}))


def test_a_wait_ends_at_its_timeout(open_listener):
    """Without a hint the poll comes on time, neither early nor spinning."""
    listener = open_listener()
    began, cpu = time.monotonic(), time.process_time()
    assert listener.wait(1.0) is None
    assert 1.0 <= time.monotonic() - began < 30
    assert time.process_time() - cpu < 0.5


def test_a_terminated_backend_is_replaced_and_reported(open_listener, admin):
    """After a loss the listener joins again by itself, says so once, and hears again."""
    listener = open_listener()
    (pid,) = listening_pids(admin)
    listener.advertise("fetch")
    admin.execute("SELECT pg_terminate_backend(%s, 10000)", (pid,))
    assert listener.wait(150) == Wake("reconnected")
    assert listening_pids(admin) != [pid]
    assert somebody_waits(admin, "fetch")
    notify(admin, "fetch")
    assert listener.wait(150) == Wake("notified", frozenset({Note(CHANNEL, "fetch")}))


def test_a_loss_is_logged_once_and_its_end_too(open_listener, cluster, caplog):
    """An outage is one warning however many tries it takes, not one a second."""
    caplog.set_level(logging.INFO, logger="queue_workflows")
    listener = open_listener()
    cluster.stop("immediate")
    try:
        wait_until(listener, lambda: listener._failures >= 4)
        assert listener.state in ("apart", "joining")
        assert listener.must_look_again()
        assert not listener.advertise("fetch")
    finally:
        cluster.start()
    wait_until(listener, lambda: listener.state == "listening")
    assert listener.advertise("fetch")
    assert listener.trouble is None
    texts = [record.message for record in caplog.records]
    assert 1 <= len([text for text in texts if "polling meanwhile" in text]) <= 4
    assert texts[-1] == "LISTEN works again"


def test_an_unreachable_server_never_holds_up_the_loop(cluster):
    """Joining happens beside the loop: a server that says nothing costs the poll not a moment."""
    release = threading.Event()

    def connect():
        release.wait(150)
        return psycopg.connect(cluster.dsn(), autocommit=True)

    with Listener(connect, [CHANNEL], pace=CALM) as listener:
        began = time.monotonic()
        for _ in range(3):
            assert listener.wait(0.02) is None
            assert not listener.advertise("fetch")
            assert listener.must_look_again()
        assert time.monotonic() - began < 60
        assert listener.state == "joining"
        release.set()
        assert listener.wait(150) == Wake("listening")
        assert listener.advertise("fetch")


def test_a_listener_closed_while_it_joins_leaves_no_connection(cluster, admin):
    """What arrives after the end is closed by whom it reaches."""
    begun, release, connected = threading.Event(), threading.Event(), []

    def connect():
        begun.set()
        release.wait(150)
        connected.append(psycopg.connect(cluster.dsn(), autocommit=True))
        return connected[0]

    before = threading.active_count()
    listener = Listener(connect, [CHANNEL], pace=CALM)
    listener.wait(0)
    # One that is closed before it begins to connect has nothing to close.
    assert begun.wait(150)
    listener.close()
    release.set()
    until(lambda: connected and connected[0].closed)
    until(lambda: threading.active_count() <= before)


def test_the_canary_notices_a_black_hole(open_listener, cluster, admin):
    """A peer that acknowledges everything and passes on nothing is found out, and left."""
    with TcpProxy(cluster.port) as proxy:
        listener = open_listener(BRISK, port=proxy.port)
        wait_until(listener, lambda: next(listener._canary_numbers) > 2)  # some came back
        assert listener.state == "listening"
        proxy.pause()
        wait_until(listener, lambda: listener.state != "listening")
        assert "within 0.4 s" in listener.trouble
        proxy.resume()
        wait_until(listener, lambda: listener.state == "listening")
        notify(admin, "fetch")
        assert listener.wait(150) is not None
        listener.close()


def test_a_question_into_a_black_hole_is_bounded(open_listener, cluster):
    """Advertising on a dead line ends within the bound instead of with TCP's patience."""
    with TcpProxy(cluster.port) as proxy:
        listener = open_listener(Pace(answer_within=0.3, retry_first=30), port=proxy.port)
        proxy.pause()
        began = time.monotonic()
        assert not listener.advertise("fetch")
        assert 0.3 <= time.monotonic() - began < 30
        assert listener.state == "apart"
        listener.close()


def test_a_cut_line_is_joined_again(open_listener, cluster, admin):
    """A proxy that restarts costs one reconnection."""
    with TcpProxy(cluster.port) as proxy:
        listener = open_listener(port=proxy.port)
        proxy.cut()
        assert listener.wait(150) == Wake("reconnected")
        listener.close()


def test_a_session_that_no_longer_listens_is_found_out(open_listener):
    """The connection answers but its LISTEN is gone, as a pooling proxy does it: only the canary can tell."""
    listener = open_listener(BRISK)
    listener._wire.ask("UNLISTEN *")
    told = []
    listener._report = told.append
    wait_until(listener, lambda: told and listener.state == "listening")
    assert "its own notification did not come back" in told[0]


def test_a_long_absence_from_waiting_is_no_loss(open_listener):
    """A worker that was busy past a canary's bound reads what came meanwhile before it judges."""
    clock = [0.0]
    listener = open_listener(Pace(canary_every=10, answer_within=5), now=lambda: clock[0])
    clock[0] = 10
    while listener.wait(0) is None and listener._canary is None:
        clock[0] += 10  # the echo was too quick for this test: send another
    poll = select.poll()
    poll.register(listener._wire, select.POLLIN)
    assert poll.poll(10_000)
    clock[0] += 3600
    assert listener.wait(0) is None
    assert listener.state == "listening"


def test_advertising_is_what_writers_see(open_listener, admin):
    """Advertise and withdraw show at once in the writers' probe; both can be repeated."""
    listener = open_listener()
    assert not somebody_waits(admin, "fetch")
    assert listener.advertise("fetch")
    assert listener.advertise("fetch")
    assert listener.advertise("load")
    assert somebody_waits(admin, "fetch")
    listener.withdraw("fetch")
    listener.withdraw("fetch")
    assert not somebody_waits(admin, "fetch")
    assert somebody_waits(admin, "load")
    listener.close()
    admin.execute("SELECT pg_stat_clear_snapshot()")
    while somebody_waits(admin, "load"):
        admin.execute("SELECT 1")


def test_a_probe_in_the_way_does_not_block(open_listener, cluster, admin):
    """A probe of another session is never waited for: advertising says no, and comes about later."""
    listener = open_listener()
    with cluster.connect() as prober:
        prober.execute("SELECT pg_advisory_lock(qwf_wake_class(), qwf_wake_key('fetch'))")
        assert listener.advertise("fetch") is False
        assert listener.must_look_again()
        prober.execute("SELECT pg_advisory_unlock(qwf_wake_class(), qwf_wake_key('fetch'))")
        assert listener.must_look_again()
        assert somebody_waits(admin, "fetch")


@pytest.mark.parametrize("kind", ["newest transaction", "older transaction", "prepared transaction"])
def test_the_wake_that_nobody_sends_is_known(open_listener, cluster, admin, kind):
    """A writer that inserted before we advertised and commits after keeps us looking until it has ended.

    The newest transaction of all is the sharp case: it stands at the xmax of every snapshot, not below it.
    """
    listener = open_listener()
    admin.execute("CREATE TABLE IF NOT EXISTS written (x int)")
    with cluster.connect() as writer, cluster.connect() as other:
        writer.execute("BEGIN")
        writer.execute("INSERT INTO written VALUES (1)")
        if kind == "older transaction":
            other.execute("INSERT INTO written VALUES (2)")
        if kind == "prepared transaction":
            writer.execute("PREPARE TRANSACTION 'late'")
        assert not somebody_waits(admin, "fetch")

        assert listener.advertise("fetch")
        for _ in range(5):
            assert listener.must_look_again()
        other.execute("INSERT INTO written VALUES (3)")
        assert listener.must_look_again()

        writer.execute("COMMIT PREPARED 'late'" if kind == "prepared transaction" else "COMMIT")
        assert listener.must_look_again()  # this look is the first that surely sees the row
        assert not listener.must_look_again()


def test_a_writer_in_the_midst_of_advertising_is_heard_or_looked_for(
    open_listener, cluster, admin, monkeypatch
):
    """The lock first, then the mark: who inserts between the two sees the lock, and so notifies.

    The other way round it would see no lock and stand above the mark: nobody would ever look for its row.
    """
    listener = open_listener()
    ask, asked = Wire.ask, []

    def ask_between(wire, statement, *parameters):
        if statement in (ADVERTISE, NEXT_TRANSACTION):
            asked.append(statement)
            if len(asked) == 2:
                writer.execute("BEGIN")
                writer.execute("INSERT INTO ingest_jobs (task_name, queue) VALUES ('t', 'fetch')")
        return ask(wire, statement, *parameters)

    monkeypatch.setattr(Wire, "ask", ask_between)
    with cluster.connect() as writer:
        assert listener.advertise("fetch")
        assert set(asked) == {ADVERTISE, NEXT_TRANSACTION}
        looked = [listener.must_look_again() for _ in range(3)]
        writer.execute("COMMIT")
        assert all(looked) or listener.wait(150) == Wake("notified", frozenset({Note(CHANNEL, "fetch")}))


def test_later_writers_do_not_keep_us_looking(open_listener, cluster, admin):
    """Who begins to write after we advertised will notify: such a transaction is none of our worry."""
    admin.execute("CREATE TABLE IF NOT EXISTS written (x int)")
    listener = open_listener()
    assert listener.advertise("fetch")
    with cluster.connect() as writer:
        writer.execute("BEGIN")
        writer.execute("INSERT INTO written VALUES (1)")
        assert listener.must_look_again()
        assert not listener.must_look_again()


def test_interrupt_from_another_thread_and_from_a_signal_handler(open_listener):
    """Stopping never waits for a poll; an interruption before the wait counts for it."""
    listener = open_listener()
    listener.interrupt()
    listener.interrupt()
    assert listener.wait(150) == Wake("interrupted")
    assert listener.wait(0) is None
    thread = threading.Timer(0.05, listener.interrupt)
    thread.start()
    assert listener.wait(150) == Wake("interrupted")
    thread.join()
    before = signal.signal(signal.SIGALRM, lambda *_: listener.interrupt())
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        assert listener.wait(150) == Wake("interrupted")
    finally:
        signal.signal(signal.SIGALRM, before)


def test_poll_only_has_the_same_shape():
    """With LISTEN off the loop runs unchanged: it waits, can be interrupted, and always looks."""
    with Listener(None, [CHANNEL]) as listener:
        assert listener.state == "off"
        assert listener.advertise("fetch") is False
        assert listener.must_look_again()
        assert listener.wait(0.01) is None
        listener.interrupt()
        assert listener.wait(150) == Wake("interrupted")
        listener.withdraw("fetch")


def test_a_listener_on_the_configured_database(cluster, monkeypatch, tmp_path, admin):
    """It uses the pinned connection, the direct one behind a proxy, and none where only a proxy is known."""
    monkeypatch.chdir(tmp_path)
    reset_config()
    monkeypatch.setenv("QWF_DB_URL", cluster.dsn())
    with Database.open(role="worker") as database, Listener.on(database, [CHANNEL], pace=CALM) as listener:
        assert listener.wait(150) == Wake("listening")
        name = "SELECT application_name FROM pg_stat_activity WHERE pid = ANY (%s)"
        assert admin.execute(name, (listening_pids(admin),)).fetchone()[0].startswith("qwf:worker@")
    monkeypatch.setenv("QWF_LISTEN", "off")
    with Database.open(role="worker") as database, Listener.on(database, [CHANNEL]) as listener:
        assert listener.state == "off"
    monkeypatch.setenv("QWF_DIRECT_DB_URL", cluster.dsn())
    with Database.open(role="worker") as database, Listener.on(database, [CHANNEL]) as listener:
        assert listener.wait(150) == Wake("listening")


def test_without_the_schema_advertising_says_what_to_do(cluster, open_listener):
    """LISTEN needs no schema; advertising on a database that was never migrated names the command."""
    dsn = make_conninfo(cluster.dsn(), user="postgres", dbname="postgres")
    listener = open_listener(connect=lambda: psycopg.connect(dsn, autocommit=True))
    with pytest.raises(SchemaError, match="qwf db upgrade"):
        listener.advertise("fetch")
    assert listener.state == "listening"


def test_a_forked_child_cannot_use_it(open_listener, admin):
    """The socket is the parent's: a child is refused, and its closing says no good-bye on it."""
    listener = open_listener()
    pids = listening_pids(admin)
    reader, writer = os.pipe()
    if os.fork() == 0:
        try:
            listener.wait(0)
        except DatabaseError:
            listener.close()
            os.write(writer, b"refused")
        finally:
            os._exit(0)
    os.close(writer)
    assert os.read(reader, 10) == b"refused"
    os.close(reader)
    os.wait()
    notify(admin, "fetch")
    assert listener.wait(150).reason == "notified"
    assert listening_pids(admin) == pids


def test_channel_names_that_postgres_would_cut_are_refused():
    """A channel longer than 63 bytes would be listened to under another name."""
    for name in ("", "x" * 64, "a\0b"):
        with pytest.raises(ValueError, match="channel"):
            Listener(None, [name])


def test_the_pause_between_tries_grows_is_bounded_and_differs():
    """Backoff doubles up to its limit, and chance spreads it over half of itself."""
    pace = Pace(retry_first=1, retry_most=8)
    assert [pace.retry_after(failures, 1.0) for failures in range(6)] == [1, 2, 4, 8, 8, 8]
    assert pace.retry_after(10_000, 0.0) == 4
