"""dali-pipes demo: sets of drawn images to try things out with; `objects` draws shapes with boxes,
masks and captions, and `data/demo.py` the classes that a small network learns.
"""
