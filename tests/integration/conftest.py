"""Fixtures of the integration tests."""

from tests.redis_server import redis_server, redis_url
from tests.stored_sessions import raw_redis, store

__all__ = ["raw_redis", "redis_server", "redis_url", "store"]
