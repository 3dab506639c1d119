"""What a pipeline declares: topics, codecs, sinks or a handler, and its failure policy. Needs no server."""
