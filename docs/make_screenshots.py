"""Takes the pictures of the tutorials in a real browser, from a run and a training run of theirs.

pip install playwright
python docs/make_screenshots.py DIRECTORY     # in which the first two tutorials were done
python docs/make_screenshots.py DIRECTORY --chromium /usr/bin/chromium

Needs playwright, Pillow and Debian's chromium; playwright's own browser is not used.
"""

import argparse
import io
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

IMAGES = Path(__file__).with_name("images")
LARGEST = 200_000
"""Bytes of a picture."""
COLOURS = 128


@dataclass(frozen=True)
class Picture:
    """A part of a page: `page` is below the directory, `start` a selector of what is at the top."""

    name: str
    page: str
    start: str
    height: int


PICTURES = (
    Picture("run_report", "runs/mine/report.html", "body", 760),
    Picture("clusters", "runs/mine/clusters.html", "#clusters", 760),
    Picture("training_report", "runs/small/report.html", "body", 700),
)


def take(directory: Path, chromium: str, width: int) -> list[Path]:
    """Write every picture and return their paths. Nothing is fetched but the pages themselves."""
    from playwright.sync_api import sync_playwright

    written = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for picture in PICTURES:
            page = browser.new_page(
                viewport={"width": width, "height": picture.height}, color_scheme="light"
            )
            page.goto((directory / picture.page).resolve().as_uri())
            page.locator(picture.start).first.evaluate("element => element.scrollIntoView()")
            path = IMAGES / f"{picture.name}.png"
            path.write_bytes(quantised(page.screenshot()))
            written.append(path)
            page.close()
        browser.close()
    return written


def quantised(png: bytes) -> bytes:
    """The picture with a palette, which a page of text and charts loses nothing by."""
    from PIL import Image

    out = io.BytesIO()
    Image.open(io.BytesIO(png)).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(
        out, "PNG", optimize=True
    )
    return out.getvalue()


def main(arguments: Sequence[str] | None = None) -> int:
    """Take them; exit code 1 where one is too large."""
    parser = argparse.ArgumentParser(prog="python docs/make_screenshots.py", description=__doc__)
    parser.add_argument("directory", type=Path, help="where runs/mine and runs/small are")
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    parser.add_argument("--width", type=int, default=1100)
    options = parser.parse_args(arguments)
    IMAGES.mkdir(exist_ok=True)
    sizes = {p: p.stat().st_size for p in take(options.directory, options.chromium, options.width)}
    for path, size in sizes.items():
        print(f"{path.name}: {size:,} bytes")
    return int(max(sizes.values()) > LARGEST)


if __name__ == "__main__":
    sys.exit(main())
