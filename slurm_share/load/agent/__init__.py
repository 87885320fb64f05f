"""The node agent: samples its node and answers permitted callers."""
