"""A real Redis for the tests that go over the wire."""

from tests.redis_server import redis_server, redis_url

__all__ = ["redis_server", "redis_url"]
