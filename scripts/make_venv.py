"""Make a virtual environment and install the pinned requirements and this project into it.

Usage: python3 scripts/make_venv.py DIRECTORY REQUIREMENTS_FILE

Debian's bare python3 has `venv` but not `ensurepip`; there the environment is made without pip and pip itself is
taken from PyPI, a pinned wheel checked by its sha256.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

PIP_URL = "https://files.pythonhosted.org/packages/44/3c/d717024885424591d5376220b5e836c2d5293ce2011523c9de23ff7bf068/pip-25.3-py3-none-any.whl"
PIP_SHA256 = "9655943313a94722b7774661c21049070f6bbb0a1516bf02f7c8d5d9201514cd"


def main(directory: str, requirements: str) -> None:
    python = Path(directory) / "bin" / "python"
    if not python.exists() or not has_pip(python):
        create(directory, python)
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    print(f"installing {requirements} into {directory} (a few minutes the first time) ...", flush=True)
    subprocess.run([*install, "-r", requirements], check=True)
    subprocess.run([*install, "--no-deps", "--no-build-isolation", "-e", "."], check=True)


def has_pip(python: Path) -> bool:
    return subprocess.run([str(python), "-m", "pip", "--version"], capture_output=True).returncode == 0


def create(directory: str, python: Path) -> None:
    made = subprocess.run([sys.executable, "-m", "venv", directory], capture_output=True, text=True)
    if made.returncode == 0:
        return
    print("python3 has no ensurepip here; taking pip from PyPI", flush=True)
    subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", directory], check=True)
    with tempfile.TemporaryDirectory() as folder:
        wheel = Path(folder) / PIP_URL.rsplit("/", 1)[1]
        with urllib.request.urlopen(PIP_URL, timeout=120) as answer:
            content = answer.read()
        digest = hashlib.sha256(content).hexdigest()
        if digest != PIP_SHA256:
            raise SystemExit(f"{PIP_URL}: sha256 is {digest}, expected {PIP_SHA256}")
        wheel.write_bytes(content)
        env = {**os.environ, "PYTHONPATH": str(wheel)}
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", str(wheel)], check=True, env=env)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    main(sys.argv[1], sys.argv[2])
