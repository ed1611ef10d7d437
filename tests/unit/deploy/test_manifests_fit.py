"""Which components fit which overlay and each other: what the page's table says, and what kustomize makes of it."""

import re

import pytest

from tests.manifests import KUBERNETES, container, environment, rendered

TABLE = re.search(
    r"^## Components\n(.*?)^## ", (KUBERNETES.parent / "README.md").read_text(), re.MULTILINE | re.DOTALL
)[1]
RULES = dict(re.findall(r"^\| `([\w-]+)` \|[^|]+\|([^|]*)\|", TABLE, re.MULTILINE))  # the third column, by component
OVERLAYS = [folder.name for folder in (KUBERNETES / "overlays").iterdir()]
SECRETS = {"username": "specdec", "password": "secret"}


def said(component, word):
    """Return the names that stand after a word in a component's third column."""
    clause = re.search(rf"{word} ((`[\w-]+`( and |, )?)+)", RULES[component])
    return re.findall(r"`([\w-]+)`", clause[1]) if clause else []


def fitting(overlay, without="own-redis"):
    """Return what the table lets stand together on an overlay, in an order that it allows."""
    names = [name for name in RULES if overlay in (said(name, "on") or OVERLAYS) and name != without]
    return sorted(names, key=lambda name: not said(name, "before"))


BEFORE = [(name, other) for name in RULES for other in said(name, "before")]
APART = [(name, other) for name in RULES for other in said(name, "not with")]
ELSEWHERE = [(name, overlay) for name in RULES for overlay in OVERLAYS if overlay not in (said(name, "on") or OVERLAYS)]


def test_the_table_is_understood():
    assert {name for name, rule in RULES.items() if rule.strip()} == {name for name, _ in BEFORE + APART + ELSEWHERE}
    assert sorted(APART) == sorted((other, name) for name, other in APART)
    assert ("draft-on-mig", "lookup-draft") in BEFORE
    assert ("jaeger", "local") in ELSEWHERE


@pytest.mark.parametrize("without", ["own-redis", "redis-tls"])
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_what_the_table_lets_stand_together_renders(overlay, without):
    assert rendered(overlay, *fitting(overlay, without))


@pytest.mark.parametrize(("component", "overlay"), ELSEWHERE)
def test_a_component_is_refused_by_an_overlay_that_it_is_not_for(component, overlay):
    with pytest.raises(AssertionError, match="error"):
        rendered(overlay, component)


@pytest.mark.parametrize(("later", "earlier"), [(name, other) for name, other in BEFORE])
def test_what_must_come_before_is_refused_after(later, earlier):
    assert rendered("heterogeneous-gpu", later, earlier)
    with pytest.raises(AssertionError, match="error"):
        rendered("heterogeneous-gpu", earlier, later)


@pytest.mark.parametrize("pair", APART)
def test_what_must_not_stand_together_is_refused(pair):
    with pytest.raises(AssertionError, match="error"):
        rendered("heterogeneous-gpu", *pair)


def test_otherwise_any_order_gives_the_same_settings():
    """The collector, for one, is not passed by when jaeger comes after it."""
    names = [name for name in fitting("heterogeneous-gpu") if not said(name, "before")]
    there, back = (rendered("heterogeneous-gpu", *order) for order in (names, names[::-1]))
    for service in ("coordinator", "draft", "target"):
        settings = environment(there, container(there, service), SECRETS)
        assert settings == environment(back, container(back, service), SECRETS)
        assert settings["OTEL_EXPORTER_OTLP_ENDPOINT"] == "http://collector:4317"
