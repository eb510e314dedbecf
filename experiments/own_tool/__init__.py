"""An example tool: a policy that reads tokens cannot see the letters of a word."""


def count(letter: str, word: str) -> int:
    """How often a letter occurs in a word.

    Args:
        letter: One letter.
        word: The word to search.
    """
    return word.count(letter)
