"""Processes beside a system: blocks may be nested, and each ends its own."""

from types import SimpleNamespace

import psutil

from benchmarks.services import Beside


def test_nested_blocks_end_their_own_processes(tmp_path):
    services = SimpleNamespace(system=SimpleNamespace(folder=tmp_path), environment={})
    before = {child.pid for child in psutil.Process().children()}
    with Beside(services) as outer:
        outer.link("127.0.0.1:9", 0)
        with Beside(services) as inner:
            inner.link("127.0.0.1:9", 0)
        assert len(list(tmp_path.glob("*.pid"))) == 1
    assert not list(tmp_path.glob("*.pid"))
    assert {child.pid for child in psutil.Process().children()} <= before
