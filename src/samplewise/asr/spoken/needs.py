"""The voices there are, and what has to be installed for them."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Sequence

FLITE = ("slt", "rms", "awb", "kal16")
PIPER = ("joe",)
VOICES = ("slt", "joe", "rms", "awb", "kal16")
MODULES = ("soundfile", "soxr", "rich")  # of the train extra, which that of speech holds
PIPER_MODULES = ("piper", "onnxruntime", *(f"{voice}_us_piper_voice" for voice in PIPER))


def lacking(voices: Sequence[str], texts: str | None) -> list[str]:
    """What has to be installed first, all of it, a line each."""
    commands = [("flite", "flite", set(voices) & set(FLITE)), ("bible-kjv", "bible", texts is None)]
    packages = [package for package, command, wanted in commands if wanted and shutil.which(command) is None]
    modules = (*MODULES, *(PIPER_MODULES if set(voices) & set(PIPER) else ()))
    absent = [module for module in modules if importlib.util.find_spec(module) is None]
    lines = [f"apt-get install {' '.join(packages)}"] if packages else []
    return lines + ([f"pip install 'samplewise[speech]' ({', '.join(absent)})"] if absent else [])
