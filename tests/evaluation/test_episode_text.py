"""Episodes as people and judges read them."""

from jaxsearchrl.config import CuratedConfig, SearchR1Config
from jaxsearchrl.evaluation.episode_text import episode_text
from jaxsearchrl.records import RolloutRecord

CURATED = CuratedConfig(max_turns=3, max_observation_tokens=8192)


def test_an_episode_in_words(play, calls):
    text = episode_text(play(CURATED, [calls.search("Zürich"), calls.broken, calls.finish]), 5000)
    assert text.startswith(
        "QUESTION\nWhich moons has Mars?\nHow far does an owl turn its head?\n\nGOLD\na: in mars\nb: in owl\n\nTURN 1\n"
    )
    assert '\nbm25_search {"query": "Zürich"} -> ' in text
    assert "\n\nEND finish: reward " in text


def test_the_gold_of_each_family(play, calls):
    question = episode_text(play(SearchR1Config(search_k=1), calls.tag("answer", "two")), 5000)
    assert "\n\nGOLD\nPhobos and Deimos\n\n" in question
    facts = [{"fact": "its maker", "chunk_ids": ["007", "015"], "is_final_answer": True}]
    about = RolloutRecord("r", "eval", 4, "q", 0, 0, 9, "Who?", gold={"facts": facts})
    assert "\n\nGOLD\nits maker: in 007 or 015\n\nEND : no score" in episode_text(about, 5000)
    two = RolloutRecord("r", "eval", 4, "q", 0, 0, 9, "How many?", gold={"answers": ["two", "2"]})
    assert "\n\nGOLD\ntwo or 2\n\n" in episode_text(two, 5000)
    other = RolloutRecord("r", "eval", 4, "q", 0, 0, 9, "How many?", gold={"exact": "2"})
    assert '\n\nGOLD\n{"exact": "2"}\n\n' in episode_text(other, 5000)


def test_of_a_long_episode_the_middle_is_left_out(play, calls):
    record = play(CURATED, [calls.search("Mars " * 300)])
    text = episode_text(record, 300)
    assert "characters are left out" in text
    assert text.startswith("QUESTION")
    assert "END context" in text
    assert len(text) < 400
