"""The data pipeline: streams of a journal in Spark.

Read in this order.
Rows: `index` or `live`, `rows`, `origin`, `source`, `sink`. Tables: `tables`, `land`, `compact`, `fold`.
Proofs: `walk` (heads of files), `ledger` (messages), `plan`, `parts` and `checker` with `batches` (what a task does),
`runs` (how results join), `verify`, `manifest`; of tables `table_check`, `table_proof`.
Pages: `report`, `report_page`, `plots`.
"""

from chaplain.pipeline.data_source import register
from chaplain.pipeline.landing.fold import fold
from chaplain.pipeline.landing.land import land
from chaplain.pipeline.reporting.report import report
from chaplain.pipeline.session import local_session
from chaplain.pipeline.tables import table, table_path
from chaplain.pipeline.verification.compress import Broken, compress
from chaplain.pipeline.verification.verify import find_breaks, prove, verify

__all__ = [
    "Broken",
    "compress",
    "find_breaks",
    "fold",
    "land",
    "local_session",
    "prove",
    "register",
    "report",
    "table",
    "table_path",
    "verify",
]
