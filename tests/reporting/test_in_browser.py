"""The page in headless Chromium: nothing is wider than the window."""

import re
import shutil
import subprocess

import numpy as np
import pytest

import keras_calib as kc

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FRAME = """<!DOCTYPE html><html><body style="margin:0">
<iframe src="report.html" style="width:{width}px;height:900px;border:0">
</iframe><script>
window.onload = () => {{
  const page = document.querySelector("iframe").contentDocument;
  const root = page.documentElement;
  const wide = [...page.querySelectorAll("p, li, h1, h2, h3, svg")].filter(
    each => each.getBoundingClientRect().right > {width} + 1);
  const color = getComputedStyle(page.querySelector("main")).backgroundColor;
  document.title = [root.scrollWidth, wide.length, color].join(";");
}};
</script></body></html>"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(12), size=600)
    labels = rng.integers(0, 12, 600)
    report = kc.report(
        {"a model with quite a long name, and_no_blanks_in_its_end": p},
        y=labels,
        groups=np.arange(600) % 3,
        class_names=[f"class number {k}" for k in range(12)],
        num_resamples=20,
    )
    found = tmp_path_factory.mktemp("report")
    report.save(found / "report.html")
    return found


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_nothing_overflows(folder, width, dark):
    page = folder / f"frame_{width}.html"
    page.write_text(FRAME.format(width=width))
    found = subprocess.run(
        [
            *(CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu"),
            # So that the frame's document can be read.
            "--allow-file-access-from-files",
            f"--blink-settings=preferredColorScheme={0 if dark else 1}",
            f"--user-data-dir={folder / 'profile'}",
            *("--window-size=1400,1000", "--virtual-time-budget=5000"),
            *("--dump-dom", page.as_uri()),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    ).stdout
    (title,) = re.findall("<title>(.+?)</title>", found)
    scroll, wide, color = title.split(";")
    assert int(scroll) <= width
    assert wide == "0"
    assert color == ("rgb(27, 29, 32)" if dark else "rgb(255, 255, 255)")
