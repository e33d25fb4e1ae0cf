"""Names in pictures, with letters that Matplotlib's own font lacks."""

import numpy as np
import pytest
import torch
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen
from PIL import Image

import dali_pipes as dp
from dali_pipes.backends.base import Batch
from dali_pipes.tools.drawing import fonts
from dali_pipes.tools.drawing.svg import svg
from dali_pipes.tools.preview.picture import draw
from dali_pipes.tools.scan.picture import save_picture

CHINESE = ["猫", "犬", "дом"]


def box(width):
    pen = TTGlyphPen(None)
    pen.moveTo((100, 0))
    for point in ((100, 700), (width, 700), (width, 0)):
        pen.lineTo(point)
    pen.closePath()
    return pen.glyph()


def save_font(file, letters):
    """A font that has a box of its own width for each letter."""
    names = {ord(letter): f"letter{number}" for number, letter in enumerate(letters)}
    glyphs = {".notdef": box(200)} | {
        name: box(400 + 200 * number) for number, name in enumerate(names.values())
    }
    font = FontBuilder(1000, isTTF=True)
    font.setupGlyphOrder(list(glyphs))
    font.setupCharacterMap(names)
    font.setupGlyf(glyphs)
    font.setupHorizontalMetrics(dict.fromkeys(glyphs, (1000, 100)))
    font.setupHorizontalHeader(ascent=800, descent=-200)
    font.setupNameTable({"familyName": file.stem, "styleName": "Regular"})
    font.setupOS2()
    font.setupPost()
    font.save(file)


@pytest.fixture
def installed(monkeypatch, tmp_path):
    """Makes a font with these letters the only one that is installed, beside Matplotlib's own."""

    def install(letters):
        files = [tmp_path / "no_font.ttf"]
        files[0].write_bytes(b"no font")
        if letters:
            files.append(tmp_path / "Installed.ttf")
            save_font(files[1], letters)
        monkeypatch.setattr(fonts, "findSystemFonts", lambda: list(map(str, files)))

    known = list(fonts.fontManager.ttflist)
    yield install
    fonts.fontManager.ttflist[:] = known


def preview(classes):
    images = torch.full((len(classes), 3, 160, 160), 100, dtype=torch.uint8)
    numbers = torch.arange(len(classes))
    transform = dp.EvalTransform(size=160, resize=160, dtype="uint8")
    return np.asarray(draw(Batch(images, numbers, numbers, {}, {}), transform, classes))


def scan(folder, classes):
    for name in classes:
        (folder / "images" / name).mkdir(parents=True)
        Image.new("RGB", (32, 24)).save(folder / "images" / name / "a.jpg")
    return dp.Manifest.scan(folder / "images")


def test_an_installed_font_writes_what_the_own_one_lacks(installed):
    installed("猫犬")
    found = fonts.find_fonts(CHINESE)
    assert found.name(CHINESE) == CHINESE and found.note(CHINESE) == ""
    assert not np.array_equal(preview(CHINESE), preview(["class 0", "class 1", "дом"]))
    assert not np.array_equal(preview(["猫"]), preview(["犬"]))


def test_without_such_a_font_a_class_has_its_number(installed):
    installed("犬")
    found = fonts.find_fonts(CHINESE)
    assert found.name(CHINESE) == ["class 0", "犬", "дом"]
    assert found.note(CHINESE).endswith("the picture shows numbers: class 0 is 猫")
    assert np.array_equal(preview(CHINESE), preview(["class 0", "犬", "дом"]))

    many = ["猫"] * 20
    assert found.note(many).endswith(", class 11 is 猫, and 8 more")


def test_a_text_has_a_sign_for_each_letter_that_is_lacking(installed):
    installed("")
    found = fonts.find_fonts(["猫 cat\n"])
    assert found.readable("猫 cat\n") == "\ufffd cat\n" and not found.lack("\ufffd a\u200db\ufe0f")


# a letter that no font has is a warning of Matplotlib's, which fails the test
@pytest.mark.parametrize("letters", ["", "猫犬"])
@pytest.mark.parametrize("ending", ["png", "svg"])
def test_a_picture_of_a_scan_lacks_no_letter(installed, tmp_path, letters, ending):
    installed(letters)
    manifest = scan(tmp_path / "目", CHINESE)
    note = save_picture(manifest, tmp_path / f"picture.{ending}")
    assert note == fonts.find_fonts(CHINESE).note(manifest.classes)
    assert bool(note) == (not letters)


def test_a_chart_of_a_page_leaves_the_letters_to_the_browser():
    drawn = svg("chart", lambda axes: axes.set_title("猫"), 2)
    assert "猫</text>" in drawn


def test_a_font_that_matplotlib_does_not_know_yet_is_told_to_it(installed):
    installed("猫")
    assert fonts.find_fonts(["猫"]).families == ["DejaVu Sans", "Installed"]
    assert "Installed" in {font.name for font in fonts.fontManager.ttflist}
