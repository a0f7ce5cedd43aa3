"""Where methods run: ours in this environment, each peer in one of its own that borrows what it lacks from this one."""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from samplewise.asr.writing import saving
from samplewise.bench.errors import BenchError
from samplewise.bench.machine import version_of
from samplewise.bench.names import Method
from samplewise.bench.peers.registry import BY_METHOD, PEERS, Peer
from samplewise.cache import cache_directory

PYBIND11 = "pybind11==2.13.6"
CXX_STANDARD = 20  # that of torch's headers; the peers' own build files ask for less
ASK = "import importlib.metadata as m, torch, {module}; print(m.version('{distribution}'), torch.__version__)"


class Place(NamedTuple):
    """The interpreter that can run a method, and the versions of what is particular to it."""

    python: str
    versions: dict[str, str]


def environment_of(peer: Peer) -> Path:
    return cache_directory() / "envs" / peer.name


def python_in(environment: Path) -> Path:
    return environment / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def here() -> Place:
    return Place(sys.executable, {})


def place_of(method: str) -> Place | str:
    """Where a method can run, or why it cannot."""
    base = Method.parse(method).base
    return locate(BY_METHOD[base]) if base in BY_METHOD else here()


@functools.cache
def locate(peer: Peer) -> Place | str:
    python = python_in(environment_of(peer))
    if python.exists():
        found = ask(str(python), peer)
        return Place(str(python), found) if isinstance(found, dict) else f"broken: {found}"
    try:
        there = importlib.util.find_spec(peer.module) is not None
    except (ImportError, ValueError):
        there = False
    if there:
        return Place(sys.executable, {peer.distribution: version_of(peer.distribution)})
    return f"not installed: `samplewise bench install {peer.name}`; it needs {peer.needs}"


def ask(python: str, peer: Peer) -> dict[str, str] | str:
    """The versions of a peer and its torch, or the last line of what it says when it is imported."""
    distribution = "torch" if not peer.requirements else peer.distribution  # one given by a path has no metadata
    code = ASK.format(module=peer.module, distribution=distribution)
    done = subprocess.run([python, "-c", code], capture_output=True, text=True)
    if done.returncode:
        return (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
    version, torch_version = done.stdout.split()[-2:]
    return {peer.distribution: version if peer.requirements else "given by path", "torch": torch_version}


def install(name: str, path: str | None, say: Callable[[str], None]) -> None:
    """Make the peer's environment and put the peer into it; raise BenchError with what went wrong."""
    if name not in PEERS:
        raise BenchError(f"unknown peer {name!r}; there are {', '.join(PEERS)}")
    peer = PEERS[name]
    say(f"{name} needs {peer.needs}")
    if path is None and not peer.requirements:
        raise BenchError(f"{name} is not on PyPI for this torch: give --path DIRECTORY")
    if path is not None and not Path(path).is_dir():
        raise BenchError(f"{path}: no such directory")
    for tool in ("cmake", "c++") if peer.build and path is None else ():
        if shutil.which(tool) is None:
            raise BenchError(f"{name} is built from source, and there is no {tool} here")
    directory = environment_of(peer)
    with saving(directory):
        create(directory, path)
        if path is None:
            pip(directory, peer, say)
    locate.cache_clear()
    found = locate(peer)
    if isinstance(found, str):
        raise BenchError(f"{name} is installed but cannot be imported: {found.removeprefix('broken: ')}")
    say(f"{name}: {', '.join(f'{key} {value}' for key, value in found.versions.items())} in {directory}")


def create(directory: Path, path: str | None) -> None:
    """A bare environment. What it does not have itself is taken from the present one, which comes later on its path."""
    shutil.rmtree(directory, ignore_errors=True)
    venv.create(directory, with_pip=False, symlinks=os.name != "nt")
    site = site_packages(directory)
    borrowed = dict.fromkeys((sysconfig.get_path("purelib"), sysconfig.get_path("platlib")))
    (site / "borrow.pth").write_text("".join(f"import site; site.addsitedir({folder!r})\n" for folder in borrowed))
    if path is not None:
        (site / "given.pth").write_text(f"{Path(path).resolve()}\n")


def site_packages(directory: Path) -> Path:
    scheme = {"base": str(directory), "platbase": str(directory)}
    return Path(sysconfig.get_path("purelib", "nt" if os.name == "nt" else "posix_prefix", scheme))


def pip(directory: Path, peer: Peer, say: Callable[[str], None]) -> None:
    log = directory / "install.log"
    command = [sys.executable, "-m", "pip", "--python", str(python_in(directory)), "install", "--disable-pip-version-check"]
    if not any(requirement.startswith("torch==") for requirement in peer.requirements):  # that which is borrowed stays
        kept = directory / "constraints.txt"
        kept.write_text(f"torch=={version_of('torch')}\n")
        command += ["--constraint", str(kept)]
    variables = dict(os.environ)
    with log.open("w") as file:
        if peer.build:
            run([*command, PYBIND11, "setuptools", "wheel"], variables, file)
            variables.update(cmake_variables(directory))
            command += ["--no-build-isolation", "--no-cache-dir", "--verbose"]
        say(f"installing {' '.join(peer.requirements)}; the log is {log}")
        code = run([*command, *peer.requirements], variables, file)
    if code:
        errors = [line for line in log.read_text(errors="replace").splitlines() if "error" in line.lower()]
        raise BenchError(f"{peer.name} could not be installed: {(errors or ['see the log'])[0].strip()} ({log})")


def run(command: list[str], variables: dict[str, str], log) -> int:
    return subprocess.run(command, env=variables, stdout=log, stderr=subprocess.STDOUT).returncode


def cmake_variables(directory: Path) -> dict[str, str]:
    """Fit for builds that ask for C++14 and fetch pybind11 from the network: the standard of torch, the pybind11 of PyPI."""
    stub = directory / "cmake"
    stub.mkdir()
    (stub / "CMakeLists.txt").write_text("# in place of the sources of pybind11, which project.cmake has found\n")
    (stub / "project.cmake").write_text(f"set(CMAKE_CXX_STANDARD {CXX_STANDARD})\nfind_package(pybind11 CONFIG REQUIRED)\n")
    options = {
        "CMAKE_BUILD_TYPE": "Release",
        "CMAKE_PROJECT_INCLUDE": stub / "project.cmake",
        "FETCHCONTENT_SOURCE_DIR_PYBIND11": stub,
        "pybind11_DIR": site_packages(directory) / "pybind11" / "share" / "cmake" / "pybind11",
        "PYTHON_INCLUDE_DIRS": sysconfig.get_path("include"),
    }
    common = " ".join(f"-D{key}={value}" for key, value in options.items())
    return {
        "FT_CMAKE_ARGS": f"{common} -DFT_BUILD_TESTS=OFF -DFT_WITH_CUDA=OFF",
        "OT_CMAKE_ARGS": f"{common} -DOT_WITH_CUDA=OFF",
        "MAKEFLAGS": f"-j{os.cpu_count() or 1}",
    }
