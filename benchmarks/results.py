"""RESULTS.md: one generated section a measurement, between markers, so that each can be made anew alone."""

from pathlib import Path

RESULTS = Path(__file__).with_name("RESULTS.md")
PREFACE = """\
# Measurements

Each section is written by the command it names; nothing here is edited by hand.
"""


class BrokenSection(Exception):
    """A section's markers are not one opening and one closing, in this order."""


def check_name(name: str) -> str:
    """Return a section's name, if it can stand in a marker.

    Raises:
        ValueError: it cannot.
    """
    if "--" in name or ">" in name or "\n" in name:
        raise ValueError(f"{name!r} cannot stand in an HTML comment")
    return name


def with_section(text: str, name: str, body: str) -> str:
    """Return the file's text with one section put in place of its former self, or at the end; others stay as they are.

    Args:
        text: of the file; empty where there is none.
        name: of the section, such as ``pair:smollm2``.
        body: of the section, in Markdown.

    Raises:
        ValueError: the name cannot stand in a marker.
        BrokenSection: the file's markers of this section are damaged.
    """
    check_name(name)
    opening, closing = f"<!-- {name} -->\n", f"<!-- /{name} -->\n"
    section = f"{opening}{body.strip()}\n{closing}"
    text = text or PREFACE
    if opening not in text and closing not in text:
        return f"{text.rstrip()}\n\n{section}"
    if text.count(opening) != 1 or text.count(closing) != 1 or text.index(closing) < text.index(opening):
        raise BrokenSection(f"the markers of {name} do not stand once and in order")
    before, rest = text.split(opening)
    return before + section + rest.split(closing)[1]


def write_section(path: Path, name: str, body: str) -> None:
    """Put a section into a file, which is made if needed."""
    text = path.read_text() if path.exists() else ""
    path.write_text(with_section(text, name, body))
