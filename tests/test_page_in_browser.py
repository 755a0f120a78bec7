"""Tests of the page in a real browser: by keyboard, on a phone, in the dark, hostile."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from kernels_async import Build, render_page
from kernels_async._threads import in_thread
from tests.builds import artifact, built, large
from tests.test_page import hostile

pytestmark = pytest.mark.asyncio(loop_scope="module")

LARGE, SMALL, BEFORE = large(), large(6), large(30, failing=())
WIDE = built(artifact("a" * 300, defines={"B" * 200: "c" * 200}))
HOSTILE = hostile()
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
AXE = os.environ.get("KERNELS_ASYNC_AXE")

CONTRASTS = """() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (color) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = color;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const luminance = (color) => {
    const [r, g, b] = rgba(color).slice(0, 3).map((c) => {
      c /= 255;
      return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    const bar = element.closest(".bar");
    if (bar) {
      const fill = getComputedStyle(bar.querySelector("rect")).fill;
      if (!fill.startsWith("url")) return fill;
    }
    for (let e = element; e; e = e.parentElement) {
      const color = getComputedStyle(e).backgroundColor;
      if (rgba(color)[3] === 255) return color;
    }
    return "white";
  };
  const poor = [];
  let seen = 0;
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || ["SCRIPT", "title"].includes(element.tagName)) continue;
    if (!element.checkVisibility()) continue;
    const style = getComputedStyle(element);
    const front = luminance(element instanceof SVGElement ? style.fill : style.color);
    const back = luminance(behind(element));
    const ratio = (Math.max(front, back) + 0.05) / (Math.min(front, back) + 0.05);
    seen += 1;
    if (ratio < 4.5) poor.push(`${ratio.toFixed(2)}: ${walker.currentNode.data.trim()}`);
  }
  return { seen, poor };
}"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def chromium() -> AsyncIterator[Any]:
    """A headless Chromium; where there is none, the test skips, or fails in CI."""
    try:
        from playwright.async_api import async_playwright
    except ImportError:
        missing = "playwright is not installed"
    else:
        missing = "" if CHROMIUM else "there is no chromium"
    if missing:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(missing)
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=CHROMIUM,
            args=["--no-sandbox"] if os.geteuid() == 0 else [],
        )
        yield browser
        await browser.close()


class Opener:
    """Opens pages from files; they must be quiet and ask the network for nothing."""

    def __init__(self, browser: Any, folder: Path) -> None:
        self._browser = browser
        self._folder = folder

    @asynccontextmanager
    async def __call__(
        self,
        build: Build,
        before: Build | None = None,
        *,
        width: int = 1400,
        **context: Any,
    ) -> AsyncIterator[Any]:
        """A page of a build."""
        file = self._folder / "build.html"
        file.write_text(await in_thread(render_page, build, before))
        told: list[str] = []
        view = {"width": width, "height": 800}
        opened = await self._browser.new_context(viewport=view, **context)
        page = await opened.new_page()
        page.on("console", lambda message: told.append(message.text))
        page.on("pageerror", lambda error: told.append(str(error)))
        page.on("dialog", lambda dialog: told.append(dialog.message))
        page.on("request", lambda request: told.append(request.url))
        await page.goto(file.as_uri())
        yield page
        assert set(told) == {file.as_uri()}
        await opened.close()


@pytest.fixture
def opened(chromium: Any, tmp_path: Path) -> Opener:
    """What opens a page."""
    return Opener(chromium, tmp_path)


async def symbols(page: Any) -> list[str]:
    """The kernels that the table shows, from top to bottom."""
    shown: list[str] = await page.evaluate(
        "[...document.querySelectorAll('#kernels tbody')].filter(b => !b.hidden)"
        ".map(b => b.querySelector('summary code').textContent)"
    )
    return shown


async def column(page: Any, number: int) -> list[float]:
    """What one column of the table is sorted by; what has no value is left out."""
    values: list[float] = await page.evaluate(
        "n => [...document.querySelectorAll('#kernels .row')]"
        ".map(r => r.cells[n].dataset.v).filter(v => v !== undefined).map(Number)",
        number,
    )
    return values


async def test_every_column_sorts_by_keyboard(opened: Opener) -> None:
    """Each head is a button; the direction is said, and turns round."""
    async with opened(LARGE) as page:
        heads = page.locator("#kernels thead th")
        buttons = page.locator("#kernels thead th > button")
        assert await heads.count() == await buttons.count() == 15
        await buttons.nth(3).focus()
        assert "solid" in await buttons.nth(3).evaluate("b => getComputedStyle(b).outline")
        for order, turned in (("descending", True), ("ascending", False)):
            await page.keyboard.press("Enter")
            registers = await column(page, 3)
            assert registers == sorted(registers, reverse=turned)
            assert len(registers) == 23
            assert await heads.nth(3).get_attribute("aria-sort") == order
        assert (await symbols(page))[-1] == "attention<float, 5>"  # it failed
        await buttons.nth(0).focus()
        await page.keyboard.press("Space")
        names = await symbols(page)
        assert names[:2] == ["attention<float, 5>", "attention<float, 11>"]
        assert await page.locator("[aria-sort]").count() == 1
        sorted_by = []
        for _ in range(15):
            await page.keyboard.press("Enter")
            sorted_by.append(await page.locator("[aria-sort]").inner_text())
            await page.keyboard.press("Tab")
        assert len(set(sorted_by)) == 15


async def test_the_table_filters_by_text_and_by_state(opened: Opener) -> None:
    """Any of the pressed troubles, any of the pressed origins, all of the words."""
    async with opened(LARGE) as page:
        box = page.get_by_role("searchbox")
        status = page.locator("#filter output")
        await box.fill("softmax BLOCK=32")
        assert set(await symbols(page)) == {"softmax<float, 0>"}
        assert await status.text_content() == "1 of 24 kernels"
        await box.press("Escape")
        assert len(await symbols(page)) == 24

        failed, spills, disk = (
            page.locator(f"#filter button[data-token={token}]")
            for token in ("failed", "spills", "disk")
        )
        await failed.press("Enter")
        assert await symbols(page) == ["attention<float, 5>"]
        await spills.press("Space")
        assert await spills.get_attribute("aria-pressed") == "true"
        assert len(await symbols(page)) == 3
        await failed.press("Enter")
        await disk.press("Enter")
        assert await symbols(page) == []
        assert await page.get_by_text("No kernel is like that.").is_visible()


async def test_a_kernel_opens_by_keyboard(opened: Opener) -> None:
    """Its warning with the source line, its occupancy, its key; also from a finding."""
    async with opened(LARGE) as page:
        more = page.locator("#more1")
        assert not await more.is_visible()
        await page.locator("#k1 summary").press("Enter")
        assert await more.is_visible()
        assert "int unused;" in await more.inner_text()
        assert await more.locator(".plot").is_visible()
        await page.get_by_role("searchbox").fill("softmax")
        await page.locator("#findings a").first.press("Enter")
        failed = page.locator("tbody.failing .more")
        assert await failed.is_visible()
        assert 'identifier "tile" is undefined' in await failed.inner_text()


async def test_the_timeline_is_one_stop_and_is_walked_with_arrows(opened: Opener) -> None:
    """The details of a bar show with the focus, and go with it."""
    async with opened(LARGE) as page:
        tip = page.locator("#tip")
        assert await page.locator(".chart [tabindex='0']").count() == 1
        await page.locator(".chart [tabindex='0']").focus()
        assert "compiling 1 s" in await tip.inner_text()
        first = await tip.inner_text()
        await page.keyboard.press("ArrowRight")
        assert await tip.inner_text() != first
        await page.keyboard.press("ArrowDown")
        assert "(worker 2" in await tip.inner_text()
        await page.keyboard.press("Escape")
        assert not await tip.is_visible()
        await page.keyboard.press("Enter")
        assert await page.evaluate("document.activeElement.localName") == "summary"

        width = "document.querySelector('.chart').getBoundingClientRect().width"
        before = await page.evaluate(width)
        await page.get_by_role("button", name="Zoom in").press("Enter")
        assert await page.evaluate(width) == pytest.approx(before * 2, rel=0.01)
        await page.locator(".bar.compiling").first.hover()
        assert await tip.is_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_every_text_has_contrast(opened: Opener, scheme: str) -> None:
    """At least 4.5 to 1, in both colour schemes, with everything open."""
    async with opened(LARGE, BEFORE, color_scheme=scheme) as page:
        await page.evaluate(
            "document.querySelectorAll('details').forEach(d => d.open = true)"
        )
        found = await page.evaluate(CONTRASTS)

        assert found["poor"] == []
        assert found["seen"] > 1000


@pytest.mark.parametrize("scripts", [True, False])
async def test_a_phone_scrolls_the_page_in_one_direction(
    opened: Opener, scripts: bool
) -> None:
    """At 360 pixels; the table and the timeline scroll in themselves."""
    found = replace(WIDE, kernels=(*WIDE.kernels, *HOSTILE.kernels, *SMALL.kernels))
    async with opened(found, SMALL, width=360, java_script_enabled=scripts) as page:
        for number in range(4):
            await page.locator(f"#k{number} summary").press("Enter")
        await page.mouse.wheel(300, 0)
        sizes = await page.locator("html").evaluate(
            "e => [e.scrollWidth, e.clientWidth, e.scrollLeft]"
        )
        assert sizes == [360, 360, 0]


async def test_hostile_names_are_inert(opened: Opener) -> None:
    """Nothing runs, nothing is fetched, nothing is an element."""
    async with opened(HOSTILE, HOSTILE) as page:
        await page.evaluate(
            "document.querySelectorAll('details').forEach(d => d.open = true)"
        )
        await page.get_by_role("searchbox").fill("onerror")
        assert len(await symbols(page)) == 2
        assert await page.locator("img").count() == 0
        assert "</script><img" in (await symbols(page))[0]


async def test_a_page_is_read_without_javascript(opened: Opener) -> None:
    """The table, the timeline and each kernel's details are there; no dead buttons."""
    async with opened(LARGE, java_script_enabled=False) as page:
        assert await page.get_by_role("row").count() == 25
        assert await page.locator(".bar").count() > 60
        assert not await page.get_by_role("button").filter(visible=True).count()
        await page.locator("#k1 summary").press("Enter")
        assert await page.locator("#more1 .plot").is_visible()
        assert "int unused;" in await page.locator("#more1").inner_text()


async def test_print_leaves_out_what_paper_cannot_do(opened: Opener) -> None:
    """No buttons and no filter; every kernel is printed."""
    async with opened(LARGE) as page:
        await page.get_by_role("searchbox").fill("softmax")
        await page.emulate_media(media="print")
        await page.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert not await page.locator(".tools:visible").count()
        assert len(await symbols(page)) == 24


@pytest.mark.skipif(not AXE, reason="KERNELS_ASYNC_AXE does not name axe.min.js")
@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_axe_finds_no_fault(opened: Opener, scheme: str) -> None:
    """The rules of axe-core, with everything open."""
    async with opened(LARGE, BEFORE, color_scheme=scheme) as page:
        await page.add_init_script(path=AXE)
        await page.reload()
        await page.evaluate(
            "document.querySelectorAll('details').forEach(d => d.open = true)"
        )
        found = await page.evaluate(
            "axe.run().then(r => r.violations.map(v => [v.id, v.nodes[0].html]))"
        )
        assert found == []
