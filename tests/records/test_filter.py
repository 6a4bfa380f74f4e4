"""What a filter means, against a plain reading of it in Python; and what is refused, and where."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spl.errors import InvalidBody
from spl.records import conditions, formats, queries, rows
from spl.records.filter import (
    LONGEST_PATTERN,
    MOST_FITTED,
    MOST_KEYS,
    MOST_NESTED,
    MOST_VALUES,
    Search,
    filter_of,
    sort_of,
)
from spl.records.record import Draft, Record, record_id

Json = dict[str, Any]

# --- a plain reading ---


def matches(asked: Json, record: Json) -> bool:
    return all(_is(name, said, record) for name, said in asked.items())


def _is(name: str, said: Any, record: Json) -> bool:
    if name in ("$and", "$or"):
        return (all if name == "$and" else any)(matches(each, record) for each in said)
    if name == "$not":
        return not matches(said, record)
    operators = said if isinstance(said, dict) else {"$eq": said}
    return all(_says(operator, value, name, record) for operator, value in operators.items())


def _says(operator: str, value: Any, name: str, record: Json) -> bool:
    there: bool
    if operator == "$not":
        return not _is(name, value, record)
    if operator in ("$ne", "$nin"):
        return not _says("$eq" if operator == "$ne" else "$in", value, name, record)
    there, found = _look(name.split("."), record)
    if operator == "$exists":
        return there is bool(value)
    if operator in ("$eq", "$in"):
        return there and any(_class(each) == _class(found) and each == found for each in _listed(value))
    if operator in ("$like", "$ilike"):
        pattern = _pattern(value, fold=operator == "$ilike")
        return isinstance(found, str) and pattern.fullmatch(found) is not None
    if _class(found) != _class(value) or _class(found) not in ("number", "text"):
        return False
    found, value = _near(found), _near(value)
    return bool(
        {"$gt": found > value, "$gte": found >= value, "$lt": found < value, "$lte": found <= value}[operator]
    )


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _look(keys: list[str], found: Any) -> tuple[bool, Any]:
    for key in keys:
        if not isinstance(found, dict) or key not in found:
            return False, None
        found = found[key]
    return True, found


def _class(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return repr(value)
    return {int: "number", float: "number", str: "text"}.get(type(value), "other")


def _near(value: Any) -> Any:
    return float(value) if isinstance(value, int) and not -(2**63) <= value < 2**63 else value


def _pattern(value: str, *, fold: bool) -> re.Pattern[str]:
    parts = re.findall(r"\\.|.", value, re.DOTALL)
    text = "".join({"%": ".*", "_": "."}.get(part, re.escape(part[-1])) for part in parts)
    return re.compile(text, re.DOTALL | re.ASCII | (re.IGNORECASE if fold else 0))


def in_order(found: list[Json], sort: list[tuple[str, int]]) -> list[Json]:
    for name, way in reversed(sort):
        found = sorted(found, key=lambda record: _key(*_look(name.split("."), record)), reverse=way < 0)
    return found


def _key(there: bool, value: Any) -> tuple[Any, ...]:
    if not there:
        return (0,)
    rank = {"None": 1, "False": 2, "True": 3, "number": 4, "text": 5}.get(_class(value))
    if rank is None:
        return (6 if isinstance(value, list) else 7,)
    return (rank, _near(value)) if rank > 3 else (rank,)


# --- the same records and filters for both ---

KEYS = ("a", "b", "é '", "[0]", "a\\b", "#\n", "$x", "0", "kind")
TEXTS = (
    "",
    "1",
    "true",
    "null",
    "a",
    "A",
    "ab",
    "aB",
    "é",
    "É",
    "a%b",
    "a_b",
    "a*b",
    "[a]",
    "a?b",
    "\\",
    "'\"",
    "😀",
    "\n",
)
SCALARS = (*TEXTS, None, True, False, 0, 1, -1, 1.0, 0.1, 1e-5, 1.5, 2**53 + 1, 2**63 - 1, 2**63, -(2**63),
           -(2**63) - 1, 10**30, 10**30 + 1, 1e300)  # fmt: skip
KINDS = ("acme.note.text.v1", "acme.note.text.v2", "acme.other.thing.v1")
ACTORS, THREADS, JUDGES = (
    ("did:sync:user:ana", "did:sync:user:Bo"),
    ("th_a", "th_b", "th_A"),
    (None, "j", "did:a:b"),
)

scalars = st.sampled_from(SCALARS)
keys = st.sampled_from(("a",) * 12 + KEYS[:-1])
values = st.recursive(
    scalars, lambda each: st.lists(each, max_size=2) | st.dictionaries(keys, each, max_size=2), max_leaves=4
)
bodies = st.builds(
    lambda body, kind: body if kind is None else {**body, "kind": kind},
    st.dictionaries(keys, values, max_size=4),
    st.none() | st.sampled_from(KINDS),
)
drafts = st.lists(
    st.builds(
        Draft,
        st.sampled_from(THREADS),
        st.sampled_from(ACTORS),
        st.sampled_from(("KNOW", "DO")),
        bodies,
        data_type=st.sampled_from(("SCALAR", "VOID")),
        judged_by=st.sampled_from(JUDGES),
    ),
    min_size=1,
    max_size=8,
)
paths = st.one_of(
    st.just("body.a"),
    st.lists(st.sampled_from(("a", *KEYS)), min_size=1, max_size=2).map(
        lambda found: ".".join(("body", *found))
    ),
)
names = st.one_of(
    paths, paths, st.sampled_from(("thread", "actor", "act", "clock", "data_type", "judged_by", "sequence"))
)
of_columns = st.sampled_from((*KINDS, *THREADS, *ACTORS, "KNOW", "VOID", "j", 1, 2, 3))
compared = st.one_of(scalars, of_columns)
ordered = compared.filter(lambda value: value is not None and not isinstance(value, bool))
signs = st.sampled_from(
    ("%", "_", "a", "B", "é", "\\%", "\\_", "\\\\", "*", "[", "]", "?", "^", "\\a", "\\*")
)
patterns = st.one_of(
    st.lists(signs, max_size=5).map("".join),
    st.sampled_from(("%.note.%", "th__", "TH_A", "%user:b%", "K%")),
)
listed = st.lists(compared, max_size=4)
said_of = {"$eq": compared, "$ne": compared, "$gt": ordered, "$gte": ordered, "$lt": ordered, "$lte": ordered,
           "$in": listed, "$nin": listed, "$like": patterns, "$ilike": patterns, "$exists": st.booleans()}  # fmt: skip
operators = st.lists(st.sampled_from(sorted(said_of)), min_size=1, max_size=2, unique=True).flatmap(
    lambda chosen: st.fixed_dictionaries({name: said_of[name] for name in chosen})
)
one = st.one_of(operators, operators, compared, st.fixed_dictionaries({"$not": operators}))
filters = st.recursive(
    st.dictionaries(names, one, max_size=2),
    lambda inner: st.one_of(
        st.fixed_dictionaries({"$and": st.lists(inner, min_size=1, max_size=2)}),
        st.fixed_dictionaries({"$or": st.lists(inner, min_size=1, max_size=3)}),
        st.fixed_dictionaries({"$not": inner}),
    ),
    max_leaves=4,
)
sorts = st.dictionaries(names, st.sampled_from((1, -1)), max_size=2)


def written(drafts_: list[Draft]) -> tuple[list[Record], sqlite3.Connection]:
    """Give drafts as records, and a log in memory that holds them."""
    connection = sqlite3.connect(":memory:")
    for (part, _), sql in formats.tables().items():
        if part != "trigger":
            connection.execute(sql)
    insert = f"INSERT INTO records ({rows.COLUMNS}, ordinal) VALUES ({', '.join('?' * 12)})"
    found = []
    for at, draft in enumerate(drafts_, 1):
        checked = rows.Checked.of(draft)
        id_ = record_id((), draft.thread, draft.actor, draft.act, checked.body, at, draft.data_type)
        row = (at, *checked.row(id_, (), at))
        connection.execute(insert, (*row, at))
        found.append(rows.to_record(row))
    return found, connection


@settings(max_examples=80, deadline=None)
@given(drafts, st.lists(st.tuples(filters, sorts), min_size=1, max_size=10))
def test_a_filter_finds_what_a_plain_reading_of_it_finds_and_in_its_order(
    drafts_: list[Draft], several: list[tuple[Json, dict[str, int]]]
) -> None:
    records, connection = written(drafts_)
    wires = [record.wire() for record in records]
    with closing(connection):
        for asked, sort in several:
            query, bound = queries.search(Search(filter_of(asked), sort_of(sort), 1000), None)
            found = [sequence for (sequence,) in connection.execute(query, bound)]
            wanted = in_order([wire for wire in wires if matches(asked, wire)], list(sort.items()))
            assert found == [wire["sequence"] for wire in wanted]


PATTERNS = ("", "%", "_", "a%", "A%", "%b", "a_b", r"a\%b", r"a\_b", r"a\*b", "a*b", r"\[a\]", "[a]", "a?b", r"\\", "é",
            "%.v1", "th__", "TH%", "%:user:b%", "KN%")  # fmt: skip


def test_each_operator_takes_each_value_as_a_plain_reading_does_of_the_body_and_of_each_column() -> None:
    bodies_: list[Json] = [{}, *({"a": value} for value in (*SCALARS, [], ["a"], {}, {"a": "a"}))]
    bodies_ += [{"kind": kind} for kind in KINDS]
    records, connection = written(
        [
            Draft(THREADS[n % 3], ACTORS[n % 2], "KNOW", body, judged_by=JUDGES[n % 3])
            for n, body in enumerate(bodies_)
        ]
    )
    wires = [record.wire() for record in records]
    of_columns_ = (*KINDS, *THREADS, *ACTORS, "KNOW", "VOID", "j", records[0].id, 3)
    with closing(connection):
        for name in (
            "body.a",
            "body.a.a",
            "body.kind",
            "id",
            "thread",
            "actor",
            "judged_by",
            "clock",
            "sequence",
        ):
            each = SCALARS if name.startswith("body.a") else (None, "a", 1, 1.5, True, 2**63, *of_columns_)
            texts = PATTERNS if name in ("body.a", "body.kind", "thread", "actor") else PATTERNS[:3]
            asked: list[Json] = [{operator: value} for operator in ("$eq", "$ne") for value in each]
            asked += [{"$in": [value, "a", None]} for value in each] + [
                {"$nin": [value, 1]} for value in each
            ]
            plain = [value for value in each if _class(value) in ("number", "text")]
            asked += [{operator: value} for operator in ("$gt", "$gte", "$lt", "$lte") for value in plain]
            asked += [{operator: value} for operator in ("$like", "$ilike") for value in texts]
            asked += [{"$exists": True}, {"$exists": False}]
            for said in asked:
                for filter_ in ({name: said}, {name: {"$not": said}}):
                    query, bound = queries.search(Search(filter_of(filter_), (), 1000), None)
                    found = [sequence for (sequence,) in connection.execute(query, bound)]
                    assert found == [wire["sequence"] for wire in wires if matches(filter_, wire)], filter_
            for way in (1, -1):
                query, bound = queries.search(Search(sort=sort_of({name: way}), limit=1000), None)
                found = [sequence for (sequence,) in connection.execute(query, bound)]
                assert found == [wire["sequence"] for wire in in_order(wires, [(name, way)])], name


def finds(asked: Json, *bodies_: Json) -> list[int]:
    """Give which of these bodies a filter finds, counted from 0."""
    _, connection = written([Draft("th_1", ACTORS[0], "KNOW", body) for body in bodies_])
    with closing(connection):
        query, bound = queries.search(Search(filter_of(asked)), None)
        return [sequence - 1 for (sequence,) in connection.execute(query, bound)]


MANY: tuple[Json, ...] = ({}, {"x": None}, {"x": False}, {"x": True}, {"x": 0}, {"x": 1}, {"x": 1.5}, {"x": "1"},
                          {"x": "b"}, {"x": [1]},
        {"x": {"y": 1}})  # fmt: skip
"""Missing, null, false, true, 0, 1, 1.5, "1", "b", an array, an object: 0 to 10."""


@pytest.mark.parametrize(
    ("said", "found"),
    [
        (None, [1]),
        (1, [5]),
        (1.0, [5]),
        (True, [3]),
        ("1", [7]),
        ({"$ne": 1}, [0, 1, 2, 3, 4, 6, 7, 8, 9, 10]),
        ({"$ne": None}, [0, 2, 3, 4, 5, 6, 7, 8, 9, 10]),
        ({"$in": [0, "b", None]}, [1, 4, 8]),
        ({"$in": []}, []),
        ({"$nin": [0, "b", None]}, [0, 2, 3, 5, 6, 7, 9, 10]),
        ({"$gt": 0}, [5, 6]),
        ({"$gte": 0, "$lt": 1.5}, [4, 5]),
        ({"$lte": "1"}, [7]),
        ({"$gt": ""}, [7, 8]),
        ({"$not": {"$gt": 0}}, [0, 1, 2, 3, 4, 7, 8, 9, 10]),
        ({"$exists": True}, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]),
        ({"$exists": False}, [0]),
        ({"$like": "%"}, [7, 8]),
        ({"$ilike": "B"}, [8]),
        ({"$like": "B"}, []),
    ],
)
def test_what_is_missing_null_or_of_another_type_is_told_apart(said: object, found: list[int]) -> None:
    assert finds({"body.x": said}, *MANY) == found


def test_numbers_are_equal_to_the_last_digit_and_ordered_as_floats_beyond_64_bits() -> None:
    large = [{"x": 2**63 - 1}, {"x": 2**63}, {"x": 2**63 + 1}, {"x": 10**300}, {"x": 9007199254740993}]
    assert finds({"body.x": 2**63 + 1}, *large) == [2]
    assert finds({"body.x": {"$in": [9007199254740992, 2**63]}}, *large) == [1]
    assert finds({"body.x": {"$gt": 9007199254740992, "$lt": 2**63 - 1}}, *large) == [4]
    assert finds({"body.x": {"$gte": 2**63 + 1}}, *large) == [1, 2, 3]
    for beyond in (2**64, 10**308, 10**309 - 1):
        assert finds({"clock": {"$lt": beyond}, "sequence": {"$gt": -beyond}}, {}) == [0]
        assert finds({"clock": {"$gt": beyond}}, {}) == finds({"sequence": {"$lte": -beyond}}, {}) == []
        assert finds({"body.x": {"$gte": beyond}}, {"x": beyond}, {"x": 1}) == [0]
    assert finds({"clock": 10**300}, {}) == []


def test_a_pattern_takes_nothing_but_its_two_signs_for_more_than_itself() -> None:
    texts = [{"x": text} for text in ("a%c", "abc", "a_c", "a*c", "a[b]c", "ABC", "äbc", "Äbc")]
    assert finds({"body.x": {"$like": "a_c"}}, *texts) == [0, 1, 2, 3]
    assert finds({"body.x": {"$like": r"a\%c"}}, *texts) == [0]
    assert finds({"body.x": {"$like": r"a\_c"}}, *texts) == [2]
    assert finds({"body.x": {"$like": "a*c"}}, *texts) == [3]
    assert finds({"body.x": {"$like": "a[b]%"}}, *texts) == [4]
    assert finds({"body.x": {"$ilike": "ab_"}}, *texts) == [1, 5]
    assert finds({"body.x": {"$ilike": "ä%"}}, *texts) == [6]


def test_a_pattern_fits_no_text_so_long_that_nobody_could_break_it_off() -> None:
    pattern = "%" + "a" * 255
    longest = MOST_FITTED // len(pattern)
    bodies_ = {"x": "a" * longest}, {"x": "a" * (longest + 1)}
    assert finds({"body.x": {"$like": pattern}}, *bodies_) == [0]
    assert finds({"body.x": {"$not": {"$ilike": pattern}}}, *bodies_) == [1]
    assert finds({"body.x": {"$like": "%a"}}, *bodies_) == [0, 1]


def test_no_key_and_no_value_of_a_filter_is_in_its_sql() -> None:
    hostile = "x') OR 1=1 --"
    asked = {
        f"body.{hostile}.$[0]": hostile,
        "$or": [{"thread": hostile}, {f"body.{hostile}": {"$like": hostile}}],
    }
    found = conditions.condition(filter_of(asked))
    assert re.fullmatch(r"[A-Za-z_<=?'(), ]*", found.text)
    assert finds(asked, {"x": 1}) == []
    assert finds({f"body.{hostile}": hostile}, {hostile: hostile}, {"x": 1}) == [0]


DEEP: Json = {"$not": {}}
for _ in range(10):
    DEEP = {"$not": DEEP}
DEEP_IN_A_FIELD: Json = {"$gt": 1}
for _ in range(11):
    DEEP_IN_A_FIELD = {"$not": DEEP_IN_A_FIELD}


@pytest.mark.parametrize(
    ("asked", "place"),
    [
        ({"$and": {}}, "filter.$and"),
        ({"$and": []}, "filter.$and"),
        ({"$or": [{}, 1]}, "filter.$or[1]"),
        ({"$and": [{}, {"body.x": {"$gt": None}}]}, "filter.$and[1].body.x.$gt"),
        ({"$not": []}, "filter.$not"),
        ({"$nor": [{}]}, "filter.$nor"),
        ({"$where": "1"}, "filter.$where"),
        ({"parents": "x"}, "filter.parents"),
        ({"namespace": "x"}, "filter.namespace"),
        ({"kind": "x"}, "filter.kind"),
        ({"body": {"$exists": True}}, "filter.body"),
        ({"body.": 1}, "filter.body."),
        ({"body.a..b": 1}, "filter.body.a..b"),
        ({'body.a"b': 1}, 'filter.body.a"b'),
        ({"body." + "a" * 400: 1}, "filter.body.aaa"),
        ({"body" + ".a" * 17: 1}, "filter.body.a.a"),
        ({"body.x": []}, "filter.body.x"),
        ({"body.x": {}}, "filter.body.x"),
        ({"body.x": {"y": 1}}, "filter.body.x.y"),
        ({"body.x": {"$eq": 1, "y": 1}}, "filter.body.x.y"),
        ({"body.x": {"$regex": "a"}}, "filter.body.x.$regex"),
        ({"body.x": {"$eq": {}}}, "filter.body.x.$eq"),
        ({"body.x": {"$in": 1}}, "filter.body.x.$in"),
        ({"body.x": {"$in": [1, []]}}, "filter.body.x.$in[1]"),
        ({"body.x": {"$gt": True}}, "filter.body.x.$gt"),
        ({"body.x": {"$lte": "a\0"}}, "filter.body.x.$lte"),
        ({"body.x": {"$exists": 1}}, "filter.body.x.$exists"),
        ({"body.x": {"$like": 1}}, "filter.body.x.$like"),
        ({"body.x": {"$like": "a\\"}}, "filter.body.x.$like"),
        ({"body.x": {"$like": "a\0"}}, "filter.body.x.$like"),
        ({"body.x": {"$ilike": "a" * 257}}, "filter.body.x.$ilike"),
        ({"body.x": {"$not": 1}}, "filter.body.x.$not"),
        ({"body.x": "a" * 4097}, "filter.body.x"),
        ({"body.x": {"$in": [1] * 501}}, "filter.body.x.$in[500]"),
        ({"$or": [{}] * 100}, "filter.$or[99]"),
        ({f"body.k{n}": 1 for n in range(100)}, "filter.body.k99"),
        (DEEP, "filter" + ".$not" * 10),
        ({"body.x": DEEP_IN_A_FIELD}, "filter.body.x" + ".$not" * 10),
        ({"\x1b[31m\n": 1}, r"filter.\x1b[31m\n"),
    ],
)
def test_a_filter_that_is_none_is_refused_by_the_place_of_what_is_wrong(asked: Json, place: str) -> None:
    with pytest.raises(InvalidBody) as refused:
        filter_of(asked)
    assert re.match(re.escape(place) + r"\S*: ", refused.value.message), refused.value.message
    assert len(refused.value.message) < 400
    assert refused.value.message.isprintable()


def test_a_filter_as_large_as_may_be_is_carried_out() -> None:
    deep: Json = {"body.x": 1}
    for _ in range(MOST_NESTED // 2 - 1):
        deep = {"$not": {"$not": deep}}
    wide = {"$or": [{"body.x": {"$like": "%" * LONGEST_PATTERN}}] * 49}
    full = {"body.x": {"$in": list(range(MOST_VALUES))}}
    path = "body" + ".k" * MOST_KEYS
    assert finds(deep, {"x": 1}, {"x": 2}) == [0]
    assert finds(wide, {"x": "a"}, {"x": 2}) == [0]
    assert finds(full, {"x": MOST_VALUES - 1}, {"x": MOST_VALUES}) == [0]
    assert finds({path: {"$exists": False}}, {}) == [0]


@pytest.mark.parametrize(
    ("sort", "place"),
    [
        ({"body.x": 0}, "sort.body.x"),
        ({"body.x": True}, "sort.body.x"),
        ({"body.x": 1.0}, "sort.body.x"),
        ({"body.x": "desc"}, "sort.body.x"),
        ({"parents": 1}, "sort.parents"),
        ({"$and": 1}, "sort.$and"),
        ({"id": 1, "thread": 1, "act": 1, "clock": 1}, "sort"),
    ],
)
def test_a_sort_that_is_none_is_refused_by_its_place(sort: Json, place: str) -> None:
    with pytest.raises(InvalidBody, match=f"^{re.escape(place)}: "):
        sort_of(sort)


def test_an_id_is_compared_as_it_is_written() -> None:
    [first, second], connection = written([Draft("th_1", ACTORS[0], "KNOW", {"n": n}) for n in range(2)])

    def found(said: object) -> list[int]:
        query, bound = queries.search(Search(filter_of({"id": said})), None)
        return [sequence for (sequence,) in connection.execute(query, bound)]

    with closing(connection):
        assert found(first.id) == [1]
        assert found(first.id.upper()) == []
        assert found({"$in": [second.id, "x", 1, None]}) == [2]
        assert found({"$like": first.id[:8] + "%"}) == [1]
        assert found({"$gte": min(first.id, second.id)}) == [1, 2]
        assert found({"$gt": 1}) == []


@pytest.mark.parametrize(
    ("asked", "indexed"),
    [
        ({"thread": "th_1"}, ["thread"]),
        ({"thread": "th_1", "body.kind": "a.b.c.v1"}, ["body.kind", "thread"]),
        ({"$and": [{"body.kind": {"$in": ["a.b.c.v1", "a.b.d.v1"]}}, {"body.x": {"$gt": 1}}]}, ["body.kind"]),
        ({"actor": "did:a:b"}, ["actor"]),
        ({"id": "0" * 64}, ["id"]),
        ({"sequence": {"$gt": 5}, "act": "DO"}, ["sequence"]),
        ({"body.x": 1}, []),
        ({"$not": {"thread": "th_1"}}, []),
    ],
)
def test_what_is_looked_up_in_an_index_is_told_of_a_plan(asked: Json, indexed: list[str]) -> None:
    _, connection = written([Draft("th_1", ACTORS[0], "KNOW", {})])
    search = Search(filter_of(asked))
    with closing(connection):
        query, bound = queries.search(search, None)
        steps = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {query}", bound)]
    assert queries.indexed(search, steps) == indexed
