"""Processes on one machine: found, awaited, ended, and nobody else's touched."""

import itertools
import json
import os
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import psutil
import pytest
import redis

from deploy import laptop, redis_server, system
from deploy.process import LoggedProcess, PidRecord, StartFailed, process_record, serving_event
from deploy.redis_server import start_redis

SECONDS = 30.0
# Stand-ins for a service; each ends by itself in the end.
SERVES = """
import json, sys, time
print("loading", file=sys.stderr)
print(json.dumps({"event": "serving", "port": 1234, "metrics_port": 0}), file=sys.stderr, flush=True)
time.sleep(60)
"""
IGNORES_SIGTERM = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); "
IGNORES_SIGTERM += "time.sleep(60)"
FAILS = "import sys; sys.exit('no such model')"


@pytest.fixture
def process(tmp_path):
    process = LoggedProcess(tmp_path, "target")
    yield process
    process.kill()


def run(process, source):
    process.start([sys.executable, "-c", source], {})


def gone(pid):
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_the_serving_line_is_found_among_others():
    log = 'Loading weights\n{"event": "loaded"}\n{"event": "serving", "port": 7, "metrics_port": 8, "level": "info"}\n'
    assert serving_event(log)["port"] == 7
    assert serving_event(log)["metrics_port"] == 8


@pytest.mark.parametrize(
    "log",
    [
        "",
        "serving\n",
        '"serving"\n',
        '{"event": "not serving"}\n',
        '{"event": "serving", "port": 7',
        "{'event': \"serving\"}\n",
    ],
)
def test_what_is_no_serving_line_is_none(log):
    assert serving_event(log) is None


def test_ports_come_from_the_log_and_another_command_finds_them(process, tmp_path):
    run(process, SERVES)
    assert process.wait_listening(SECONDS).port == 1234
    assert LoggedProcess(tmp_path, "target").record() == process.record()
    assert process.record().port == 1234


def test_a_restart_does_not_read_the_old_serving_line(process):
    run(process, SERVES)
    process.wait_listening(SECONDS)
    process.end(SECONDS)
    run(process, FAILS)
    with pytest.raises(StartFailed, match="no such model"):
        process.wait_listening(SECONDS)


def test_a_process_that_dies_is_reported_with_its_log(process):
    run(process, FAILS)
    with pytest.raises(StartFailed, match=r"(?s)target ended before it was listening.*no such model"):
        process.wait_listening(SECONDS)
    assert process.record() is None


def test_a_process_that_never_serves_is_reported(process):
    run(process, "import time; time.sleep(60)")
    with pytest.raises(StartFailed, match="was not listening within 0 seconds"):
        process.wait_listening(0)


def test_another_command_ends_the_process(process, tmp_path):
    run(process, SERVES)
    pid = process.record().pid
    assert LoggedProcess(tmp_path, "target").end(SECONDS)
    assert gone(pid)
    assert process.record() is None
    assert not process.end(SECONDS)


def test_what_ignores_sigterm_is_killed_after_the_grace(process):
    run(process, IGNORES_SIGTERM)
    process.wait_until(lambda: "deaf" in process.tail(), SECONDS, "deaf")
    pid = process.record().pid
    assert process.end(grace_seconds=0.1)
    assert gone(pid)


def test_a_pid_that_is_another_process_by_now_is_left_alone(tmp_path):
    stranger = psutil.Process()
    record = replace(process_record(stranger), started=process_record(stranger).started - 60)
    (tmp_path / "target.pid").write_text(json.dumps(asdict(record)))
    process = LoggedProcess(tmp_path, "target")
    assert process.record() is None
    assert not process.end(SECONDS)
    assert not (tmp_path / "target.pid").exists()


def test_a_process_is_known_and_ended_after_the_clock_was_set(process, monkeypatch):
    run(process, SERVES)
    record = process.record()
    before = psutil.boot_time()  # which the kernel tells as the time of day, less the time that it has been up
    monkeypatch.setattr(psutil._psplatform, "boot_time", lambda: before + 3600)
    assert psutil.Process(record.pid).create_time() - psutil.boot_time() == pytest.approx(record.started, abs=1)
    assert process.record() == record
    assert process.end(SECONDS)
    assert gone(record.pid)


def test_a_process_is_known_while_the_clock_is_set(process, monkeypatch):
    run(process, SERVES)
    record, times = process.record(), itertools.chain([0.0], itertools.repeat(3600.0))
    before = psutil.boot_time()
    monkeypatch.setattr(psutil._psplatform, "boot_time", lambda: before + next(times))
    assert process.record() == record


def test_a_process_whose_start_is_interrupted_is_ended_all_the_same(process, monkeypatch):
    """By a signal before there is a pid file."""
    with monkeypatch.context() as patch:
        patch.setattr(LoggedProcess, "_write", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            run(process, SERVES)
    pid = process._child.pid
    process.end(SECONDS)
    assert gone(pid)


def test_redis_that_is_too_slow_is_not_left_behind(tmp_path, monkeypatch):
    program = tmp_path / "redis-server"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o755)
    monkeypatch.setattr(redis_server, "_program", lambda: str(program))
    monkeypatch.setattr(redis_server, "START_SECONDS", 0.0)
    before = {child.pid for child in psutil.Process().children()}
    process = LoggedProcess(tmp_path, "redis")
    with pytest.raises(StartFailed, match="was not answering"):
        start_redis(process, tmp_path / "redis")
    process.kill()
    assert {child.pid for child in psutil.Process().children()} <= before


def test_a_record_of_before_a_reboot_is_of_no_process(process):
    run(process, SERVES)
    written = process._pid_file.read_text()
    process._pid_file.write_text(json.dumps(json.loads(written) | {"boot": "another"}))
    assert process.record() is None
    process._pid_file.write_text(written)


def test_a_pid_file_is_never_seen_half_written(process, tmp_path, monkeypatch):
    """By the guard of a command that is killed at that moment, above all: it would end nothing."""
    run(process, SERVES)
    before, seen, write = process.record(), [], Path.write_text

    def look_and_write(path, text):
        path.touch()
        os.truncate(path, 0)
        seen.append(LoggedProcess(tmp_path, "target").record())
        return write(path, text)

    monkeypatch.setattr(Path, "write_text", look_and_write)
    after = process.remember_ports(71, 72)
    assert seen == [before]
    assert LoggedProcess(tmp_path, "target").record() == after


def test_a_pid_nobody_has_is_no_process(tmp_path):
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    (tmp_path / "target.pid").write_text(json.dumps({"pid": child.pid, "boot": "", "started": 1.0}))
    assert LoggedProcess(tmp_path, "target").record() is None


def test_down_ends_what_runs_and_nothing_twice(tmp_path, capsys):
    process = LoggedProcess(tmp_path, "draft")
    run(process, SERVES)
    pid = process.record().pid
    assert laptop.main(["down", "--folder", str(tmp_path)]) == 0
    assert "ended draft" in capsys.readouterr().out
    assert gone(pid)
    process.kill()
    assert laptop.main(["down", "--folder", str(tmp_path / "never made")]) == 0
    assert "nothing was running" in capsys.readouterr().out


def test_a_guard_ends_the_processes_of_a_parent_that_was_killed(tmp_path):
    process = LoggedProcess(tmp_path, "target")
    run(process, SERVES)
    pid = process.record().pid
    guard = subprocess.Popen(
        [sys.executable, "-m", "deploy.guard", str(tmp_path), "redis", "target"], stdin=subprocess.PIPE
    )
    assert process.record().pid == pid
    guard.stdin.close()
    assert guard.wait(SECONDS) == 0
    assert gone(pid)
    process.kill()


def test_redis_keeps_its_data_over_a_restart(tmp_path, held_port):
    process = LoggedProcess(tmp_path, "redis")
    try:
        assert start_redis(process, tmp_path / "redis", held_port).port == held_port
        with redis.Redis(port=held_port) as connection:
            connection.set("key", "value")
        process.end(SECONDS)
        start_redis(process, tmp_path / "redis", held_port)
        with redis.Redis(port=held_port) as connection:
            assert connection.get("key") == b"value"
    finally:
        process.kill()


def test_redis_that_still_loads_its_file_has_not_started(tmp_path, held_port):
    process = LoggedProcess(tmp_path, "redis")
    try:
        start_redis(process, tmp_path / "redis", held_port)
        # A script that is asked twice finds it busy.
        with redis.Redis(port=held_port, socket_timeout=None) as connection:
            connection.eval("for i = 1, 500000 do redis.call('SET', 'key', i) end", 0)
        process.kill()
        start_redis(process, tmp_path / "redis", held_port)
        with redis.Redis(port=held_port, retry=None) as connection:
            assert connection.get("key") == b"500000"
    finally:
        process.kill()


def test_what_has_got_a_free_port_is_started_again_on_it(tmp_path, monkeypatch):
    commands, redis_ports = [], []
    monkeypatch.setattr(LoggedProcess, "start", lambda _, command, environment: commands.append(command))
    monkeypatch.setattr(LoggedProcess, "wait_listening", lambda *_: PidRecord(1, "", 0.0, 71, 72))
    monkeypatch.setattr(LoggedProcess, "wait_until", lambda *_: None)
    monkeypatch.setattr(
        system, "start_redis", lambda *where: redis_ports.append(where[-1]) or PidRecord(1, "", 0.0, 73)
    )
    services = system.System(tmp_path, target="large", draft="small")
    for _ in range(2):
        services.start_service("redis")
        services.start_service("target")
    ports = [[command[command.index(flag) + 1] for flag in ("--port", "--metrics-port")] for command in commands]
    assert ports == [["0", "-1"], ["71", "72"]]
    assert redis_ports == [0, 73]


@pytest.mark.parametrize(
    "name", ["COORDINATOR_TLS_CERTIFICATE", "target_tls_key", "COORDINATOR_TOKENS_FILE", "COORDINATOR_REDIS_PASSWORD"]
)
@pytest.mark.parametrize("command", ["up", "demo"])
def test_doors_that_the_command_could_not_pass_are_refused_at_once(tmp_path, monkeypatch, capsys, command, name):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(laptop, "prepare", lambda *_: pytest.fail("models are fetched"))
    monkeypatch.setattr(system.System, "start", lambda _: pytest.fail("it is started"))
    monkeypatch.setenv(name, "secret.pem")
    assert laptop.main([command]) == 1
    said = capsys.readouterr().err
    assert name in said
    assert "secret.pem" not in said
    monkeypatch.setenv(name, "")  # as if it were not set
    with pytest.raises(StartFailed, match="DRAFT_TLS_CERTIFICATE"):
        system.System(tmp_path, target="", draft="", environment={"DRAFT_TLS_CERTIFICATE": "draft.pem"})


def test_redis_on_a_taken_port_says_so(tmp_path):
    first, second = LoggedProcess(tmp_path, "redis"), LoggedProcess(tmp_path, "second")
    try:
        port = start_redis(first, tmp_path / "redis").port
        with pytest.raises(StartFailed, match="in use"):
            start_redis(second, tmp_path / "other", port)
    finally:
        first.kill()
        second.kill()


def test_processes_get_the_environment_they_are_given(process):
    process.start([sys.executable, "-c", "import os; print(os.environ['TARGET_DTYPE'])"], {"TARGET_DTYPE": "float64"})
    with pytest.raises(StartFailed, match="float64"):
        process.wait_listening(SECONDS)
    assert "TARGET_DTYPE" not in os.environ
