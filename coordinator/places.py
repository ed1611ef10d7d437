"""Where the replicas of a service are: each at an address of its own, or all under a name that DNS knows."""

import asyncio
import socket

DNS = "dns:///"


def check_place(place: str) -> str:
    """Return a place as it is.

    Raises:
        ValueError: it is a name to be resolved without a port.
    """
    host, _, port = place.removeprefix(DNS).rpartition(":")
    if is_name(place) and not (host and port.isdigit() and 0 < int(port) < 2**16):
        raise ValueError(f"{place} must be {DNS}NAME:PORT")
    return place


def is_name(place: str) -> bool:
    """Whether DNS is to be asked for the addresses."""
    return place.startswith(DNS)


def name_of(place: str) -> str:
    """Return the name that DNS is asked for; empty for an address."""
    return place.removeprefix(DNS).rpartition(":")[0] if is_name(place) else ""


async def resolve(place: str) -> list[str]:
    """Return the addresses under a name, each host:port.

    Raises:
        OSError: DNS does not say.
    """
    port = place.rpartition(":")[2]
    try:
        found = await asyncio.get_running_loop().getaddrinfo(name_of(place), port, type=socket.SOCK_STREAM)
    except UnicodeError as error:  # how Python calls a name that no DNS can know
        raise OSError(str(error)) from error
    hosts = {str(address[0]) for _, _, _, _, address in found}
    return sorted(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host in hosts)
