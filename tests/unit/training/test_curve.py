"""The curve's drawings."""

import xml.etree.ElementTree as ET

from training.curve import Point, best, svg, text_plot


def curve_of(values):
    return [Point(step, 100 * step, value) for step, value in enumerate(values)]


def test_the_plot_rises_with_the_curve():
    lines = text_plot(curve_of([0.1, 0.2, 0.3])).splitlines()
    assert lines[0] == " 0.300 │  █"
    assert lines[3] == "       │  █"
    assert lines[4] == "       │ ██"
    assert lines[7] == " 0.100 │ ██"
    assert lines[-1] == "     α └─── 200 tokens"


def test_long_curves_are_thinned_to_the_width_first_and_last_point_included():
    curve = curve_of([0.9, *[0.5] * 500, 0.1])
    top, *_, bottom, _ = text_plot(curve, width=20).splitlines()
    assert top == " 0.900 │█" + " " * 19
    assert bottom == " 0.100 │" + "█" * 19 + " "


def test_a_curve_of_one_point_can_be_drawn():
    assert "0.250" in text_plot(curve_of([0.25]))
    ET.fromstring(svg(curve_of([0.25])))


def test_the_image_has_a_point_for_each_of_the_curve():
    (line,) = ET.fromstring(svg(curve_of([0.1, 0.3, 0.2]))).iter("{http://www.w3.org/2000/svg}polyline")
    heights = [float(place.split(",")[1]) for place in line.attrib["points"].split()]
    assert heights[1] < heights[2] < heights[0]  # up is less


def test_the_earliest_of_equal_points_is_the_best():
    assert best(curve_of([0.1, 0.3, 0.3, 0.2])).step == 1
