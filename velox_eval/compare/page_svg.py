"""A figure as SVG inside the page: no ids that repeat, no comments, colours that follow light and dark."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from typing import Any

from velox_eval.compare import plot_labels, plot_style
from velox_eval.runs.figures import INK, as_svg

_SVG, _LINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
_DRAWN = ("g", "path", "use", "text", "tspan", "image", "clipPath", "defs", "rect", "style")

# Colour of a plot -> custom property of the page, which has a light and a dark value.
THEME = {
    **{colour: f"--line-{index}" for index, colour in enumerate(plot_style.PALETTE)},
    plot_style.BASELINE: "--ink",
    plot_labels.SOFT: "--soft",
    plot_labels.FAINT: "--faint",
    plot_labels.FRONT: "--front",
    INK: "--line-0",
    "#ffffff": "--paper",
}
_COLOUR = re.compile("|".join(map(re.escape, THEME)))


def inline_svg(figure: Any, prefix: str) -> str:
    """Returns the figure as an SVG element; `prefix` makes its ids unique in the page, its title is read aloud."""
    root = ET.fromstring(as_svg(figure))
    view = root.get("viewBox", "")
    ids = {element.get("id", ""): f"{prefix}-{index}" for index, element in enumerate(_defined(root))}
    root = _element(root, ids)
    root.attrib = {"viewBox": view, "role": "img", "aria-label": f"plot: {figure.texts[0].get_text()}"}
    ET.register_namespace("", _SVG)
    ET.register_namespace("xlink", _LINK)
    return ET.tostring(root, encoding="unicode")


def _defined(root: ET.Element) -> Iterator[ET.Element]:
    """Elements that others refer to."""
    return (element for element in root.iter() if element.get("id") and _kind(element) != "g")


def _element(element: ET.Element, ids: dict[str, str]) -> ET.Element:
    copy = ET.Element(element.tag)
    copy.text = element.text
    for name, value in element.attrib.items():
        if name == "id":
            if value in ids:
                copy.set("id", ids[value])
        elif name in ("href", f"{{{_LINK}}}href"):
            target = ids.get(value.removeprefix("#"))
            if target is not None or value.startswith("data:image/png;base64,"):
                copy.set("href", f"#{target}" if target is not None else value)
        else:
            value = re.sub(r"url\(#([^)]*)\)", lambda match: f"url(#{ids.get(match[1], '')})", value)
            copy.set(name, _COLOUR.sub(lambda match: f"var({THEME[match[0]]})", value))
    if _kind(element) == "style":
        copy.text = None
    for child in element:
        if isinstance(child.tag, str) and _kind(child) in _DRAWN:
            copy.append(_element(child, ids))
    return copy


def _kind(element: ET.Element) -> str:
    return element.tag.rpartition("}")[2]
