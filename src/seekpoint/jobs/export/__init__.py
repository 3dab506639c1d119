"""Export: writes the log up to the stored offsets to files listed in the ledger's manifest, and reads them back."""

from seekpoint.jobs.export.archive import Archive, ArchivedReader
from seekpoint.jobs.export.export import Export, Exported, Writer
from seekpoint.jobs.export.manifest import Entry, Written

__all__ = ["Archive", "ArchivedReader", "Entry", "Export", "Exported", "Writer", "Written"]
