"""Ways of decoding through the services, by name; a report's cells are keyed by these names."""

from specdec.v1 import generation_pb2

ADAPTIVE = "adaptive"


def way_name(gamma: int | None) -> str:
    """Return the name of decoding with a fixed gamma, or with the services' own choice for None."""
    return ADAPTIVE if gamma is None else f"gamma {gamma}"


PLAIN = way_name(0)
"""Plain decoding: what all others are compared with."""

PLAIN_AGAIN = f"{PLAIN} again"
"""The same: how far it is from itself is the noise of every comparison."""


def speculation(gamma: int | None, verification: str) -> generation_pb2.SpeculationParams:
    """Say it to the services.

    Args:
        gamma: draft tokens a round; None leaves it to them.
        verification: token, block or coupled.
    """
    return generation_pb2.SpeculationParams(gamma=gamma, verification=f"VERIFICATION_{verification.upper()}")
