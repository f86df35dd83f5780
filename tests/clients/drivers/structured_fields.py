"""Parses header fields as tests/headers.rs asks: python structured_fields.py.

A line of stdin is a JSON object of one response's fields, names in lower case; a line of stdout says in JSON what
RFC 9651 makes of the draft's. What is no structured field ends it."""

import json
import sys

import http_sf


def items(fields, name):
    """A list of strings with parameters, as pairs."""
    parsed = http_sf.parse(fields[name].encode(), tltype="list")
    for value, parameters in parsed:
        assert type(value) is str and parameters, f"{name}: {value!r} with {parameters}"
    return parsed


for line in sys.stdin:
    fields = json.loads(line)
    wait = http_sf.parse(fields["retry-after"].encode(), tltype="item")[0] if "retry-after" in fields else None
    print(json.dumps({"policy": items(fields, "ratelimit-policy"), "limit": items(fields, "ratelimit"), "wait": wait}))
