"""TensorFlow's tf.data on the CPU."""
