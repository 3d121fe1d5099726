"""Title and text in one, the `contents` of wiki-18 and of Search-R1's servers: the quoted first line is the title.

"Brooms"
Fast ones.
"""


def split_contents(contents: str) -> tuple[str, str]:
    """(title, text); the title is "" when the first line is not in quotes."""
    first, newline, rest = contents.partition("\n")
    if newline and _quoted(first):
        return first[1:-1], rest
    return "", contents


def join_contents(title: str, text: str) -> str:
    """What `split_contents` takes apart again, if the title is one line."""
    # A text without a title may begin with a line in quotes, which must not become one.
    return f'"{title}"\n{text}' if title or _quoted(text.partition("\n")[0]) else text


def _quoted(line: str) -> bool:
    return len(line) >= 2 and line.startswith('"') and line.endswith('"')
