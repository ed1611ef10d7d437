"""RESULTS.md: a section is replaced alone, and nothing else moves."""

import pytest

from benchmarks.results import PREFACE, BrokenSection, with_section, write_section

TWO = with_section(with_section("", "pair:one", "first\n"), "load", "second\n")


def test_a_new_file_begins_with_its_preface():
    assert TWO.startswith(PREFACE)
    assert TWO.endswith("<!-- load -->\nsecond\n<!-- /load -->\n")


def test_a_section_is_replaced_and_the_others_stay():
    expected = TWO.replace("first", "new\n\ntext")
    assert with_section(TWO, "pair:one", "\nnew\n\ntext\n\n") == expected
    assert with_section(TWO, "load", "second") == TWO


def test_text_around_the_sections_stays():
    text = TWO.replace("<!-- load -->", "By hand.\n\n<!-- load -->") + "\nThe end.\n"
    assert with_section(text, "load", "other") == text.replace("second", "other")


def test_a_name_that_begins_like_another_is_another():
    assert with_section(TWO, "pair:on", "third") == TWO + "\n<!-- pair:on -->\nthird\n<!-- /pair:on -->\n"


@pytest.mark.parametrize("damage", ["<!-- load -->\n", "<!-- /load -->\n"])
def test_damaged_markers_are_refused(damage):
    with pytest.raises(BrokenSection):
        with_section(TWO.replace(damage, ""), "load", "new")
    with pytest.raises(BrokenSection):
        with_section(TWO + damage, "load", "new")


@pytest.mark.parametrize("name", ["a--b", "a>b", "a\nb"])
def test_a_name_that_would_end_the_marker_is_refused(name):
    with pytest.raises(ValueError, match="comment"):
        with_section("", name, "text")


def test_a_file_is_made_and_then_kept(tmp_path):
    path = tmp_path / "RESULTS.md"
    write_section(path, "pair:one", "first")
    write_section(path, "load", "second")
    assert path.read_text() == TWO
