"""Other images from images: what `Manifest.subset`, `filter`, `split`, `concat`, `mix` and the
changes of classes do. Functions take and return tables of images, such as a `Manifest`.
"""
