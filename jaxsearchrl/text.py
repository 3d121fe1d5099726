"""Text that UTF-8 can hold. JSON lets a file or a model write half of a surrogate pair, which nothing else takes."""


def well_formed(text: str) -> str:
    """The text as valid Unicode: lone surrogates become U+FFFD, and two halves that stand side by side their character.

    Any other text comes back as it is.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text
