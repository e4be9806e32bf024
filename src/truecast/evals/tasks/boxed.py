r"""The answer in the last ``\boxed{}`` of a reply, and whether it equals the one that was wanted.

The steps are those of NeMo-Skills' grader for mathematics: whole numbers as such; then normalised LaTeX as text; then
math-verify's symbolic comparison, and never that for an answer which is plain words.
"""

from __future__ import annotations

import re

_OPENING = "\\boxed{"
_WORDS = re.compile(r"[a-zA-Z ,]+")
_WHOLE = re.compile(r"([+-]?)0*([0-9]+)")
_PERCENT = re.compile(r"([0-9]+(?:\.[0-9]*)?)(?:\\%|%)")
LONGEST = 1000
"""Characters of an answer beyond which it is compared as text alone: a model that repeats itself must not stop the run."""
_MATHEMATICS = re.compile(r"\$.*\$|\\\(.*\\\)|\\\[.*\\\]|\\boxed\{", re.DOTALL)


def last_boxed(text: str) -> str | None:
    """What the last box holds; None where there is none, or it is not closed."""
    at = text.rfind("\\boxed")
    if at < 0 or not text.startswith(_OPENING, at):
        return None
    depth = 0
    for end in range(at, len(text)):
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        if depth == 0 and text[end] == "}":
            return text[at + len(_OPENING) : end]
    return None


def equal(wanted: str, given: str | None) -> bool:
    """Is the answer right? Needs math-verify where the two are not plain whole numbers."""
    if given is None:
        return False
    wanted, given = _tidied(wanted), _tidied(given)
    left, right = (_whole(text) for text in (wanted, given))
    if left is not None and right is not None:
        return left == right
    if len(given) > LONGEST:
        return wanted == given
    from latex2sympy2_extended import NormalizationConfig, normalize_latex
    from math_verify import LatexExtractionConfig, parse, verify

    plain, other = (normalize_latex(text, NormalizationConfig()).replace(" ", "") for text in (wanted, given))
    if plain == other:
        return True
    if _WORDS.fullmatch(plain) and _WORDS.fullmatch(other):
        return False
    gold, said = (parse(_as_latex(text), [LatexExtractionConfig()]) for text in (wanted, given))
    return bool(verify(gold, said))


def _tidied(text: str) -> str:
    percent = _PERCENT.fullmatch(text)
    return (percent[1] if percent else text).rstrip(".\\")


def _whole(text: str) -> str | None:
    """A whole number's digits with its sign; None for anything else. As text: Python converts no more than 4300 digits."""
    found = _WHOLE.fullmatch(text.strip())
    if found is None:
        return None
    return f"-{found[2]}" if found[1] == "-" and found[2] != "0" else found[2]


def _as_latex(text: str) -> str:
    return text if _MATHEMATICS.search(text) else f"${text}$"
