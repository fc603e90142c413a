"""The one error that the command line turns into a line of text and exit status 2."""


class UserError(Exception):
    """Something the person at the keyboard can put right.

    The message is a sentence for that person: what was wrong, where (file, line, key), and what
    to do about it.
    """
