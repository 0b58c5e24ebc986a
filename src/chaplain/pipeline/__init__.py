"""The data pipeline: streams of a journal in Spark."""

from chaplain.pipeline.land import fold, land, table, table_path
from chaplain.pipeline.session import local_session
from chaplain.pipeline.source import register
from chaplain.pipeline.verify import find_breaks, verify

__all__ = ["find_breaks", "fold", "land", "local_session", "register", "table", "table_path", "verify"]
