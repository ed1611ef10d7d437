"""The check of an operator's own manifests: silent on ours, and able to find what it is for."""

import copy
import io

import pytest
import yaml

from deploy.check_manifests import complaints, main
from tests.manifests import DEPLOYMENTS, container, rendered, workload


@pytest.mark.parametrize("deployment", DEPLOYMENTS)
def test_nothing_is_found_in_ours(deployment):
    assert complaints(rendered(*DEPLOYMENTS[deployment])) == []


@pytest.mark.parametrize(
    ("config", "literal", "found"),
    [
        ("draft", "DRAFT_CACHE_TOKEN=1", "draft: no setting is called DRAFT_CACHE_TOKEN"),
        ("target", "DRAFT_CACHE_TOKENS=1", "target: no setting is called DRAFT_CACHE_TOKENS"),
        ("draft", "DRAFT_MODEL=lookup:owner/name", "draft: DRAFT_MODEL=lookup:owner/name has no @commit"),
        ("coordinator", "COORDINATOR_TOKENIZER=owner/name", "coordinator: COORDINATOR_TOKENIZER=owner/name has no"),
    ],
)
def test_settings_are_looked_at(config, literal, found):
    [line] = complaints(rendered("heterogeneous-gpu", **{config: (literal,)}))
    assert line.startswith(found)


def test_processes_and_gpus_are_compared():
    objects = copy.deepcopy(rendered("heterogeneous-gpu"))
    container(objects, "target")["resources"]["limits"]["nvidia.com/gpu"] = 4
    assert complaints(objects) == ["target: processes and GPUs are not alike: 2 and 4"]


def test_a_number_of_pods_beside_keda_is_found():
    objects = copy.deepcopy(rendered("heterogeneous-gpu", "keda"))
    workload(objects, "draft")["spec"]["replicas"] = 2
    [line] = complaints(objects)
    assert line.startswith("draft: ")
    assert "KEDA" in line


def test_the_command_fails_on_what_it_prints(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO(""))  # what a kustomize that fails hands on
    assert main() == 1
    assert "target is not there" in capsys.readouterr().out
    monkeypatch.setattr("sys.stdin", io.StringIO(yaml.safe_dump_all(rendered("local"))))
    assert main() == 0
