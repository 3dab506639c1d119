"""Export: the log up to the stored offsets as files, whose manifest is a row in the ledger; and reading them back."""
