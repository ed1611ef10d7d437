"""The door to Redis: a user with no more rights than are needed, and TLS."""

import asyncio
import ssl
from contextlib import asynccontextmanager

import pytest
from structlog.testing import capture_logs

from coordinator.__main__ import make_store
from coordinator.session import SessionState
from coordinator.settings import CoordinatorSettings
from deploy.settings_tables import README
from specdec.errors import PeerUnavailable, SessionNotFound
from tests.certificates import Authority
from tests.redis_server import running_redis
from tests.stored_sessions import B, grow, new_session

RIGHTS = (
    "~specdec:* +evalsha +script|load +time +hget +hset +hgetall +pexpire +get +set +exists +strlen +getrange"
    " +append +del"
)


@pytest.fixture(scope="module")
def guarded_redis():
    """Run a Redis whose default user is off, and whose one user may do what RIGHTS say."""
    with running_redis() as server:
        made = server.command("ACL", "SETUSER", "specdec", "on", ">secret", *RIGHTS.split())
        assert made.startswith(b"+OK"), made
        assert server.command("ACL", "SETUSER", "default", "off").startswith(b"+OK")
        yield server


@asynccontextmanager
async def opened(redis_url, **settings):
    store = make_store(CoordinatorSettings(redis_url=redis_url, **settings))
    yield store
    await store.close()


async def live(store, session_id):
    """Take a session through its whole life."""
    session = new_session(session_id=session_id)
    await store.create(session)
    grow(session, 7)
    await store.commit(session)
    await store.interrupt(session)
    taken = await store.take(session_id, "ann", B)
    await store.begin_answer(taken, [1, 2])
    assert (await store.read(session_id, "ann")).state is SessionState.RUNNING
    await store.delete(session_id, "ann")
    with pytest.raises(SessionNotFound):
        await store.read(session_id, "ann")


def test_the_readme_names_these_rights():
    assert f"`{RIGHTS}`" in README.read_text()


async def test_a_user_with_few_rights_is_enough(guarded_redis):
    async with opened(guarded_redis.url, redis_username="specdec", redis_password="secret") as store:
        await live(store, "user")


@pytest.mark.parametrize(
    "access", [{}, {"redis_password": "secret"}, {"redis_username": "specdec", "redis_password": "x"}]
)
async def test_a_wrong_user_or_password_is_refused_and_never_told(guarded_redis, access):
    with capture_logs() as logged:
        async with opened(guarded_redis.url, **access) as store:
            with pytest.raises(PeerUnavailable) as refused:
                await store.read("user", "ann")
    assert [line["event"] for line in logged] == ["redis refuses this coordinator"]
    assert "secret" not in f"{refused.value.message} {logged}"


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("tls"))


@asynccontextmanager
async def tls_in_front_of(port, pair):
    """Give the port of what takes TLS and passes on what it holds: this Redis may be built without."""

    async def pump(source, sink):
        while data := await source.read(65536):
            sink.write(data)
            await sink.drain()
        sink.close()

    async def serve(reader, writer):
        inside, outside = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(pump(reader, outside), pump(inside, writer), return_exceptions=True)

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    yield server.sockets[0].getsockname()[1]
    server.close()


async def test_redis_under_tls_is_known_by_its_authority(guarded_redis, authority, tmp_path):
    access = {"redis_username": "specdec", "redis_password": "secret"}
    async with tls_in_front_of(guarded_redis.port, authority.issue("redis")) as port:
        async with opened(f"rediss://localhost:{port}", redis_ca=authority.ca, **access) as store:
            await live(store, "tls")
        async with opened(f"rediss://localhost:{port}", redis_ca=Authority(tmp_path, "other").ca, **access) as store:
            with pytest.raises(PeerUnavailable):
                await store.read("tls", "ann")


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--redis-url=http://u:hunter2@h"], "COORDINATOR_REDIS_URL"),
        (["--redis-ca=CA"], "COORDINATOR_REDIS_CA"),
        (["--redis-username=specdec"], "COORDINATOR_REDIS_PASSWORD is needed with COORDINATOR_REDIS_USERNAME"),
    ],
)
def test_settings_that_do_not_fit_are_named(flags, named, authority, capsys):
    with pytest.raises(SystemExit):
        CoordinatorSettings.load([flag.replace("CA", authority.ca) for flag in flags])
    told = capsys.readouterr().err
    assert named in told
    assert "hunter2" not in told
