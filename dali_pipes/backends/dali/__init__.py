"""DALI: its graph, the inputs of the graph, and how images are decoded.

`backend.py` builds the pipeline and delivers batches, `feed.py` passes the plan to it, `graph.py`
and `augment.py` hold the operators, and `decoding.py` decides between regions and whole images.
"""
