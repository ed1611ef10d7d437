"""The links and proxies of the chaos suite carry everything, and do to a call what they are told to."""

import asyncio
from contextlib import asynccontextmanager, closing, suppress

import grpc
import pytest

from tests.chaos.call_proxy import CallProxy
from tests.chaos.link import HOST, redis_link
from tests.chaos.plan import Phase
from tests.chaos.underway import Watch

PROPOSE = "/specdec.v1.DraftService/ProposeStream"
OTHER = "/specdec.v1.DraftService/Release"
SECONDS = 30
COMMIT = b"EVALSHA 12ab"


class Echo(grpc.GenericRpcHandler):
    """Answers every message with itself, and says how it ends by the last one."""

    def __init__(self):
        self.heard = []

    def service(self, details):
        async def answer(_, context):
            while (message := await context.read()) is not grpc.aio.EOF:
                self.heard.append(message)
                if message == b"refuse":
                    await context.abort(grpc.StatusCode.ABORTED, "refused", (("why-bin", b"\0because"),))
                await context.write(message)

        return grpc.stream_stream_rpc_method_handler(answer)


@asynccontextmanager
async def proxied():
    """Give an echo, a watch over the calls to it, and a channel through the proxy."""
    echo, watch, server = Echo(), Watch(), grpc.aio.server()
    server.add_generic_rpc_handlers((echo,))
    port = server.add_insecure_port(f"{HOST}:0")
    await server.start()
    async with CallProxy(watch, "coordinator-0", "draft-0") as proxy:
        await proxy.lead_to(port)
        async with grpc.aio.insecure_channel(f"{HOST}:{proxy.link.port}") as channel:
            yield echo, watch, channel
    await server.stop(0)


async def ask(channel, message, method=PROPOSE):
    """Make one call of one message."""
    call = channel.stream_stream(method)(timeout=SECONDS)
    await call.write(message)
    answer = await call.read()
    await call.done_writing()
    await call.code()
    return answer


async def during(watch, act, asking):
    """Do something with the next proposal, and return what the one who makes it gets."""
    ambush = asyncio.create_task(watch.ambush(lambda spot: spot.phase is Phase.PROPOSING, act, SECONDS))
    await asyncio.sleep(0)
    answers = await asyncio.gather(asking, return_exceptions=True)
    await ambush
    return answers[0]


async def test_calls_pass_as_they_are():
    async with proxied() as (echo, _, channel):
        assert await ask(channel, b"hello") == b"hello"
        assert await channel.unary_unary(OTHER)(b"one") == b"one"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary(OTHER)(b"refuse")
        assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.ABORTED, "refused")
        assert dict(caught.value.trailing_metadata())["why-bin"] == b"\0because"
        assert echo.heard == [b"hello", b"one", b"refuse"]


async def test_a_call_that_is_cut_off_was_never_heard():
    async def act(call):
        call.cut()

    async with proxied() as (echo, watch, channel):
        error = await during(watch, act, ask(channel, b"hello"))
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert echo.heard == []
        assert await ask(channel, b"again") == b"again"


async def test_an_answer_that_is_cut_off_was_given():
    async def act(call):
        call.answers.clear()
        await call.deliver()
        await call.answered.wait()
        call.cut()

    async with proxied() as (echo, watch, channel):
        error = await during(watch, act, ask(channel, b"hello"))
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert echo.heard == [b"hello"]


async def test_a_call_that_is_repeated_is_heard_twice_and_answered_once():
    async def act(call):
        await call.deliver()
        await call.repeat()

    async with proxied() as (echo, watch, channel):
        assert await during(watch, act, ask(channel, b"hello")) == b"hello"
        assert echo.heard == [b"hello"] * 2


async def test_a_call_that_is_let_go_is_not_the_last():
    acted = []

    async def act(call):
        acted.append(call)
        if len(acted) == 1:
            call.cut()
            raise ConnectionError("its caller has left")
        await call.deliver()

    async def twice():
        await asyncio.gather(ask(channel, b"one"), return_exceptions=True)
        return await ask(channel, b"two")

    async with proxied() as (echo, watch, channel):
        assert await during(watch, act, twice()) == b"two"
        assert echo.heard == [b"two"]


async def redis(reader, writer):
    """Answer every command alike."""
    with closing(writer), suppress(ConnectionError):
        while data := await reader.read(1024):
            commands.append(data)
            writer.write(b"+OK\r\n")


commands = []


@pytest.mark.parametrize(("fault", "heard"), [("cut", 0), ("answer", 1), ("repeat", 2)])
async def test_a_commit_is_known_by_its_script(fault, heard):
    async def act(call):
        if fault != "cut":
            call.answers.clear()
            await call.deliver()
            await call.answered.wait()
        if fault == "repeat":
            await call.repeat()
        else:
            call.cut()

    commands.clear()
    watch = Watch()
    async with await asyncio.start_server(redis, HOST, 0) as server, redis_link(watch, "coordinator-0", "12ab") as link:
        link.to = server.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection(HOST, link.port)
        ambush = asyncio.create_task(watch.ambush(lambda spot: spot.phase is Phase.COMMITTING, act, SECONDS))
        await asyncio.sleep(0)
        writer.write(b"PING")
        assert await reader.read(1024) == b"+OK\r\n"
        writer.write(COMMIT)
        await ambush
        if fault == "repeat":
            assert await reader.read(1024) == b"+OK\r\n"
        else:
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await reader.readexactly(1)
        assert commands == [b"PING"] + [COMMIT] * heard
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
