"""The live page of a master, in a real browser."""

import pathlib
import shutil
import subprocess
import sys

import pytest

SCRIPT = pathlib.Path(__file__).parents[2] / "deploy" / "check_page.py"


@pytest.mark.skipif(not shutil.which("chromium"), reason="no Chromium; `make check-page` installs it")
def test_page_is_live_and_safe_in_a_browser(tmp_path):
    command = [sys.executable, SCRIPT, tmp_path, sys.executable, "-m", "tiffin"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    pictures = {path.name: path.stat().st_size for path in tmp_path.glob("*.png")}
    assert set(pictures) == {"login.png", "light.png", "dark.png", "phone.png", "phone-dark.png"}
    assert all(size > 5_000 for size in pictures.values()), pictures
