"""tf.data that resizes in a map without num_parallel_calls, and after it has no prefetch."""

import numpy as np
import tensorflow as tf

images = np.random.randint(0, 255, (512, 128, 128, 3), dtype=np.uint8)
labels = np.random.randint(0, 10, 512)


def prepare(image, label):
    image = tf.cast(image, tf.float32) / 255
    for size in (512, 64, 512, 64):
        image = tf.image.resize(image, (size, size))
    return image, label


dataset = tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(512).map(prepare).batch(32)

model = tf.keras.Sequential([tf.keras.layers.Flatten(), tf.keras.layers.Dense(10)])
model.compile("sgd", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
model.fit(dataset, epochs=1000, verbose=0)
