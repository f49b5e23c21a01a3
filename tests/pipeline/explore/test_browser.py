"""The pages in a real browser: the script runs under the policy, markup in data does not."""

import re
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.explore.explorer import Explorer
from pipeline.explore.server import Gate, make_app
from tests.pipeline.explore.conftest import TOKEN

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright (pip)")
uvicorn = pytest.importorskip("uvicorn")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-headless-shell"))), None)
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="needs chromium or chromium-headless-shell, such as Debian's"
)


@pytest.fixture
def address(hostile_run: Path) -> Iterator[str]:
    """The address of a server in this process."""
    from pipeline.commands.explore import _listen

    explorer = Explorer(hostile_run)
    listener = _listen(0)
    host = f"127.0.0.1:{listener.getsockname()[1]}"
    gate = Gate(make_app(explorer), TOKEN, frozenset({host}))
    config = uvicorn.Config(gate, log_level="error", lifespan="off", ws="none")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    yield f"http://{host}"
    server.should_exit = True
    thread.join()
    explorer.close()


def test_a_person_looks_at_a_run(address: str) -> None:
    """Filters by dragging over bars, opens a document; nothing in a text is carried out."""
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        trouble: list[str] = []
        page.on("console", lambda message: trouble.append(message.text))
        page.on("dialog", lambda dialog: trouble.append(dialog.message))
        page.on("request", lambda r: r.url.startswith(address) or trouble.append(r.url))
        page.goto(f"{address}/?token={TOKEN}")
        assert page.url == f"{address}/documents"
        total = _count(page)
        box = page.locator(".bars").bounding_box()
        page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 20)
        page.mouse.down()
        page.mouse.move(box["x"] + 0.8 * box["width"], box["y"] + 20)
        page.mouse.up()
        page.wait_for_url("**/documents?*range=text_bytes*")
        assert 0 < _count(page) < total
        page.goto(f"{address}/documents?q=perilous+markup")
        page.locator("tr.about a").first.click()
        page.wait_for_url(re.compile("/documents/[0-9a-f]{32}$"))
        assert "<script>alert(1)</script>" in page.locator("#text pre").inner_text()
        assert page.locator("#tokens b").count() > 10
        colours = page.evaluate("getComputedStyle(document.querySelector('.tokens b')).background")
        assert "rgb" in colours, "the style sheet is there"
        assert trouble == []
        browser.close()


def _count(page: Any) -> int:
    return int(page.locator("#total").inner_text().replace(",", ""))
