"""An example tool: a policy that reads tokens cannot see the letters of a word."""


def count(letter: str, word: str) -> int:
    """How often a letter stands in a word.

    Args:
        letter: One letter.
        word: The word that it is looked for in.
    """
    return word.count(letter)
