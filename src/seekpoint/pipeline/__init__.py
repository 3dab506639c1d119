"""The declaration of a pipeline: topics, codecs, sinks or a handler, and failure policy. Needs no server."""
