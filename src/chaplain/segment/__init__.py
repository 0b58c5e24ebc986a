"""The format of logs on disk, as pure functions over bytes: the runtime, the simulator and Spark share it.

Read in this order: `layout` (sizes and checksums), `header`, `record`, `pack`, then `write`, `scan`, `survey` (many
segments), `verdicts` (offsets of batches), `read` (which records are agreed), `arrow`, and `files`, the only module
that opens a file.
The byte tables are in docs/data-on-disk.md.
"""
