"""Rules, alerts, dashboard and collector: they name what live services export, and each other's parts."""

import json
import re

import promql_parser
import pytest
import yaml
from prometheus_client import CollectorRegistry

from coordinator.__main__ import make_fleet, make_store
from coordinator.metrics import Metrics
from coordinator.rounds import Fallback
from coordinator.servicer import GenerationServicer
from coordinator.settings import CoordinatorSettings
from specdec.serving.settings import describe
from tests.in_process import serving_draft, serving_target
from tests.manifests import (
    DEPLOYMENTS,
    KUBERNETES,
    SETTINGS,
    container,
    named,
    of_kind,
    rendered,
)

DEPLOY = KUBERNETES.parent
RULES = yaml.safe_load((DEPLOY / "observability" / "rules.yaml").read_text())["groups"]
EVERY_RULE = [rule for group in RULES for rule in group["rules"]]
ALERTS = [rule for rule in EVERY_RULE if "alert" in rule]
RECORDED = {rule["record"]: rule for rule in EVERY_RULE if "record" in rule}
DASHBOARD = json.loads((KUBERNETES / "components" / "monitoring" / "dashboard.json").read_text())
# What Prometheus adds to every series of a pod.
SCRAPED_LABELS = {"namespace", "pod", "job", "instance"}
STAGES = {"queue", "draft", "wire", "verify", "commit"}
NAME = re.compile(r"\b(?:[a-z_]+:)?specdec_\w+(?::\w+)?")
MATCHER = re.compile(r'(\w+)(?:=~|!=|=)"([^"]*)"')
BY = re.compile(r"\b(?:by|on) \(([\w, ]*)\)")


def queries():
    """Return every expression with the place where it stands."""
    found = {rule.get("alert") or rule["record"]: rule["expr"] for rule in EVERY_RULE}
    for panel in DASHBOARD["panels"]:
        found |= {f"{panel['title']} {target['refId']}": target["expr"] for target in panel["targets"]}
    for scaled in of_kind(rendered(*DEPLOYMENTS["by product, closed and scaled"]), "ScaledObject"):
        found[f"keda {scaled['metadata']['name']}"] = scaled["spec"]["triggers"][0]["metadata"]["query"]
    return found


QUERIES = queries()
SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}


def series(*registries):
    """Return the labels of everything that registries export, by the name of the series."""
    found = {}
    for registry in registries:
        for collector in registry._collector_to_names:
            for family in collector.describe():
                for suffix in SUFFIXES[family.type]:
                    labels = {*collector._labelnames, *(["le"] if suffix == "_bucket" else [])}
                    found[family.name + suffix] = found.get(family.name + suffix, set()) | labels
    return found


@pytest.fixture
async def exported():
    """Series of the three services, each made as its process makes it."""
    settings, registry = CoordinatorSettings(target_addresses=("127.0.0.1:1",)), CollectorRegistry()
    fleet, store = make_fleet(settings), make_store(settings)
    GenerationServicer(settings, fleet, store, Metrics(registry))
    async with serving_target("synthetic:seed=1") as target, serving_draft("synthetic:seed=1") as draft:
        found = series(registry, target.servicer._registry, draft.servicer._registry)
    await fleet.close()
    await store.close()
    return found


async def test_queries_name_what_services_export_with_the_labels_it_has(exported):
    labels_of = exported | {name: {"namespace", "reason", "pod"} for name in RECORDED}
    assert {"specdec_round_stage_seconds_bucket", "specdec_forward_passes"} <= exported.keys()
    for place, expression in QUERIES.items():
        read = set(NAME.findall(expression))
        assert read, place
        assert not read - labels_of.keys(), place
        known = SCRAPED_LABELS.union(*(labels_of[name] for name in read))
        used = {label for label, _ in MATCHER.findall(expression)}
        used |= {label.strip() for group in BY.findall(expression) for label in group.split(",") if label.strip()}
        assert not used - known, place


def test_queries_name_values_that_labels_take():
    values = {
        "stage": STAGES,
        "service": {"target", "draft"},
        "job": {"coordinator", "draft", "target"},
        "reason": {reason.name.lower() for reason in Fallback},
    }
    asked = [pair for expression in QUERIES.values() for pair in MATCHER.findall(expression) if pair[0] in values]
    assert {label for label, _ in asked} == values.keys()
    assert not [(label, value) for label, value in asked if value not in values[label]]


def test_brackets_and_quotes_of_queries_close():
    for place, expression in QUERIES.items():
        bare = re.sub(r'"[^"]*"', "", expression.replace("$__rate_interval", "5m"))
        while (less := re.sub(r"\([^()\[\]{}]*\)|\[[^()\[\]{}]*\]|\{[^()\[\]{}]*\}", "", bare)) != bare:
            bare = less
        assert not set('()[]{}"$') & set(bare), place


def test_queries_are_promql():
    for expression in QUERIES.values():
        promql_parser.parse(expression.replace("$__rate_interval", "5m"))
    with pytest.raises(ValueError, match="unclosed"):
        promql_parser.parse("sum by (pod (specdec_rounds_total)")


def test_the_operators_rules_are_the_same():
    [rule] = of_kind(rendered(*DEPLOYMENTS["local, watched"]), "PrometheusRule")
    assert rule["spec"]["groups"] == RULES


def test_rules_are_made_of_what_prometheus_takes():
    """It refuses a file with a key that it does not know."""
    assert all(group.keys() == {"name", "rules"} for group in RULES)
    for rule in EVERY_RULE:
        optional = {"labels"} if "record" in rule else {"for", "labels", "annotations"}
        assert {"expr"} < rule.keys() <= {"record" if "record" in rule else "alert", "expr", *optional}
        assert re.fullmatch(r"\d+[smh]", rule.get("for", "0s"))
    assert len(RECORDED) + len(ALERTS) == len(EVERY_RULE), "a name is recorded twice"
    [monitor] = of_kind(rendered(*DEPLOYMENTS["local, watched"]), "PodMonitor")
    assert monitor["spec"].keys() == {"jobLabel", "selector", "podMetricsEndpoints"}
    assert all(each.keys() == {"port", "interval"} for each in monitor["spec"]["podMetricsEndpoints"])


def test_every_alert_has_its_page_and_every_page_its_alert():
    pages = {page.stem: page.read_text() for page in (DEPLOY / "runbooks").glob("*.md")}
    assert {alert["alert"] for alert in ALERTS} == pages.keys()
    listed = re.findall(r"^\| \[(\w+)\]\(runbooks/\1\.md\) \|", (DEPLOY / "README.md").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(pages)
    for alert in ALERTS:
        name = alert["alert"]
        assert alert["annotations"]["runbook_url"] == f"deploy/runbooks/{name}.md"
        assert alert["annotations"]["summary"]
        assert alert["labels"]["severity"] in ("critical", "warning")
        assert pages[name].startswith(f"# {name}\n")


def test_pages_name_panels_and_settings_that_are_there():
    titles = {panel["title"] for panel in DASHBOARD["panels"]}
    settings = {row.environment for each in SETTINGS.values() for row in describe(each)}
    for page in (DEPLOY / "runbooks").glob("*.md"):
        text = page.read_text()
        for listed in re.findall(r"[Pp]anels? ((?:\"[\w ,-]+\"(?:, | and )?)+)", text):
            assert set(re.findall(r'"([^"]+)"', listed)) <= titles
        assert set(re.findall(r"`((?:COORDINATOR|DRAFT|TARGET)_\w+)`", text)) <= settings


def test_fallback_rounds_of_all_reasons_together_raise_the_alert():
    """Three reasons of 9 % each are more than a quarter of the rounds."""
    expression = next(alert["expr"] for alert in ALERTS if alert["alert"] == "SpecdecFallbackRounds")
    summed = promql_parser.parse(expression).lhs
    assert (str(summed.op), summed.modifier.labels) == ("sum", ["namespace"])


def test_a_namespace_without_a_coordinator_is_named_beside_others_that_have_one():
    expression = next(alert["expr"] for alert in ALERTS if alert["alert"] == "SpecdecNoTargetReady")
    assert "unless on (namespace) specdec_replicas_usable" in expression


def test_dashboards_for_speculative_decoding_find_their_names():
    """vLLM's; a rule that keeps the suffix of what it reads, so that a rate stays a rate."""
    as_vllm = {name: rule for name, rule in RECORDED.items() if name.startswith("vllm:")}
    wanted = ("drafts", "draft_tokens", "accepted_tokens", "accepted_tokens_per_pos")
    assert {f"vllm:spec_decode_num_{name}_total" for name in wanted} <= as_vllm.keys()
    for name, rule in as_vllm.items():
        [read] = NAME.findall(rule["expr"])
        assert rule["labels"].keys() == {"model_name", "engine"}
        suffixes = [re.search(r"(_total|_bucket|_sum|_count|)$", each)[1] for each in (name, read)]
        assert suffixes[0] == suffixes[1]


def test_the_dashboard_shows_what_operators_tune():
    shown = " ".join(target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"])
    for wanted in ("per_pos_total", "round_gamma_bucket", "time_to_first_token", "time_per_output_token"):
        assert wanted in shown
    for wanted in ("by (stage)", "by (reason)", "kv_cache_usage_ratio", "by (position)"):
        assert wanted in shown
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    cells = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in DASHBOARD["panels"]}
    assert len(cells) == len(ids), "panels lie on each other"
    variables = {each["name"] for each in DASHBOARD["templating"]["list"]}
    assert set(re.findall(r"\$\{?([a-z]\w*)", json.dumps(DASHBOARD["panels"]))) == variables


def test_every_service_is_scraped_by_the_name_of_its_port():
    objects = rendered(*DEPLOYMENTS["local, watched"])
    monitor = named(objects, "PodMonitor", "specdec")["spec"]
    [chosen] = monitor["selector"]["matchExpressions"]
    assert sorted(chosen["values"]) == ["coordinator", "draft", "target"]
    for name in chosen["values"]:
        ports = [port["name"] for port in container(objects, name)["ports"]]
        assert monitor["podMetricsEndpoints"][0]["port"] in ports
    assert monitor["jobLabel"] == chosen["key"]


def test_keda_asks_for_the_pods_of_the_namespace_that_the_page_makes():
    [namespace] = set(re.findall(r"kubectl create namespace (\w+)", (DEPLOY / "README.md").read_text()))
    for place, query in QUERIES.items():
        if place.startswith("keda "):
            assert f'namespace="{namespace}",pod=~"{place.removeprefix("keda ")}-' in query
