"""Makes ``spark.read.format("seekpoint")`` known: Spark imports each module ``pyspark_*`` and takes its DefaultSource.

Spark does that once in a session. If a module cannot be imported, Spark finds none of them and only logs a warning. So
this module imports nothing that could be missing; the source's other imports wait until it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, DataSourceStreamWriter
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    from seekpoint.jobs.spark.source import Planned


class DefaultSource(DataSource):
    """The source and sink ``seekpoint`` for records and for the ledger's tables: ``docs/spark/source.md``.

    Spark calls :meth:`schema` when a DataFrame is made; that plans the read. The source is pickled with the plan, which
    each query on the DataFrame uses.
    """

    _planned: Planned | None = None

    @classmethod
    def name(cls) -> str:
        """The name for ``format()``."""
        return "seekpoint"

    def schema(self) -> StructType | str:
        """The columns. Raises ConfigError for wrong options, and the errors of ledger and brokers."""
        from seekpoint.jobs.spark.read_plan import PLAN  # noqa: PLC0415 -- see above
        from seekpoint.jobs.spark.source import planned  # noqa: PLC0415 -- see above

        self._planned = planned(self.options)
        self.options.pop(PLAN, None)  # it may be long, and the options are sent to each task
        return self._planned.schema()

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 -- ours is the only one
        """The reader of the planned read. Raises ConfigError for given columns: the options determine them."""
        from seekpoint.errors import ConfigError  # noqa: PLC0415 -- see above

        planned, self._planned = self._planned, None
        if planned is None:
            raise ConfigError("the columns follow from the options: leave .schema(...) out")
        return planned.reader()

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 -- Spark's name
        """The reader of a stream by the same options. Raises ConfigError for options that a stream does not take."""
        from seekpoint.jobs.spark.stream import stream_reader  # noqa: PLC0415 -- see above

        return stream_reader(self.options, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 -- Spark's
        """The writer of a stream's rows. Raises ConfigError for options and columns that it does not take."""
        from seekpoint.jobs.frames.stream_writer import stream_writer  # noqa: PLC0415 -- see above

        return stream_writer(self.options, schema, overwrite=overwrite)
