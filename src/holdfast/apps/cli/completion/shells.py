"""How bash, zsh and fish ask, and how they are answered.

A shell calls the program with `_HOLDFAST_COMPLETE=<shell>_complete` and what was typed so far; each
line of the answer is `=` with an offer behind it, or `file` or `folder`: let the shell offer those.
bash is given offers as they must stand on the line, quoted, because it inserts them as they are;
zsh and fish quote by themselves.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

VARIABLE: Final = "_HOLDFAST_COMPLETE"
_IN_DOUBLE_QUOTES: Final = {**{char: f"\\{char}" for char in '"\\$`'}, "!": '"\\!"'}
_BREAKS: Final = ":=@"
"""bash takes these for the end of a word, also within one ($COMP_WORDBREAKS)."""
_BARE: Final = frozenset("%+,-./_~:=@")

SCRIPTS: Final = {
    "bash": """\
_holdfast_complete() {
    local answer
    COMPREPLY=()
    while IFS= read -r answer; do
        case $answer in
            =*) COMPREPLY+=("${answer#=}") ;;
            file) compopt -o default 2>/dev/null ;;
            folder) compopt -o dirnames 2>/dev/null ;;
        esac
    done < <(_HOLDFAST_COMPLETE=bash_complete COMP_LINE="${COMP_LINE:0:COMP_POINT}" \\
        "$1" 2>/dev/null)
}
complete -o nosort -F _holdfast_complete holdfast 2>/dev/null || \\
    complete -F _holdfast_complete holdfast
""",
    "zsh": """\
#compdef holdfast
_holdfast_complete() {
    local -a offers answers typed
    local answer
    typed=("${(@Q)words[2,CURRENT-1]}" "${(Q)PREFIX}")
    answers=("${(@f)$(_HOLDFAST_COMPLETE=zsh_complete COMP_WORDS="${(pj:\\n:)typed}" \\
        ${words[1]} 2>/dev/null)}")
    for answer in $answers; do
        case $answer in
            '='*) offers+=("${answer#=}") ;;
            file) _files ;;
            folder) _files -/ ;;
        esac
    done
    (( $#offers )) && compadd -V holdfast -a offers
}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    _holdfast_complete "$@"
else
    compdef _holdfast_complete holdfast
fi
""",
    "fish": """\
function _holdfast_complete
    set -l word (commandline -ct)
    for quote in '' \\" \\'
        if set -l plain (string unescape -- "$word$quote")
            set word $plain
            break
        end
    end
    set -l typed (commandline -opc)[2..-1] "$word"
    set -lx COMP_WORDS (string join \\n -- $typed end | string collect)
    set -lx _HOLDFAST_COMPLETE fish_complete
    for answer in (holdfast 2>/dev/null)
        switch $answer
            case '=*'
                string sub -s 2 -- $answer
            case file
                __fish_complete_path (commandline -ct)
            case folder
                __fish_complete_directories (commandline -ct)
        end
    end
end
complete --no-files --command holdfast --arguments "(_holdfast_complete)"
""",
}


class Typed(NamedTuple):
    """A line of bash up to the cursor."""

    words: list[str]
    """Without their quotes; the last one is being typed, and may be empty."""
    quote: str
    """The quote that is open in the last one."""
    raw: str
    """The last one as it stands on the line."""


def answer(environ: Mapping[str, str]) -> int | None:
    """Prints the offers and returns the exit code; None if that is no question of our scripts."""
    shell, _, asked = environ.get(VARIABLE, "").partition("_")
    if asked != "complete" or shell not in SCRIPTS:
        return None
    from holdfast.apps.cli.completion.offers import Offers
    from holdfast.rules.errors import HoldfastError

    words = json.loads((Path(__file__).parent / "words.json").read_bytes())
    if shell == "bash":
        typed = read_line(environ.get("COMP_LINE", ""))
    else:
        words_typed = environ.get("COMP_WORDS", "").split("\n")
        if shell == "fish":  # its script puts a word behind: a last one that is empty would be lost
            words_typed = words_typed[:-1]
        typed = Typed(["", *words_typed], "", "")
    try:
        kind, offers = Offers(words, environ).of(typed.words[1:] or [""])
    except (HoldfastError, OSError):
        return 0
    lines = [kind] if kind else []
    for offer in offers:
        lines.append(f"={as_typed(offer, typed) if shell == 'bash' else offer}")
    sys.stdout.buffer.write("".join(f"{line}\n" for line in lines).encode("utf-8", "replace"))
    return 0


def read_line(line: str) -> Typed:
    """The words of a line as bash reads them; forgiving, because it is not finished."""
    words, word, raw, quote, begun = [], "", "", "", False
    letters = iter(line)
    for char in letters:
        if not quote and char in " \t\n":
            if begun:
                words.append(word)
            word, raw, begun = "", "", False
            continue
        raw, begun = raw + char, True
        if char == "\\" and quote != "'":
            escaped = next(letters, "")
            raw += escaped
            word += escaped if not quote or escaped in '"\\$`' else char + escaped
        elif char == quote:
            quote = ""
        elif not quote and char in "'\"":
            quote = char
        else:
            word += char
    return Typed([*words, word], quote, raw)


def as_typed(offer: str, typed: Typed) -> str:
    """An offer as it must stand on the line of bash, in place of what bash takes for its word."""
    if typed.quote == '"':
        # An exclamation mark stands outside the quotes: within them it would bring back an older
        # command, and no backslash helps.
        quoted = "".join(_IN_DOUBLE_QUOTES.get(char, char) for char in offer)
    elif typed.quote:
        quoted = offer.replace("'", "'\\''")
    else:
        quoted = "".join(char if char.isalnum() or char in _BARE else f"\\{char}" for char in offer)
    if typed.quote:
        return quoted
    # bash has cut the word at these signs, and will put the offer behind the last of them.
    place = 0
    for _ in range(sum(typed.raw.count(sign) for sign in _BREAKS)):
        place = 1 + min(found for sign in _BREAKS if (found := quoted.find(sign, place)) >= 0)
    return quoted[place:]


def asked() -> bool:
    """Is a shell asking?"""
    return VARIABLE in os.environ
