"""Messages that nobody should send, made from the contract's descriptors, so that no field of it is forgotten."""

from google.protobuf.descriptor import FieldDescriptor as Field
from google.protobuf.message_factory import GetMessageClass
from hypothesis import strategies as st

SECRET = "gehéimnis"  # stands in texts; the errors may not repeat it
LONG, LONG_OF_MESSAGES = 2000, 50  # entries of a repeated field that are many, and yet soon sent
# A field that no message has, as a number, as bytes, and as a group in a group; and one that breaks off.
UNKNOWN_FIELDS = [b"\xc0\x3e\x01", b"\xc2\x3e\x03abc", b"\xc3\x3e\xc3\x3e\xc4\x3e\xc4\x3e", b"\xc2\x3e\x7fabc"]

_TEXTS = [
    "",
    SECRET,
    SECRET * 60,
    "\0",
    "a" * 129,
    "../../etc/passwd",
    "{{ 7 * 7 }}{% raw %}",
    "specdec:{x}:meta\r\nFLUSHALL",
    "\u202e\ufeff\U0010ffff\ud7ff",
]
_TEXT = st.one_of(st.sampled_from(_TEXTS), st.text(st.characters(exclude_categories=["Cs"]), max_size=20))
_FLOATS = st.one_of(st.sampled_from([0.0, 1.0, -1.0, 1e-45, 3e38, float("nan"), float("inf")]), st.floats(width=32))


def _integers(lowest, highest):
    extremes = {lowest, lowest + 1, -1, 0, 1, 2, 16, 17, 64, 2**31 - 1, 2**31, 2**53, highest - 1, highest}
    return st.sampled_from(sorted(value for value in extremes if lowest <= value <= highest)) | st.integers(0, 400)


_BY_TYPE = {
    Field.TYPE_UINT32: _integers(0, 2**32 - 1),
    Field.TYPE_UINT64: _integers(0, 2**64 - 1),
    Field.TYPE_INT32: _integers(-(2**31), 2**31 - 1),
    Field.TYPE_INT64: _integers(-(2**63), 2**63 - 1),
    Field.TYPE_ENUM: st.integers(0, 5) | st.sampled_from([-1, 99, 2**31 - 1, -(2**31)]),
    Field.TYPE_FLOAT: _FLOATS,
    Field.TYPE_BOOL: st.booleans(),
    Field.TYPE_STRING: _TEXT,
    Field.TYPE_BYTES: st.binary(max_size=20),
}
# Else hardly a message would get beyond its first check.
_WELL_FORMED = {
    "session_id": ["", "a", "b", "x" * 128],
    "owner": ["0" * 32, "F" * 32],
    "role": ["user", "assistant"],
    "prefix_digest": [bytes(16)],
}


def messages(descriptor):
    """Give messages of a type with any of their fields set, to anything."""
    fields = {field.name: values(field) for field in descriptor.fields}
    return st.fixed_dictionaries({}, optional=fields).map(lambda values: made(descriptor, values))


def values(field):
    """Give what a field may be set to."""
    if _is_map(field):
        key, value = (_one(each) for each in field.message_type.fields)
        return st.dictionaries(key, value, max_size=4)
    if field.is_repeated:
        many = LONG_OF_MESSAGES if field.message_type else LONG
        long = st.lists(_one(field), min_size=1, max_size=1).map(lambda values: values * many)
        return st.lists(_one(field), max_size=4) | long
    return _one(field)


def made(descriptor, values):
    """Return a message with the fields set."""
    message = GetMessageClass(descriptor)()
    for name, value in values.items():
        put(message, descriptor.fields_by_name[name], value)
    return message


def put(message, field, value):
    """Set a field to a value in place of what it had."""
    message.ClearField(field.name)
    if _is_map(field):
        getattr(message, field.name).update(value)
    elif field.is_repeated:
        getattr(message, field.name).extend(value)
    elif field.message_type:
        getattr(message, field.name).CopyFrom(value)
    else:
        setattr(message, field.name, value)


@st.composite
def spoiled(draw, good):
    """Give one of some good messages with one field, at any depth, cleared or set to anything."""
    message = draw(st.sampled_from(good))
    spoilt = type(message)()
    spoilt.CopyFrom(message)
    ways = field_ways(message.DESCRIPTOR)
    if not ways:
        return spoilt
    *way, field = draw(st.sampled_from(ways))
    within = spoilt
    for step in way:
        within = getattr(within, step.name)
        if step.is_repeated:
            within = within[0] if within else within.add()
    if draw(st.integers(0, 9)):
        put(within, field, draw(values(field)))
    else:
        within.ClearField(field.name)
    return spoilt


def payloads(good):
    """Give bytes for a method that takes such messages: spoiled ones, any ones, and what is none at all."""
    sent = spoiled(good) | messages(good[0].DESCRIPTOR) | spoiled(good)
    whole = sent.map(lambda message: message.SerializeToString())
    return st.one_of(
        whole,
        whole,
        whole,
        st.tuples(whole, st.sampled_from(UNKNOWN_FIELDS)).map(b"".join),
        st.tuples(whole, st.integers(0, 200)).map(lambda pair: pair[0][: pair[1]]),
        st.tuples(whole, st.integers(0, 200), st.integers(0, 255)).map(lambda three: _with_byte(*three)),
        st.binary(max_size=60),
    )


def field_ways(descriptor):
    """Return the ways to all the fields within a message, those in messages within it too."""
    ways = []
    for field in descriptor.fields:
        ways.append([field])
        if field.message_type and not _is_map(field):
            ways += [[field, *way] for way in field_ways(field.message_type)]
    return ways


def is_field(descriptor, path):
    """Say whether a path such as ``messages[0].role`` leads to a field of such a message."""
    name, _, rest = path.partition(".")
    field = descriptor.fields_by_name.get(name.partition("[")[0])
    if field is None or ("[" in name and not field.is_repeated):
        return False
    return not rest or bool(field.message_type and is_field(field.message_type, rest))


def _one(field):
    if field.message_type:
        return messages(field.message_type)
    known = _WELL_FORMED.get(field.name)
    return st.sampled_from(known) | _BY_TYPE[field.type] if known else _BY_TYPE[field.type]


def _is_map(field):
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _with_byte(data, place, value):
    place = min(place, len(data))
    return data[:place] + bytes([value]) + data[place + 1 :]
