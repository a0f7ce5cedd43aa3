"""What can be wrong with a command or with the data, said so that its reader can act on it."""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from samplewise.asr.errors import UserError
from samplewise.asr.writing import ONLY_WRITING, append_line, read_json_lines

LOG = logging.getLogger("samplewise")


@dataclass(frozen=True)
class BadData:
    """One utterance that cannot be used.

    Attributes:
        key: which one: a path, or a manifest and its line.
        reason: the kind of fault, the same words for all of its kind, to be counted.
        detail: what was found, with its numbers.
    """

    key: str
    reason: str
    detail: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", printable(self.key))
        object.__setattr__(self, "detail", printable(self.detail))

    def __str__(self) -> str:
        return f"{self.key}: {self.reason}" + (f" ({self.detail})" if self.detail else "")


class BadDataError(Exception):
    """Raised where an utterance proves unusable; `problem` tells which and why."""

    def __init__(self, key: str, reason: str, detail: str = ""):
        self.problem = BadData(key, reason, detail)
        super().__init__(str(self.problem))

    def __reduce__(self) -> tuple:  # an exception of three arguments has to say how it crosses to another process
        return (BadDataError, (self.problem.key, self.problem.reason, self.problem.detail))


@contextlib.contextmanager
def named(key: str, reason: str = "unreadable recording") -> Iterator[None]:
    """Make whatever a reader raises a problem of the utterance `key`.

    What damaged files do to the libraries that read them cannot be listed, so here, and only here, everything is caught.

    Raises:
        BadDataError: for any exception but those that speak to the user already, and those of a disk that takes no more.
    """
    try:
        yield
    except (BadDataError, UserError):
        raise
    except Exception as error:
        if getattr(error, "errno", None) in ONLY_WRITING:  # libraries write too, and no utterance is to blame for that
            raise
        LOG.debug("%s: %s", key, reason, exc_info=True)  # it may be a fault of ours
        words = getattr(error, "error_string", None) or f"{type(error).__name__}: {error}".rstrip(": ")
        raise BadDataError(key, reason, words) from error


def printable(text: str) -> str:
    """Text that can be written as UTF-8: names of files that are not are told by their bytes, as `\\udcff`."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


class BadDataLog:
    """Counts the utterances left out; refuses the first one where the recipe says `on_bad_data: raise`.

    With a `path` every new problem is also a line of that JSON-lines file. Data-loader workers and ranks append
    to the same file, and a resumed run goes on with it, so the report at the end tells of all of them.
    """

    def __init__(self, policy: str = "skip", path: Path | None = None):
        self.policy = policy
        self.path = path
        self._seen: dict[tuple[str, str], BadData] = {}

    def add(self, problem: BadData) -> None:
        """Note the problem once; raise UserError if bad data is refused."""
        if self.policy == "raise":
            raise UserError(
                f"{problem}\nThis recipe refuses bad data (on_bad_data: raise); repair or remove the utterance, "
                "or set on_bad_data: skip to leave such utterances out."
            )
        where = (problem.key, problem.reason)
        if where in self._seen:
            return
        self._seen[where] = problem
        if self.path is not None:
            append_line(self.path, asdict(problem))

    def problems(self) -> list[BadData]:
        """All problems so far, those noted by other processes included."""
        found = dict(self._seen)
        if self.path is not None and self.path.exists():
            for line in read_json_lines(self.path, leave_out="broken"):
                with contextlib.suppress(TypeError, AttributeError):  # a line that is none of these
                    problem = BadData(**line)
                    found.setdefault((problem.key, problem.reason), problem)
        return list(found.values())

    def counts(self) -> dict[str, int]:
        """How many utterances were left out for each reason."""
        return dict(Counter(problem.reason for problem in self.problems()).most_common())

    def report(self, examples: int = 3) -> str:
        """A few lines for the end of a run; empty when nothing was left out."""
        problems = self.problems()
        if not problems:
            return ""
        utterances = len({problem.key for problem in problems})
        lines = [f"skipped {utterances} utterance{'s' if utterances > 1 else ''}:", *listing(problems, examples)]
        if self.path is not None:
            lines.append(f"  all of them are listed in {self.path}")
        return "\n".join(lines)


def listing(problems: Sequence[BadData], examples: int = 3) -> list[str]:
    """Indented lines: how many problems of each kind, and some of them by name."""
    lines = []
    for reason, count in Counter(problem.reason for problem in problems).most_common():
        some = [problem for problem in problems if problem.reason == reason][:examples]
        lines.append(f"  {count} x {reason}")
        lines += [f"    {problem.key}" + (f": {problem.detail}" if problem.detail else "") for problem in some]
        if count > len(some):
            lines.append(f"    and {count - len(some)} more")
    return lines
