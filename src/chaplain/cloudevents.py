"""CloudEvents 1.0 in binary mode: the attributes are headers of the message, the data is its value.

The names are those of the Kafka protocol binding (https://github.com/cloudevents/spec, kafka-protocol-binding.md, 3.2):
`ce_` and the attribute's name, but `content-type` for `datacontenttype`. Programs that copy headers between Kafka and
chaplain therefore change nothing.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from datetime import datetime

from chaplain.errors import Misused

PREFIX = "ce_"
CONTENT_TYPE = "content-type"
VERSION = "1.0"
_NAME = re.compile(r"[a-z0-9]+")


def headers_of(
    type: str,  # noqa: A002  the attribute's name
    source: str,
    *,
    id: str | None = None,  # noqa: A002  likewise
    time: datetime | str | None = None,
    subject: str | None = None,
    datacontenttype: str | None = None,
    **extensions: str,
) -> dict[str, bytes]:
    """Return the headers of an event. Without an `id`, it gets a random one."""
    if isinstance(time, datetime):
        if time.tzinfo is None:
            raise Misused("the time of an event needs a time zone: datetime.now(UTC)")
        time = time.isoformat()
    given = {"specversion": VERSION, "id": id or str(uuid.uuid4()), "type": type, "source": source}
    optional = {"time": time, "subject": subject, **extensions}
    attributes = {**given, **{name: value for name, value in optional.items() if value is not None}}
    for name, value in [*attributes.items(), (CONTENT_TYPE.replace("-", ""), datacontenttype or "x")]:
        if not _NAME.fullmatch(name) or not isinstance(value, str) or not value:
            raise Misused(
                f"an attribute has a name of small letters and digits and a text that is not empty: {name}={value!r}"
            )
    headers = {PREFIX + name: value.encode() for name, value in attributes.items()}
    return headers if datacontenttype is None else {**headers, CONTENT_TYPE: datacontenttype.encode()}


def attributes_of(headers: Mapping[str, bytes]) -> dict[str, str] | None:
    """Return the attributes of the event that a message's headers describe; None if the message is no CloudEvent."""
    if PREFIX + "specversion" not in headers:
        return None
    found = {
        name.removeprefix(PREFIX): value.decode("utf-8", "replace")
        for name, value in headers.items()
        if name.startswith(PREFIX)
    }
    if CONTENT_TYPE in headers:
        found["datacontenttype"] = headers[CONTENT_TYPE].decode("utf-8", "replace")
    return found
