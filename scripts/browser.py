"""The browser that the tests drive: an installed Chrome, Chromium or Edge.

``python scripts/browser.py`` installs Debian's chromium where there is none and apt may run, and names the command for
other systems.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

VARIABLE = "SMP_ADVISOR_BROWSER"
"""Path of a browser that takes the place of those below."""
PROGRAMS = ("google-chrome", "google-chrome-stable", "chromium", "chromium-browser", "microsoft-edge", "msedge")
APPLICATIONS = ("Google Chrome", "Chromium", "Microsoft Edge")
"""Programs on macOS, which has them in folders of their own."""
PACKAGES = ("chromium", "fonts-dejavu-core")  # Debian's chromium has no font of its own
INSTALL = {
    "apt-get": f"sudo apt-get install {' '.join(PACKAGES)}",
    "brew": "brew install --cask google-chrome",
    "dnf": "sudo dnf install chromium",
}


def installed() -> str:
    """The path of the browser, "" if there is none."""
    if chosen := os.environ.get(VARIABLE):
        return shutil.which(chosen) or ""
    applications = (f"/Applications/{name}.app/Contents/MacOS/{name}" for name in APPLICATIONS)
    return next(filter(None, map(shutil.which, (*PROGRAMS, *applications))), "")


def missing() -> str:
    """The programs and the command that the browser tests require, "" if the browser is there."""
    if installed():
        return ""
    if chosen := os.environ.get(VARIABLE):
        return f"a browser, and {VARIABLE}={chosen} is no program"
    ways = [command for program, command in INSTALL.items() if shutil.which(program)]
    return f"Chrome, Chromium or Edge ({ways[0] if ways else f'on the PATH, or its path in {VARIABLE}'})"


def install() -> None:
    """Install Debian's chromium, as root, or by a sudo without a password."""
    as_root = [] if os.geteuid() == 0 else ["sudo", "-n"]
    if not shutil.which("apt-get") or (as_root and subprocess.run([*as_root, "true"], check=False).returncode):
        return
    print("installing chromium")
    command = [*as_root, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-qq"]
    subprocess.run([*command, "update"], check=True)
    arguments = ["install", "--yes", "--no-install-recommends", *PACKAGES]
    subprocess.run([*command, *arguments], check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    if missing() and not os.environ.get(VARIABLE):
        install()
    if lacking := missing():
        sys.exit(f'the browser tests need {lacking}; make test WITHOUT="browser" leaves them out')
