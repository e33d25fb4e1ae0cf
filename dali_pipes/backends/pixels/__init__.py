"""From decoded pixels to finished images, the same for every backend."""
