r"""Translation of the regular expressions of a tokenizer.json from Oniguruma to JavaScript.

The two define ``\s``, ``\d``, ``.`` and inline flags differently, and each has features that the other lacks. An
expression without a known translation raises ValueError.
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
FOLDED = {"s": "\u017f", "k": "\u212a"}  # ſ and the Kelvin sign, which match s and k if case is ignored
# If case is ignored, each of these also matches a single character in Oniguruma: (?i:ss) matches ß.
LIGATURES = ("ss", "ff", "fi", "fl", "st")
SPECIAL = set(r"\^$.*+?()[]{}|/-")
ESCAPE = re.compile(r"\\(?:([pP])\{(\^?)(\w+)\}|x([0-9a-fA-F]{2})|x\{([0-9a-fA-F]{1,6})\}|u([0-9a-fA-F]{4})|(.))", re.S)
GROUP = re.compile(r"\((?:\?(?:[:=!]|<[=!]|i:))?(?!\?)")
QUANTIFIER = re.compile(r"(?:[*+?]|\{\d+,\d*\}|\{,\d+\})\??|\{\d+\}")


def literal(text: str) -> str:
    """An expression that matches exactly this text."""
    return "".join(f"\\{c}" if c in SPECIAL - {"-"} else c for c in text)


def browser_regex(pattern: str) -> str:
    """The same expression for JavaScript's flag u. Raises ValueError that names the unsupported part."""
    parts: list[str] = []
    ignores_case = [False]  # for each open group
    letters = ""  # the unbroken run of case-insensitive letters that ends here, to find ligatures
    position = 0
    while position < len(pattern):
        rest = pattern[position:]
        character = rest[0]
        length = 1
        letter = ""
        if character == "\\":
            escape = ESCAPE.match(rest)
            if escape is None:
                raise _unsupported(rest, pattern)
            parts.append(_escape(escape, pattern, in_class=False))
            length = escape.end()
        elif character == "[":
            part, length = _character_class(rest, pattern, ignores_case[-1])
            parts.append(part)
        elif character == "(":
            group = GROUP.match(rest)
            if group is None:
                raise _unsupported(rest, pattern)
            ignores_case.append(ignores_case[-1] or group[0] == "(?i:")
            parts.append("(?:" if group[0] in ("(", "(?i:") else group[0])
            length = group.end()
        elif character == ")":
            if len(ignores_case) == 1:
                raise _unsupported(rest, pattern)
            ignores_case.pop()
            parts.append(character)
        elif quantifier := QUANTIFIER.match(rest):
            length = quantifier.end()
            # A second quantifier is possessive (a++), or means something else in JavaScript (a{2}?).
            if rest[length : length + 1] in ("+", "?", "*"):
                raise _unsupported(quantifier[0] + rest[length], pattern)
            parts.append(quantifier[0].replace("{,", "{0,"))
        elif character in ".^$|":
            parts.append({".": r"[^\n]", "^": r"(?<![^\n])", "$": r"(?![^\n])", "|": "|"}[character])
        elif ignores_case[-1]:
            letter = character
            parts.append(_either_case(character, pattern))
        else:
            parts.append(literal(character))
        letters = letters + letter if letter else ""
        if letters.lower().endswith(LIGATURES):
            raise _unsupported(f"(?i:{letters})", pattern)
        position += length
    if len(ignores_case) > 1:
        raise _unsupported("(", pattern)
    return "".join(parts)


def _unsupported(part: str, pattern: str) -> ValueError:
    return ValueError(f"it splits words by {pattern!r}, and the page cannot translate {part[:12]!r} to JavaScript")


def _escape(escape: re.Match[str], pattern: str, in_class: bool) -> str:
    """The translation of an escape sequence, inside or outside a character class."""
    kind, negated, name, two_digits, any_digits, four_digits, character = escape.groups()
    code = two_digits or any_digits or four_digits
    if kind:
        if negated:
            kind = "p" if kind == "P" else "P"
        if name in CATEGORIES:
            return rf"\{kind}{{{name}}}"
        if name in SCRIPTS:
            return rf"\{kind}{{Script={name}}}"
    elif code:
        return rf"\u{{{code}}}"
    elif character in CLASSES:
        return CLASSES[character]
    elif character == "w":
        return WORD if in_class else f"[{WORD}]"
    elif character == "W" and not in_class:
        return f"[^{WORD}]"
    elif character in CONTROLS:
        return CONTROLS[character]
    elif not character.isalnum():
        needs_escape = character in SPECIAL and (in_class or character != "-")
        return f"\\{character}" if needs_escape else character
    raise _unsupported(escape[0], pattern)


def _either_case(letter: str, pattern: str) -> str:
    """An expression that matches a letter in either case."""
    if not letter.isascii():
        raise _unsupported(f"(?i:{letter})", pattern)
    if not letter.isalpha():
        return literal(letter)
    return f"[{letter.lower()}{letter.upper()}{FOLDED.get(letter.lower(), '')}]"


def _character_class(rest: str, pattern: str, ignores_case: bool) -> tuple[str, int]:
    """The translation of the class at the start of ``rest``, and the length of the untranslated class."""
    parts = ["["]
    position = 1
    if rest[1:2] == "^":
        parts.append("^")
        position = 2
    if rest[position : position + 1] == "]":
        raise _unsupported(rest, pattern)
    while position < len(rest):
        character = rest[position]
        if character == "]":
            return "".join(parts) + "]", position + 1
        if character == "[" or rest.startswith("&&", position):
            raise _unsupported(rest[position:], pattern)
        if character == "\\":
            escape = ESCAPE.match(rest, position)
            if escape is None:
                raise _unsupported(rest[position:], pattern)
            parts.append(_escape(escape, pattern, in_class=True))
            position = escape.end()
            continue
        if ignores_case and character.isalpha():
            raise _unsupported(f"(?i:[{character}])", pattern)
        parts.append(f"\\{character}" if character in SPECIAL - {"-"} else character)
        position += 1
    raise _unsupported(rest, pattern)
