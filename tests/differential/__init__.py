"""Send the same seeded sequences of valid requests to kproc and to Apache Kafka, and compare every field of every
answer.

    python -m tests.differential --sequences 2000 --seed 5 --themes produce,groups
    python -m tests.differential --seed 5 --themes groups --at 17
    python -m tests.differential --sequences 200 --seed 5 --rights

With `--rights` the sequences are a guest's, who may do only what rules made at random allow (rights.py). The theme
`logins` (logins.py) is about PLAIN and SCRAM on listeners of their own; a closed connection counts as an answer.

What a broker chooses (ids, times, ports, directories) is mapped to symbols; later requests use each broker's own. A
difference is looked for again in a slow run, in which both brokers get the time to settle, then shrunk and printed as
a script: `~` stands for the prefix of the sequence's names, `<pid:p0>` for what was learnt from an answer, `T0` for
half an hour before the sequence began. Lists are compared by key: Kafka's order comes from hash maps in most answers.
Not compared: the words of messages beyond null, empty or not (they are listed at the end), throttle times, order.

A new theme: a module in themes/ with a function for each kind of request, which adds steps to the scene, and its row
in `THEMES`. `Ref` stands for what a broker chose, and `learning` names the field that it is learnt from (member epochs
and assignments: themes/consumers.py). side.py has the fields that a broker chooses (`CHOSEN`, `_STAMPS`, `_WORDS`), and
compare.py those that name a row of a list (`_NAMES`). Groups and topics whose names begin with `~` are deleted behind a
sequence.

Deliberate differences are filtered by the rules of `rules.py`; each has a line in kproc/COMPATIBILITY.md.
"""
