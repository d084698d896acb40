"""Questions as new users type them, in material/asked."""

from training import topics
from training.material import asked, table


def test_every_question_has_a_topic():
    known = {entry["id"] for entries in topics.TOPICS.values() for entry in entries}
    known |= {entry["names"][0] for entry in topics.CONCEPTS}
    known |= {f"outside.{name}" for name in table("outside")["kinds"]}
    known |= {f"language.{name}" for name in table("languages")}
    assert sorted(set(asked()) - known) == []
