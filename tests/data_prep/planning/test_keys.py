from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from data_prep.planning.keys import KEY, keys_from, prompt_key

TEXTS = st.text(alphabet="aAß1,: \n\x00", max_size=6)
PROMPTS = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "a", ""]), "content": TEXTS}), max_size=3
)


def _normal(prompt: list[dict[str, str]]) -> list[tuple[str, str]]:
    return [(message["role"], " ".join(message["content"].split()).casefold()) for message in prompt]


@given(PROMPTS, PROMPTS, TEXTS, TEXTS)
def test_keys_are_equal_exactly_where_the_rows_are(
    one: list[dict[str, str]], other: list[dict[str, str]], truth: str, other_truth: str
) -> None:
    first, second = keys_from([prompt_key(one, truth), prompt_key(other, other_truth)])
    assert (first["exact"].tolist() == second["exact"].tolist()) == (one == other)
    assert (first["normal"].tolist() == second["normal"].tolist()) == (_normal(one) == _normal(other))
    assert (first["truth"] == second["truth"]) == (truth == other_truth)


def test_keys_stay_the_same_from_version_to_version() -> None:
    key = prompt_key([{"role": "user", "content": "What  is 2+2?\n"}], "4")
    assert len(key) == KEY.itemsize == 40
    spaced = prompt_key([{"role": "user", "content": "what is 2+2?"}], "4")
    assert key[16:] == spaced[16:]
    assert key[:16] != spaced[:16]


def test_text_moved_from_one_message_to_the_next_is_another_prompt() -> None:
    whole = prompt_key([{"role": "user", "content": "ab"}, {"role": "user", "content": ""}], "")
    moved = prompt_key([{"role": "user", "content": "a"}, {"role": "user", "content": "b"}], "")
    assert whole[:16] != moved[:16]
    assert whole[16:32] != moved[16:32]
