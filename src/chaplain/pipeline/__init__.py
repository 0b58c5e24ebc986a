"""The data pipeline: streams of a journal in Spark.

Users call the names below. The modules, in reading order:

- Reading: `source/offset_index` or `source/live`, `source/rows`, `source/backends`, `data_source`. Writing: `sink/`.
- Tables: `tables`, `landing/land`, `landing/compact`, `landing/fold`.
- Verification of logs: `verification/verify` distributes the checks of `chaplain.verification`. There, in order:
  `header_scan`, `chain_selection`, `plan`, `record_reader`, `checker` with `batches` (the work of a task),
  `proof_segments` (joining the results), `manifest`.
- Verification of tables: `verification/table_check`, `verification/table_proof`. Proofs of rows:
  `landing/tree_copy`, `landing/row_proof`.
- Reports: `reporting/report`, `reporting/page`, `reporting/plots`.
"""

from chaplain.pipeline.data_source import offsets_behind_latest, register
from chaplain.pipeline.landing.fold import fold
from chaplain.pipeline.landing.land import land
from chaplain.pipeline.landing.row_proof import prove_row
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
    "offsets_behind_latest",
    "prove",
    "prove_row",
    "register",
    "report",
    "table",
    "table_path",
    "verify",
]
