"""The node agent: samples its node and answers whoever may ask."""
