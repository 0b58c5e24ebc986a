"""Makes `format("chaplain")` known to Spark without a call of `register`.

PySpark looks for modules named `pyspark_*` in the interpreter of its driver, and registers the `DefaultSource` of each.
"""

try:
    from chaplain.pipeline.data_source import ChaplainSource as DefaultSource
except ImportError:  # without the extra `spark` there is no source, and those of other packages must still be found
    pass
else:
    __all__ = ["DefaultSource"]
