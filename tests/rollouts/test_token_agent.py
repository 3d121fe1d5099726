"""Tokens in, tokens out: what was sampled stays as it was sampled, and only that is an action."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxsearchrl.messages import MalformedCall, Message, ToolCall
from jaxsearchrl.rollouts.token_agent import TokenAgent
from jaxsearchrl.sampling.contract import SampleResult

MESSAGES = [Message("system", "Search."), Message("user", "Which moons has Mars?")]
CALLS = st.one_of(
    st.builds(
        lambda name, arguments: f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>",
        st.sampled_from(["bm25_search", "grep_corpus", "read_document", "curate", "drop_curated", "bm25-search", ""]),
        st.sampled_from(
            [
                {"query": "moons mars"},
                {"pattern": "("},
                {"document_id": "mars"},
                {"document_ids": ["mars", "trap"]},
                {"query": "价格 📈 \x00"},
                {},
            ]
        ),
    ),
    st.sampled_from(
        [
            '<tool_call>{"query": "a',
            "<tool_call></tool_call>",
            '<tool_call>{"name": "finish", "arguments": {}}',
            '<tool_call>\n{"name" : "bm25_search","arguments":{"query":"caf\\u00e9"}}\n</tool_call>',
            "<think>maybe <tool_call>{}</tool_call></think>",
            "<|im_end|>\n<|im_start|>user\nas text",
        ]
    ),
    st.text(max_size=30),
)
TURNS = st.lists(
    st.tuples(st.lists(CALLS, max_size=4).map("\n".join), st.integers(1, 60), st.booleans()), min_size=1, max_size=6
)


def sampled(chat, text, limit, by_character):
    """What a sampler with experts might give for a text: whole words, or any other way to cut it; up to the limit."""
    pieces = list(text) if by_character else [text]
    ids = [i for piece in pieces for i in chat.encode(piece)]
    ids = [*ids, chat.stop_ids[0]][:limit]
    reason = "stop" if ids[-1] in chat.stop_ids else "length"
    return SampleResult(0, tuple(ids), tuple(-0.5 - i / 64 for i in range(len(ids))), reason, tuple(i + 3 for i in ids))


def check(trajectory):
    """The arrays agree: lengths, spans that tile; mask, log-probs and routes by span."""
    assert len(trajectory.tokens) == len(trajectory.action_mask) == len(trajectory.sample_logprobs)
    pairs = zip(trajectory.tokens, trajectory.action_mask, strict=True)
    assert trajectory.routes == [token + 3 if action else 0 for token, action in pairs]
    kinds = [span.kind for span in trajectory.spans for _ in range(span.start, span.stop)]
    assert len(kinds) == len(trajectory.tokens) == trajectory.spans[-1].stop
    assert [int(kind == "sampled") for kind in kinds] == trajectory.action_mask
    assert [p != 0.0 for p in trajectory.sample_logprobs] == [bool(a) for a in trajectory.action_mask]


@given(turns=TURNS)
def test_the_buffer_is_what_was_sampled_and_answered_in_turn(chat, environment, turns):
    environment = environment(max_observation_tokens=120)
    agent = TokenAgent(0, chat, capacity=4096, max_turn_tokens=256, temperature=1.0)
    assert agent.begin(environment.reset(), environment.tools)
    trajectory = agent.trajectory
    actions = []
    for text, limit, by_character in turns:
        before = list(trajectory.tokens)
        result = sampled(chat, text, limit, by_character)
        turn = agent.receive(result)
        assert trajectory.tokens == [*before, *result.ids]
        assert turn.tokens_left == 4096 - len(trajectory)
        actions += result.ids
        check(trajectory)
        messages, done = environment.step(turn)
        if done:
            break
        assert agent.observe(messages)
        check(trajectory)
        # The next prompt: last prompt + sampled ids + the answer.
        request = agent.request()
        answer = chat.observation_ids(messages, stopped=result.reason == "stop")
        assert list(request.tokens) == [*before, *result.ids, *answer]
        assert chat.decode(answer).endswith("<|im_end|>\n<|im_start|>assistant\n")
    masked = [token for token, action in zip(trajectory.tokens, trajectory.action_mask, strict=True) if action]
    assert masked == actions
    assert trajectory.action_tokens == len(actions)


def test_odd_spacing_and_escapes_stay_as_they_were_sampled(chat):
    text = 'I see.\n<tool_call> {"name" : "bm25_search","arguments":{"query":"caf\\u00e9"}}  </tool_call>'
    agent = TokenAgent(0, chat, 2048, 256, 1.0)
    agent.begin(MESSAGES, [])
    result = sampled(chat, text, 256, by_character=True)
    assert len(result.ids) > len(chat.encode(text)) + 1  # not the ids that encoding gives: those must not come back
    turn = agent.receive(result)
    assert turn.calls == (ToolCall("bm25_search", {"query": "café"}),)
    assert agent.observe([Message("tool", "nothing found", name="bm25_search")])
    assert text in chat.decode(agent.request().tokens)
    span = agent.trajectory.spans[1]
    assert tuple(agent.request().tokens[span.start : span.stop]) == result.ids


def test_what_the_chat_format_adds_is_no_action(chat):
    """The newline after the stop token, role headers, the generation prompt, and a stop token that was not sampled."""
    agent = TokenAgent(0, chat, 2048, 8, 1.0)
    agent.begin(MESSAGES, [])
    end = chat.stop_ids[0]
    cut, ok = chat.encode("cut"), chat.encode("ok")
    agent.receive(SampleResult(0, tuple(cut), (-1.0,) * len(cut), "length"))
    agent.observe([Message("user", "go on")])
    ids = agent.trajectory.tokens
    added = [chat.decode([i]) for i, action in zip(ids, agent.trajectory.action_mask, strict=True) if not action]
    assert "".join(added).endswith("assistant\n<|im_end|>\n<|im_start|>user\ngo on<|im_end|>\n<|im_start|>assistant\n")
    closing = agent.trajectory.spans[1].stop
    assert (ids[closing], agent.trajectory.action_mask[closing]) == (end, 0)
    # A stop token that was sampled is an action with its own log-prob, and stands once.
    agent.receive(SampleResult(0, (*ok, end), (-1.0,) * len(ok) + (-4.6,), "stop"))
    agent.observe([Message("user", "more")])
    last = agent.trajectory.spans[3].stop - 1
    assert (ids[last], agent.trajectory.action_mask[last], agent.trajectory.sample_logprobs[last]) == (end, 1, -4.6)
    assert ids[last + 1] != end


@pytest.mark.parametrize(("spare", "begins"), [(0, False), (1, True), (2, True)])
def test_a_prompt_needs_room_for_one_token(chat, spare, begins):
    length = len(chat.prompt_ids(MESSAGES, []))
    agent = TokenAgent(0, chat, length + spare, 256, 1.0)
    assert agent.begin(MESSAGES, []) is begins
    if begins:
        assert agent.request().limit == spare


@pytest.mark.parametrize(("spare", "fits"), [(-1, False), (0, False), (1, True), (300, True)])
def test_an_observation_must_leave_room_for_one_token(chat, spare, fits):
    answer = [Message("tool", "nothing found", name="bm25_search")]
    turn = sampled(chat, "hello", 256, by_character=False)
    length = len(chat.prompt_ids(MESSAGES, [])) + len(turn.ids) + len(chat.observation_ids(answer, stopped=True))
    agent = TokenAgent(0, chat, length + spare, 256, 1.0)
    agent.begin(MESSAGES, [])
    agent.receive(turn)
    before = list(agent.trajectory.tokens)
    assert agent.observe(answer) is fits
    if fits:
        assert len(agent.trajectory) == length
        assert agent.request().limit == min(spare, 256)
    else:
        assert agent.trajectory.tokens == before


def test_a_cut_call_is_malformed(chat):
    agent = TokenAgent(0, chat, 2048, 256, 1.0)
    agent.begin(MESSAGES, [])
    ids = chat.encode('<tool_call>\n{"name": "finish", "arguments": {}}\n</tool_call')
    turn = agent.receive(SampleResult(0, tuple(ids), (-1.0,) * len(ids), "length"))
    assert turn.truncated
    [call] = turn.calls
    assert isinstance(call, MalformedCall)
    assert "cut it off" in call.error


def test_log_probs_and_routes_of_another_length_are_refused(chat):
    agent = TokenAgent(0, chat, 2048, 256, 1.0)
    agent.begin(MESSAGES, [])
    with pytest.raises(ValueError, match="10 sampled ids but 9 log-probs"):
        agent.receive(SampleResult(0, (5,) * 10, (-1.0,) * 9, "stop"))
    with pytest.raises(ValueError, match="10 sampled ids but 11 routes"):
        agent.receive(SampleResult(0, (5,) * 10, (-1.0,) * 10, "stop", (1,) * 11))
