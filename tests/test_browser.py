"""The browser that drives the pages is found, or what to install is said."""

import pytest

from scripts import browser


@pytest.mark.parametrize(
    ("programs", "answer"),
    [
        (["chromium", "msedge"], ""),
        (["brew"], "Chrome, Chromium or Edge (brew install --cask google-chrome)"),
        (["dnf"], "Chrome, Chromium or Edge (sudo dnf install chromium)"),
        ([], "Chrome, Chromium or Edge (on the PATH, or its path in SMP_ADVISOR_BROWSER)"),
    ],
)
def test_an_installed_browser_is_found_or_its_package_named(programs, answer, tmp_path, monkeypatch):
    for name in [*programs, "mine"]:
        (tmp_path / name).touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(browser, "APPLICATIONS", ())
    monkeypatch.delenv(browser.VARIABLE, raising=False)
    assert browser.missing() == answer
    monkeypatch.setenv(browser.VARIABLE, "mine")
    assert browser.installed() == str(tmp_path / "mine")
    monkeypatch.setenv(browser.VARIABLE, "another")
    assert browser.missing() == "a browser, and SMP_ADVISOR_BROWSER=another is no program"
