"""Parse shell scripts far enough to know which commands they can run, without running them.

Comments, functions that nothing calls, and words that are only printed are no commands. What cannot be known from the
text, such as the value of a variable that comes from elsewhere, stays a `$`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence

import msgspec
from msgspec import Struct

_MOST_DEPTH = 5
"""Most levels of scripts within scripts: $(...), bash -c, eval."""
_MOST_VALUES = 8
"""Most values of a word whose variables have several."""
_OPERATORS = ("&&", "||", ";;&", ";;", ";&", "|&", "&>>", "&>", "<<<", "<<-", "<<", ">>", ">&", "<&", ">|", "<>",
              ";", "&", "|", "(", ")", "<", ">", "\n")  # fmt: skip
_REDIRECTIONS = frozenset({"&>>", "&>", "<<<", "<<-", "<<", ">>", ">&", "<&", ">|", "<>", "<", ">"})
_OPENING = frozenset({"if", "while", "until", "for", "select", "case"})
_CLOSING = frozenset({"fi", "done", "esac"})
_BETWEEN = frozenset({"then", "else", "elif", "do", "!", "time"})
_JOINING = frozenset({"&&", "||", "|", "|&"})
_FUNCTIONS = ("function {", "function (")
"""Blocks that are the body of a function, by their bracket."""
_BLANKS = " \t\r"
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)\+?=(.*)", re.DOTALL)
_ARRAY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=")
_VARIABLE = re.compile(r"\$(?:([A-Za-z_][A-Za-z0-9_]*)|\{([A-Za-z_][A-Za-z0-9_]*)(?::?[-=]([^}]*))?\})")
_DECLARES = frozenset({"export", "local", "declare", "readonly", "typeset"})
_PREFIXES = frozenset({"sudo", "env", "nohup", "timeout", "nice", "ionice", "exec", "command", "builtin", "setsid",
                       "stdbuf", "chrt", "taskset", "xargs"})  # fmt: skip
SHELLS = frozenset({"sh", "bash", "dash", "ksh", "zsh"})
"""The shells whose language is that of sh or bash."""


class ShellCommand(Struct, frozen=True):
    """One simple command that a script can run."""

    words: tuple[str, ...]
    """Its words without quotes; variables with a known value are replaced, `$(...)` stays as it is written."""
    function: str = ""
    """The function whose body it is in; empty: none."""
    is_certain: bool = True
    """True: it runs whenever its script or function does, in the same shell: not in a branch, a loop or a subshell,
    nor after &&, || or !."""
    stdin: str = ""
    """Its input from a here-document, a here-string or the command before it in a pipe."""
    writes_stdout: bool = True
    """True: its output goes where the script's does, not into a file, a pipe or a variable."""
    settings: tuple[tuple[str, str], ...] = ()
    """Variables that are set for this command alone."""

    @property
    def program(self) -> str:
        """The name of the program without its folder."""
        return self.words[0].rpartition("/")[2] if self.words else ""


class _Token(Struct, frozen=True):
    text: str
    is_operator: bool = False
    nested: tuple[str, ...] = ()
    """Texts of $(...) and `...` in a word."""
    quoted: bool = False


def commands(text: str, *, fills: bool = True) -> tuple[ShellCommand, ...]:
    """Return the commands that a script can run, in its order; those of functions that nothing calls are left out.

    fills: replace variables by every value that the script can give them; else they stay as they are written.
    """
    parser = _ShellParser()
    parser.read(text, "", is_certain=True, to_stdout=True, depth=0)
    values = {name: tuple(dict.fromkeys(found)) for name, found in parser.values.items()}
    known = [each for one in parser.found for each in _resolved(one, values if fills else {})]
    names = {one.function for one in known} | parser.functions
    bodies: dict[str, list[ShellCommand]] = {}
    for one in known:
        bodies.setdefault(one.function, []).append(one)
    called, left = {""}, [""]
    while left:
        for one in bodies.get(left.pop(), ()):
            reached = {one.words[0]} if one.words else set()
            if one.program == "trap":
                reached |= {word for argument in one.words[1:2] for word in re.split(r"[\s;]+", argument)}
            for name in (reached & names) - called:
                called.add(name)
                left.append(name)
    return tuple(one for one in known if one.function in called)


# --- Words -----------------------------------------------------------------------------------------------------------


def _tokens(text: str) -> Iterator[_Token]:
    """Yield words and operators; a here-document follows the newline's place as the word after `<<`."""
    at = 0
    waiting: list[tuple[int, str, bool]] = []
    tokens: list[_Token] = []
    while at < len(text):
        char = text[at]
        if text.startswith("\\\n", at):
            at += 2
        elif char in _BLANKS:
            at += 1
        elif char == "#":
            at = _line_end(text, at)
        else:
            operator = next((one for one in _OPERATORS if text.startswith(one, at)), "")
            if operator:
                at += len(operator)
                tokens.append(_Token(operator, is_operator=True))
                if operator == "\n" and waiting:
                    for place, end, strips in waiting:
                        body, at = _here_document(text, at, end, strips=strips)
                        tokens[place] = _Token(body, quoted=True)
                    waiting = []
            else:
                token, at = _word(text, at)
                last = tokens[-1].text if tokens and tokens[-1].is_operator else ""
                if last in ("<<", "<<-"):
                    waiting.append((len(tokens), token.text, last == "<<-"))
                tokens.append(token)
    yield from tokens


def _line_end(text: str, at: int) -> int:
    end = text.find("\n", at)
    return len(text) if end < 0 else end


def _here_document(text: str, at: int, end: str, *, strips: bool) -> tuple[str, int]:
    lines = []
    while at < len(text):
        stop = _line_end(text, at)
        line = text[at:stop]
        at = stop + 1
        line = line.lstrip("\t") if strips else line
        if line.rstrip("\r") == end:
            break
        lines.append(line)
    return "\n".join(lines), at


def _word(text: str, at: int) -> tuple[_Token, int]:
    parts: list[str] = []
    nested: list[str] = []
    quoted = False
    while at < len(text):
        char = text[at]
        if char == "(" and not quoted and _ARRAY.fullmatch("".join(parts)):
            end = _closing(text, at, "(", ")")
            parts.append(text[at : end + 1].replace("$", "\\$"))
            at = end + 1
            continue
        if char in _BLANKS or char in ";&|()<>\n":
            break
        if char == "\\":
            parts.append(text[at + 1 : at + 2].replace("\n", ""))
            at, quoted = at + 2, True
        elif char == "'":
            end = text.find("'", at + 1)
            end = len(text) if end < 0 else end
            parts.append(text[at + 1 : end].replace("$", "\\$"))
            at, quoted = end + 1, True
        elif char == '"':
            at, quoted = _double(text, at + 1, parts, nested), True
        elif char in "$`":
            at = _expansion(text, at, parts, nested)
        else:
            parts.append(char)
            at += 1
    return _Token("".join(parts), nested=tuple(nested), quoted=quoted), at


def _double(text: str, at: int, parts: list[str], nested: list[str]) -> int:
    while at < len(text) and text[at] != '"':
        if text[at] == "\\":
            parts.append("\\$" if text[at + 1 : at + 2] == "$" else text[at + 1 : at + 2].replace("\n", ""))
            at += 2
        elif text[at] in "$`":
            at = _expansion(text, at, parts, nested)
        else:
            parts.append(text[at])
            at += 1
    return at + 1


def _expansion(text: str, at: int, parts: list[str], nested: list[str]) -> int:
    """Read `$...` or a backquoted command; return the place after it."""
    if text[at] == "`":
        end = text.find("`", at + 1)
        end = len(text) if end < 0 else end
        nested.append(text[at + 1 : end])
        parts.append(f"$({text[at + 1 : end]})")
        return end + 1
    opening = text[at + 1 : at + 2]
    if opening not in ("(", "{"):
        parts.append("$")
        return at + 1
    end = _closing(text, at + 1, opening, ")" if opening == "(" else "}")
    inner = text[at + 2 : end]
    if opening == "(" and not inner.startswith("("):
        nested.append(inner)
    parts.append(text[at : end + 1])
    return end + 1


_CASE = re.compile(r"case\s+\S+\s+in\s")


def _closing(text: str, at: int, opening: str, closing: str) -> int:
    """Return the place of the bracket that closes the one at `at`. Brackets in quotes, comments and the patterns of
    `case` do not count."""
    ends = {"(": ")", "{": "}", '"': '"'}
    open_ones: list[str] = []
    while at < len(text):
        char, here = text[at], open_ones[-1] if open_ones else ""
        if char == "\\":
            at += 1
        elif here and char == ends[here]:
            open_ones.pop()
            if not open_ones:
                return at
        elif char == "$" and text[at + 1 : at + 2] in ("(", "{"):
            at += 1
            open_ones.append(text[at])
        elif char == here or not here or char == '"':
            open_ones.append(char)
        elif char == "'" and here != '"':
            end = text.find("'", at + 1)
            at = len(text) if end < 0 else end
        elif here == "(" and char == "#" and text[at - 1] in " \t\n;":
            at = _line_end(text, at)
        elif here == "(" and char == "c" and not text[at - 1].isalnum() and _CASE.match(text, at):
            end = text.find("esac", at)
            at = len(text) if end < 0 else end
        at += 1
    return len(text)


# --- Commands --------------------------------------------------------------------------------------------------------


class _ShellParser:
    """Collects commands, the names of functions, and the literal values of variables."""

    def __init__(self) -> None:
        self.found: list[ShellCommand] = []
        self.functions: set[str] = set()
        self.values: dict[str, list[str]] = {}

    def read(self, text: str, function: str, *, is_certain: bool, to_stdout: bool, depth: int) -> None:
        """Read a script, or the text of a nested one."""
        if depth > _MOST_DEPTH:
            return
        tokens = list(_tokens(text))
        stack: list[tuple[str, str]] = []
        """(keyword that began it, function that the commands belong to) of each open block."""
        at, coming, joined, piped, is_negated = 0, "", "", "", False
        groups: list[int] = []
        """Number of the commands before each open {."""
        words: list[_Token] = []

        def belongs() -> str:
            return stack[-1][1] if stack else function

        def certain() -> bool:
            outer = next((place for place in reversed(range(len(stack))) if stack[place][0] in _FUNCTIONS), -1)
            inside = stack[outer + 1 :]
            base = is_certain if outer < 0 else True
            return base and not joined and all(kind == "{" for kind, _ in inside)

        def end(operator: str) -> None:
            nonlocal joined, piped, words, is_negated
            if words:
                goes_on = operator in ("|", "|&")
                is_certain_here = certain() and not is_negated and operator not in ("&", "||", "|", "|&")
                is_negated = False
                piped = self._add(words, belongs(), is_certain_here, piped,
                                  to_stdout=to_stdout and not goes_on, depth=depth)  # fmt: skip
                piped = piped if goes_on else ""
                joined = operator if operator in _JOINING else ""
                words = []
            elif operator not in ("\n",):
                joined = operator if operator in _JOINING else ""

        while at < len(tokens):
            token = tokens[at]
            following = tokens[at + 1] if at + 1 < len(tokens) else _Token("\n", is_operator=True)
            if words and words[0].text == "[[" and not words[0].quoted and words[-1].text != "]]":
                words.append(msgspec.structs.replace(token, is_operator=False))  # it has its own (, |, < and newlines
                at += 1
                continue
            if token.is_operator and token.text in _REDIRECTIONS:
                words += [token, following]
                at += 2
                continue
            if token.is_operator:
                if stack and stack[-1][0] == "pattern" and token.text != ")":
                    at += 1
                    continue
                if token.text == "(" and following.text == ")" and following.is_operator and len(words) == 1:
                    coming, words = words[0].text, []
                    self.functions.add(coming)
                    at += 2
                    continue
                if token.text == "(" and not words:
                    stack.append(("function (" if coming else "(", coming or belongs()))
                    coming = ""
                elif token.text == ")":
                    if stack and stack[-1][0] == "pattern":
                        words = []
                        stack[-1] = ("case", stack[-1][1])
                    else:
                        end(")")
                        if stack and stack[-1][0] in ("(", "function ("):
                            stack.pop()
                else:
                    end(token.text)
                    if token.text in (";;", ";&", ";;&") and stack and stack[-1][0] == "case":
                        stack[-1] = ("pattern", stack[-1][1])
                at += 1
                continue
            keyword = "" if words or token.quoted else token.text
            if keyword == "function":
                coming = following.text
                self.functions.add(coming)
                at += 4 if [one.text for one in tokens[at + 2 : at + 4]] == ["(", ")"] else 2
            elif keyword == "{":
                kind = "{" if certain() and not is_negated else "{ perhaps"
                stack.append(("function {" if coming else kind, coming or belongs()))
                groups.append(len(self.found))
                coming, joined, is_negated = "", "", False
                at += 1
            elif keyword == "}":
                if stack and stack[-1][0] in ("{", "{ perhaps", "function {"):
                    stack.pop()
                    inside = slice(groups.pop(), None)
                    if following.is_operator and following.text in ("&", "|", "|&"):  # a subshell
                        self.found[inside] = [
                            msgspec.structs.replace(one, is_certain=False) for one in self.found[inside]
                        ]
                at += 1
            elif keyword in _OPENING:
                at = self._open(keyword, tokens, at, stack, belongs())
            elif keyword in _CLOSING:
                if stack:
                    stack.pop()
                at += 1
            elif keyword in _BETWEEN:
                is_negated = keyword == "!"
                at += 1
            elif stack and stack[-1][0] == "pattern" and keyword == "esac":
                stack.pop()
                at += 1
            else:
                words.append(token)
                at += 1
        end("\n")

    def _open(self, keyword: str, tokens: Sequence[_Token], at: int, stack: list[tuple[str, str]], of: str) -> int:
        """Begin a block; return the place of its first command."""
        if keyword == "case":
            stack.append(("pattern", of))
            while at < len(tokens) and tokens[at].text != "in":
                at += 1
            return at + 1
        stack.append((keyword, of))
        at += 1
        if keyword not in ("for", "select"):
            return at
        name = tokens[at].text if at < len(tokens) else ""
        at += 1
        while at < len(tokens) and not (tokens[at].is_operator and tokens[at].text in (";", "\n")):
            if tokens[at].text != "in" or tokens[at].quoted:
                self.values.setdefault(name, []).append(tokens[at].text)
            at += 1
        return at

    def _add(
        self, words: Sequence[_Token], function: str, is_certain: bool, piped: str, *, to_stdout: bool, depth: int
    ) -> str:
        """Add a command; return what it writes, as far as that is known."""
        plain: list[_Token] = []
        stdin, writes_stdout = piped, to_stdout
        at = 0
        while at < len(words):
            token = words[at]
            if token.is_operator:
                target = words[at + 1] if at + 1 < len(words) else token
                if token.text in ("<<", "<<-", "<<<"):
                    stdin = target.text
                elif token.text in (">", ">>", ">|", "&>", "&>>", ">&") and (not plain or plain[-1].text != "2"):
                    writes_stdout = False
                if plain and plain[-1].text in ("1", "2") and token.text.startswith(">"):
                    plain.pop()
                at += 2
                continue
            plain.append(token)
            at += 1
        for token in plain:
            for inner in token.nested:
                self.read(inner, function, is_certain=False, to_stdout=False, depth=depth + 1)
        texts = [token.text for token in plain]
        settings = []
        while texts and (match := _ASSIGNMENT.fullmatch(texts[0])):
            settings.append((match[1], match[2]))
            texts.pop(0)
        declared = texts[1:] if texts and texts[0] in _DECLARES else []
        for name, value in settings if not texts else ():
            self.values.setdefault(name, []).append(value)
        for one in declared:
            if match := _ASSIGNMENT.fullmatch(one):
                self.values.setdefault(match[1], []).append(match[2])
        if not texts:
            return ""
        if texts[0] == "exec" and len(texts) > 1:  # what follows runs only where that fails
            self.found.append(ShellCommand(("exec", texts[1]), function, is_certain))
        bare, more = _unwrapped(texts)
        if texts[0].rpartition("/")[2] == "xargs":
            bare.append(stdin)
        made = ShellCommand(tuple(bare), function, is_certain, stdin, writes_stdout, (*settings, *more))
        self.found.append(made)
        if script := _script_of(bare):
            is_here = is_certain and bare[0] == "eval"
            self.read(script, function, is_certain=is_here, to_stdout=writes_stdout, depth=depth + 1)
        return written(made)


def _unwrapped(words: Sequence[str]) -> tuple[list[str], list[tuple[str, str]]]:
    """Return a command without sudo, env, timeout and their like, and the variables that env sets."""
    left = list(words)
    settings: list[tuple[str, str]] = []
    while left and left[0].rpartition("/")[2] in _PREFIXES:
        name = left.pop(0).rpartition("/")[2]
        if name == "exec" and not left:
            return ["exec"], settings
        while left:
            if match := _ASSIGNMENT.fullmatch(left[0]):
                settings.append((match[1], match[2]))
            elif left[0].startswith("-"):
                if left[0] in ("-u", "-n", "-s", "-k", "-c", "-p", "-I", "-g") and len(left) > 1:
                    left.pop(0)
            elif not (name in ("timeout", "chrt", "taskset") and re.fullmatch(r"[0-9.,x]+[smhd]?", left[0])):
                break
            left.pop(0)
    return left, settings


def _script_of(words: Sequence[str]) -> str:
    """Return the script in an argument: `bash -c '...'`, `eval ...`; empty: there is none."""
    if not words:
        return ""
    name = words[0].rpartition("/")[2]
    if name == "eval":
        return " ".join(words[1:])
    if name in SHELLS and len(words) > 2 and re.fullmatch(r"-[a-z]*c", words[1]):
        return words[2]
    return ""


def written(command: ShellCommand) -> str:
    """Return what a command prints, as far as its text shows: that of echo, printf and cat."""
    words = list(command.words)
    name = command.program
    if name == "cat" and len(words) == 1:
        return command.stdin
    if name == "echo":
        arguments = list(itertools.dropwhile(lambda word: re.fullmatch(r"-[neE]+", word), words[1:]))
        return " ".join(arguments).replace("\\n", "\n")
    if name == "printf" and len(words) > 1:
        text = words[1].replace("\\n", "\n")
        for value in words[2:]:
            text = text.replace("%s", value, 1)
        return text
    return f"$({' '.join(filter(None, (*words, command.stdin)))})"


# --- Variables -------------------------------------------------------------------------------------------------------


def _resolved(command: ShellCommand, values: Mapping[str, Sequence[str]]) -> Iterator[ShellCommand]:
    """Yield a command with its variables replaced, once for each combination of values."""
    texts = [*command.words, command.stdin, *(value for _, value in command.settings)]
    names = [name for match in _VARIABLE.finditer("\n".join(texts)) if (name := match[1] or match[2])]
    known = {name: values[name] for name in dict.fromkeys(names) if name in values and "$" not in "".join(values[name])}
    combinations = itertools.islice(itertools.product(*known.values()), _MOST_VALUES)
    for one in combinations:
        chosen = dict(zip(known, one, strict=True))
        words = tuple(part for word in command.words for part in _split(word, _filled(word, chosen)))
        settings = tuple((name, _filled(value, chosen)) for name, value in command.settings)
        yield ShellCommand(
            words or ("",), command.function, command.is_certain, _filled(command.stdin, chosen),
            command.writes_stdout, settings,
        )  # fmt: skip


def _split(word: str, filled: str) -> list[str]:
    """Return the words that a replaced variable makes: `$TOOL quit` with blanks in its value are several."""
    return filled.split() if word.startswith("$") and filled != word and not filled.startswith("$") else [filled]


def _filled(text: str, chosen: Mapping[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        name, default = match[1] or match[2], match[3]
        if name in chosen:
            return chosen[name]
        return match[0] if default is None else default

    return text.replace("\\$", "$") if "\\$" in text else _VARIABLE.sub(value, text)
