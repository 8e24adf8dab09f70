"""What `python` is for the lines that tests/docs/test_typed.py types: the same command on a faster watch.

Each limit stays of its kind, minutes or steps, because a training by minutes takes another way than one by steps.
"""

import os
import re
import sys

MINUTES = 1 / 200  # of those that a page gives
DEFAULT_MINUTES = "0.05"  # where a page gives no limit
MOST = {"--max_steps": 10, "--steps": 4}


def shorter(words: list[str]) -> list[str]:
    """The arguments of a command that takes seconds."""
    words = [part for word in words for part in re.sub(r"^(--(?:minutes|max_steps|steps))=", r"\1\n", word).split("\n")]
    for place, flag in enumerate(words[:-1]):
        if flag == "--minutes":
            words[place + 1] = str(max(0.03, float(words[place + 1]) * MINUTES))
        elif flag in MOST:
            words[place + 1] = str(min(MOST[flag], int(words[place + 1])))
    given = set(words)
    if words[:1] == ["train.py"] and not given & {"--minutes", "--max_steps", "--resume", "--help"}:
        fixed = any(word.startswith("configs/") for word in words)
        return [*words, "--max_steps", str(MOST["--max_steps"])] if fixed else [*words, "--minutes", DEFAULT_MINUTES]
    if words[:3] == ["-m", "study", "compare"] and not given & {"--dry", "--steps", "--help"}:
        fewer = [] if "--schemes" in given else ["--schemes", "rope", "t5", "--seeds", "1"]
        return [*words, *fewer, "--steps", str(MOST["--steps"])]
    return words


if __name__ == "__main__":
    os.execv(sys.executable, [sys.executable, *shorter(sys.argv[1:])])
