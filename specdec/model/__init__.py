"""What runs a model: the interface, the models behind it, loading, caches and the batching engine."""
