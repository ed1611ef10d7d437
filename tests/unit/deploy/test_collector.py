"""The collector: what it keeps, and that spans come to it and leave it."""

import json
import re

import yaml

from coordinator.rounds import Fallback
from specdec.serving import names
from tests.manifests import DEPLOYMENTS, KUBERNETES, container, environment, named, pod, rendered, workload

COLLECTOR = yaml.safe_load((KUBERNETES / "components" / "collector" / "collector.yaml").read_text())


def test_the_collector_keeps_errors_slow_requests_fallbacks_and_a_share():
    sampling = COLLECTOR["processors"]["tail_sampling"]
    policies = {policy["type"]: policy for policy in sampling["policies"]}
    assert policies["status_code"]["status_code"] == {"status_codes": ["ERROR"]}
    wait_ms = int(sampling["decision_wait"].removesuffix("s")) * 1000
    assert policies["latency"]["latency"]["threshold_ms"] < wait_ms, "a slow trace that goes on is known as slow"
    fallbacks = policies["string_attribute"]["string_attribute"]
    assert fallbacks["key"] == names.FALLBACK
    assert set(fallbacks["values"]) == {reason.name for reason in Fallback} - {Fallback.DRAFT_CONTEXT.name}
    assert all(policy[policy["type"]] for policy in policies.values())


def test_the_collectors_pipeline_is_made_of_parts_that_are_there():
    [pipeline] = COLLECTOR["service"]["pipelines"].values()
    for kind in ("receivers", "processors", "exporters"):
        assert sorted(pipeline[kind]) == sorted(COLLECTOR[kind])
    assert COLLECTOR["service"]["extensions"] == list(COLLECTOR["extensions"])
    assert pipeline["processors"][0] == "memory_limiter"
    assert pipeline["processors"].index("tail_sampling") < pipeline["processors"].index("batch")


def test_spans_go_through_the_collector_to_jaeger():
    objects = rendered(*DEPLOYMENTS["local, watched"])
    made = container(objects, "collector")
    ports = {port["name"]: port["containerPort"] for port in made["ports"]}
    assert COLLECTOR["receivers"]["otlp"]["protocols"]["grpc"]["endpoint"] == f"0.0.0.0:{ports['otlp']}"
    assert COLLECTOR["extensions"]["health_check"]["endpoint"] == f"0.0.0.0:{ports['health']}"
    settings = environment(objects, made)
    assert set(re.findall(r"\$\{env:(\w+)\}", json.dumps(COLLECTOR))) == settings.keys()
    host, port = settings["TRACES_ENDPOINT"].split(":")
    assert int(port) in [each["port"] for each in named(objects, "Service", host)["spec"]["ports"]]
    for name in ("coordinator", "draft", "target"):
        spans = environment(objects, container(objects, name), {"username": "", "password": ""})
        assert spans["OTEL_EXPORTER_OTLP_ENDPOINT"] == f"http://collector:{ports['otlp']}"
    [mount] = made["volumeMounts"]
    [volume] = pod(workload(objects, "collector"))["volumes"]
    config = named(objects, "ConfigMap", volume["configMap"]["name"])["data"]
    assert made["args"] == [f"--config={mount['mountPath']}/{next(iter(config))}"]
