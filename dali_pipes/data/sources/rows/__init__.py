"""From files to rows of a manifest: reads headers in several processes, reuses those of earlier
scans, and checks the objects of images.
"""
