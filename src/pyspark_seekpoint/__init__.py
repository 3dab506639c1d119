"""Makes ``spark.read.format("seekpoint")`` known: Spark imports each module ``pyspark_*`` and takes its DefaultSource.

Spark does that once in a session. A module that cannot be imported then hides all such sources, with only a warning in
the log: so this one imports nothing that could be missing, and the source's own imports wait until it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, DataSourceStreamWriter
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    from seekpoint.jobs.spark.source import Planned


class DefaultSource(DataSource):
    """Records of Kafka between two positions, the ledger's tables, and a stream's sink: ``docs/spark/source.md``.

    :meth:`schema`, which Spark calls when a DataFrame is made, plans what is read; the source is pickled with that
    plan, and each query on the DataFrame uses it.
    """

    _planned: Planned | None = None

    @classmethod
    def name(cls) -> str:
        """The name for ``format()``."""
        return "seekpoint"

    def schema(self) -> StructType | str:
        """The columns. Raises ConfigError for wrong options, and what asking the ledger and the brokers raises."""
        from seekpoint.jobs.spark.read_plan import PLAN  # noqa: PLC0415 -- see above
        from seekpoint.jobs.spark.source import planned  # noqa: PLC0415 -- see above

        self._planned = planned(self.options)
        self.options.pop(PLAN, None)  # it may be long, and the options are sent to each task
        return self._planned.schema()

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 -- ours is the only one
        """The reader of what was planned. Raises ConfigError for given columns, because the options determine them."""
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
