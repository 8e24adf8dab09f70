r"""Regular expressions of tokenizer.json, which are Oniguruma's, in JavaScript's spelling.

The two differ in what a class means (``\s``, ``\d``, ``.``), in flags for a part of an expression, and in what only one
of them has. Whatever is not known to mean the same in both raises ValueError.
"""

import re

CATEGORIES = {
    *("L", "Lu", "Ll", "Lt", "Lm", "Lo", "M", "Mn", "Mc", "Me", "N", "Nd", "Nl", "No", "S", "Sm", "Sc", "Sk", "So"),
    *("P", "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "Z", "Zs", "Zl", "Zp", "C", "Cc", "Cf"),
}
SCRIPTS = {"Han", "Hiragana", "Katakana", "Hangul", "Latin", "Cyrillic", "Greek", "Arabic", "Hebrew", "Thai"}
WORD = r"\p{Alphabetic}\p{M}\p{Nd}\p{Pc}"
CLASSES = {"s": r"\p{White_Space}", "S": r"\P{White_Space}", "d": r"\p{Nd}", "D": r"\P{Nd}"}
CONTROLS = {"n": r"\n", "r": r"\r", "t": r"\t", "f": r"\f", "v": r"\v"}
FOLDED = {"s": "\u017f", "k": "\u212a"}  # letters that are an s or a k where case does not matter
LIGATURES = ("ss", "ff", "fi", "fl", "st")  # which match one character there: ß and the like
SPECIAL = set(r"\^$.*+?()[]{}|/-")
ESCAPE = re.compile(r"\\(?:([pP])\{(\^?)(\w+)\}|x([0-9a-fA-F]{2})|x\{([0-9a-fA-F]{1,6})\}|u([0-9a-fA-F]{4})|(.))", re.S)
GROUP = re.compile(r"\((?:\?(?:[:=!]|<[=!]|i:))?(?!\?)")
QUANTIFIER = re.compile(r"(?:[*+?]|\{\d+,\d*\}|\{,\d+\})\??|\{\d+\}")


def literal(text: str) -> str:
    """An expression that matches this text only."""
    return "".join(f"\\{c}" if c in SPECIAL - {"-"} else c for c in text)


def browser_regex(pattern: str) -> str:
    """The source of an expression for the flag u. Raises ValueError that names what JavaScript lacks."""
    made: list[str] = []
    folds = [False]  # for each open group, whether case matters not
    run = ""  # the letters just before, where it does not
    position = 0
    while position < len(pattern):
        rest = pattern[position:]
        sign = rest[0]
        taken = 1
        letters = ""
        if sign == "\\":
            found = ESCAPE.match(rest)
            if found is None:
                raise _lacks(rest, pattern)
            made.append(_escape(found, pattern, inside=False))
            taken = found.end()
        elif sign == "[":
            text, taken = _character_class(rest, pattern, folds[-1])
            made.append(text)
        elif sign == "(":
            found = GROUP.match(rest)
            if found is None:
                raise _lacks(rest, pattern)
            folds.append(folds[-1] or found[0] == "(?i:")
            made.append("(?:" if found[0] in ("(", "(?i:") else found[0])
            taken = found.end()
        elif sign == ")":
            if len(folds) == 1:
                raise _lacks(rest, pattern)
            folds.pop()
            made.append(sign)
        elif quantifier := QUANTIFIER.match(rest):
            taken = quantifier.end()
            if rest[taken : taken + 1] in ("+", "?", "*"):
                raise _lacks(quantifier[0] + rest[taken], pattern)  # possessive, or another meaning
            made.append(quantifier[0].replace("{,", "{0,"))
        elif sign in ".^$|":
            made.append({".": r"[^\n]", "^": r"(?<![^\n])", "$": r"(?![^\n])", "|": "|"}[sign])
        else:
            letters = sign if folds[-1] else ""
            made.append(_folded(sign, pattern) if folds[-1] else literal(sign))
        run = run + letters if letters else ""
        if run.lower().endswith(LIGATURES):
            raise _lacks(f"(?i:{run})", pattern)
        position += taken
    if len(folds) > 1:
        raise _lacks("(", pattern)
    return "".join(made)


def _lacks(part: str, pattern: str) -> ValueError:
    return ValueError(f"it splits words by {pattern!r}, and a browser lacks {part[:12]!r}")


def _escape(found: re.Match[str], pattern: str, inside: bool) -> str:
    kind, negated, name, two, several, four, sign = found.groups()
    if kind:
        if negated:
            kind = "p" if kind == "P" else "P"
        if name in CATEGORIES:
            return rf"\{kind}{{{name}}}"
        if name in SCRIPTS:
            return rf"\{kind}{{Script={name}}}"
    elif digits := two or several or four:
        return rf"\u{{{digits}}}"
    elif sign in CLASSES:
        return CLASSES[sign]
    elif sign == "w":
        return WORD if inside else f"[{WORD}]"
    elif sign == "W" and not inside:
        return f"[^{WORD}]"
    elif sign in CONTROLS:
        return CONTROLS[sign]
    elif not sign.isalnum():
        return f"\\{sign}" if sign in SPECIAL and (inside or sign != "-") else sign
    raise _lacks(found[0], pattern)


def _folded(letter: str, pattern: str) -> str:
    """A letter in either case."""
    if not letter.isascii():
        raise _lacks(f"(?i:{letter})", pattern)
    if not letter.isalpha():
        return literal(letter)
    return f"[{letter.lower()}{letter.upper()}{FOLDED.get(letter.lower(), '')}]"


def _character_class(rest: str, pattern: str, folds: bool) -> tuple[str, int]:
    """The class that ``rest`` begins with, and its length."""
    made = ["["]
    position = 1
    if rest[1:2] == "^":
        made.append("^")
        position = 2
    if rest[position : position + 1] == "]":
        raise _lacks(rest, pattern)
    while position < len(rest):
        sign = rest[position]
        if sign == "]":
            return "".join(made) + "]", position + 1
        if sign == "[" or rest.startswith("&&", position):
            raise _lacks(rest[position:], pattern)
        if sign == "\\":
            found = ESCAPE.match(rest, position)
            if found is None:
                raise _lacks(rest[position:], pattern)
            made.append(_escape(found, pattern, inside=True))
            position = found.end()
            continue
        if folds and sign.isalpha():
            raise _lacks(f"(?i:[{sign}])", pattern)
        made.append(f"\\{sign}" if sign in SPECIAL - {"-"} else sign)
        position += 1
    raise _lacks(rest, pattern)
