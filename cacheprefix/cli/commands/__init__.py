"""The commands of ``cacheprefix``, a module each with ``register(app)``."""
