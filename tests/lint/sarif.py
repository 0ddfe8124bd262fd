"""What SARIF 2.1.0 says of the objects that we write: their fields, and which must be there.

The standard is https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html; its schema has
112 kB, of which this is the part we use.  Objects are closed, but for property bags.
"""

from __future__ import annotations

LEVEL = {"none", "note", "warning", "error"}
TEXTS = {"text": str, "markdown": str}

OBJECTS = {
    "log": {"$schema": str, "version": {"2.1.0"}, "runs": ["run"]},
    "run": {
        "tool": "tool",
        "columnKind": {"utf16CodeUnits", "unicodeCodePoints"},
        "originalUriBaseIds": {str: "artifactLocation"}.items(),
        "invocations": ["invocation"],
        "results": ["result"],
    },
    "tool": {"driver": "component"},
    "component": {"name": str, "version": str, "rules": ["descriptor"]},
    "descriptor": {
        "id": str,
        "name": str,
        "shortDescription": "texts",
        "fullDescription": "texts",
        "help": "texts",
        "defaultConfiguration": "configuration",
        "properties": dict,
    },
    "texts": TEXTS,
    "configuration": {"level": LEVEL, "enabled": bool},
    "invocation": {
        "executionSuccessful": bool,
        "exitCode": int,
        "toolExecutionNotifications": ["notification"],
    },
    "notification": {
        "level": LEVEL,
        "message": "message",
        "locations": ["location"],
        "properties": dict,
    },
    "message": TEXTS,
    "result": {
        "ruleId": str,
        "ruleIndex": range(-1, 1000),
        "level": LEVEL,
        "message": "message",
        "locations": ["location"],
        "suppressions": ["suppression"],
        "partialFingerprints": {str: str}.items(),
        "properties": dict,
    },
    "location": {"physicalLocation": "physical", "logicalLocations": ["logical"]},
    "physical": {"artifactLocation": "artifactLocation", "region": "region"},
    "logical": {"fullyQualifiedName": str, "kind": str},
    "artifactLocation": {"uri": str, "uriBaseId": str},
    "region": {"startLine": range(1, 10**9)},
    "suppression": {"kind": {"inSource", "external"}, "justification": str},
}
REQUIRED = {
    "log": {"version", "runs"},
    "run": {"tool"},
    "tool": {"driver"},
    "component": {"name"},
    "descriptor": {"id"},
    "texts": {"text"},
    "invocation": {"executionSuccessful"},
    "notification": {"message"},
    "message": {"text"},
    "result": {"message"},
    "physical": {"artifactLocation"},
    "region": {"startLine"},
    "suppression": {"kind"},
}


def check(value, kind="log", at="$"):
    """Check that a value is of a kind of the standard.

    Raises:
      AssertionError: it is not; the message says where.
    """
    match kind:
        case str():
            fields = OBJECTS[kind]
            assert isinstance(value, dict), f"{at} is no object"
            assert value.keys() <= fields.keys(), f"{at} has {value.keys() - fields.keys()}"
            missing = REQUIRED.get(kind, set()) - value.keys()
            assert not missing, f"{at} lacks {missing}"
            for name, each in value.items():
                check(each, fields[name], f"{at}.{name}")
        case [each]:
            assert isinstance(value, list), f"{at} is no array"
            for index, item in enumerate(value):
                check(item, each, f"{at}[{index}]")
        case type():
            assert type(value) is kind, f"{at} is of type {type(value).__name__}"
        case set() | range():
            assert type(value) is not bool and value in kind, f"{at} is {value!r}"
        case _:
            ((_, each),) = kind
            for name, item in value.items():
                check(item, each, f"{at}[{name!r}]")
