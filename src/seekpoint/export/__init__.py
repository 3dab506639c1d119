"""Export: the log up to the stored offsets as files, whose manifest is a row in the ledger; and reading them back."""

from seekpoint.export.archive import Archive
from seekpoint.export.chained import ChainedReader, chained
from seekpoint.export.job import Export, Exported
from seekpoint.export.manifest import Entry, Written

__all__ = ["Archive", "ChainedReader", "Entry", "Export", "Exported", "Written", "chained"]
