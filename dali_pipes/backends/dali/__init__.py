"""DALI: its graph, the inputs of the graph, and how images are decoded.

`backend.py` builds the pipeline and delivers batches, `feed.py` passes the plan to it, and
`graph.py` holds the operators. `decoding.py` decides between regions and whole images, and
`routes.py` which decoder takes an image.
"""
