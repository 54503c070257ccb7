"""Repair records are typed throughout, survive their file, and those of older files are read."""

import json

import pytest

from rpl.core.records import Benefit, Benefits, Control, Reading, Repair, Trace, from_dict, to_dict

BENEFIT = Benefit(1.0, -0.25, "euro")
WHOLE = Repair(
    "q1",
    "print(0)",
    "print(1)",
    ("query_edit",),
    ("line 1",),
    unwritable=2,
    verdict="repaired",
    trace=Trace("print(1)", "1"),
    type="two_hop",
    dataset="atlas",
    control=Control("print(2)", 5, 7, 3, 1.0, 4, 90),
    benefit=Benefits(BENEFIT, BENEFIT, Benefit(0.0, -3.5, "")),
    reading=Reading("print(3)", "wide"),
)


@pytest.mark.parametrize("record", [WHOLE, Repair("q2", "print(0)", None)])
def test_a_record_survives_its_file(record):
    assert from_dict(Repair, json.loads(json.dumps(to_dict(record)))) == record


def test_a_record_of_an_older_file_is_read():
    old = json.loads(json.dumps(to_dict(WHOLE)))
    for name in ("type", "dataset", "from_seed_program", "control", "benefit", "reading", "unwritable"):
        old.setdefault("extra", {})[name] = old.pop(name)
    del old["extra"]["unwritable"]
    old["extra"]["control"]["repaired"] = True
    read = from_dict(Repair, old)
    assert to_dict(read) == {**to_dict(WHOLE), "unwritable": 0}
    assert read.control is not None
    assert read.control.repaired


def test_what_no_record_has_is_refused():
    with pytest.raises(TypeError, match="Repair has no field 'colour'"):
        from_dict(Repair, {**to_dict(WHOLE), "extra": {"colour": 1}})
