"""gristmill: an inference engine and serving stack that knows exactly what every request cost."""

__version__ = "0.1.0"
