"""Pages of HTML that are complete in themselves."""

import base64
import io
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from PIL import Image

from dali_pipes.tools.drawing.svg import PALETTE

STYLE = PALETTE + Path(__file__).with_name("page.css").read_text()


def render(template: Path, **values: Any) -> str:
    """Fills a template of Jinja, which extends shell.html; `style` is the CSS of all pages."""
    # a misspelled name in the template raises an error instead of printing nothing
    pages = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    return pages.from_string(template.read_text()).render(style=STYLE, **values)


def picture(image: Image.Image) -> str:
    """Returns a small picture as a data URI, since a page contains its pictures."""
    image = image.copy()
    image.thumbnail((160, 160))
    out = io.BytesIO()
    image.save(out, "WEBP", quality=90)
    return f"data:image/webp;base64,{base64.b64encode(out.getvalue()).decode()}"
