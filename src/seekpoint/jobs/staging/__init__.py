"""Who stages on this machine: this process, or several."""
