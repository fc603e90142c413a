"""An optional package is given back, or its absence is a sentence."""

import json

import pytest

from multibranch.errors import UserError, needed


def test_a_package_that_is_there_is_given_back() -> None:
    assert needed("json", install="json", purpose="Reading") is json


def test_one_that_is_not_is_named_with_what_needs_it_and_how_to_get_it() -> None:
    with pytest.raises(UserError) as caught:
        needed("no_such_package", install="'multibranch[study]'", purpose="Drawing")
    assert str(caught.value) == (
        "Drawing needs the package no_such_package, which is not installed; "
        "install it with: pip install 'multibranch[study]'"
    )
