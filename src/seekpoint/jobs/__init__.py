"""Jobs over a group's committed offsets: reload, batch, export, verify."""
