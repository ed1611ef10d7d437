"""The doors of a port: TLS, mutual TLS, certificates that are renewed, a plaintext port for probes of health."""

import asyncio
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from prometheus_client import CollectorRegistry

from specdec.serving.server import Server
from specdec.serving.settings import ServiceSettings
from specdec.serving.tls import channel_credentials
from specdec.v1 import common_pb2, draft_pb2_grpc
from tests.certificates import Authority
from tests.in_process import serving_draft, serving_target
from tests.integration.coordinator_process import coordinating
from tests.integration.serving_world import Draft

SERVING = health_pb2.HealthCheckResponse.SERVING
OK, UNAVAILABLE = grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE
SECONDS = 10


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def server_files(authority):
    return authority.issue("server")


@pytest.fixture(scope="module")
def stranger(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("stranger"), "stranger")


def tls(files, client_ca=""):
    return {"tls_certificate": files.certificate, "tls_key": files.key, "tls_client_ca": client_ca}


@asynccontextmanager
async def serving(**settings):
    server = Server(ServiceSettings(port=0, **settings), CollectorRegistry())
    draft_pb2_grpc.add_DraftServiceServicer_to_server(Draft(), server)
    await server.start()
    await server.set_serving(True)
    yield server
    await server.stop(0)


def write(path, text):
    Path(path).write_text(text)


def remove(path):
    Path(path).unlink()


async def status(server, *files):
    """Return how a call ends."""
    credentials = channel_credentials(*files)
    async with grpc.aio.secure_channel(f"127.0.0.1:{server.port}", credentials) as channel:
        stub = draft_pb2_grpc.DraftServiceStub(channel)
        call = stub.GetModelInfo(common_pb2.GetModelInfoRequest(), timeout=SECONDS)
        return await call.code()


async def test_a_port_under_tls_is_known_by_its_authority(authority, server_files, stranger):
    async with serving(**tls(server_files)) as server:
        assert await status(server, authority.ca, "", "") is OK
        assert await status(server, stranger.ca, "", "") is UNAVAILABLE
        assert await status(server, "", "", "") is UNAVAILABLE


async def test_mutual_tls_lets_in_who_is_known(authority, server_files, stranger):
    known, foreign = authority.issue("client"), stranger.issue("client")
    async with serving(**tls(server_files, authority.ca)) as server:
        assert await status(server, authority.ca, known.certificate, known.key) is OK
        assert await status(server, authority.ca, foreign.certificate, foreign.key) is UNAVAILABLE
        assert await status(server, authority.ca, "", "") is UNAVAILABLE


async def test_a_renewed_certificate_counts_without_a_restart(tmp_path):
    old, new = Authority(tmp_path, "old"), Authority(tmp_path, "new")
    async with serving(**tls(old.issue("server"))) as server:
        assert await status(server, old.ca, "", "") is OK
        new.issue("server")
        assert await status(server, new.ca, "", "") is OK
        assert await status(server, old.ca, "", "") is UNAVAILABLE


async def test_renewed_files_that_do_not_fit_leave_the_former_ones(tmp_path):
    authority = Authority(tmp_path)
    files = authority.issue("server")
    async with serving(**tls(files)) as server:
        write(files.key, "rubbish")
        assert await status(server, authority.ca, "", "") is OK
        remove(files.key)
        assert await status(server, authority.ca, "", "") is OK


async def test_health_has_a_plaintext_port_of_its_own(authority, server_files):
    async with (
        serving(**tls(server_files, authority.ca), health_port=-1) as server,
        grpc.aio.insecure_channel(f"127.0.0.1:{server.health_port}") as channel,
    ):
        health = health_pb2_grpc.HealthStub(channel)
        watch = health.Watch(health_pb2.HealthCheckRequest())
        assert (await watch.read()).status == SERVING
        assert (await health.Check(health_pb2.HealthCheckRequest(), timeout=SECONDS)).status == SERVING
        info = draft_pb2_grpc.DraftServiceStub(channel).GetModelInfo(common_pb2.GetModelInfoRequest())
        services = iter([reflection_pb2.ServerReflectionRequest(list_services="")])
        reflected = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(services)
        assert [await call.code() for call in (info, reflected)] == [grpc.StatusCode.UNIMPLEMENTED] * 2


async def test_without_its_setting_there_is_no_port_for_health():
    async with serving() as server:
        assert server.health_port == 0


async def test_reflection_can_be_left_out():
    async with (
        serving(reflection=False) as server,
        grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel,
    ):
        services = iter([reflection_pb2.ServerReflectionRequest(list_services="")])
        reflected = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(services)
        assert await reflected.code() is grpc.StatusCode.UNIMPLEMENTED
        health = health_pb2_grpc.HealthStub(channel)
        assert (await health.Check(health_pb2.HealthCheckRequest(), timeout=SECONDS)).status == SERVING


async def test_all_services_and_grpcurl_speak_mutual_tls(redis_url, authority, server_files):
    mine, person = authority.issue("coordinator"), authority.issue("person")
    inside = tls(server_files, authority.ca)
    # Found by DNS it has any address: its certificate says the name alone.
    named = tls(authority.issue("named", [x509.DNSName("localhost")]), authority.ca)
    peers = {"peer_tls_ca": authority.ca, "peer_tls_certificate": mine.certificate, "peer_tls_key": mine.key}
    async with (
        serving_target("synthetic:seed=1", **inside) as target,
        serving_draft("synthetic:seed=1", **named) as draft,
        coordinating(
            redis_url,
            [target.address],
            [f"dns:///localhost:{draft.address.rpartition(':')[2]}"],
            **tls(server_files, authority.ca),
            **peers,
        ) as running,
    ):
        await running.fleet.drafts.wait_for(running.fleet.drafts.usable, 30)
        address = f"localhost:{running.server.port}"
        shown = await grpcurl("-cacert", authority.ca, "-cert", person.certificate, "-key", person.key, address)
        assert shown.returncode == 0, shown.stderr
        assert '"FINISH_REASON_LENGTH"' in shown.stdout
        refused = await grpcurl("-cacert", authority.ca, address)
        assert refused.returncode != 0
        answered = await specdec(authority.ca, person, address)
        assert answered.returncode == 0, answered.stderr
        assert answered.stdout.strip()


async def grpcurl(*arguments):
    """Ask for two tokens with the real binary."""
    data = ("-max-time", "30", "-d", '{"prompt": "hi", "sampling_params": {"max_new_tokens": 2}}')
    command = [Path(sys.executable).with_name("grpcurl"), *data, *arguments, "specdec.v1.GenerationService/Generate"]
    return await run(*command)


async def specdec(ca, person, address):
    """Ask for two tokens with the command."""
    files = ["--tls-ca", ca, "--tls-certificate", person.certificate, "--tls-key", person.key]
    flags = ["--address", address, "--timeout", "30", "--max-new-tokens", "2", *files]
    return await run(sys.executable, "-m", "client", "generate", *flags, "hi")


async def run(*command):
    return await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=60, check=False)
