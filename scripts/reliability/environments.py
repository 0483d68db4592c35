#!/usr/bin/env python3
"""Run tests as other machines would: without optional programs and libraries, as another user, in another language.

    scripts/reliability/environments.py [--only NAME ...] [--python FILE ...] [TESTS ...] [-- PYTEST OPTIONS ...]

Without TESTS the whole suite runs in each environment. Prints a table; the exit code is 1 if a test failed anywhere. An
environment that cannot be had here (no root, no such Python) is named in it.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NOBODY = 65534
SITE = """
import os, socket
from importlib.machinery import PathFinder

hidden, find = os.environ["HIDDEN_MODULES"].split(), PathFinder.find_spec
PathFinder.find_spec = classmethod(lambda cls, name, *rest: None if name.split(".")[0] in hidden else find(name, *rest))
if "NO_IPV6" in os.environ:
    socket.has_ipv6, found = False, socket.getaddrinfo
    # Addresses in numbers are understood without IPv6, too.
    socket.getaddrinfo = lambda host, *a, **k: [
        info for info in found(host, *a, **k) if info[0] != socket.AF_INET6 or ":" in str(host)
    ]

    class IPv4Socket(socket.socket):
        def __init__(self, family=-1, *rest, **names):
            if family == socket.AF_INET6:
                raise OSError(97, "Address family not supported by protocol")
            super().__init__(family, *rest, **names)

    socket.socket = IPv4Socket
"""
"""A `sitecustomize` module, which each Python process imports first."""


@dataclass(frozen=True)
class Environment:
    """How tests run.

    Args:
        programs, modules: executables and Python modules that are hidden.
        variables: of the process.
        prefix: command before the interpreter.
        python: the interpreter.
        folder: a clone of the repository, of its last commit, runs there.
    """

    name: str
    programs: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    variables: dict[str, str] = field(default_factory=dict)
    prefix: tuple[str, ...] = ()
    python: str = sys.executable
    folder: str = ""


def environments(pythons: list[str]) -> Iterator[Environment]:
    """All of them; the first one is this machine as it is. ``pythons``: further interpreters."""
    yield Environment("as it is")
    yield Environment("without ffmpeg", programs=("ffmpeg", "ffprobe"))
    yield Environment("without Chromium", programs=("chromium", "chromium-browser", "chromedriver"))
    yield Environment("without pillow-heif", modules=("pillow_heif",))
    yield Environment("without triton", modules=("triton",))
    # Both need root.
    user = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
    yield Environment("another user", prefix=user, folder="copy", variables={"HOME": "/tmp"})
    yield Environment("root without powers", prefix=("setpriv", "--inh-caps=-all", "--bounding-set=-all"))
    yield Environment("LC_ALL=C", variables={"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"})
    yield Environment("time zone of Chatham", variables={"TZ": "Pacific/Chatham"})
    # Nobody can write to /proc, not even root.
    caches = ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME")
    yield Environment("read-only home", variables=dict.fromkeys(("HOME", *caches), "/proc"))
    yield Environment("no IPv6", variables={"NO_IPV6": "1"})
    yield Environment("path with spaces", folder="a path with spaces and ä")
    for python in pythons:
        yield Environment(python, python=python)


def why_missing(environment: Environment) -> str:
    """Why an environment, or a process that it starts, cannot be had here; empty: it can."""
    child = "import os, sys; os.execv(sys.executable, [sys.executable, '-c', 'import cv2, pytest, torch, viser'])"
    words = [*environment.prefix, environment.python, "-c", child]
    if shutil.which(words[0]) is None:
        return f"there is no {words[0]}"
    tried = subprocess.run(words, capture_output=True, text=True, cwd="/", check=False)
    return "" if tried.returncode == 0 else (tried.stderr.strip().splitlines() or ["it does not start"])[-1]


def run(environment: Environment, tests: list[str], options: list[str], scratch: Path) -> tuple[bool | None, str]:
    """Whether the tests passed, None where they could not run; and pytest's last line."""
    if missing := why_missing(environment):
        return None, missing
    root, site, programs = ROOT, scratch / "site", scratch / "bin"
    for folder in (site, programs):
        folder.mkdir()
    (site / "sitecustomize.py").write_text(SITE, encoding="utf-8")
    if environment.folder:
        root = scratch / environment.folder
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(root)], check=True)
    for place in os.environ["PATH"].split(os.pathsep):
        for program in Path(place).glob("*"):
            if program.name not in environment.programs and not (programs / program.name).is_symlink():
                (programs / program.name).symlink_to(program)
    variables = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, (root / ".package", site, os.environ.get("PYTHONPATH", "")))),
        "PATH": str(programs) if environment.programs else os.environ["PATH"],
        "HIDDEN_MODULES": " ".join(environment.modules),
        **environment.variables,
    }
    if environment.folder == "copy":
        subprocess.run(["chown", "-R", f"{NOBODY}:{NOBODY}", str(scratch)], check=True)
    words = [*environment.prefix, environment.python, "-m", "pytest", "-p", "no:cacheprovider", "-rfE"]
    basetemp = scratch / ("base temp" if environment.folder else "temp")
    done = subprocess.run(
        [*words, f"--basetemp={basetemp}", *options, *tests], cwd=root, env=variables, capture_output=True, text=True
    )
    lines = done.stdout.strip().splitlines() or done.stderr.strip().splitlines() or ["no output"]
    failed = [line for line in lines if re.match(r"(FAILED|ERROR) ", line)]
    return done.returncode == 0, "\n    ".join([lines[-1], *failed])


def main() -> int:
    """Print the table; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tests", nargs="*", help="files and folders of tests; default: all")
    parser.add_argument("--only", action="append", metavar="NAME", help="this environment; may be repeated")
    parser.add_argument("--python", action="append", metavar="FILE", help="another interpreter with the packages")
    position = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    arguments, options = parser.parse_args(sys.argv[1:position]), sys.argv[position + 1 :]
    known = list(environments(arguments.python or ["python3.11", "python3.13"]))
    chosen = [each for each in known if not arguments.only or each.name in arguments.only]
    if not chosen:
        parser.error("no such environment; there are: " + ", ".join(each.name for each in known))
    ends = []
    for environment in chosen:
        with tempfile.TemporaryDirectory(prefix="environments-") as scratch:
            Path(scratch).chmod(0o755)
            passed, line = run(environment, arguments.tests, options, Path(scratch))
        ends.append(passed)
        print(f"{environment.name:22} {'-' if passed is None else 'green' if passed else 'RED':6} {line}", flush=True)
    return int(False in ends)


if __name__ == "__main__":
    raise SystemExit(main())
