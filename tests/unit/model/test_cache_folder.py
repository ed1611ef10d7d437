"""Where weights are kept, and that one process at a time makes them."""

import fcntl
import subprocess
import sys
from pathlib import Path

import pytest

from specdec.model.cache_folder import cache_folder, locked
from specdec.model.refusal import ModelRefused

HOLDS = """
import sys
from pathlib import Path
from specdec.model.cache_folder import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_the_cache_is_where_the_desktop_keeps_caches(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_folder() == Path("/somewhere/specdec")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/me")
    assert cache_folder() == Path("/home/me/.cache/specdec")


def test_a_lock_keeps_other_processes_out_and_ends_with_its_own(tmp_path):
    made = tmp_path / "cache" / "made"
    other = subprocess.Popen([sys.executable, "-c", HOLDS, made], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with other:
        assert other.stdout.readline() == b"held\n"
        with made.with_name(".made.lock").open("w") as lock, pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        other.kill()
    with locked(made):
        assert not made.exists()


def test_a_cache_that_cannot_be_written_is_refused_in_words(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelRefused, match="cannot be written"), locked(tmp_path / "file" / "specdec" / "made"):
        pass
