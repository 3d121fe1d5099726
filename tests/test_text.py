from jaxsearchrl.text import well_formed


def test_lone_surrogates_are_replaced_pairs_are_joined_and_the_rest_is_kept():
    assert well_formed("plain é 😀 e\u0301\0") == "plain é 😀 e\u0301\0"
    assert well_formed("a\udc00b\ud800") == "a\ufffdb\ufffd"
    assert well_formed("\ud83d" + "\ude00") == "😀"
